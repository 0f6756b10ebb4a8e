/* tensorboard.c: a run's scalars as TensorBoard reads them: OUT/tensorboard. See record.h.
 *
 * Each step gives one record with the numbers of its line in metrics.jsonl, rounded to fp32. A move in
 * Predict has the number of the step before it: its loss has a tag of its own, so that loss, rate and speed
 * have one point a step, and what it tells of phase, memory and waiting stands at that step a second time.
 * A sitting that goes on with a run has a file of its own, which begins by taking back the steps that it
 * will do again. */
#include <math.h>

#include "base/error.h"
#include "formats/tfevents.h"
#include "trainer/record.h"
#include "trainer/trainer.h"

/* A disk that is full ends this record, not the run. */
static void end_record(hy_trainer *t) {
    hy_say(t, HY_WARNING, "%s; the run goes on without event files for TensorBoard",
           hy_error_message());
    hy_tfevents_abandon(t->tensorboard);
    t->tensorboard = NULL;
}

static hy_status begin(hy_trainer *t) {
    char folder[HY_PATH_MAX];
    double now = hy_clock_unix();
    HY_TRY(hy_path_join(folder, sizeof folder, t->out, "tensorboard"));
    HY_TRY(hy_tfevents_open(folder, &t->tensorboard));
    HY_TRY(hy_tfevents_begin(t->tensorboard, t->progress.step + 1, now));
    if (t->command[0]) hy_tfevents_add_text(t->tensorboard, "command", t->command);
    hy_tfevents_add_text(t->tensorboard, "config", t->config_text);
    HY_TRY(hy_tfevents_put(t->tensorboard, t->progress.step, now));
    return hy_tfevents_flush(t->tensorboard);
}

void hy_tensorboard_open(hy_trainer *t) {
    if (!t->out[0] || !t->settings.save.tensorboard) return;
    if (begin(t) != HY_OK) end_record(t);
}

static void add_known(hy_tfevents *e, const char *tag, double value) {
    if (isfinite(value)) hy_tfevents_add_scalar(e, tag, value);
}

static void add_bytes(hy_tfevents *e, const char *tag, uint64_t bytes) {
    if (bytes) hy_tfevents_add_scalar(e, tag, (double)bytes);
}

static void add_memory(const hy_trainer *t, const hy_step_info *i, hy_tfevents *e) {
    static const char *const tags[HY_CLASS_COUNT] = {[HY_WEIGHTS] = "memory/weights",
                                                     [HY_MASTER] = "memory/master",
                                                     [HY_GRADS] = "memory/grads",
                                                     [HY_OPTIM] = "memory/optim",
                                                     [HY_PREDICTOR] = "memory/predictor",
                                                     [HY_SNAPSHOT] = "memory/snapshot",
                                                     [HY_ACTIVATIONS] = "memory/activations",
                                                     [HY_LOGITS] = "memory/logits",
                                                     [HY_WORKSPACE] = "memory/workspace",
                                                     [HY_QUANTS] = "memory/quants",
                                                     [HY_DATA] = "memory/data"};
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        bool is_used =
            t->engine.ledger.cell[cls][HY_FULL].place == HY_DEVICE ||
            t->engine.ledger.most[cls][HY_DEVICE] > 0; /* a class that is gone is drawn as 0 */
        if (is_used)
            hy_tfevents_add_scalar(e, tags[cls], (double)t->engine.ledger.most[cls][HY_DEVICE]);
    }
    add_bytes(e, "memory/vram", i->vram_bytes);
    add_bytes(e, "memory/planned", i->vram_planned_bytes);
    add_bytes(e, "memory/reserved", i->vram_reserved_bytes);
    add_bytes(e, "memory/pinned", i->host_pinned_bytes);
    add_bytes(e, "memory/host_resident", i->host_resident_bytes);
}

static void add_gpu(const hy_step_info *i, hy_tfevents *e) {
    if (i->mfu > 0) hy_tfevents_add_scalar(e, "mfu", i->mfu);
    if (!i->gpu.is_known) return;
    add_known(e, "gpu/power_watts", i->gpu.power_watts);
    add_known(e, "gpu/temperature_c", i->gpu.temperature_c);
    add_known(e, "gpu/sm_clock_mhz", i->gpu.sm_clock_mhz);
    add_known(e, "gpu/utilization", i->gpu.utilization);
}

static void add_true_step(const hy_step_info *i, hy_tfevents *e) {
    add_known(e, "loss/train", i->loss);
    add_known(e, "lr", i->lr);
    add_known(e, "grad_norm", i->grad_norm);
    add_known(e, "tokens_per_second", i->tokens_per_second);
    hy_tfevents_add_scalar(e, "batch_size", (double)i->batch_size);
    add_gpu(i, e);
}

static void add_move(const hy_step_info *i, hy_tfevents *e) {
    add_known(e, "loss/predict", i->loss);
    add_known(e, "predicted_steps", i->predicted_steps);
}

static hy_status put_step(hy_trainer *t, const hy_step_info *i, double val_loss) {
    hy_tfevents *e = t->tensorboard;
    if (i->phase == HY_PREDICT) {
        add_move(i, e);
    } else {
        add_true_step(i, e);
    }
    add_known(e, "loss/validation", val_loss);
    add_known(e, "confidence", i->confidence);
    add_known(e, "wait_seconds", i->wait_seconds);
    hy_tfevents_add_scalar(e, "phase", (double)i->phase);
    add_memory(t, i, e);
    return hy_tfevents_put(e, i->step, hy_clock_unix());
}

void hy_tensorboard_step(hy_trainer *t, const hy_step_info *info, double val_loss) {
    if (!t->tensorboard) return;
    if (put_step(t, info, val_loss) != HY_OK) end_record(t);
}

void hy_tensorboard_flush(hy_trainer *t) {
    if (t->tensorboard && hy_tfevents_flush(t->tensorboard) != HY_OK) end_record(t);
}

void hy_tensorboard_close(hy_trainer *t) {
    hy_tfevents *events = t->tensorboard;
    t->tensorboard = NULL;
    if (hy_tfevents_close(events, true) == HY_OK) return;
    hy_say(t, HY_WARNING, "%s; the event files for TensorBoard end early", hy_error_message());
}
