/* own_model.c: hy_train_own: a run with the caller's parameters and callbacks, from the first step
 * to the last. See own_model.h.
 *
 * Each turn of the loop is a true step or a move; then, in this order: the observer, validation
 * when it is due, the line of metrics. A callback that fails ends the run with its status; the
 * weights are then those of the last step that was done. */
#include "own/own_model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/say.h"

void hy_own_say(const hy_own_run *run, hy_message_level level, const char *format, ...) {
    va_list args;
    va_start(args, format);
    hy_say_list(&run->observer, level, format, args);
    va_end(args);
}

/* ---- a true step ----------------------------------------------------------------------------- */

static hy_status true_step(hy_own_run *run, hy_step_line *line) {
    hy_step_info *info = &line->step;
    hy_own_losses losses;
    hy_loop_outcome done;
    double begin = hy_clock(), grad_scale;
    hy_ledger_enter(&run->ledger, info->phase);
    info->bytes_moved = hy_own_offload_return(run);
    info->wait_seconds = hy_clock() - begin;
    bool is_scaled = hy_own_is_scaled(run, info->phase);
    if (info->precision == HY_F16 && run->scale.scale != 1) line->loss_scale = run->scale.scale;
    HY_TRY(hy_own_backward(run, info->phase, &losses, &grad_scale));
    info->loss = losses.sum / (double)losses.counted;
    hy_status status = hy_loop_update_scaled(run->loop, info->loss, grad_scale, is_scaled, &done);
    hy_own_adapt_scale(run, info->phase, done.was_skipped);
    const hy_loop *loop = run->loop;
    long long step = (long long)run->summary.steps + 1;
    if ((is_scaled && done.was_skipped && isfinite(info->loss))) {
        hy_own_say(run, HY_NOTE, "step %lld: the gradient overflowed; the loss scale is now %g",
                   step, run->scale.scale);
    } else if (loop->health != HY_HEALTHY) {
        hy_own_say(run, HY_WARNING, "step %lld: %s (loss %.4g, gradient norm %.3g)%s", step,
                   hy_health_text(loop->health), info->loss, done.grad_norm,
                   done.was_rolled_back ? "; the last move was undone" : "");
    }
    info->grad_norm = done.grad_norm;
    info->was_skipped = done.was_skipped;
    info->was_rolled_back = done.was_rolled_back;
    info->residual_cosine = done.residual_cosine;
    info->residual_length = done.residual_length;
    double loss = losses.sum / (double)losses.counted;
    double rate = (double)losses.counted / fmax((hy_clock() - begin), 1e-9);
    run->loss_tail[run->summary.steps % HY_LOSS_TAIL] = loss;
    run->summary.steps++;
    run->summary.skipped_steps += done.was_skipped;
    run->tokens += losses.counted;
    run->rate = run->rate > 0 ? 0.9 * run->rate + 0.1 * rate : rate;
    return status;
}

/* ---- a move ---------------------------------------------------------------------------------- */

static void count_move(hy_own_run *run, const hy_step_line *line, const hy_loop_outcome *done) {
    if (done->was_accepted) {
        run->summary.moves++;
        run->summary.predicted_steps += done->predicted_steps;
        return;
    }
    run->summary.rejected_moves++;
    hy_own_say(run, HY_NOTE,
               "step %lld: a move of %.1f predicted steps was rejected: the loss would go from "
               "%.4f to %.4f",
               (long long)run->summary.steps, done->predicted_steps, line->guard_before,
               line->guard_after);
}

static hy_status predict_step(hy_own_run *run, hy_step_line *line) {
    hy_step_info *info = &line->step;
    double begin = hy_clock();
    hy_loop_outcome done;
    info->bytes_moved = hy_own_offload_leave(run);
    info->wait_seconds = hy_clock() - begin;
    hy_ledger_enter(&run->ledger, HY_PREDICT);
    /* Both guard passes, with the move between them; a callback that fails takes the move back. */
    HY_TRY(hy_own_guard_pass(run, &line->guard_before));
    HY_TRY(hy_loop_propose(run->loop));
    hy_status status = hy_own_guard_pass(run, &line->guard_after);
    if (status != HY_OK) {
        hy_loop_judge(run->loop, NAN, NAN, NULL);
        return status;
    }
    HY_TRY(hy_loop_judge(run->loop, line->guard_before, line->guard_after, &done));
    count_move(run, line, &done);
    info->was_rejected = !done.was_accepted;
    info->loss = done.was_accepted ? line->guard_after : line->guard_before;
    info->predicted_steps = done.was_accepted ? done.predicted_steps : 0;
    return HY_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool is_validation_due(const hy_own_run *run, bool was_true_step) {
    int64_t every = run->settings.eval.eval_every, step = run->summary.steps;
    if (!run->model.evaluate) return false;
    if (hy_loop_is_over(run->loop)) return true;
    return was_true_step && every > 0 && step % every == 0;
}

static hy_status validate(hy_own_run *run, hy_step_line *line) {
    hy_own_losses losses;
    double begin = hy_clock();
    HY_TRY(hy_own_evaluate(run, &losses));
    run->summary.val_loss = line->val_loss = losses.sum / (double)losses.counted;
    hy_eval_info info = {.step = run->summary.steps,
                         .loss = line->val_loss,
                         .tokens = losses.counted,
                         .seconds = hy_clock() - begin,
                         .is_final = hy_loop_is_over(run->loop)};
    if (run->observer.on_eval) run->observer.on_eval(run->observer.user, &info);
    return HY_OK;
}

static hy_status one_turn(hy_own_run *run, const hy_loop_step *step) {
    double begin = hy_clock();
    hy_step_line line = {.step = {.steps_total = run->settings.train.steps,
                                  .phase = step->phase,
                                  .reason = step->reason,
                                  .obstacle = step->obstacle,
                                  .lr = step->lr,
                                  .confidence = step->confidence,
                                  .precision = run->precision[step->phase],
                                  .grad_accum = run->settings.train.grad_accum_steps,
                                  .residual_cosine = NAN,
                                  .residual_length = NAN},
                         .loss_scale = NAN,
                         .val_loss = NAN};
    HY_TRY(step->wants_backward ? true_step(run, &line) : predict_step(run, &line));
    double seconds = hy_clock() - begin;
    double spent = run->loop->spent;
    run->summary.seconds += seconds;
    run->summary.phase_steps[line.step.phase]++;
    run->phase_seconds[line.step.phase] += seconds;
    run->phase_wait[line.step.phase] += line.step.wait_seconds;
    run->phase_moved[line.step.phase] += line.step.bytes_moved;
    line.step.step = run->summary.steps;
    line.step.spent = spent;
    line.step.seconds = seconds;
    line.step.elapsed = run->summary.seconds;
    line.step.remaining = fmax(run->loop->budget - spent, 0) * run->summary.seconds / spent;
    line.step.tokens = run->tokens;
    line.step.tokens_per_second = run->rate;
    line.step.vram_bytes = run->ledger.live_in[HY_DEVICE];
    line.step.vram_peak_bytes = run->ledger.peak_in[HY_DEVICE];
    line.step.host_pinned_bytes = run->ledger.live_in[HY_PINNED];
    if (run->observer.on_step) run->observer.on_step(run->observer.user, &line.step);
    hy_status status = is_validation_due(run, step->wants_backward) ? validate(run, &line) : HY_OK;
    hy_record_step(&run->record, &line, &run->ledger);
    return status;
}

static hy_status train(hy_own_run *run) {
    hy_loop_step step;
    HY_TRY(hy_loop_next(run->loop, &step));
    while (!step.is_over) {
        HY_TRY(one_turn(run, &step));
        HY_TRY(hy_loop_next(run->loop, &step));
    }
    return HY_OK;
}

/* The first failure counts: a record that cannot be written does not hide why the run ended. */
static hy_status finish(hy_own_run *run, hy_status status) {
    char message[HY_ERROR_MESSAGE_MAX];
    snprintf(message, sizeof message, "%s", hy_error_message());
    hy_own_summary *s = &run->summary;
    int64_t count = s->steps < HY_LOSS_TAIL ? s->steps : HY_LOSS_TAIL;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += run->loss_tail[i];
    if (count) s->final_loss = sum / (double)count;
    s->spent = run->loop->spent;
    s->confidence = hy_confidence_value(&run->loop->confidence);
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        s->optimizer_bytes[i] = run->ledger.cell[HY_OPTIM][i].measured;
    }
    hy_status recorded = hy_own_record_close(run, status == HY_OK);
    return status == HY_OK ? recorded : hy_fail(status, "%s", message);
}

hy_status hy_train_own(const hy_config *config, const hy_own_model *model,
                       const hy_observer *observer, hy_own_summary *summary) {
    if (!config || !model) {
        return hy_fail(HY_ERR_INPUT, "hy_train_own needs a configuration and a model, one is NULL");
    }
    hy_own_run *run = calloc(1, sizeof *run);
    if (!run) return hy_fail(HY_ERR_MEMORY, "no memory for a run");
    run->settings = *hy_config_settings(config);
    run->model = *model;
    if (observer) run->observer = *observer;
    hy_status status = hy_own_build(run, config);
    if (status == HY_OK) status = finish(run, train(run));
    if (summary) *summary = run->summary;
    hy_own_tear_down(run);
    return status;
}
