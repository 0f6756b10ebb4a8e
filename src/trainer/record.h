/* record.h: what a run records beside the figures of its steps: inside the trainer room only.
 *
 * A line of OUT/metrics.jsonl with "event" tells that something changed: the run began or went on, the
 * micro-batch, the memory's status, the plan, or that a shortage was survived. It carries step, spent and
 * elapsed like a step's line, so that a run that resumes drops the ones its checkpoint has not seen.
 * Nothing here fails a run: a record that cannot be written ends with a warning. */
#ifndef HY_TRAINER_RECORD_H
#define HY_TRAINER_RECORD_H

#include "base/json.h"
#include "config/settings.h"
#include "hybrid.h"
#include "memory/ledger.h"

/* One line; what is NULL or 0 is left out. Strings are only read during the call. */
typedef struct hy_record_event {
    const char *event;                      /* "batch", "memory", "recovery", "plan" */
    const char *text;                       /* one sentence of what happened */
    const char *reason;                     /* batch: why */
    int64_t batch_size, grad_accum;         /* batch: from now on */
    int64_t old_batch_size, old_grad_accum; /* and before */
    const char *status, *old_status;        /* memory: "normal", "warning", ... */
    double utilization;                     /* memory: share of the budget */
} hy_record_event;

/* metrics.c: adds the line and lets it reach the file at once: events are rare and readers wait for them.
 * Called between steps, by the thread that runs them. */
void hy_metrics_event(hy_trainer *t, const hy_record_event *event);
void hy_metrics_release(hy_trainer *t); /* whatever became of the run: closes what is open */

/* plan_json.c: OUT/plan.json, anew when another plan is taken. */
void hy_plan_write(hy_trainer *t);

/* tensorboard.c: OUT/tensorboard. */
void hy_tensorboard_open(hy_trainer *t);
void hy_tensorboard_step(hy_trainer *t, const hy_step_info *info, double val_loss); /* NAN: none */
void hy_tensorboard_flush(hy_trainer *t);
void hy_tensorboard_close(hy_trainer *t);

/* record.c: lines, whoever's run it is. */
typedef struct hy_record_moment {
    int64_t step;
    double spent, elapsed;
} hy_record_moment;

/* What is known when a sitting begins; NULL and 0 as above. */
typedef struct hy_record_start {
    const hy_settings *settings;
    const char *command, *model, *device, *data, *predictor, *resumed;
    int64_t parameters, steps_total, tokens_per_step;
    uint64_t vram_budget_bytes, host_budget_bytes;
} hy_record_start;

void hy_record_put_start(const hy_record_start *start, const hy_record_moment *when, hy_text *line);
void hy_record_put_event(const hy_record_event *event, const hy_record_moment *when, hy_text *line);
/* "memory" and "pinned": the most that was live of each class since the step began. */
void hy_record_put_memory(const hy_ledger *ledger, hy_json_writer *w);

#endif
