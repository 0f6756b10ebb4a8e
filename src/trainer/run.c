/* run.c: the loop from the first step to the last. See hybrid.h.
 *
 * After a step, in this order: validation if due, the metrics line, a paired test if due, a
 * checkpoint if due. A stop request is handled between steps: save, then return. A failed save is
 * reported and the run continues: the newest checkpoint before it, if any, is still complete. No
 * periodic checkpoint is saved while the loss is not finite or far above its start; a stop or
 * failure still saves if the last loss is finite. A run that stays in this state for
 * HY_DIVERGED_STEPS steps is ended. */
#include "trainer/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/ngram.h"
#include "formats/checkpoint.h"
#include "record/export.h"
#include "trainer/eval_schedule.h"
#include "trainer/evaluate.h"
#include "trainer/fork.h"
#include "trainer/monitor.h"
#include "trainer/predict.h"
#include "trainer/provider_weights.h"
#include "trainer/ranks.h"
#include "trainer/recording.h"
#include "trainer/recovery.h"
#include "trainer/reference.h"
#include "trainer/saving.h"
#include "trainer/steering.h"
#include "trainer/step.h"

/* An n-gram table of more text than this would take too long to count. */
#define NGRAM_TEXT_MAX (32u << 20)
#define NGRAM_ORDER 5

static bool is_due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

/* Do these weights have the lowest held-out loss so far, and does the run save such weights? */
static bool is_best(const hy_trainer *t) {
    const hy_best *best = &t->progress->best;
    bool saves = t->settings->eval.early_stop > 0 || t->settings->save.save_every > 0 ||
                 t->settings->save.save_minutes > 0;
    return saves && best->step == t->progress->step && t->progress->val_step == t->progress->step;
}

/* They are saved always with early_stop, otherwise if saving takes a small share of the time. */
static bool is_best_due(const hy_trainer *t) {
    if (!is_best(t)) return false;
    if (t->settings->eval.early_stop > 0) return true;
    return t->team ? t->ranks.agreed.keeps_best : hy_trainer_has_time_to_save(t);
}

static bool needs_save(const hy_trainer *t) {
    return t->folder[0] && t->status.saved_step != t->progress->step;
}

static hy_status save_or_warn(hy_trainer *t) {
    if (!needs_save(t)) return HY_OK;
    double begin = hy_clock();
    hy_status status = hy_trainer_retry(t, hy_trainer_write_checkpoint);
    t->status.save_clock = hy_clock();
    t->status.save_seconds = t->status.save_clock - begin;
    if (status == HY_OK) return HY_OK;
    /* An error of the ranks, not only of the save, ends the run. */
    if (t->team) HY_TRY(hy_control_check(t->team->control));
    hy_say(t, HY_WARNING, "%s; the run continues without this checkpoint", hy_error_message());
    return HY_OK;
}

/* If a Predict step comes soon, a due validation waits for it, because the memory is free there;
 * one that was interrupted waits no longer. */
static hy_status validate_if_due(hy_trainer *t, double *val_loss) {
    hy_phase_obstacle obstacle = hy_trainer_obstacle(t);
    bool is_predict_near = !t->schedule->is_validation_cut &&
                           (obstacle == HY_PREDICT_OPEN || obstacle == HY_PREDICT_WINDOW_SHORT);
    bool waits = !t->schedule->is_validation_due || is_predict_near || !hy_trainer_can_validate(t);
    if (waits && !hy_trainer_is_over(t)) return HY_OK;
    t->schedule->is_validation_due = false;
    hy_status status = hy_trainer_validate(t, val_loss);
    hy_trainer_note_validation(t, status);
    return status;
}

static hy_status ask_forks(hy_trainer *t) {
    HY_TRY(hy_trainer_consider_fork(t));
    t->schedule->is_rest_owed = false;
    return HY_OK;
}

/* The line of the step was written before its validation: the run was resumed, or the validation
 * was skipped at first. */
static void record_validation(hy_trainer *t, double val_loss) {
    char text[96];
    if (isnan(val_loss)) return;
    snprintf(text, sizeof text, "held-out loss %.4f of step %lld", val_loss,
             (long long)t->progress->step);
    hy_trainer_record_event(t, &(hy_event_line){.event = "validation",
                                                .text = text,
                                                .val_loss = val_loss,
                                                .rows = &t->progress->row_scores});
}

/* A run that was stopped between a step and its validation or paired test starts with these. */
static hy_status catch_up(hy_trainer *t) {
    double val_loss = NAN;
    HY_TRY(validate_if_due(t, &val_loss));
    record_validation(t, val_loss);
    HY_TRY(ask_forks(t));
    bool is_saved = !is_best(t) || isnan(val_loss) || hy_trainer_is_over(t);
    return is_saved || t->progress->bound.above > 0 ? HY_OK : save_or_warn(t);
}

/* The number of optimizer steps and jumps so far. */
static int64_t steps_done(const hy_trainer *t) {
    int64_t count = 0;
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        if (hy_phase_advances(&hy_phase_table[i])) count += t->progress->phases.steps[i];
    }
    return count;
}

hy_status hy_trainer_advance(hy_trainer *t, hy_step_info *info) {
    HY_TRY(hy_reference_measure(t));
    HY_TRY(hy_trainer_steer(t));
    if (t->provider->ops->prepare) HY_TRY(t->provider->ops->prepare(t->provider, t));
    bool is_jump = t->progress->machine.phase == HY_PREDICT;
    hy_status status = is_jump ? hy_trainer_run_predict(t, info) : hy_trainer_run_step(t, info);
    bool is_outside = status == HY_ERR_MEMORY || t->provider->facts.may_stop ||
                      hy_trainer_is_interrupted(t, status);
    bool can_be_saved = is_outside && t->status.life == HY_LIFE_READY;
    if (status != HY_OK && !can_be_saved) {
        hy_error_save(&t->status.failure, status);
        t->status.life = HY_LIFE_FAILED;
    }
    if (status == HY_OK) hy_monitor_step(t, info);
    return status;
}

static hy_status one_step(hy_trainer *t) {
    hy_step_info info;
    double val_loss = NAN;
    bool is_jump = t->progress->machine.phase == HY_PREDICT;
    bool was_due = t->schedule->is_validation_due;
    int64_t before = steps_done(t);
    hy_status status = hy_trainer_advance(t, &info);
    if (steps_done(t) == before) return status;
    /* The step is complete, even if something fails below, and will be in the checkpoint. */
    if (t->provider->ops->on_step) t->provider->ops->on_step(t->provider, &info);
    if (t->observer.on_step) t->observer.on_step(t->observer.user, &info);
    if (is_jump && was_due && !t->schedule->is_validation_due) val_loss = t->progress->val_loss;
    /* A Predict step may have changed the weights without changing the step number, so the
     * checkpoint of this step may be out of date. */
    if (is_jump) t->status.saved_step = -1;
    t->schedule->is_rest_owed = !is_jump || status != HY_OK;
    if (status == HY_OK && !is_jump) {
        t->schedule->is_validation_due |= is_due(hy_trainer_eval_every(t), t->progress->step);
        status = validate_if_due(t, &val_loss);
    }
    /* Failures are sent first; other ranks would wait for this step's figures. */
    status = hy_team_fail(t->team, status);
    hy_trainer_record_step(t, &info, val_loss);
    HY_TRY(status);
    if (is_jump && !is_best_due(t)) return HY_OK;
    if (!is_jump) HY_TRY(ask_forks(t));
    bool is_time = t->team ? t->ranks.agreed.saves : hy_trainer_is_save_time(t);
    t->status.is_save_owed |=
        is_time || is_best_due(t) || is_due(t->settings->save.save_every, t->progress->step);
    if (!t->status.is_save_owed || hy_trainer_is_over(t) || t->progress->bound.above > 0)
        return HY_OK;
    t->status.is_save_owed = false;
    return save_or_warn(t);
}

/* The baseline that a byte model must beat: only rank 0 computes it and shares it. If memory or the
 * file is missing, the run continues without it. */
static hy_status count_ngrams(hy_trainer *t) {
    uint64_t train_size, val_size;
    uint8_t *train = NULL, *val = NULL;
    double *loss = &t->held_out.ngram_loss;
    hy_status status = HY_OK;
    if (!t->data.set) return HY_OK;
    if (hy_trainer_leads(t)) {
        status = hy_dataset_bytes(t->data.set, HY_TRAIN, NGRAM_TEXT_MAX, &train, &train_size);
        if (train) status = hy_dataset_bytes(t->data.set, HY_VAL, UINT64_MAX, &val, &val_size);
        if (val) status = hy_ngram_loss(train, train_size, val, val_size, NGRAM_ORDER, loss);
        free(train);
        free(val);
    }
    if (status != HY_ERR_MEMORY && status != HY_ERR_IO) HY_TRY(status);
    return hy_ranks_share(t, loss, sizeof *loss);
}

/* With several ranks none has all weights, so the model is exported from the last checkpoint. */
static hy_status export_saved(hy_trainer *t, const char *folder) {
    char checkpoint[HY_PATH_MAX + 64];
    hy_export_options options = {.out = folder, .overwrite = true};
    HY_FAIL_IF(t->status.saved_step != t->progress->step, HY_ERR_IO,
               "%s was not written: it needs the last checkpoint, which could not be saved",
               folder);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint-%lld", t->record->out,
             (long long)t->status.saved_step);
    return hy_export(checkpoint, &options, NULL);
}

/* If transformers does not support the model, this only warns: the checkpoint has the weights. */
static hy_status write_model(hy_trainer *t) {
    char folder[HY_PATH_MAX];
    if (!t->record->out[0] || !t->settings->save.save_model) return HY_OK;
    bool is_adapter = t->engine->model->shape.adapter.rank > 0;
    HY_TRY(hy_path_join(folder, sizeof folder, t->record->out, is_adapter ? "adapter" : "model"));
    hy_status status =
        t->team ? export_saved(t, folder)
                : hy_export_engine(t->engine, is_adapter ? HY_EXPORT_ADAPTER : HY_EXPORT_MODEL,
                                   hy_trainer_data(t)->prompt, folder);
    if (status == HY_ERR_INPUT) {
        hy_say(t, HY_WARNING, "%s is not written: %s", folder, hy_error_message());
        return HY_OK;
    }
    if (status == HY_OK) {
        hy_say(t, HY_NOTE, "the %s is in %s, in the format of %s", is_adapter ? "adapter" : "model",
               folder, is_adapter ? "PEFT" : "transformers");
    }
    return status;
}

/* Ends a run that diverged without saving it. Its newest checkpoint is usually from before. */
static hy_status give_up_diverged(hy_trainer *t, const char *when) {
    const hy_progress *p = t->progress;
    char path[HY_PATH_MAX] = "", text[HY_ERROR_MESSAGE_MAX];
    int64_t step = -1;
    bool is_saved = t->record->out[0] &&
                    hy_checkpoint_latest(t->record->out, path, sizeof path, &step, NULL) == HY_OK;
    /* If the training loss is not above its limit, the held-out loss is not finite (finish). */
    bool is_held_out = p->bound.above == 0;
    double last = p->step > 0 && !is_held_out ? p->loss_tail[(p->step - 1) % HY_LOSS_TAIL] : NAN;
    char limit[96] = "not a finite number";
    if (isfinite(last))
        snprintf(limit, sizeof limit, "%.4g, above the limit of %.4g (divergence_factor)", last,
                 hy_trainer_loss_limit(t));
    snprintf(text, sizeof text,
             "the run diverged: %s step %lld the %s is %s; the first loss was %.4g", when,
             (long long)p->step, is_held_out ? "held-out loss" : "loss", limit, p->bound.first);
    hy_trainer_record_event(t, &(hy_event_line){.event = "divergence", .text = text});
    (void)hy_trainer_write_summary(t);
    (void)hy_record_close(t->record);
    return hy_fail(HY_ERR_NUMERIC, "%s; %s%s; a lower learning rate or a longer warmup may help",
                   text, is_saved ? "the newest checkpoint is " : "no checkpoint was saved", path);
}

/* Saves the last checkpoint and, at a run's end, its model. If the checkpoint does not fit, the
 * model may still fit. */
static hy_status wind_up(hy_trainer *t, bool is_end) {
    hy_error kept;
    HY_TRY(hy_trainer_show_last(t));
    hy_status saved = HY_OK, model = HY_OK;
    if (needs_save(t)) {
        hy_trainer_give_reserve(t); /* the last save may use the memory reserved for it */
        saved = hy_trainer_retry(t, hy_trainer_write_checkpoint);
    }
    hy_error_save(&kept, saved);
    if (saved != HY_OK && saved != HY_ERR_IO) return saved;
    if (is_end || saved != HY_OK) model = hy_trainer_retry(t, write_model);
    if (saved == HY_OK) HY_TRY(model);
    hy_status status = hy_trainer_retry(t, hy_trainer_write_summary);
    hy_status closed = hy_record_close(t->record);
    if (saved == HY_OK) return status != HY_OK ? status : closed;
    bool has_model = model == HY_OK && t->settings->save.save_model;
    (void)hy_error_restore(&kept);
    return has_model ? hy_fail_hint(saved, "the model was written") : saved;
}

/* best: before the closing validation */
static void report_early_stop(hy_trainer *t, const hy_best *best) {
    char text[256];
    snprintf(text, sizeof text,
             "stopped early: the lowest held-out loss was %.4f at step %lld, and %lld validations "
             "since then were not lower (early_stop)",
             best->loss, (long long)best->step, (long long)best->stale);
    hy_trainer_record_event(t, &(hy_event_line){.event = "early_stop", .text = text});
    hy_say(t, HY_NOTE, "%s", text);
}

static hy_status finish(hy_trainer *t) {
    const hy_progress *p = t->progress;
    const hy_best before = p->best;
    double val_loss;
    bool is_early = hy_trainer_is_stopped_early(t) && !t->schedule->is_closed;
    if (p->val_step != p->step || isnan(p->val_loss) || is_early) {
        /* A finished run that was resumed may have no validation yet. */
        bool is_late = p->val_step != p->step;
        HY_TRY(hy_trainer_validate(t, &val_loss));
        if (is_late) record_validation(t, val_loss);
    }
    if (is_early) report_early_stop(t, &before); /* once, though a stop may repeat the validation */
    /* If the last training loss is above the limit, the held-out loss decides: with a low held-out
     * loss, the last batch was an outlier; a high held-out loss alone may be overfitting. Without
     * held-out data, a high loss at the end counts only if it is not finite. */
    bool is_measured = p->val_step == p->step;
    bool is_broken = is_measured && p->step > 0 && !isfinite(p->val_loss);
    bool is_above = p->bound.above > 0 && (is_measured ? !(p->val_loss <= hy_trainer_loss_limit(t))
                                                       : !hy_trainer_may_save(t));
    if (is_broken || is_above) return give_up_diverged(t, "at its end, in");
    HY_TRY(count_ngrams(t));
    HY_TRY(wind_up(t, true));
    const hy_best *best = &p->best;
    if (t->record->out[0] && best->saved_step >= 0 && best->saved_step != p->step) {
        hy_say(t, HY_NOTE, "the lowest saved held-out loss is %.4f at step %lld: %s/best",
               best->saved_loss, (long long)best->saved_step, t->record->out);
    }
    return HY_OK;
}

static hy_status stop(hy_trainer *t) {
    if (!hy_trainer_may_save(t)) return give_up_diverged(t, "stopped on request, in");
    HY_TRY(wind_up(t, false));
    return hy_fail(HY_STOPPED, "stopped on request after step %lld", (long long)t->progress->step);
}

/* Stopped inside a step by the provider, or in a validation or paired test on request. */
static bool can_stop_here(const hy_trainer *t, hy_status status) {
    bool is_stopped = status == HY_STOPPED && t->status.life == HY_LIFE_READY;
    return is_stopped && !t->provider->is_abandoned;
}

static hy_status run(hy_trainer *t) {
    while (!hy_trainer_is_over(t)) {
        if (hy_ranks_stop(t)) return stop(t);
        hy_status status = t->schedule->is_rest_owed ? catch_up(t) : one_step(t);
        if (can_stop_here(t, status)) return stop(t);
        if (status != HY_OK) return hy_trainer_give_up(t, status);
        if (t->progress->bound.above >= HY_DIVERGED_STEPS) return give_up_diverged(t, "in");
    }
    hy_status status = finish(t);
    return can_stop_here(t, status) ? stop(t) : status;
}

hy_status hy_trainer_run(hy_trainer *t) {
    HY_TRY(hy_trainer_must_train(t));
    t->status.save_clock = hy_clock();
    return hy_ranks_fail(t, hy_trainer_hand_back(t, run(t)));
}
