/* trainer.c: questions that any part of a run may ask. See trainer.h.
 *
 * Every function here only reads the run; hy_say also hands a message to the observer. */
#include "trainer/trainer.h"

#include <math.h>
#include <stdarg.h>

#include "base/say.h"

void hy_say(const hy_trainer *t, hy_message_level level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    hy_say_list(&t->observer, level, format, args);
    va_end(args);
}

hy_status hy_trainer_must_have_state(const hy_trainer *t) {
    HY_FAIL_IF(t->status.life == HY_LIFE_PLAN, HY_ERR_STATE,
               "this trainer is only a plan and has no memory to run; use hy_trainer_create");
    HY_FAIL_IF(t->status.life != HY_LIFE_READY, HY_ERR_STATE,
               "step %lld failed before it was complete, so the state is not usable; continue from "
               "the last checkpoint (%s)",
               (long long)t->progress->step + 1, t->status.failure.text);
    return HY_OK;
}

hy_status hy_trainer_must_run(const hy_trainer *t) {
    HY_TRY(hy_trainer_must_have_state(t));
    HY_FAIL_IF(t->engine->work->is_gone, HY_ERR_STATE,
               "memory ran out, and no memory is left for forward and backward; save the run, and "
               "resume it when more memory is free");
    return HY_OK;
}

hy_status hy_trainer_must_train(const hy_trainer *t) {
    HY_TRY(hy_trainer_must_run(t));
    HY_FAIL_IF(t->is_scaled, HY_ERR_STATE,
               "the weights were scaled (hy_trainer_scale), so the run can only be measured");
    return HY_OK;
}

hy_status hy_trainer_refuse(const hy_trainer *t, hy_status status) {
    bool is_plan = t->status.life == HY_LIFE_PLAN;
    if (status == HY_OK || status == HY_ERR_MEMORY || !is_plan) return status;
    hy_say(t, HY_WARNING, "the run of this plan cannot start: %s", hy_error_message());
    return HY_OK;
}

hy_status hy_trainer_must_have_passes(const hy_trainer *t, const char *what) {
    HY_FAIL_IF(t->provider && !t->provider->facts.has_passes, HY_ERR_STATE,
               "%s: not available for a custom model", what);
    return HY_OK;
}

hy_engine *hy_trainer_engine(hy_trainer *t) { return t->engine; }

int64_t hy_trainer_next_sequence(const hy_trainer *t) { return t->progress->sequences; }

bool hy_trainer_leads(const hy_trainer *t) { return !t->team || t->team->who.rank == 0; }

const hy_dataset_facts *hy_trainer_data(const hy_trainer *t) {
    return t->data.set ? hy_dataset_describe(t->data.set) : &t->provider->facts.data;
}

int64_t hy_trainer_step_tokens(const hy_trainer *t) {
    bool is_known = t->provider->facts.has_passes;
    return is_known ? hy_step_sequences(t->engine) * t->settings->train.seq_len : 0;
}

int64_t hy_trainer_batch_size(const hy_trainer *t) {
    return t->provider->facts.has_passes ? t->engine->plan->choice.batch : 0;
}

bool hy_trainer_is_stopped_early(const hy_trainer *t) {
    int64_t patience = t->settings->eval.early_stop;
    return patience > 0 && t->progress->best.stale >= patience;
}

bool hy_trainer_is_over(const hy_trainer *t) {
    return t->progress->spent >= (double)t->schedule->steps_total - 0.5 ||
           hy_trainer_is_stopped_early(t);
}

double hy_trainer_share_done(const hy_trainer *t) {
    return t->progress->spent / (double)t->schedule->steps_total;
}

/* Compute is a sum of fractions: 25.999999999999996 is step 26. */
int64_t hy_trainer_schedule_step(const hy_trainer *t) {
    return (int64_t)floor(t->progress->spent + 1e-6);
}

hy_phase_obstacle hy_trainer_obstacle(const hy_trainer *t) {
    const hy_progress *p = t->progress;
    hy_observation seen = {.spent = hy_trainer_share_done(t),
                           .confidence = hy_confidence_value(&p->confidence)};
    return hy_phase_obstacle_now(&t->schedule->rules, &p->machine, &seen);
}

double hy_trainer_recent_loss(const hy_trainer *t) {
    int64_t count = t->progress->step < HY_LOSS_TAIL ? t->progress->step : HY_LOSS_TAIL;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += t->progress->loss_tail[i];
    return count ? sum / (double)count : NAN;
}

#define MOST_SAVING 0.01     /* largest share of a run's time for saves by the clock */
#define MOST_STRETCH 10      /* largest factor by which this delays a save */
#define SAVED_PER_SECOND 5e8 /* assumed bytes per second until a save was timed */

uint64_t hy_trainer_saved_bytes(const hy_trainer *t) {
    return hy_rows_saved_bytes(t->engine->state->rows,
                               t->engine->plan->choice.prediction_awaits_test);
}

/* A save changes no later bit, so the clock may decide. On a slow disk, saves are less frequent. */
bool hy_trainer_is_save_time(const hy_trainer *t) {
    double seconds = 60 * t->settings->save.save_minutes;
    double rare = fmin(t->status.save_seconds / MOST_SAVING, MOST_STRETCH * seconds);
    if (seconds > 0) seconds = fmax(seconds, rare);
    return seconds > 0 && hy_clock() - t->status.save_clock >= seconds;
}

bool hy_trainer_has_time_to_save(const hy_trainer *t) {
    double bytes = (double)hy_trainer_saved_bytes(t);
    double seconds = t->status.save_seconds > 0 ? t->status.save_seconds : bytes / SAVED_PER_SECOND;
    return hy_clock() - t->status.save_clock >= seconds / MOST_SAVING;
}
