/* trainer.h: a run in the making: inside the trainer room only.
 *
 * The one struct that sees everything. build.c fills it from the settings before step 0 and takes all
 * memory; step.c, evaluate.c and sample.c work on it; save.c writes and reads it; run.c ties them.
 * Between steps the compute stream is idle and `progress` tells all that a checkpoint must know. */
#ifndef HY_TRAINER_TRAINER_H
#define HY_TRAINER_TRAINER_H

#include <stdatomic.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "data/loader.h"
#include "hybrid.h"
#include "model/model.h"
#include "optim/adamw.h"
#include "optim/schedule.h"
#include "phases/divergence.h"
#include "phases/machine.h"
#include "trainer/settings.h"

#define HY_PATH_MAX 1024
#define HY_LOSS_TAIL 32 /* steps over which the final training loss is averaged */

/* How far the run is: exactly what a checkpoint restores, with the weights and the optimizer state. */
typedef struct hy_progress {
    int64_t step;      /* optimizer steps done */
    int64_t updates;   /* of them not skipped: the optimizer's own clock */
    int64_t skipped;
    int64_t sequences; /* training sequences used: the data cursor */
    int64_t tokens;    /* counted targets trained on */
    int64_t backward_passes;
    double spent;   /* compute in units of a full step; a forward-only pass over as much costs 1/3 */
    hy_phase_state machine;
    hy_divergence divergence;
    double seconds; /* spent in steps, earlier sittings included */
    double loss_tail[HY_LOSS_TAIL]; /* ring of the last losses */
    double val_loss;                /* NaN: none yet */
    int64_t val_step;
    int64_t phase_steps[HY_PHASE_COUNT];
    double phase_seconds[HY_PHASE_COUNT], phase_wait[HY_PHASE_COUNT];
    int64_t phase_bytes_moved[HY_PHASE_COUNT];
} hy_progress;

/* Device buffers that every pass uses. */
typedef struct hy_pass_buffers {
    int32_t *tokens, *targets; /* (B,T) of the largest plan */
    float *losses;             /* (B,T) */
    float *rope;               /* (T, D/2, 2), NULL without rope */
    double *loss_sum;          /* (1) f64 */
    double *square_sum;        /* (1) f64 */
    float *clip;               /* (2) fp32 */
    hy_tensor reduce_workspace; /* for sums and norms between passes; shared with the passes */
} hy_pass_buffers;

/* What comes back to the host after a step. */
typedef struct hy_step_result {
    double loss_sum;
    float clip[2];
} hy_step_result;

struct hy_trainer {
    hy_settings settings;
    hy_observer observer;
    char *config_text; /* the configuration as printed, for the run's folder */

    hy_dataset *data;
    hy_loader *loader;
    hy_backend *backend;
    hy_stream *compute;
    hy_model *model;
    hy_batch_plan *train_plan, *eval_plan, *sample_plan;
    hy_dtype precision; /* of weights and activations */

    hy_ledger ledger;
    hy_arena state_arena, work_arena;
    hy_store weights, grads, m, v, master;
    bool has_master;
    hy_pass_buffers buffers;
    hy_step_result *result; /* pinned */
    int32_t *host_tokens, *host_targets; /* staging for evaluation and sampling */

    hy_adamw adamw;
    hy_schedule schedule;
    hy_phase_rules rules;
    hy_divergence_limits limits;
    int64_t steps_total;
    hy_progress progress;
    double started;     /* clock when this sitting began */
    double recent_rate; /* tokens per second, smoothed */
    double loader_waited;
    int consecutive_skips;
    double ngram_loss;

    char out[HY_PATH_MAX]; /* "" when nothing is written */
    hy_writer *metrics;
    hy_text line; /* the metrics line in the making; keeps its memory from step to step */
    double metrics_flushed;
    uint64_t checkpoint_bytes;
    int64_t saved_step; /* step of the newest checkpoint of this sitting, -1: none */
    atomic_bool stop_requested;
};

/* build.c */
hy_status hy_trainer_build(hy_trainer *t);
void hy_trainer_tear_down(hy_trainer *t);
hy_status hy_shape_from_settings(const hy_settings *settings, hy_shape *out);

/* memory_plan.c: batch plans, arenas, stores. */
hy_status hy_trainer_take_memory(hy_trainer *t);

/* step.c */
hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info);
/* Enqueues the sum of a pass's losses into buffers.loss_sum. */
hy_status hy_trainer_sum_losses(hy_trainer *t, const hy_batch_plan *plan, bool accumulate);
double hy_trainer_tail_loss(const hy_trainer *t);

/* outdir.c */
hy_status hy_trainer_choose_out(hy_trainer *t);  /* decides and checks; writes nothing */
hy_status hy_trainer_make_out(hy_trainer *t);    /* makes the folder */

/* save.c, restore.c */
hy_status hy_trainer_write_checkpoint(hy_trainer *t);
uint64_t hy_trainer_checkpoint_size(const hy_trainer *t);
hy_status hy_trainer_find_checkpoint(hy_trainer *t, char path[HY_PATH_MAX]);
hy_status hy_trainer_read_checkpoint(hy_trainer *t, const char *path);

/* progress_json.c */
void hy_progress_write(const hy_trainer *t, hy_text *out);
hy_status hy_progress_read(hy_trainer *t, const char *path);

/* metrics.c */
hy_status hy_metrics_open(hy_trainer *t);
hy_status hy_metrics_line(hy_trainer *t, const hy_step_info *info, double val_loss); /* NAN: none */
hy_status hy_metrics_close(hy_trainer *t);

/* summary_json.c */
hy_status hy_summary_write(const hy_trainer *t, bool is_finished);

/* trainer.c: hands a message to the observer. */
void hy_say(const hy_trainer *t, hy_message_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
