/* run_state.h: what a run knows from step to step: progress, schedule, figures, status.
 *
 * hy_progress is restored from a checkpoint; the rest belongs to a session. Inside the trainer
 * module only. */
#pragma once

#include "base/error.h"
#include "base/text.h"
#include "config/derived.h"
#include "engine/engine.h"
#include "optim/schedule.h"
#include "phases/confidence.h"
#include "phases/divergence.h"
#include "phases/guard.h"
#include "phases/machine.h"
#include "report/rank_figures.h"
#include <stdatomic.h>

#define HY_LOSS_TAIL 32 /* steps over which the final training loss is averaged */

/* The lowest held-out losses of a run, all of the same sequences. NaN and -1: none yet. */
typedef struct hy_best {
    double last; /* of the last validation */
    double loss; /* the lowest, */
    int64_t step;
    double saved_loss; /* the lowest of those that were saved as they were validated, */
    int64_t saved_step;
    double mark;                   /* the next one must be lower than this by early_stop_delta, */
    int64_t stale;                 /* and how many in a row were not */
    int64_t sequences, stride, of; /* which they are of: every stride-th of so many; 0: of none */
} hy_best;

#define HY_NO_BEST                                                                                 \
    ((hy_best){                                                                                    \
        .last = NAN, .loss = NAN, .step = -1, .saved_loss = NAN, .saved_step = -1, .mark = NAN})

/* What prediction has done. */
typedef struct hy_jump_figures {
    double steps;         /* optimizer steps that accepted jumps stand for */
    int64_t streak;       /* line: jumps accepted in a row */
    bool is_residual_due; /* a jump was made, and its residual is not measured yet */
    double residual_cosine, residual_length; /* measured in this step; NaN: not */
} hy_jump_figures;

/* What paired tests have cost and shown. */
typedef struct hy_fork_figures {
    double spent;      /* their compute, in full steps */
    double gain_steps; /* what jumps gained in them, in optimizer steps */
    int64_t next;      /* no test begins before this optimizer step */
    int64_t wait;      /* steps between this test and the next */
} hy_fork_figures;

typedef struct hy_phase_figures {
    int64_t steps[HY_PHASE_COUNT];
    double seconds[HY_PHASE_COUNT], wait[HY_PHASE_COUNT];
    int64_t bytes_moved[HY_PHASE_COUNT];
} hy_phase_figures;

/* How far the run is: what a checkpoint restores, with the rows and hy_engine_progress. */
typedef struct hy_progress {
    int64_t step;      /* optimizer steps done */
    int64_t sequences; /* training sequences used: the data cursor */
    int64_t tokens;    /* counted targets trained on */
    double spent; /* compute in units of a full step; a forward-only pass over as much costs 1/3 */
    double seconds; /* spent in steps, earlier sessions included */
    hy_phase_state machine;
    hy_divergence divergence;
    hy_loss_bound bound;
    hy_guard guard;
    hy_confidence confidence;
    hy_jump_figures jumps;
    hy_fork_figures forks;
    double loss_tail[HY_LOSS_TAIL]; /* ring of the last losses */
    double val_loss;                /* NaN: none yet */
    int64_t val_step;
    hy_best best;
    hy_phase_figures phases;
} hy_progress;

#define HY_FORK_SEQUENCES 64

/* A running paired test: the arm with jumps is done, the run continues without jumps; both are
 * compared at a later step. */
typedef struct hy_fork {
    bool is_open;
    int64_t compare_at;             /* optimizer step */
    int64_t first;                  /* held-out sequences of the comparison */
    double with[HY_FORK_SEQUENCES]; /* mean loss of each after the arm with jumps */
} hy_fork;

/* Steering: micro-batch sizes that are tested for speed, and the time of the next growth. */
typedef struct hy_batch_trial {
    int64_t batch;
    double seconds; /* of its fastest step */
} hy_batch_trial;

typedef struct hy_steering {
    hy_batch_trial trial[3];
    int trials, at, steps; /* how many, which, steps made of it; trials 0: none are going on */
    int64_t patience, grow_at;
    bool is_begun;
    double first_share;        /* of the budget, as it was planned */
    bool is_at_end;            /* a cheaper plan was taken already */
    int near_end;              /* steps in a row in which the machine was out of memory */
    bool is_saved_from_system; /* the run ends between steps, on all ranks */
} hy_steering;

/* Where training's sequences come from. */
typedef struct hy_run_data {
    hy_dataset *set;
    hy_loader *loader;
    double waited; /* of loaders, when the step began */
    /* Hashes of the files and of the held-out files; 0: there are none, or they are not needed. */
    uint64_t hash, val_hash;
} hy_run_data;

/* How the run goes: how long, by which rate, through which phases. */
typedef struct hy_loop_state {
    hy_schedule schedule;
    hy_phase_rules rules;
    hy_divergence_limits limits;
    hy_regime regime;
    int64_t steps_total; /* budget: compute of this many full steps */
    hy_fork fork;
    hy_arena fork_state; /* host copy of the rows that a fork restores */
    bool is_in_fork;     /* running the arm with jumps */
    bool is_validation_due;
    bool is_rest_owed; /* work after the last step (validation, paired test) was interrupted */
    bool is_closed;    /* the closing validation was made */
} hy_loop_state;

/* Speeds and waiting, as far as they are accounted for. */
typedef struct hy_throughput {
    double recent; /* tokens per second, smoothed */
    int64_t steps; /* that it was smoothed over */
    double stream_waited;
    uint64_t bytes_accounted;
    double step_seconds; /* of the last optimizer step */
} hy_throughput;

/* What can be done with it. */
typedef enum hy_life {
    HY_LIFE_READY,    /* between steps, or in a step without changes yet: it can be saved */
    HY_LIFE_PLAN,     /* made by hy_trainer_plan: nothing is taken */
    HY_LIFE_CHANGING, /* in an update or a jump: the state is between two steps */
    HY_LIFE_FAILED    /* one of them failed: the run can only continue from a checkpoint */
} hy_life;

/* What has happened to it, and what is kept for the worst. */
typedef struct hy_run_status {
    hy_life life;
    hy_error failure;      /* of HY_LIFE_FAILED */
    hy_error deferred;     /* the current step will end with it; HY_OK: none */
    void *reserve;         /* host memory for the last save; NULL: given back */
    int64_t batch_changes; /* in this session */
    int64_t saved_step;    /* of its newest checkpoint; -1: none */
    bool is_save_owed;     /* it was due while the loss was too high */
    double save_clock;     /* when one was made or tried last, or the run began */
    double save_seconds;   /* that it took; 0: none was made yet */
    int64_t best_step;     /* that OUT/best leads to; -1: nowhere, -2: not known */
    bool is_best_told;     /* the link cannot be made, and that was said */
    atomic_bool stop_requested;
} hy_run_status;

/* What ranks have told each other at the begin of the last step. */
typedef struct hy_agreed {
    bool stops, saves, keeps_best;
    bool is_short;       /* of memory: one of them */
    uint64_t sent;       /* bytes that had left this rank when the step ended, */
    double link_seconds; /* and what exchanges had taken */
    /* Figures of each rank in the last step, for the record. */
    double figures[HY_RANK_FIGURES][HY_RANKS_MOST];
} hy_agreed;

/* Ranks that a plan is made for, and that nobody has started. */
typedef struct hy_planned_ranks {
    int32_t count;  /* 0: none are planned; else 2 or more */
    bool has_cards; /* one for each; else they share one, or compute on the CPU */
} hy_planned_ranks;

/* The run as one of several ranks. */
typedef struct hy_ranks_state {
    bool is_lent; /* the team belongs to a caller, who closes it */
    hy_planned_ranks planned;
    hy_agreed agreed;
    hy_rank_figures figures; /* of this session; rank 0 has them */
} hy_ranks_state;

typedef struct hy_held_out_figures {
    double ngram_loss;   /* of an n-gram model on the same data; NaN: not computed */
    double raw_val_loss; /* of the weights without their average; NaN: there is no average */
    int64_t val_tokens;  /* of the last validation */
} hy_held_out_figures;
