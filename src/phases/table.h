/* table.h: what each phase does with compute and memory, as data.
 *
 * A row says which passes a phase runs, in whose precision, what it keeps no memory for, what may leave
 * the device meanwhile, who borrows the freed memory, and when what left must be back. The planner counts
 * bytes by it, the work area and the mover follow it, reports loop over it. Nobody compares a phase with
 * HY_PREDICT to know about memory. A new phase is a new row: whoever enters a phase hands its row over. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

/* What runs in it. */
enum {
    HY_RUNS_FORWARD = 1,
    HY_RUNS_BACKWARD = 2,
    HY_RUNS_UPDATE = 4, /* of the optimizer */
    HY_RUNS_JUMP = 8    /* a predicted move of the weights */
};

/* Who uses memory that training does not need meanwhile. */
typedef enum hy_borrower {
    HY_BORROWS_NOTHING,
    HY_BORROWS_BATCH,     /* a larger forward-only batch */
    HY_BORROWS_BATCH_JUMP /* that, and rings of what the predictor keeps */
} hy_borrower;

/* When what has left the device starts to come back; it is there before the next update. */
typedef enum hy_return_rule {
    HY_RETURNS_NEVER, /* nothing leaves */
    HY_RETURNS_AHEAD, /* `lookahead` batches before the phase ends */
    HY_RETURNS_AT_END, /* at its end, while the next step runs: the phase uses its memory until then */
} hy_return_rule;

#define HY_CLASS_BIT(cls) (1u << (cls))

typedef struct hy_phase_row {
    hy_phase phase;     /* its column in the placement table */
    unsigned passes;    /* HY_RUNS_* */
    hy_phase precision; /* its passes compute in the types of this phase */
    unsigned absent;    /* classes (HY_CLASS_BIT) that need no memory while it runs */
    unsigned leaves;    /* classes that the offload strategy may take off the device */
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
static inline bool hy_phase_keeps(const hy_phase_row *row, hy_class cls) {
    return (row->absent & HY_CLASS_BIT(cls)) == 0;
}
