/* table.h: what each phase does with compute and memory, as data.
 *
 * A row says which passes a phase runs, in which precision, who borrows the memory that only steps
 * need, and whether optimizer state leaves the device. The planner counts bytes by this table, the
 * work area and the offload code follow it, and reports loop over it. Code that asks about memory
 * reads the row and never compares phases. A new phase needs a value of hy_phase with its name, a
 * row, and a letter and a colour in the command line (top_canvas.c, progress.c). If it has its own
 * precision, it also needs a setting, which hy_settings_precision reads. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

/* The passes of a phase. */
enum {
    HY_RUNS_FORWARD = 1,
    HY_RUNS_BACKWARD = 2,
    HY_RUNS_UPDATE = 4, /* of the optimizer */
    HY_RUNS_JUMP = 8    /* a predicted move of the weights */
};

/* Who uses the memory that training does not need in this phase. */
typedef enum hy_borrower {
    HY_BORROWS_NOTHING,    /* a forward-only phase then has room for the guard's batch only */
    HY_BORROWS_BATCH,      /* a larger forward-only batch */
    HY_BORROWS_BATCH_JUMP, /* that, and rings for the state of the predictor */
    HY_BORROWS_DECODER     /* keys and values of many answers, in the training area */
} hy_borrower;

/* When optimizer state that the offload strategy moved starts to come back. It is back before the
 * next update. */
typedef enum hy_return_rule {
    HY_LEAVES_NOTHING, /* it stays in place */
    HY_RETURNS_AHEAD,  /* `lookahead` batches before the phase ends */
    HY_RETURNS_AT_END /* when the phase ends, while the next step runs; it leaves only if its memory
                        * is lent */
} hy_return_rule;

typedef struct hy_phase_row {
    hy_phase phase;  /* its column in the placement table */
    unsigned passes; /* HY_RUNS_* */
    hy_phase
        precision; /* its passes compute in the types set for that phase (from Evaluate on: Full's) */
    hy_borrower borrower;
    hy_return_rule back;
} hy_phase_row;

extern const hy_phase_row hy_phase_table[HY_PHASE_COUNT];

static inline bool hy_phase_trains(const hy_phase_row *row) {
    return (row->passes & HY_RUNS_BACKWARD) != 0;
}
/* The weights change: by an optimizer step or a jump. */
static inline bool hy_phase_advances(const hy_phase_row *row) {
    return (row->passes & (HY_RUNS_UPDATE | HY_RUNS_JUMP)) != 0;
}
