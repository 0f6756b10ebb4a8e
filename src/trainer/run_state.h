/* run_state.h: the parts of a run's state: progress, schedule, figures, status.
 *
 * A checkpoint restores hy_progress, hy_engine_progress, first_batch, and from hy_run_schedule the
 * open paired test, is_validation_due, is_validation_cut, is_rest_owed, is_closed and the length of
 * a finished warm-up. The rest belongs to one session. For trainer, custom and selftest. */
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

/* The lowest held-out losses of a run, all measured on the same sequences. NaN and -1: none yet. */
typedef struct hy_best {
    double last;        /* loss of the last validation */
    double loss;        /* the lowest loss */
    int64_t step;       /* its step */
    double saved_loss;  /* the lowest loss of a checkpoint that was validated at its step */
    int64_t saved_step; /* that checkpoint's step */
    double mark;   /* early_stop: a loss counts as lower if it is early_stop_delta below this */
    int64_t stale; /* early_stop: validations in a row that were not lower */
    /* The sequences: `sequences` of them, every stride-th of `of` held-out ones; 0: none yet. */
    int64_t sequences, stride, of;
} hy_best;

#define HY_NO_BEST                                                                                 \
    ((hy_best){                                                                                    \
        .last = NAN, .loss = NAN, .step = -1, .saved_loss = NAN, .saved_step = -1, .mark = NAN})

/* Results of prediction. */
typedef struct hy_jump_figures {
    double steps;                            /* optimizer steps that accepted jumps replaced */
    int64_t streak;                          /* line: jumps accepted in a row */
    bool is_residual_due;                    /* the residual of the last jump is not measured yet */
    double residual_cosine, residual_length; /* measured in this step; NaN: not measured */
} hy_jump_figures;

/* Cost and results of paired tests. */
typedef struct hy_fork_figures {
    double spent;      /* compute of the tests, in full steps */
    double gain_steps; /* gain of jumps in the tests, in optimizer steps */
    int64_t next;      /* no test begins before this optimizer step */
    int64_t wait;      /* steps between this test and the next */
} hy_fork_figures;

typedef struct hy_phase_figures {
    int64_t steps[HY_PHASE_COUNT];
    double seconds[HY_PHASE_COUNT], wait[HY_PHASE_COUNT];
    int64_t bytes_moved[HY_PHASE_COUNT];
} hy_phase_figures;

/* How far the run is. */
typedef struct hy_progress {
    int64_t step;      /* optimizer steps done */
    int64_t sequences; /* training sequences used: the data cursor */
    int64_t tokens;    /* counted targets trained on */
    double spent;   /* compute in full steps; a forward-only pass over the same tokens costs 1/3 */
    double seconds; /* time of all steps, including earlier sessions */
    hy_phase_state machine;
    hy_divergence divergence;
    hy_loss_bound bound;
    hy_guard guard;
    hy_confidence confidence;
    hy_jump_figures jumps;
    hy_fork_figures forks;
    double loss_tail[HY_LOSS_TAIL]; /* ring of the last losses */
    double val_loss;                /* NaN: none yet */
    hy_row_scores row_scores;       /* of that validation */
    int64_t val_step;
    hy_best best;
    hy_phase_figures phases;
} hy_progress;

#define HY_FORK_SEQUENCES 64

/* An open paired test: the arm with jumps is done, the run continues without jumps, and the two
 * are compared at a later step. */
typedef struct hy_fork {
    bool is_open;
    int64_t compare_at; /* optimizer step */
    int64_t first;      /* the first of the unseen training sequences that are compared */
    double with[HY_FORK_SEQUENCES]; /* mean loss of each sequence after the arm with jumps */
} hy_fork;

/* A micro-batch size that is tested for speed. */
typedef struct hy_batch_trial {
    int64_t batch;
    double seconds; /* time of its fastest step */
} hy_batch_trial;

typedef struct hy_steering {
    hy_batch_trial trial[3];
    int trials, at, steps;     /* number of trials (0: none), the current one, its steps so far */
    int64_t patience, grow_at; /* checks until the next growth; the step of that growth */
    bool is_begun;
    double first_share;      /* share of the budget that the run held at its start */
    bool has_replanned;      /* a plan with less memory was searched; only once */
    int steps_out_of_memory; /* steps in a row in which the machine was out of memory */
    bool all_ranks_end;      /* the run ends between two steps on all ranks, so they can save */
} hy_steering;

/* Where training's sequences come from. */
typedef struct hy_run_data {
    hy_dataset *set;
    hy_dataset *rows; /* of eval.eval_rows; NULL: none */
    hy_loader *loader;
    char task[2 * HY_TEXT_MAX + 128]; /* as in hy_summary */
    double (*reference)[2]; /* of pairs of answers, computed once; or NULL (trainer/reference.h) */
    double waited;          /* the loader's waiting time when the step began */
    /* Hashes of the files and of the held-out files; 0: there are none, or they are not needed. */
    uint64_t hash, val_hash;
} hy_run_data;

/* The length, learning rate and phases of a run, and what is due next. */
typedef struct hy_run_schedule {
    hy_schedule lr_schedule;
    hy_phase_rules rules;
    hy_divergence_limits limits;
    hy_regime regime;
    int64_t steps_total; /* the budget is the compute of this many full steps */
    int64_t fitted_step; /* step_tokens if they were chosen because of few rows; 0: they were not */
    hy_fork fork;
    hy_arena fork_state; /* host copy of the rows that a fork restores */
    bool is_in_fork;     /* running the arm with jumps */
    bool is_validation_due;
    bool is_validation_cut; /* it was interrupted, so it is repeated at once after a resume */
    /* Validation or paired test after the last step is not done yet; a resumed run begins with
     * it. */
    bool is_rest_owed;
    bool is_closed; /* the closing validation is done */
} hy_run_schedule;

/* Speed and waiting of recent steps. */
typedef struct hy_throughput {
    double recent; /* tokens per second, smoothed */
    int64_t steps; /* number of steps in `recent` */
    double stream_waited;
    uint64_t bytes_accounted;
    double step_seconds; /* time of the last optimizer step */
} hy_throughput;

/* What the state of a run allows. */
typedef enum hy_life {
    HY_LIFE_READY,    /* between steps, or while gradients are computed: the run can be saved */
    HY_LIFE_PLAN,     /* made by hy_trainer_plan: no memory is allocated */
    HY_LIFE_CHANGING, /* in an update or a jump: the state is between two steps */
    HY_LIFE_FAILED    /* an update or jump failed: the run can only continue from a checkpoint */
} hy_life;

/* The status of a run: failures and saves. */
typedef struct hy_run_status {
    hy_life life;
    hy_error failure;      /* why it is HY_LIFE_FAILED */
    hy_error deferred;     /* the current step will end with this error; HY_OK: none */
    void *reserve;         /* host memory for the last save; NULL: given back */
    int64_t batch_changes; /* in this session */
    int64_t saved_step;    /* of the newest checkpoint; -1: none */
    bool is_save_owed;     /* a save was due while the loss was too high */
    double save_clock;     /* time of the last save or attempt, or of the run's start */
    double save_seconds;   /* time that it took; 0: no save yet */
    int64_t best_step;     /* step that OUT/best links to; -1: no link, -2: not known */
    bool is_best_reported; /* the warning that this link cannot be made was given */
    atomic_bool stop_requested;
} hy_run_status;

/* What the ranks agreed on at the start of the last step. */
typedef struct hy_agreed {
    bool stops, saves, keeps_best;
    bool is_short;       /* at least one rank is short of memory */
    uint64_t sent;       /* bytes that this rank had sent by the end of the last step */
    double link_seconds; /* time that exchanges had taken by then */
    double figures[HY_RANK_FIGURES][HY_RANKS_MOST]; /* of each rank in the last step */
} hy_agreed;

/* Ranks that a plan assumes; none of them runs. */
typedef struct hy_planned_ranks {
    int32_t count;  /* 0: none are planned; else 2 or more */
    bool has_cards; /* each has its own card; else they share one, or compute on the CPU */
} hy_planned_ranks;

/* The run as one of several ranks. */
typedef struct hy_ranks_state {
    bool is_lent; /* the team belongs to the caller, who closes it */
    hy_planned_ranks planned;
    hy_agreed agreed;
    hy_rank_figures figures; /* cost of this session's steps; only rank 0 has them */
} hy_ranks_state;

typedef struct hy_held_out_figures {
    double ngram_loss;   /* loss of an n-gram model on the same data; NaN: not computed */
    double raw_val_loss; /* loss of the last weights, not averaged; NaN: there is no average */
    int64_t val_tokens;  /* tokens of the last validation */
} hy_held_out_figures;
