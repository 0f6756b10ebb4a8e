/* plan.h: the plan of a run, as a value: all decisions and what follows from them.
 *
 * A choice has a value for everything that can be searched: micro-batch, recomputation, places,
 * rings, resident layers. A plan is a choice with its number types, offload strategy, ZeRO
 * stage, bytes, and seconds per step. All code reads decisions from here. hy_plan_choose is a
 * pure function of a problem: what is open, how much memory there is, and how fast the machine
 * is. It compares all choices of a fixed set: with the same micro-batch, more memory never gives a
 * slower plan. */
#pragma once

#include "hybrid.h"
#include "memory/rates.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "phases/predictor.h"
#include "plan/choose_types.h"
#include "plan/traffic.h"
#include "state/placement.h"

#define HY_BUSY_ROWS (1 << 16) /* tokens that keep any device busy; more tokens gain nothing */

/* What may be chosen; everything else stays as in `base`. */
typedef struct hy_plan_open {
    bool batch, recompute, recompute_layers, loss_chunks, mlp_chunks;
    bool state[HY_PLAN_STATES];
    bool activations, predictor, update, ring_depth, resident_units;
} hy_plan_open;

#define HY_PLAN_TYPES 3 /* types of a run: fp32, one 16-bit type, and that with fp8 */
static inline int hy_plan_index(hy_dtype dtype) {
    return dtype == HY_F32 ? 0 : dtype == HY_E4M3 ? 2 : 1;
}

/* The memory of passes: training's activations and workspace, which evaluation and the
 * predictor's rings also use at other times; and data, which all use. */
typedef struct hy_plan_work {
    hy_batch_bytes train; /* maximum over all training passes, for each figure */
    /* of all forward-only passes in the training area; with a loan, only the guard's: the maximum
     * of each figure, and activations and workspace of the largest pass */
    hy_batch_bytes eval;
    uint64_t eval_area;
    uint64_t activations, workspace, data;          /* bytes of the parts of the area */
    uint64_t rows;                                  /* tokens of the largest batch */
    uint64_t sums;                                  /* workspace of reductions; part of data */
    uint64_t caller;                                /* device bytes of a caller's own passes */
    int32_t eval_batch[HY_PLAN_TYPES], guard_batch; /* sequences of forward-only batches */
    int32_t slices; /* number of such batches that Evaluate takes through each unit at a time */
    double forward, backward; /* compute seconds of a micro-batch, without waiting */
    /* Evaluate's batch in memory that only steps need (loan.c). loan[0], loan[1]: who lends memory
     * for activations and for workspace: a row, or HY_LOAN_AREA; 0: no loan. lent: the bytes that
     * it borrows. */
    int32_t loan[2];
    hy_batch_bytes lent;
} hy_plan_work;

/* Available memory in bytes; UINT64_MAX: no limit. */
typedef struct hy_plan_limits {
    uint64_t device, host, disk;
    bool has_folder; /* disk may be used if nothing else fits */
    bool is_unified; /* device and host are one memory: both count against `host` */
} hy_plan_limits;

/* Several ranks, the wire between them, and the bytes that one rank sends. */
typedef struct hy_plan_network {
    int32_t ranks;            /* 0 or 1: one */
    const hy_plan_wire *wire; /* NULL for one rank */
    double staging;           /* bytes per second through pinned memory; 0: not used */
    hy_plan_traffic traffic;
} hy_plan_network;

/* What the planner searches: the open values, the limits, and the speed of the machine. problem.c
 * makes it from a request. */
typedef struct hy_plan_problem {
    /* plans start as a copy of it, with its types and decisions; NULL: {0} */
    const struct hy_plan *basis;
    int32_t seq, layers;
    int64_t step_sequences;          /* sequences in an optimizer step */
    int64_t least_batch, most_batch; /* limits of an open micro-batch; 0: none */
    int64_t window_steps;            /* optimizer steps between two jumps; 0: no jumps */
    double update_flops;             /* operations of the optimizer's matmuls in a step */
    double update_share;             /* update_flops as a share of the operations of passes */
    bool has_master;
    bool has_places; /* groups place units off the device; the choice decides about the others */
    bool is_fp8;     /* Full uses fp8: its passes read the blocks' quantised weights */
    bool has_reference_pass; /* one more forward pass per micro-batch */
    hy_plan_choice base; /* the defaults, and what the user fixed */
    hy_plan_open open;
    bool keeps_batch; /* base.batch is split only if nothing else fits */
    /* base.batch is kept if it fits without streaming or recomputing; otherwise the fastest is
     * searched */
    bool prefers_batch;
    bool ignores_unfit; /* a plan that does not fit may be any */
    bool is_estimate;   /* the time of the chosen plan, without margins */
    hy_plan_limits limits;
    hy_rates rates;
    hy_plan_network net;
    struct hy_sizer *sizer; /* bytes and compute time of a choice */
} hy_plan_problem;

typedef struct hy_plan_cost {
    double seconds; /* of an optimizer step */
    double compute; /* of them, computing */
    double update;  /* of these, the update: at the step's end, or added to the first forward */
    double wait;    /* seconds - compute */
    double tokens_per_second; /* of all ranks */
    double bus, link;         /* seconds of copies and disk; seconds between ranks, of which a part
                               * overlaps with nothing */
    uint64_t sent_grads, sent_weights, sent; /* bytes to other ranks in a step */
    uint64_t up, down;                       /* bytes between host and device in a step */
    uint64_t disk_read, disk_written;        /* in a step */
} hy_plan_cost;

/* The plan. It is a value: code copies and compares it. */
typedef struct hy_plan {
    /* Decided: */
    /* the fastest that fits; if none fits, the one that lacks the least memory */
    hy_plan_choice choice;
    hy_precision_level level; /* decides the types of the state */
    hy_types types;           /* including which matmuls use fp8 */
    hy_optimizer optimizer;   /* as configured, with the type of its matmuls */
    hy_predictor predictor;   /* kind none: the run has no prediction */
    /* what happens to the optimizer state in Predict, and in Evaluate if its memory is lent */
    hy_offload offload;
    int32_t zero_stage; /* with several ranks: what is sharded */
    uint64_t area;      /* least bytes of the area of passes; 0: what they need */
    /* What follows: */
    bool fits;
    hy_plan_work work;
    hy_plan_state state;
    hy_plan_cost cost;
    uint64_t device, host, disk; /* bytes needed in total */
    uint64_t device_short, host_short, disk_short;
} hy_plan;

/* Has the run a predictor? It may still wait for a paired test (choice.prediction_awaits_test). */
static inline bool hy_plan_predicts(const hy_plan *p) {
    return p->predictor.kind != HY_PREDICTOR_NONE;
}
/* Has this plan memory for Predict and Correct? */
static inline bool hy_plan_jumps(const hy_plan *p) {
    return hy_plan_predicts(p) && !p->choice.prediction_awaits_test;
}

/* Device bytes of the work area and of a caller's passes; host bytes, except those that share
 * memory with the device. */
static inline uint64_t hy_plan_work_bytes(const hy_plan_work *work) {
    return work->activations + work->workspace + work->data + work->caller;
}
static inline uint64_t hy_plan_host_bytes(const hy_plan *plan) {
    const hy_plan_state *s = &plan->state;
    return plan->work.train.host + s->pinned + s->kept_pinned + s->staging + s->moved;
}

/* Searches for the fastest choice that fits. HY_OK with fits false: nothing fits, and `out` is the
 * choice that lacks the least memory. Errors come from sizing a choice. */
hy_status hy_plan_choose(const hy_plan_problem *problem, hy_plan *out);

/* Does anything fit? Tries only the smallest choices, and takes the one that needs the least device
 * memory, or host memory. */
hy_status hy_plan_leanest(const hy_plan_problem *problem, bool is_about_device, hy_plan *out);

/* Evaluates one choice, whether it fits or not. */
hy_status hy_plan_evaluate(const hy_plan_problem *problem, const hy_plan_choice *choice,
                           hy_plan *out);

/* cost.c: how long a step takes. */
void hy_plan_cost_of(const hy_plan_problem *problem, const hy_plan_choice *choice,
                     const hy_plan_work *work, const hy_plan_state *state, hy_plan_cost *out);

/* reasons.c: adds why a plan was chosen to facts->reasons, one sentence per decision; and any other
 * reason. */
hy_status hy_plan_explain(const hy_plan_problem *problem, const hy_plan *plan,
                          hy_plan_facts *facts);
void hy_plan_reason(hy_plan_facts *facts, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The memory that a plan lacks: of the device, or else of the host, or else of the disk. */
typedef struct hy_plan_lack {
    uint64_t bytes; /* 0: none */
    const char *of;
} hy_plan_lack;
hy_plan_lack hy_plan_lacks(const hy_plan *plan);
