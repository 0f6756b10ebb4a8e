/* memory_needs.h: what a run's memory comes to, as numbers: inside the trainer room only.
 *
 * Where the classes of the state live, what that takes in each place, and what passes need. Filled in by
 * state_plan.c and work_memory.c before anything is taken; kept, so that the work area can be taken anew
 * with another micro-batch. */
#ifndef HY_PLAN_NEEDS_H
#define HY_PLAN_NEEDS_H

#include "hybrid_types.h"

/* Where the classes of the state live and how they pass through the device. */
typedef struct hy_state_choice {
    hy_place weights; /* that passes use */
    hy_place master;  /* where passes use a rounded copy */
    hy_place grads, optim;
    int32_t ring_depth, resident;
} hy_state_choice;

/* Bytes of a choice. */
typedef struct hy_state_need {
    uint64_t device;     /* classes that live there */
    uint64_t rings;      /* what the others pass through */
    uint64_t step_rings; /* of these, what Predict does not need: gradients and optimizer state */
    uint64_t pinned, disk;
    uint64_t staging; /* pinned: between disk and device */
} hy_state_need;

/* All of it. */
typedef struct hy_memory_needs {
    uint64_t activations, workspace, data; /* of the work area */
    uint64_t eval;                         /* of it, the most that evaluation uses */
    uint64_t kept;                         /* what the predictor keeps */
    hy_place kept_place;
    uint64_t host, disk, staging; /* all that is pinned, on disk, and pinned between the two */
    hy_state_choice choice;
    hy_state_need state;
} hy_memory_needs;

#endif
