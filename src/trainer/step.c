/* step.c: one optimizer step. See trainer.h.
 *
 * All micro-batches of the step are known before its first backward pass, so each token weighs the same
 * whatever the split: gradients are of (sum of losses) / (targets that count in the whole step). The
 * host enqueues everything and waits once, at the end. */
#include <math.h>

#include "base/error.h"
#include "base/rng.h"
#include "trainer/trainer.h"

/* After this many updates in a row with gradients that are not finite, the run cannot recover. */
#define MOST_SKIPS_IN_A_ROW 20

static hy_status count_targets(hy_trainer *t, int64_t *out) {
    *out = 0;
    for (int32_t i = 0; i < t->settings.train.grad_accum_steps; i++) {
        hy_batch batch;
        HY_TRY(hy_loader_peek(t->loader, i, &batch));
        *out += batch.counted;
    }
    if (*out == 0) {
        return hy_fail(HY_ERR_INPUT, "no target counts in the sequences from number %lld on",
                       (long long)t->progress.sequences);
    }
    return HY_OK;
}

hy_status hy_trainer_sum_losses(hy_trainer *t, const hy_batch_plan *plan, bool accumulate) {
    hy_op_call call = {.kind = HY_OP_SUM,
                       .attr.accumulate = accumulate,
                       .workspace = t->buffers.reduce_workspace};
    call.t[0] =
        hy_tensor_1d(t->buffers.losses, HY_F32, (int64_t)plan->size.batch * plan->size.seq);
    call.t[1] = hy_tensor_1d(t->buffers.loss_sum, HY_F64, 1);
    return t->backend->enqueue(t->compute, &call);
}

static hy_status enqueue_micro_batch(hy_trainer *t, int32_t index, int64_t counted_in_step) {
    hy_batch batch;
    HY_TRY(hy_loader_peek(t->loader, index, &batch));
    hy_batch_plan *plan = t->train_plan;
    size_t bytes = (size_t)plan->size.batch * (size_t)plan->size.seq * sizeof(int32_t);
    HY_TRY(t->backend->copy(t->compute, t->buffers.tokens, batch.tokens, bytes));
    HY_TRY(t->backend->copy(t->compute, t->buffers.targets, batch.targets, bytes));
    int64_t weight = t->settings.train.normalize ? counted_in_step : batch.counted;
    hy_batch_input input = {.stream = t->compute,
                            .weights = &t->weights,
                            .grads = &t->grads,
                            .tokens = t->buffers.tokens,
                            .targets = t->buffers.targets,
                            .rope = t->buffers.rope,
                            .losses = t->buffers.losses,
                            .loss_scale = weight ? (float)(1.0 / (double)weight) : 0,
                            .accumulate = index > 0};
    HY_TRY(hy_batch_train(plan, &input));
    t->progress.backward_passes++;
    return hy_trainer_sum_losses(t, plan, index > 0);
}

static hy_status enqueue_update(hy_trainer *t, double lr) {
    hy_adamw_state state = {.weights = &t->weights,
                            .grads = &t->grads,
                            .m = &t->m,
                            .v = &t->v,
                            .master = t->has_master ? &t->master : NULL,
                            .square_sum = t->buffers.square_sum,
                            .clip = t->buffers.clip,
                            .workspace = t->buffers.reduce_workspace};
    const hy_params *params = &t->model->params;
    uint64_t noise = hy_rng_u64((uint64_t)t->settings.seed, HY_RNG_ROUNDING,
                                (uint64_t)t->progress.step);
    HY_TRY(hy_adamw_clip(&t->adamw, params, t->backend, t->compute, &state, 1));
    return hy_adamw_update(&t->adamw, params, t->backend, t->compute, &state, lr,
                           t->progress.updates, noise);
}

static hy_status fetch_result(hy_trainer *t) {
    HY_TRY(t->backend->copy(t->compute, &t->result->loss_sum, t->buffers.loss_sum, sizeof(double)));
    HY_TRY(t->backend->copy(t->compute, t->result->clip, t->buffers.clip, sizeof t->result->clip));
    return t->backend->stream_sync(t->compute);
}

static hy_status note_skip(hy_trainer *t, bool was_skipped) {
    if (!was_skipped) {
        t->consecutive_skips = 0;
        t->progress.updates++;
        return HY_OK;
    }
    t->progress.skipped++;
    t->consecutive_skips++;
    if (t->consecutive_skips < MOST_SKIPS_IN_A_ROW) return HY_OK;
    return hy_fail(HY_ERR_NUMERIC,
                   "the gradient was not finite in %d steps in a row (now step %lld); a lower "
                   "learning rate or fp32 may help; the last checkpoint is untouched",
                   t->consecutive_skips, (long long)t->progress.step + 1);
}

static void advance(hy_trainer *t, hy_phase phase, int64_t counted, double loss, double seconds,
                    double waited) {
    hy_progress *p = &t->progress;
    p->loss_tail[p->step % HY_LOSS_TAIL] = loss;
    p->step++;
    p->spent += 1;
    p->sequences += t->settings.train.batch_size * t->settings.train.grad_accum_steps;
    p->tokens += counted;
    p->seconds += seconds;
    p->phase_steps[phase]++;
    p->phase_seconds[phase] += seconds;
    p->phase_wait[phase] += waited;
    double rate = (double)counted / seconds;
    t->recent_rate = t->recent_rate > 0 ? 0.9 * t->recent_rate + 0.1 * rate : rate;
}

/* The phase of the next step, from what this one showed. */
static void choose_phase(hy_trainer *t, double loss, double grad_norm) {
    hy_progress *p = &t->progress;
    hy_health health = hy_divergence_observe(&p->divergence, &t->limits, loss, grad_norm);
    hy_observation seen = {.spent = p->spent / (double)t->steps_total,
                           .has_diverged = health != HY_HEALTHY};
    if (health != HY_HEALTHY) {
        hy_say(t, HY_WARNING, "step %lld: %s (loss %.4g, gradient norm %.3g)", (long long)p->step,
               hy_health_text(health), loss, grad_norm);
    }
    p->machine = hy_phase_next(&t->rules, p->machine, &seen);
}

static void describe(const hy_trainer *t, const hy_phase_state *was, double lr, double loss,
                     double seconds, double waited, hy_step_info *info) {
    const hy_progress *p = &t->progress;
    double per_step = p->seconds / (double)p->step;
    *info = (hy_step_info){.step = p->step,
                           .steps_total = t->steps_total,
                           .phase = was->phase,
                           .reason = hy_phase_reason_text(was->reason),
                           .loss = loss,
                           .lr = lr,
                           .grad_norm = t->result->clip[0],
                           .tokens = p->tokens,
                           .tokens_per_second = t->recent_rate,
                           .seconds = seconds,
                           .elapsed = p->seconds,
                           .remaining = per_step * (double)(t->steps_total - p->step),
                           .precision = t->precision,
                           .batch_size = t->settings.train.batch_size,
                           .grad_accum = t->settings.train.grad_accum_steps,
                           .vram_bytes = t->ledger.live_in[HY_DEVICE],
                           .vram_peak_bytes = t->ledger.peak_in[HY_DEVICE],
                           .host_pinned_bytes = t->ledger.live_in[HY_PINNED],
                           .wait_seconds = waited,
                           .was_skipped = t->result->clip[1] == 0};
}

hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info) {
    double begin = hy_clock();
    int32_t micro_batches = (int32_t)t->settings.train.grad_accum_steps;
    hy_phase_state was = t->progress.machine;
    double lr = hy_schedule_rate(&t->schedule, (int64_t)t->progress.spent);
    int64_t counted;
    hy_ledger_enter(&t->ledger, was.phase);
    HY_TRY(count_targets(t, &counted));
    for (int32_t i = 0; i < micro_batches; i++) HY_TRY(enqueue_micro_batch(t, i, counted));
    HY_TRY(enqueue_update(t, lr));
    HY_TRY(fetch_result(t));
    for (int32_t i = 0; i < micro_batches; i++) hy_loader_pop(t->loader);
    HY_TRY(note_skip(t, t->result->clip[1] == 0));
    double waited = hy_loader_waited(t->loader) - t->loader_waited;
    t->loader_waited += waited;
    double seconds = hy_clock() - begin;
    double loss = t->result->loss_sum / (double)counted;
    advance(t, was.phase, counted, loss, seconds, waited);
    choose_phase(t, loss, t->result->clip[0]);
    describe(t, &was, lr, loss, seconds, waited, info);
    return HY_OK;
}

double hy_trainer_tail_loss(const hy_trainer *t) {
    int64_t count = t->progress.step < HY_LOSS_TAIL ? t->progress.step : HY_LOSS_TAIL;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += t->progress.loss_tail[i];
    return count ? sum / (double)count : NAN;
}
