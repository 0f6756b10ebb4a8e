/* trainer.h: a run in the making: inside the trainer room only.
 *
 * The one struct that sees everything. build.c fills it from the settings before step 0 and
 * memory_plan.c takes all memory; step.c, predict.c, evaluate.c and sample.c work on it; save.c writes
 * and restore.c reads it; run.c ties them. Between steps the compute stream is idle and `progress`
 * tells all that a checkpoint must know beside the tensors. */
#ifndef HY_TRAINER_TRAINER_H
#define HY_TRAINER_TRAINER_H

#include <stdatomic.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/derived.h"
#include "data/loader.h"
#include "engine/engine.h"
#include "formats/hf_folder.h"
#include "hybrid.h"
#include "kernels/nvml.h"
#include "model/model.h"
#include "optim/schedule.h"
#include "phases/confidence.h"
#include "phases/divergence.h"
#include "phases/guard.h"
#include "phases/machine.h"
#include "phases/predictor.h"
#include "record/record.h"

#define HY_LOSS_TAIL 32 /* steps over which the final training loss is averaged */

/* Dynamic loss scaling, for fp16. */
typedef struct hy_loss_scale {
    double scale;       /* 1 without fp16 */
    int64_t good_steps; /* since it last changed */
} hy_loss_scale;

/* How far the run is: exactly what a checkpoint restores, with the tensors. */
typedef struct hy_progress {
    int64_t step;    /* optimizer steps done */
    int64_t updates; /* of them not skipped since its state began: the optimizer's own clock */
    int64_t skipped;
    int64_t sequences; /* training sequences used: the data cursor */
    int64_t tokens;    /* counted targets trained on */
    int64_t backward_passes;
    double spent; /* compute in units of a full step; a forward-only pass over as much costs 1/3 */
    double seconds; /* spent in steps, earlier sittings included */
    hy_phase_state machine;
    hy_divergence divergence;
    hy_guard guard;
    hy_confidence confidence;
    hy_loss_scale loss_scale;
    double predicted_steps; /* of all accepted moves */
    int64_t line_streak;    /* line: moves accepted in a row */
    int64_t tail_samples;   /* weights summed into the tail average */
    double fork_spent;      /* compute that forks have cost */
    double fork_gain_steps; /* what moves gained in forks, in true steps */
    int64_t next_fork;      /* true step before which no fork is tried */
    int64_t fork_wait;      /* what the next wait between forks will be */
    bool is_residual_due;   /* a move was made and its residual is not measured yet */
    double residual_cosine, residual_length; /* measured in this step; NaN: not */
    double loss_tail[HY_LOSS_TAIL];          /* ring of the last losses */
    double val_loss;                         /* NaN: none yet */
    int64_t val_step;
    int64_t phase_steps[HY_PHASE_COUNT];
    double phase_seconds[HY_PHASE_COUNT], phase_wait[HY_PHASE_COUNT];
    int64_t phase_bytes_moved[HY_PHASE_COUNT];
} hy_progress;

#define HY_FORK_SEQUENCES 64

/* A fork under way: the arm with moves was tried, the run goes on without; they are compared at a later
 * step. */
typedef struct hy_fork {
    bool is_open;
    int64_t compare_at;             /* true step */
    int64_t first;                  /* held-out sequences of the comparison */
    double with[HY_FORK_SEQUENCES]; /* mean loss of each after the arm with moves */
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
    double first_share; /* of the budget, as it was planned */
    bool is_at_end;     /* a cheaper plan was taken already */
    int near_end;       /* steps in a row in which the machine was out of memory */
} hy_steering;

/* Where training's sequences come from. */
typedef struct hy_run_data {
    hy_dataset *set;
    hy_loader *loader;
    double waited; /* of the loader, already accounted for */
} hy_run_data;

/* How the run goes: how long, by which rate, through which phases. */
typedef struct hy_course {
    hy_schedule schedule;
    hy_phase_rules rules;
    hy_divergence_limits limits;
    hy_regime regime;
    int64_t steps_total; /* budget: compute of this many full steps */
    hy_fork fork;
    char *fork_state; /* host copy of weights, optimizer state and slots, for forks */
    bool is_in_fork;  /* running the arm with moves */
    bool is_validation_due;
    int consecutive_skips;
} hy_course;

/* Speeds and waiting, as far as they are accounted for. */
typedef struct hy_pace {
    double recent; /* tokens per second, smoothed */
    int64_t steps; /* that it was smoothed over */
    double stream_waited;
    uint64_t bytes_accounted;
    double step_seconds; /* of the last true step */
} hy_pace;

/* Whether it can go on, and what has happened to it. */
typedef struct hy_life {
    bool is_plan;                        /* made by hy_trainer_plan: nothing is taken */
    char failure[HY_ERROR_MESSAGE_MAX];  /* of a step: its state is that of no step; "": none */
    bool is_state_whole;                 /* between steps, and in one that changed nothing yet */
    char deferred[HY_ERROR_MESSAGE_MAX]; /* with which the step in progress will end; "": none */
    bool is_dead;  /* no plan could be had in mid-run: nothing but the folder is left */
    void *reserve; /* host memory for the last save; NULL: given back */
    int shortages; /* in a row, survived */
    int64_t recoveries, batch_changes, plan_changes; /* in this sitting */
    atomic_bool stop_requested;
} hy_life;

struct hy_trainer {
    hy_settings settings;
    hy_settings asked; /* before anything that was left open was chosen */
    hy_observer observer;
    hy_engine engine;
    hy_run_data data;
    hy_course course;
    hy_progress progress;
    hy_pace pace;
    hy_life life;
    hy_steering steering;
    int64_t first_batch; /* micro-batch that the run began with */
    hy_plan_facts plan;
    char plan_problem[HY_ERROR_MESSAGE_MAX];
    double ngram_loss, raw_val_loss;
    struct hy_monitor *monitor; /* NULL: memory.monitor is off */

    hy_record record;
    char tune_cache[HY_PATH_MAX]; /* file of tuned matmul algorithms; "": none */
    char resumed[HY_PATH_MAX];    /* the checkpoint that is gone on with; "": none */
    uint64_t checkpoint_bytes;
    int64_t saved_step; /* step of the newest checkpoint of this sitting, -1: none */
};

/* data.c */
hy_status hy_trainer_open_data(hy_trainer *t);
/* Sequences hold documents that are kept apart. */
bool hy_trainer_has_doc_starts(const hy_trainer *t);
uint64_t hy_trainer_data_bytes(const hy_trainer *t); /* read ahead, on the host: pinned */
void hy_trainer_plan_data(const hy_trainer *t, hy_plan_facts *out); /* the bytes data takes */

/* build.c */
hy_status hy_trainer_build(hy_trainer *t);
void hy_trainer_tear_down(hy_trainer *t);
hy_status hy_trainer_zero(hy_trainer *t, hy_store *store); /* on the device: enqueued */
hy_status hy_trainer_start_loader(hy_trainer *t);          /* anew, at the data cursor */
int64_t hy_trainer_loader_depth(const hy_trainer *t);      /* micro-batches it holds */

/* initial.c */
hy_status hy_trainer_initialise_weights(hy_trainer *t);

/* hf_trainer.c: a model's files as the beginning of a run. */
hy_status hy_trainer_load_model(hy_trainer *t, hy_model_files kind, const char *path);

/* device.c */
hy_status hy_trainer_open_device(hy_trainer *t);
void hy_trainer_tell_warning(hy_trainer *t); /* the device's, if it has one: once */

/* precision.c */
hy_status hy_trainer_choose_precision(hy_trainer *t);
/* The weights that a pass of this type uses; the 16-bit copy is made current first. */
hy_status hy_trainer_weights(hy_trainer *t, hy_dtype dtype, hy_store **out);
/* The same while an update may be pending: for the pass that applies it. */
hy_status hy_trainer_weights_raw(hy_trainer *t, hy_dtype dtype, hy_store **out);
static inline int hy_plan_index(hy_dtype dtype) { return dtype == HY_F32 ? 0 : 1; }

/* memory_plan.c: batch plans, arenas, stores. See memory_plan.h. */
hy_status hy_trainer_take_memory(hy_trainer *t);
void hy_trainer_tell_plan(const hy_trainer *t);
uint64_t hy_guard_sequences(const hy_trainer *t); /* of one guard pass */
/* What is live changes with the phase: gradients and training activations, or the rings. */
void hy_trainer_enter_phase(hy_trainer *t, hy_phase phase);
/* Before training uses the work area, where the predictor's rings lie: what they changed is written
 * back. */
hy_status hy_trainer_return_rings(hy_trainer *t);

/* memory_budget.c: refuses what does not fit; bytes on the device, on the host, and moved to the host in
 * Predict. */
hy_status hy_trainer_check_budget(const hy_trainer *t, uint64_t device, uint64_t host,
                                  uint64_t moved);

/* What would lie in offload_folder: is there one, and room for it? */
hy_status hy_trainer_check_disk(const hy_trainer *t, uint64_t bytes);

/* Of a card's free memory this much is left alone: code that is loaded when it first runs, and what other
 * programs ask for later. */
#define HY_CARD_RESERVE (256u << 20)
/* How much may be used: what the user allows, or what is free less a reserve; 0: not known. */
uint64_t hy_trainer_device_limit(const hy_trainer *t);
uint64_t hy_trainer_host_limit(const hy_trainer *t);

/* trainer.c: a plan cannot run, and a step that failed half-way leaves nothing to go on from. */
hy_status hy_trainer_must_run(const hy_trainer *t);
hy_status hy_trainer_must_have_state(const hy_trainer *t); /* the same, but for memory to work in */
hy_status hy_trainer_must_have_plan(const hy_trainer *t);  /* to be looked at */

/* trainer.c: the next step or move, by the phase that is due. */
hy_status hy_trainer_advance(hy_trainer *t, hy_step_info *info);

/* recovery.c: what a shortage of memory left is put in order, so that the work can be done again: with
 * smaller micro-batches when it is not the first time, or as it is. HY_OK: go on. Else the status that
 * was given, and t->is_state_whole says whether the run can still be saved. */
typedef enum hy_survival { HY_AS_IT_IS, HY_WITH_LESS } hy_survival;
hy_status hy_trainer_survive(hy_trainer *t, hy_status status, hy_survival how);
/* Host memory that is kept for the moment when there is none: to save a run needs some. */
hy_status hy_trainer_take_reserve(hy_trainer *t);
void hy_trainer_give_reserve(hy_trainer *t);
/* Work that can simply be done again, until it is done or memory is short too often. */
hy_status hy_trainer_insist(hy_trainer *t, hy_status (*work)(hy_trainer *));
void hy_trainer_recovered(hy_trainer *t); /* the work is done: the next shortage is a first one */
/* Something that a step does beside its update could not be done: the step is brought to its end, so that
 * the run can be saved, and ends with the error that is told now. */
void hy_trainer_give_up_later(hy_trainer *t);
hy_status hy_trainer_end_step(hy_trainer *t); /* the last thing a step or move does */
/* A run that can be saved is, and the error says what to change. */
hy_status hy_trainer_give_up(hy_trainer *t, hy_status status);

/* run.c: a validation that memory does not allow is told of and left out. */
hy_status hy_trainer_skip_validation(hy_trainer *t);

/* make.c: a trainer, built again with less where memory is short. */
hy_status hy_trainer_make(const hy_config *config, const hy_observer *observer, bool is_plan,
                          hy_trainer **out);
/* The run goes on with another plan, through a checkpoint; caps as in the struct. */
hy_status hy_trainer_replan(hy_trainer *t, uint64_t device_cap, uint64_t host_cap,
                            const char *reason);

/* steering.c: before each step. HY_ERR_MEMORY: the machine is about to be out of memory. */
hy_status hy_trainer_steer(hy_trainer *t);
void hy_trainer_be_patient(
    hy_trainer *t); /* it had to shrink: it grows back later, and later each time */

/* resize.c: another micro-batch between steps; tokens per step, data order and state stay. When nothing
 * can be had, not even the least, HY_ERR_MEMORY: there is then no memory to work in. */
hy_status hy_trainer_resize(hy_trainer *t, int64_t batch_size, const char *reason);
/* The next size up (1) or down (-1) that divides a step, within bounds; 0: there is none. */
int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most);
int64_t hy_smaller_batch(const hy_trainer *t); /* than the present one */
int64_t hy_larger_batch(const hy_trainer *t);
/* Layers recompute everything from now on: the same bits in less memory. */
bool hy_recomputes_all(const hy_settings *settings);
hy_status hy_trainer_recompute_all(hy_trainer *t, const char *reason);

/* step.c */
hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info);
double hy_trainer_tail_loss(const hy_trainer *t);
/* After the Correct steps of a move: direction and length of the true way against the predicted one.
 * Measured at the start of the step that follows. */
hy_status hy_trainer_measure_residual(hy_trainer *t);
/* Decides the next phase from what was seen, and rolls a move back when it must. */
hy_status hy_trainer_observe(hy_trainer *t, double loss, double grad_norm, hy_verdict verdict);
typedef struct hy_account {
    double begin, waited;
    uint64_t bytes_moved;
} hy_account; /* time, waiting and copies of one step */
void hy_account_open(hy_trainer *t, hy_account *account);
void hy_account_close(hy_trainer *t, hy_account *account);
void hy_trainer_describe(const hy_trainer *t, const hy_phase_state *was, const hy_account *account,
                         hy_step_info *info);

/* update.c: a step begins (an update that it cannot carry is finished), its passes, its end. */
hy_status hy_trainer_begin_update(hy_trainer *t, hy_dtype dtype);
const hy_unit_hook *hy_trainer_unit_hook(hy_trainer *t, int32_t micro_batch); /* or NULL */
hy_status hy_trainer_sum_gradients(hy_trainer *t); /* after the passes: norm and clip factor */
/* One that fails can be called again: it goes on where it was. */
hy_status hy_trainer_enqueue_update(hy_trainer *t, double lr);
/* Applies what is pending: before anyone but a training pass looks at weights, optimizer state or gradients. */
hy_status hy_trainer_finish_update(hy_trainer *t);

/* speed.c: how much of what the device can do is used. */
void hy_trainer_note_rate(hy_trainer *t, double rate); /* tokens per second of a step */
/* The model's operations at this many tokens per second, as shares; 0 where not known or on a CPU. */
double hy_trainer_mfu(const hy_trainer *t, double tokens_per_second);
double hy_trainer_sol(const hy_trainer *t, double tokens_per_second);
void hy_trainer_describe_gpu(const hy_trainer *t, hy_step_info *info);

/* predict.c */
hy_status hy_trainer_run_predict(hy_trainer *t, hy_step_info *info);
hy_status hy_trainer_begin_window(hy_trainer *t); /* before a true step */
hy_status hy_trainer_roll_back(hy_trainer *t);

/* formulas.c: predictor formulas over stores. */
hy_status hy_trainer_apply(hy_trainer *t, const hy_formulas *formulas);
hy_status hy_trainer_measure(hy_trainer *t, const hy_store *a, const hy_store *b, const hy_store *c,
                             const hy_store *d, double out[3]); /* HY_OP_DIFF_DOT over everything */
hy_status hy_trainer_add_to_tail(hy_trainer *t, bool is_first);
hy_status hy_candidate_maker(void *context, hy_stream *stream, int32_t unit, char *data);
hy_status hy_trainer_copy_weights(hy_trainer *t, hy_store *host, bool to_host);

/* offload.c */
hy_status hy_trainer_send_optimizer(hy_trainer *t);  /* Predict begins */
hy_status hy_trainer_begin_restore(hy_trainer *t);   /* ahead of need, on the copy stream */
hy_status hy_trainer_await_optimizer(hy_trainer *t); /* before an update */
bool hy_trainer_restores_ahead(const hy_trainer *t); /* beside other work; else it is waited for */
/* Whether the strategy goes with these layouts; a strategy that would do nothing becomes none. */
hy_status hy_offload_check(hy_trainer *t);
uint64_t hy_offload_host_bytes(const hy_trainer *t, uint64_t state_bytes);

/* tail.c: averaging over the last part of the run. */
hy_status hy_trainer_sample_tail(hy_trainer *t);
/* Evaluations between these two use the average; no effect without samples. */
void hy_trainer_use_tail(hy_trainer *t, bool is_used);

/* fork.c */
hy_status hy_trainer_consider_fork(hy_trainer *t); /* between steps */
uint64_t hy_fork_plan_bytes(const hy_trainer *t);  /* host memory, if there is room; 0: no forks */
hy_status hy_fork_take_memory(hy_trainer *t);
void hy_fork_release(hy_trainer *t);

/* evaluate.c: losses of sequences. */
typedef struct hy_probe {
    hy_split split;
    uint64_t first, count; /* sequences */
    hy_store *weights;     /* NULL: the current ones in `dtype` */
    hy_dtype dtype;
    double *each;    /* (count) mean loss of each, may be NULL */
    double mean;     /* set: over all counted targets */
    int64_t counted; /* set */
} hy_probe;
hy_status hy_trainer_probe(hy_trainer *t, hy_batch_plan *plan, hy_probe *probe);
int64_t hy_probe_batches(const hy_batch_plan *plan, uint64_t count);

/* save.c, restore.c */
hy_status hy_trainer_write_checkpoint(hy_trainer *t);
uint64_t hy_trainer_checkpoint_size(const hy_trainer *t);
hy_status hy_trainer_find_checkpoint(hy_trainer *t, const char *from, char path[HY_PATH_MAX]);
hy_status hy_trainer_read_checkpoint(hy_trainer *t, const char *path);
hy_status hy_trainer_read_weights(hy_trainer *t, const char *path);
/* The matmul algorithms a checkpoint was made with, where there are any: before plans are made. */
hy_status hy_trainer_read_algorithms(hy_trainer *t, const char *path);

/* export.c: OUT/model; `folder` is where it is then. */
hy_status hy_trainer_write_model(hy_trainer *t, char folder[HY_PATH_MAX]);

/* progress_json.c */
void hy_progress_write(const hy_trainer *t, hy_text *out);
hy_status hy_progress_read(hy_trainer *t, const char *path);
/* Where the step has as many sequences as before, it is split as before: so that the bits go on. */
hy_status hy_progress_read_split(hy_trainer *t, const char *path);

/* recording.c: the folder, and what is told to the record. Called between steps. */
hy_status hy_trainer_open_record(hy_trainer *t); /* the first thing that is written */
void hy_trainer_record_step(hy_trainer *t, const hy_step_info *info, double val_loss); /* or NaN */
void hy_trainer_record_event(hy_trainer *t, const hy_event_line *event);
void hy_trainer_write_plan(hy_trainer *t); /* anew when another plan is taken */
hy_status hy_trainer_write_summary(hy_trainer *t);

/* trainer.c: hands a message to the observer. */
void hy_say(const hy_trainer *t, hy_message_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
