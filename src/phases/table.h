/* table.h: what each phase does with compute and memory, as data.
 *
 * A row says which passes a phase runs and in which precision, which classes need no memory, which
 * classes may leave the device, who borrows the freed memory, and when those classes come back. The
 * planner counts bytes by this table, the work area and the offload code follow it, and reports
 * loop over it. Code that asks about memory reads the row and never compares phases. A new phase is
 * a new row: code that enters a phase passes its row. */
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
    HY_BORROWS_NOTHING,
    HY_BORROWS_BATCH,     /* a larger forward-only batch */
    HY_BORROWS_BATCH_JUMP /* that, and rings for the state of the predictor */
} hy_borrower;

/* When classes that left the device start to come back; they are back before the next update. */
typedef enum hy_return_rule {
    HY_RETURNS_NEVER, /* nothing leaves */
    HY_RETURNS_AHEAD, /* `lookahead` batches before the phase ends */
    HY_RETURNS_AT_END /* when the phase ends, while the next step runs */
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
