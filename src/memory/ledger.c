/* ledger.c: live bytes and their peaks. See ledger.h. */
#include "memory/ledger.h"

#include <assert.h>
#include <string.h>

static void note_peaks(hy_ledger *ledger) {
    for (int place = 0; place < HY_PLACE_COUNT; place++) {
        if (ledger->live_in[place] > ledger->peak_in[place]) {
            ledger->peak_in[place] = ledger->live_in[place];
        }
    }
    uint64_t *phase_peak = &ledger->phase_peak[ledger->phase];
    if (ledger->live_in[HY_DEVICE] > *phase_peak) *phase_peak = ledger->live_in[HY_DEVICE];
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        hy_cell *cell = &ledger->cell[cls][ledger->phase];
        uint64_t live = ledger->live[cls][cell->place];
        if (live > cell->measured) cell->measured = live;
    }
}

void hy_ledger_plan(hy_ledger *ledger, hy_class cls, hy_phase phase, hy_place place, hy_dtype dtype,
                    uint64_t bytes) {
    hy_cell *cell = &ledger->cell[cls][phase];
    cell->place = place;
    cell->dtype = dtype;
    cell->planned = bytes;
}

uint64_t hy_ledger_planned(const hy_ledger *ledger, hy_phase phase, hy_place place) {
    uint64_t sum = 0;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        const hy_cell *cell = &ledger->cell[cls][phase];
        if (cell->place == place) sum += cell->planned;
    }
    return sum;
}

void hy_ledger_take(hy_ledger *ledger, hy_class cls, hy_place place, uint64_t bytes) {
    ledger->live[cls][place] += bytes;
    ledger->live_in[place] += bytes;
    if (ledger->live[cls][place] > ledger->most[cls][place]) {
        ledger->most[cls][place] = ledger->live[cls][place];
    }
    note_peaks(ledger);
}

void hy_ledger_give(hy_ledger *ledger, hy_class cls, hy_place place, uint64_t bytes) {
    assert(ledger->live[cls][place] >= bytes);
    ledger->live[cls][place] -= bytes;
    ledger->live_in[place] -= bytes;
}

void hy_ledger_enter(hy_ledger *ledger, hy_phase phase) {
    ledger->phase = phase;
    memcpy(ledger->most, ledger->live, sizeof ledger->most);
    note_peaks(ledger);
}
