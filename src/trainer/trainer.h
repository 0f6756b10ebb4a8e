/* trainer.h: a run from its first step to its last: inside the trainer module only.
 *
 * A run is an engine, data, a course through phases, and a record. build.c makes it of the settings, whose
 * plan the engine takes; step.c and predict.c take its steps; run.c ties them. Between steps the compute
 * stream is idle, and `progress` and the engine's say all that a checkpoint must know beside the rows. */
#pragma once

#include <stdatomic.h>

#include "base/error.h"
#include "base/text.h"
#include "config/derived.h"
#include "engine/engine.h"
#include "optim/schedule.h"
#include "phases/confidence.h"
#include "phases/divergence.h"
#include "phases/guard.h"
#include "phases/machine.h"
#include "record/record.h"
#include "trainer/guest.h"

#define HY_LOSS_TAIL 32 /* steps over which the final training loss is averaged */

/* The lowest held-out losses of a run, all of the same sequences. NaN and -1: none yet. */
typedef struct hy_best {
    double last; /* of the last validation */
    double loss; /* the lowest, */
    int64_t step;
    double saved_loss; /* the lowest of those that were saved as they were validated, */
    int64_t saved_step;
    double mark;   /* what the next one must be below, by early_stop_delta, to count as lower, */
    int64_t stale; /* and how many in a row were not */
    int64_t sequences, stride, of; /* which they are of: every stride-th of so many; 0: of none */
} hy_best;

#define HY_NO_BEST                                                                                 \
    ((hy_best){                                                                                    \
        .last = NAN, .loss = NAN, .step = -1, .saved_loss = NAN, .saved_step = -1, .mark = NAN})

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
    double predicted_steps; /* of all accepted jumps */
    int64_t line_streak;    /* line: jumps accepted in a row */
    double fork_spent;      /* compute that forks have cost */
    double fork_gain_steps; /* what jumps gained in forks, in optimizer steps */
    int64_t next_fork;      /* optimizer step before which no fork is tried */
    int64_t fork_wait;      /* what the next wait between forks will be */
    bool is_residual_due;   /* a jump was made and its residual is not measured yet */
    double residual_cosine, residual_length; /* measured in this step; NaN: not */
    double loss_tail[HY_LOSS_TAIL];          /* ring of the last losses */
    double val_loss;                         /* NaN: none yet */
    int64_t val_step;
    hy_best best;
    int64_t phase_steps[HY_PHASE_COUNT];
    double phase_seconds[HY_PHASE_COUNT], phase_wait[HY_PHASE_COUNT];
    int64_t phase_bytes_moved[HY_PHASE_COUNT];
} hy_progress;

#define HY_FORK_SEQUENCES 64

/* A fork under way: the arm with jumps was tried, the run goes on without; they are compared at a later
 * step. */
typedef struct hy_fork {
    bool is_open;
    int64_t compare_at;             /* optimizer step */
    int64_t first;                  /* held-out sequences of the comparison */
    double with[HY_FORK_SEQUENCES]; /* mean loss of each after the arm with jumps */
} hy_fork;

/* Steering: micro-batches that are tried for speed, and when the next growth may be. */
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
    /* Of the files, and of those that are held out; 0: there are none, or nobody will ask. */
    uint64_t hash, val_hash;
} hy_run_data;

/* How the run goes: how long, by which rate, through which phases. */
typedef struct hy_course {
    hy_schedule schedule;
    hy_phase_rules rules;
    hy_divergence_limits limits;
    hy_regime regime;
    int64_t steps_total; /* budget: compute of this many full steps */
    hy_fork fork;
    hy_arena fork_state; /* host copy of the rows that a fork restores */
    bool is_in_fork;     /* running the arm with jumps */
    bool is_validation_due;
    bool is_rest_owed; /* what follows the last step, validation and forks, was broken off */
    bool is_closed;    /* the closing validation was made */
} hy_course;

/* Speeds and waiting, as far as they are accounted for. */
typedef struct hy_pace {
    double recent; /* tokens per second, smoothed */
    int64_t steps; /* that it was smoothed over */
    double stream_waited;
    uint64_t bytes_accounted;
    double step_seconds; /* of the last optimizer step */
} hy_pace;

/* What can be done with it. */
typedef enum hy_life {
    HY_LIFE_READY,    /* between steps, or in one that has changed nothing yet: it can be saved */
    HY_LIFE_PLAN,     /* made by hy_trainer_plan: nothing is taken */
    HY_LIFE_CHANGING, /* in an update or a jump: the state is that of no step */
    HY_LIFE_FAILED    /* one of them failed: there is nothing to go on from but a checkpoint */
} hy_life;

/* What has happened to it, and what is kept for the worst. */
typedef struct hy_fate {
    hy_life life;
    hy_error failure;                    /* of HY_LIFE_FAILED */
    hy_error deferred;                   /* the step in progress will end with it; HY_OK: none */
    void *reserve;                       /* host memory for the last save; NULL: given back */
    int64_t batch_changes, plan_changes; /* in this session */
    int64_t saved_step;                  /* of its newest checkpoint; -1: none */
    bool is_save_owed;                   /* it fell due while the loss was not to be trusted */
    double save_clock;                   /* when one was made or tried last, or the run began */
    double save_seconds;                 /* that it took; 0: none was made yet */
    int64_t best_step;                   /* that OUT/best leads to; -1: nowhere, -2: not known */
    bool is_best_told;                   /* the link cannot be made, and that was said */
    atomic_bool stop_requested;
} hy_fate;

/* What ranks have told each other at the begin of the last step. */
typedef struct hy_agreed {
    bool stops, saves, keeps_best;
    bool is_short;       /* of memory: one of them */
    uint64_t sent;       /* bytes that had left this rank when the step ended, */
    double link_seconds; /* and what exchanges had taken */
    /* Of each rank, in the step before the record's line: */
    double seconds[HY_RANKS_MOST];   /* what it took, */
    double waited[HY_RANKS_MOST];    /* of these, standing still for what was to come, */
    double exchanged[HY_RANKS_MOST]; /* the link in use, */
    double bytes[HY_RANKS_MOST];     /* sent to others, */
    double memory[HY_RANKS_MOST];    /* and the most that was live on the device so far */
} hy_agreed;

/* Ranks that a plan is made for, and that nobody has started. */
typedef struct hy_planned_ranks {
    int32_t count;  /* 0 or 1: there is one */
    bool has_cards; /* one for each; else they share one, or compute on the CPU */
} hy_planned_ranks;

struct hy_trainer {
    hy_settings settings; /* as the user said it */
    hy_observer observer;
    hy_engine engine;
    hy_guest *guest; /* the owner's; NULL: the model is ours */
    hy_team *team;   /* NULL: it is alone */
    bool is_lent;    /* that team, by a caller who has more to do with it */
    hy_planned_ranks planned;
    hy_agreed agreed;
    hy_rank_figures rank_figures; /* of this session; rank 0 has them */
    hy_run_data data;
    hy_course course;
    hy_progress progress;
    hy_pace pace;
    hy_fate fate;
    hy_steering steering;
    int64_t first_batch; /* micro-batch that the run began with */
    hy_plan_facts facts; /* of the plan, for --plan */
    hy_error problem;    /* why this plan cannot run; "": it can */
    double ngram_loss, raw_val_loss;
    int64_t val_tokens;         /* of the last validation */
    struct hy_monitor *monitor; /* NULL: memory.monitor is off */
    hy_record record;
    char folder[HY_PATH_MAX];  /* where checkpoints go, on every rank; "": nowhere */
    char resumed[HY_PATH_MAX]; /* the checkpoint that is gone on with; "": none */
};

/* build.c: a run that can take its first step, or its plan; and its end. */
hy_status hy_trainer_build(hy_trainer *t);
void hy_trainer_tear_down(hy_trainer *t);
hy_status hy_trainer_start_loader(hy_trainer *t); /* anew, at the data cursor */
/* Tokens of an optimizer step; 0: a guest's, not known. */
int64_t hy_trainer_step_tokens(const hy_trainer *t);
/* What its data is; a guest's is not known. */
const hy_dataset_facts *hy_trainer_data(const hy_trainer *t);
void hy_trainer_complete_facts(hy_trainer *t); /* what the run adds to those of a plan */

/* trainer.c: what cannot be done with it as it is, is refused by name. */
hy_status hy_trainer_must_run(const hy_trainer *t);
/* Hands a message to the observer. */
void hy_say(const hy_trainer *t, hy_message_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The next step or jump, by the phase that is due. */
hy_status hy_trainer_advance(hy_trainer *t, hy_step_info *info);

/* ranks.c: several ranks; with one each answers at once. Rank 0 leads: it has the folder and the clock. */
hy_status hy_team_for(const hy_settings *settings, const hy_guest *guest,
                      const hy_observer *observer, hy_team **out);
bool hy_trainer_leads(const hy_trainer *t);
/* What rank 0 has there becomes everybody's. */
hy_status hy_ranks_share(hy_trainer *t, void *data, size_t size);
hy_status hy_ranks_share_folder(hy_trainer *t); /* t->folder, of the record's */
/* How many ranks share this machine and this card, so that each plans with its part of them. */
hy_status hy_ranks_count_sharers(hy_trainer *t);
void hy_ranks_plan_sharers(hy_trainer *t); /* as they would be, of ranks that a plan is for */
/* Which matmuls are in fp8 is rank 0's choice where devices are alike; others keep their own, and it is said. */
hy_status hy_ranks_share_fp8(hy_trainer *t);
/* At the beginning, when each rank has made one: the plan of all is rank 0's, or that of another rank where only that one
 * has room on every rank. */
hy_status hy_ranks_choose_plan(hy_trainer *t, hy_plan *plan);
/* Rank 0's plan for all, each for its own shard. */
hy_status hy_ranks_share_plan(hy_trainer *t, const hy_plan_request *request, hy_plan *plan);
hy_status hy_ranks_begin_figures(hy_trainer *t);
/* After a step: how each rank fared, for the record. Failures are met at the next step. */
void hy_ranks_tell_step(hy_trainer *t, const hy_step_info *info);
/* HY_OK where all ranks come with it; else the first failure, with its rank. The run may go on. */
hy_status hy_ranks_agree(hy_trainer *t, hy_status mine);
bool hy_ranks_have_agreed(const hy_trainer *t, hy_status status); /* that this is what failed */
/* Each becomes the least of all ranks'; at most four. */
hy_status hy_ranks_least(hy_trainer *t, double *values, int32_t count);
/* As hy_team_fail, but what ranks have agreed on is not told: the others have it, and whose it was. */
hy_status hy_ranks_fail(hy_trainer *t, hy_status status);
/* *counted becomes the sum over ranks; and whether to stop or to save is known. */
hy_status hy_ranks_begin_step(hy_trainer *t, int64_t *counted);
bool hy_ranks_stop(const hy_trainer *t);

/* recovery.c: work that failed for want of memory is done again: with smaller micro-batches when it is not
 * the first time. HY_OK: go on. */
hy_status hy_trainer_retry_with_less(hy_trainer *t, hy_status status);
void hy_trainer_tell_retry(void *trainer, const char *message, const char *how); /* hy_retries */
/* Work that can simply be done again, until it is done or memory is short too often. */
hy_status hy_trainer_retry(hy_trainer *t, hy_status (*work)(hy_trainer *));
/* Something that a step does beside its update could not be done: the step is brought to its end, so that
 * the run can be saved, and ends with the error that is set now. */
void hy_trainer_defer_error(hy_trainer *t, hy_status status);
hy_status hy_trainer_end_step(hy_trainer *t); /* the last thing a step or jump does */
/* A run that can be saved is, and the error says what to change. */
hy_status hy_trainer_give_up(hy_trainer *t, hy_status status);
/* A file of the data was changed by others. That changes nothing of the run: it is whole as of its last
 * step and is saved like one that lacks memory. */
bool hy_trainer_lacks_data(const hy_trainer *t, hy_status status);
/* The same, or a guest that stops: what is done is saved, and the rest is done when the run is resumed. */
bool hy_trainer_is_interrupted(const hy_trainer *t, hy_status status);
/* Host memory that is kept for the moment when there is none: to save a run needs some. */
hy_status hy_trainer_take_reserve(hy_trainer *t);
void hy_trainer_give_reserve(hy_trainer *t);

/* make.c: a trainer, built again with less where memory is short. */
typedef struct hy_making {
    hy_guest *guest; /* who is the trainer's from here on; NULL: the model is ours */
    bool is_plan;
    hy_planned_ranks planned;
} hy_making;
hy_status hy_trainer_make(const hy_config *config, const hy_observer *observer,
                          const hy_making *making, hy_trainer **out);
/* HY_ERR_INPUT: no plan is made for so many ranks. */
hy_status hy_planned_ranks_check(int32_t count);
/* A run as one of a team that is the caller's and outlives it; NULL: alone, whatever launcher there is. What NCCL a run
 * before may have chosen for the team is chosen anew. */
hy_status hy_trainer_make_in(const hy_config *config, const hy_observer *observer, hy_team *team,
                             hy_trainer **out);

/* steering.c: before each step. HY_ERR_MEMORY: the machine is about to be out of memory. */
hy_status hy_trainer_steer(hy_trainer *t);
bool hy_trainer_is_short(const hy_trainer *t); /* of memory, so that less of it should be used */
void hy_trainer_back_off(hy_trainer *t);       /* it had to shrink: it grows back later each time */

/* resize.c: another plan between steps; tokens per step, data order and state stay. When no memory can be
 * taken, not even for the least, HY_ERR_MEMORY: there is then none to work in. */
hy_status hy_trainer_resize(hy_trainer *t, int64_t batch_size, const char *reason);
/* The next size up (1) or down (-1) that divides a step, within bounds; 0: there is none. */
int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most);
int64_t hy_smaller_batch(const hy_trainer *t); /* than the present one */
int64_t hy_larger_batch(const hy_trainer *t);
/* What the work area would take with micro-batches of this size. */
hy_status hy_trainer_work_at(const hy_trainer *t, int64_t batch, hy_plan *out);
/* Layers recompute everything from now on: the same bits in less memory. */
bool hy_recomputes_all(const hy_plan_choice *choice);
hy_status hy_trainer_recompute_all(hy_trainer *t, const char *reason);
/* The fastest plan within other bounds (caps as in hy_plan_request), with steps split as they are; what of the
 * state has another place in it moves there. HY_ERR_INPUT: no plan fits, and the run is as it was. */
hy_status hy_trainer_replan(hy_trainer *t, uint64_t device_cap, uint64_t host_cap,
                            const char *reason);

/* What prediction keeps is taken, with this much host memory beside it, or given back. HY_ERR_INPUT: there
 * is no room, and the run is as it was. */
hy_status hy_trainer_disable_prediction(hy_trainer *t, bool is_disabled, uint64_t beside);

/* step.c: an optimizer step of Warmup, Full or Correct. */
hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info);
/* What fp8 made of the step's numbers, into its line. */
void hy_trainer_tell_fp8(const hy_trainer *t, hy_step_info *info);
/* What an optimizer step of this phase is in, now (hy_types_step). */
hy_dtype hy_trainer_step_type(const hy_trainer *t, hy_phase phase);
double hy_trainer_recent_loss(const hy_trainer *t); /* mean of the last steps */
double hy_trainer_loss_limit(const hy_trainer *t);  /* above it a step is not to be trusted */
/* After the Correct steps of a jump: direction and length that training went against the predicted one.
 * Measured at the start of the step that follows. */
hy_status hy_trainer_measure_residual(hy_trainer *t);
/* Decides the next phase from what was seen, and rolls a jump back when it must. */
hy_status hy_trainer_observe(hy_trainer *t, double loss, double grad_norm, hy_verdict verdict);

/* Losses of training sequences, forward only: hy_engine_probe, or a guest's answer. */
hy_status hy_trainer_probe(hy_trainer *t, hy_batch_plan *plan, hy_probe *probe);

/* pace.c: time, waiting and copies of one step; how much of what the device can do is used. */
typedef struct hy_account {
    double begin, waited;
    uint64_t bytes_moved;
} hy_account;
void hy_account_open(hy_trainer *t, hy_account *account);
void hy_account_close(hy_trainer *t, hy_account *account);
void hy_trainer_describe(const hy_trainer *t, const hy_phase_state *was, const hy_account *account,
                         hy_step_info *info);
hy_phase_obstacle hy_trainer_obstacle(const hy_trainer *t); /* what keeps it from a jump now */
void hy_trainer_note_rate(hy_trainer *t, double rate);      /* tokens per second of a step */
/* The model's operations at this many tokens per second, as shares; 0 where not known or on a CPU. */
double hy_trainer_mfu(const hy_trainer *t, double tokens_per_second);
double hy_trainer_sol(const hy_trainer *t, double tokens_per_second);

/* predict.c: a Predict step. */
hy_status hy_trainer_run_predict(hy_trainer *t, hy_step_info *info);
hy_status hy_trainer_begin_window(hy_trainer *t); /* before an optimizer step */
hy_status hy_trainer_roll_back(hy_trainer *t);

/* evaluate.c: held-out sequences of one validation but the closing one. */
uint64_t hy_trainer_val_sequences(const hy_trainer *t);
/* Steps between validations; 0: there is only the closing one. */
int64_t hy_trainer_eval_every(const hy_trainer *t);
bool hy_trainer_can_validate(const hy_trainer *t); /* before the run's end: else it waits */
/* A validation of the run itself: best and patience follow, and whoever watches hears of it. */
hy_status hy_trainer_validate(hy_trainer *t, hy_eval_info *info);
/* Of a run that is resumed: its lowest losses go on to count where those to come are of the same sequences. */
void hy_trainer_fit_best(hy_trainer *t, bool has_other_data);
/* The run's end, also by early_stop. */
bool hy_trainer_is_over(const hy_trainer *t);
bool hy_trainer_is_stopped_early(const hy_trainer *t);

/* fork.c: paired forks, between steps. */
hy_status hy_trainer_consider_fork(hy_trainer *t);
/* What confidence begins with (build.c). */
hy_confidence hy_trainer_prior(const hy_trainer *t);
bool hy_fork_must_ask(const hy_trainer *t); /* a run of this kind predicts only if a fork is won */
bool hy_fork_is_possible(const hy_trainer *t); /* the run is long enough for one */
hy_status hy_fork_begin(hy_trainer *t);        /* at the start of a session */
void hy_fork_end(hy_trainer *t);               /* there will be no more */
/* Host memory of forks with what prediction keeps, if there is room; 0: no forks. */
uint64_t hy_fork_plan_bytes(const hy_trainer *t);
void hy_fork_release(hy_trainer *t);

/* run.c: whether a save falls due by the clock, and whether one of the best weights would cost little. */
bool hy_trainer_is_save_time(const hy_trainer *t);
bool hy_trainer_has_time_to_save(const hy_trainer *t);
/* A validation that memory does not allow is reported and left out. */
hy_status hy_trainer_skip_validation(hy_trainer *t);

/* progress_json.c: trainer.json of a checkpoint. */
void hy_progress_write(const hy_trainer *t, hy_text *out);
hy_status hy_progress_read(hy_trainer *t, const char *path);
/* Where the step has as many sequences as before, it is split as before, and types stay: so that the bits go
 * on. */
hy_status hy_progress_read_choices(hy_trainer *t, const char *path);
/* What a checkpoint says of a guest's parameters besides names and shapes. HY_ERR_INPUT: nothing. */
hy_status hy_progress_read_own(const hy_json *json, const char *path, hy_guest *guest);

/* resumed_adapters.c: HY_ERR_INPUT names a setting of adapters, and its values then and now, with which the resumed
 * checkpoint would compute something else. */
hy_status hy_trainer_check_adapters(const hy_trainer *t);

/* saving.c: checkpoints, and room for them. */
/* HY_ERR_INPUT where neither a checkpoint nor the model fits on the disk; where less than usual does, the run
 * says what becomes of it. */
hy_status hy_trainer_check_disk(hy_trainer *t);
hy_status hy_trainer_write_checkpoint(hy_trainer *t);
bool hy_trainer_may_save(const hy_trainer *t); /* whether its state is worth it */

/* recording.c: what the run hands to its record. */
hy_status hy_trainer_open_record(hy_trainer *t);
hy_status hy_trainer_remake_record(hy_trainer *t); /* in a folder that had to be made again */
void hy_trainer_record_step(hy_trainer *t, const hy_step_info *info,
                            double val_loss); /* NAN: none */
void hy_trainer_record_event(hy_trainer *t, const hy_event_line *event);
void hy_trainer_write_plan(hy_trainer *t);
hy_status hy_trainer_write_summary(hy_trainer *t);
