/* placement.h: where everything that a run keeps lives, and how its steps are split.
 *
 * A choice has a value for everything that may be open: micro-batch, recomputation, places, rings,
 * layers that stay on the device. The planner makes one (src/plan); rows.h says what it means for
 * each row and how many bytes it needs. A value: copied, compared, handed on. */
#pragma once

#include "hybrid.h"
#include "model/model.h"

/* The state's classes, in the order of hy_class. */
enum { HY_PLAN_WEIGHTS, HY_PLAN_MASTER, HY_PLAN_GRADS, HY_PLAN_OPTIM, HY_PLAN_STATES };

typedef struct hy_plan_choice {
    int32_t batch, accum; /* sequences of a micro-batch, micro-batches of a step */
    hy_recompute recompute;
    int32_t recompute_layers; /* that do it; 0: all */
    int32_t loss_chunks;      /* 0: as the model has it */
    hy_place state[HY_PLAN_STATES];
    hy_place activations;
    hy_place predictor; /* of what it keeps: pinned or disk */
    bool
        prediction_is_disabled; /* until a paired fork shows that it pays: nothing is kept for it */
    bool updates_on_gather;
    int32_t ring_depth, resident_units;
} hy_plan_choice;

/* Does any state come from the host or from disk? */
static inline bool hy_choice_streams(const hy_plan_choice *c) {
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        if (c->state[i] == HY_PINNED || c->state[i] == HY_DISK) return true;
    }
    return false;
}

/* What the rows of the state need (rows.h), and what of it passes through the device in one walk
 * over all units. */
typedef struct hy_plan_state {
    uint64_t device;            /* rows that live there */
    uint64_t rings;             /* on the device: what the others pass through, layers that stay */
    uint64_t step_rings;        /* of rings, what Predict does without */
    uint64_t work_rings;        /* and scratch of what the predictor keeps: in the work area */
    uint64_t pinned;            /* of rows that live there, what travels; not the predictor's */
    uint64_t kept, kept_pinned; /* by the predictor, and of that in pinned memory */
    uint64_t disk, staging;     /* in the file, and pinned between it and the device */
    uint64_t moved;             /* on the host: the optimizer's state in Predict */
    uint64_t bytes[HY_PLAN_STATES];    /* all of a class, wherever it is */
    uint64_t streamed[HY_PLAN_STATES]; /* comes from the host or from disk */
    uint64_t frozen, frozen_streamed;  /* of the weights: no part of an update */
    uint64_t forward_only;             /* of these: backward does not come to them */
    uint64_t fp8, fp8_streamed;        /* the blocks' weights in fp8, not counted in the above, */
    uint64_t blocks_streamed; /* and what passes do without then: of the weights, the blocks' */
    uint64_t fp8_gathered;    /* of several ranks: the same in fp8, made anew by every pass */
} hy_plan_state;
