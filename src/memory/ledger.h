/* ledger.h: planned and measured bytes by class, place and phase.
 *
 * The plan writes how many bytes each class should take in each phase. The arenas report which
 * bytes become live and which are released. For each phase, the ledger keeps the most bytes that
 * were live, per class and in total. There is one ledger per run; only the thread of the training
 * loop writes it. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_cell {
    hy_place place;
    hy_dtype dtype;
    uint64_t planned;  /* bytes */
    uint64_t measured; /* most bytes that were live during this phase */
} hy_cell;

typedef struct hy_ledger {
    hy_cell cell[HY_CLASS_COUNT][HY_PHASE_SLOTS];
    uint64_t live[HY_CLASS_COUNT][HY_PLACE_COUNT];
    uint64_t live_in[HY_PLACE_COUNT];    /* sum over classes */
    uint64_t peak_in[HY_PLACE_COUNT];    /* since the start */
    uint64_t phase_peak[HY_PHASE_SLOTS]; /* device bytes, during the phase */
    /* since a phase was last entered: within one step */
    uint64_t most[HY_CLASS_COUNT][HY_PLACE_COUNT];
    hy_phase phase;
    hy_place refused; /* the place where an arena's allocation failed last; HY_NOWHERE: none */
} hy_ledger;

/* Sets the planned bytes of a class for one phase. */
void hy_ledger_plan(hy_ledger *ledger, hy_class cls, hy_phase phase, hy_place place, hy_dtype dtype,
                    uint64_t bytes);
/* Planned bytes of a phase at a place. */
uint64_t hy_ledger_planned(const hy_ledger *ledger, hy_phase phase, hy_place place);

void hy_ledger_take(hy_ledger *ledger, hy_class cls, hy_place place, uint64_t bytes);
void hy_ledger_give(hy_ledger *ledger, hy_class cls, hy_place place, uint64_t bytes);

/* From now on, live bytes count for `phase`. */
void hy_ledger_enter(hy_ledger *ledger, hy_phase phase);
