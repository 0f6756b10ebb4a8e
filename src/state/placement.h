/* placement.h: where all state of a run is, and how its steps are split.
 *
 * A choice has a value for everything that may be open: micro-batch, recomputation, places,
 * rings, resident layers. The planner makes it (src/plan); rows.h derives from it the place and
 * the bytes of each row. It is a value: copied, compared and passed on. */
#pragma once

#include "hybrid.h"
#include "model/model.h"

/* The state's classes, in the order of hy_class. */
enum { HY_PLAN_WEIGHTS, HY_PLAN_MASTER, HY_PLAN_GRADS, HY_PLAN_OPTIM, HY_PLAN_STATES };

typedef struct hy_plan_choice {
    int32_t batch, accum; /* sequences per micro-batch, micro-batches per step */
    hy_recompute recompute;
    int32_t recompute_layers; /* that do it; 0: all */
    int32_t loss_chunks;      /* 0: as the model has it */
    int32_t mlp_chunks;       /* 0 or 1: whole mlps */
    hy_place state[HY_PLAN_STATES];
    hy_place activations;
    hy_place predictor;          /* place of its state: pinned or disk */
    bool prediction_awaits_test; /* until then it uses no memory */
    bool
        keeps_update_pending; /* the next step applies the update, unit by unit (engine/update.c) */
    int32_t ring_depth, resident_units;
} hy_plan_choice;

/* Does any state stream from the host or from disk? */
static inline bool hy_choice_streams(const hy_plan_choice *c) {
    for (int i = 0; i < HY_PLAN_STATES; i++) {
        if (c->state[i] == HY_PINNED || c->state[i] == HY_DISK) return true;
    }
    return false;
}

/* Nothing streams, and activations stay on the device. */
static inline bool hy_choice_is_plain(const hy_plan_choice *c) {
    return !hy_choice_streams(c) && c->activations == HY_DEVICE;
}

/* The needs of the state's rows (rows.h), and the bytes that stream through the device in one
 * walk over all units. */
typedef struct hy_plan_state {
    uint64_t device;            /* rows that live there */
    uint64_t rings;             /* on the device: rings of streamed rows, and resident layers */
    uint64_t step_rings;        /* part of rings that only steps need */
    uint64_t work_rings;        /* in the work area: rings and scratch memory of the predictor */
    uint64_t pinned;            /* streamed rows in pinned memory, without the predictor's */
    uint64_t kept, kept_pinned; /* state of the predictor, and its part in pinned memory */
    uint64_t disk, staging;     /* bytes in the file, and pinned buffers for it */
    uint64_t moved;             /* the optimizer's state on the host in Predict */
    uint64_t bytes[HY_PLAN_STATES];    /* all bytes of a class, wherever they are */
    uint64_t streamed[HY_PLAN_STATES]; /* bytes that stream from the host or from disk */
    uint64_t frozen, frozen_streamed;  /* frozen weights, which an update does not read */
    uint64_t forward_only;             /* frozen weights that stream only in forward */
    uint64_t fp8, fp8_streamed;        /* the blocks' fp8 copy, not counted above */
    uint64_t blocks_streamed;          /* the blocks' weights, which fp8 passes do not read */
    /* with several ranks: the fp8 copy, which every pass computes again */
    uint64_t fp8_gathered;
} hy_plan_state;
