/* ledger.h: the placement table, planned and measured.
 *
 * The plan writes what each class should take in each phase; the arenas report what becomes live and
 * what is released; the ledger keeps the most that was live, per class and in all, for each phase. One
 * ledger per run. Only the thread that runs the loop writes it. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_cell {
    hy_place place;
    hy_dtype dtype;
    uint64_t planned;  /* bytes */
    uint64_t measured; /* the most that was live while this phase ran */
} hy_cell;

typedef struct hy_ledger {
    hy_cell cell[HY_CLASS_COUNT][HY_PHASE_SLOTS];
    uint64_t live[HY_CLASS_COUNT][HY_PLACE_COUNT];
    uint64_t live_in[HY_PLACE_COUNT];              /* sum over classes */
    uint64_t peak_in[HY_PLACE_COUNT];              /* since the start */
    uint64_t phase_peak[HY_PHASE_SLOTS];           /* device bytes, while the phase ran */
    uint64_t most[HY_CLASS_COUNT][HY_PLACE_COUNT]; /* since a phase was last entered: of one step */
    hy_phase phase;
    hy_place refused; /* where an arena's memory was refused last; HY_NOWHERE: nowhere */
} hy_ledger;

/* Plans a class for one phase. */
void hy_ledger_plan(hy_ledger *ledger, hy_class cls, hy_phase phase, hy_place place, hy_dtype dtype,
                    uint64_t bytes);
/* Device bytes planned for a phase. */
uint64_t hy_ledger_planned(const hy_ledger *ledger, hy_phase phase, hy_place place);

void hy_ledger_take(hy_ledger *ledger, hy_class cls, hy_place place, uint64_t bytes);
void hy_ledger_give(hy_ledger *ledger, hy_class cls, hy_place place, uint64_t bytes);

/* What is live now counts for `phase` from here on. */
void hy_ledger_enter(hy_ledger *ledger, hy_phase phase);
