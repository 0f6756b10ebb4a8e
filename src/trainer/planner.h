/* planner.h: chooses what a run keeps where: the fastest plan that fits.
 *
 * A choice is a value for everything that may be open: places of the state's classes, what is recomputed,
 * the micro-batch, rings, layers that stay. The problem says which of them are open, what memory there
 * is and how fast the machine is; two functions of the problem tell what a choice needs, so that the
 * figures come from the code that takes the memory later. hy_plan_choose is a pure function of that: all
 * choices of a fixed set are looked at, so more memory never gives a slower plan, and what the user fixed
 * stays as it is. */
#ifndef HY_TRAINER_PLANNER_H
#define HY_TRAINER_PLANNER_H

#include <stdbool.h>

#include "hybrid.h"
#include "memory/rates.h"
#include "model/unit.h"

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
    bool updates_on_gather;
    int32_t ring_depth, resident_units;
} hy_plan_choice;

/* Which of them may be chosen; the others stay as `base` has them. */
typedef struct hy_plan_open {
    bool batch, recompute, recompute_layers, loss_chunks;
    bool state[HY_PLAN_STATES];
    bool activations, predictor, update, ring_depth, resident_units;
} hy_plan_open;

/* What the passes of a micro-batch need and take. */
typedef struct hy_plan_work {
    uint64_t device;          /* activations, workspace, logits, data */
    uint64_t pinned;          /* activations that wait on the host */
    double forward, backward; /* seconds of computing, nothing waited for */
} hy_plan_work;

/* What the state needs where, and what of it passes through the device in one walk over all units. */
typedef struct hy_plan_state {
    uint64_t device, pinned, disk;
    uint64_t bytes[HY_PLAN_STATES];    /* all of a class, wherever it is */
    uint64_t streamed[HY_PLAN_STATES]; /* comes from the host or from disk */
    uint64_t kept;                     /* by the predictor */
} hy_plan_state;

typedef struct hy_plan_problem {
    int32_t seq, layers;
    int64_t step_sequences;          /* of an optimizer step */
    int64_t least_batch, most_batch; /* bounds of a micro-batch that is open; 0: none */
    int64_t window_steps; /* true steps between two moves of the predictor; 0: none are made */
    bool has_master;
    hy_plan_choice base; /* today's defaults, and what the user fixed */
    hy_plan_open open;
    bool keeps_batch;            /* base.batch is split only when nothing else fits */
    bool has_folder;             /* disk may be used, when nothing else fits */
    bool is_unified;             /* device and host are one memory: both count against `host` */
    uint64_t device, host, disk; /* how much there is; UINT64_MAX: no limit */
    hy_rates rates;
    void *user;
    hy_status (*work)(void *user, const hy_plan_choice *choice, hy_plan_work *out);
    void (*state)(void *user, const hy_plan_choice *choice, hy_plan_state *out);
    /* Into how many pieces the loss is cut for this many bytes of logits at a time. */
    int32_t (*chunks)(void *user, int32_t batch, uint64_t logits);
} hy_plan_problem;

typedef struct hy_plan_cost {
    double seconds; /* of an optimizer step */
    double compute; /* of them, computing */
    double update;  /* of them, for the update: at the step's end, or added to the first forward */
    double wait;    /* seconds - compute */
    double tokens_per_second;
    uint64_t up, down;                /* bytes between host and device in a step */
    uint64_t disk_read, disk_written; /* in a step */
} hy_plan_cost;

typedef struct hy_plan {
    bool fits;
    hy_plan_choice choice; /* the fastest that fits; the one that is least short where none does */
    hy_plan_work work;
    hy_plan_state state;
    hy_plan_cost cost;
    uint64_t device, host, disk; /* needed in all */
    uint64_t device_short, host_short, disk_short;
    int64_t looked_at; /* choices */
} hy_plan;

/* HY_OK with fits false when nothing does; other statuses come from the problem's functions. */
hy_status hy_plan_choose(const hy_plan_problem *problem, hy_plan *out);

/* Whether anything fits, without looking for the fastest: of the leanest choices the one that needs least
 * of the device, or of the host. */
hy_status hy_plan_leanest(const hy_plan_problem *problem, bool is_about_device, hy_plan *out);

/* One choice, whether it fits or not. */
hy_status hy_plan_evaluate(const hy_plan_problem *problem, const hy_plan_choice *choice,
                           hy_plan *out);

/* planner_cost.c: how long a step takes. */
void hy_plan_cost_of(const hy_plan_problem *problem, const hy_plan_choice *choice,
                     const hy_plan_work *work, const hy_plan_state *state, hy_plan_cost *out);

/* planner_reasons.c: why, one sentence per choice. */
typedef struct hy_plan_reasons {
    int32_t count;
    char text[HY_PLAN_REASONS][HY_PLAN_TEXT];
} hy_plan_reasons;
hy_status hy_plan_explain(const hy_plan_problem *problem, const hy_plan *plan,
                          hy_plan_reasons *out);

#endif
