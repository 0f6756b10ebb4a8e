/* step.c: one optimizer step: Warmup, Full or Correct. See trainer.h.
 *
 * All micro-batches of the step are known before its first backward pass, so each token weighs the same
 * whatever the split: gradients are of (sum of losses) / (targets that count in the whole step). The
 * host enqueues everything and waits once, at the end. */
#include <math.h>

#include "base/error.h"
#include "trainer/trainer.h"

/* After this many updates in a row with gradients that are not finite, the run cannot recover. */
#define MOST_SKIPS_IN_A_ROW 20

/* fp16: the scale of the loss doubles after this many good steps. */
#define SCALE_GROWS_AFTER 200
#define LARGEST_SCALE 0x1p24

/* ---- the pieces of a step ---------------------------------------------------------------------- */

static hy_status count_targets(hy_trainer *t, int64_t *out) {
    *out = 0;
    for (int32_t i = 0; i < t->settings.train.grad_accum_steps; i++) {
        hy_batch batch;
        HY_TRY(hy_loader_peek(t->data.loader, i, &batch));
        *out += batch.counted;
    }
    if (*out == 0) {
        return hy_fail(HY_ERR_INPUT, "no target counts in the sequences from number %lld on",
                       (long long)t->progress.sequences);
    }
    return HY_OK;
}

static hy_status sum_losses(hy_trainer *t, const hy_batch_plan *plan, bool accumulate) {
    hy_op_call call = {.kind = HY_OP_SUM,
                       .attr.accumulate = accumulate,
                       .workspace = t->engine.work.buffers.reduce_workspace};
    call.t[HY_REDUCE_X] = hy_tensor_1d(t->engine.work.buffers.losses, HY_F32,
                                       (int64_t)plan->size.batch * plan->size.seq);
    call.t[HY_REDUCE_OUT] = hy_tensor_1d(t->engine.work.buffers.loss_sum, HY_F64, 1);
    return t->engine.backend->enqueue(t->engine.compute, &call);
}

static hy_status enqueue_micro_batch(hy_trainer *t, hy_batch_plan *plan, hy_store *weights,
                                     int32_t index, int64_t counted_in_step) {
    hy_batch batch;
    HY_TRY(hy_loader_peek(t->data.loader, index, &batch));
    size_t bytes = (size_t)plan->size.batch * (size_t)plan->size.seq * sizeof(int32_t);
    HY_TRY(t->engine.backend->copy(t->engine.compute, t->engine.work.buffers.tokens, batch.tokens,
                                   bytes));
    HY_TRY(t->engine.backend->copy(t->engine.compute, t->engine.work.buffers.targets, batch.targets,
                                   bytes));
    if (batch.doc_starts)
        HY_TRY(t->engine.backend->copy(t->engine.compute, t->engine.work.buffers.doc_starts,
                                       batch.doc_starts, bytes));
    int64_t weight = t->settings.train.normalize ? counted_in_step : batch.counted;
    double scale = weight ? t->progress.loss_scale.scale / (double)weight : 0;
    hy_batch_input input = {.stream = t->engine.compute,
                            .weights = weights,
                            .grads = hy_store_of(&t->engine, HY_ROW_GRADS),
                            .tokens = t->engine.work.buffers.tokens,
                            .targets = t->engine.work.buffers.targets,
                            .doc_starts = t->engine.work.buffers.doc_starts,
                            .rope = t->engine.work.buffers.rope,
                            .losses = t->engine.work.buffers.losses,
                            .loss_scale = (float)scale,
                            .accumulate = index > 0,
                            .hook = hy_trainer_unit_hook(t, index)};
    HY_TRY(hy_batch_train(plan, &input));
    t->progress.backward_passes++;
    return sum_losses(t, plan, index > 0);
}

static hy_status fetch_result(hy_trainer *t) {
    HY_TRY(t->engine.backend->copy(t->engine.compute, &t->engine.work.result->loss_sum,
                                   t->engine.work.buffers.loss_sum, sizeof(double)));
    HY_TRY(t->engine.backend->copy(t->engine.compute, t->engine.work.result->clip,
                                   t->engine.work.buffers.clip,
                                   sizeof t->engine.work.result->clip));
    return t->engine.backend->stream_sync(t->engine.compute);
}

static void adapt_loss_scale(hy_trainer *t, hy_dtype dtype, bool was_skipped) {
    hy_loss_scale *s = &t->progress.loss_scale;
    if (dtype != HY_F16) return;
    if (was_skipped) {
        s->scale = fmax(1, s->scale / 2);
        s->good_steps = 0;
    } else if (++s->good_steps >= SCALE_GROWS_AFTER) {
        s->scale = fmin(LARGEST_SCALE, s->scale * 2);
        s->good_steps = 0;
    }
}

static hy_status note_skip(hy_trainer *t, bool was_skipped) {
    if (!was_skipped) {
        t->course.consecutive_skips = 0;
        t->progress.updates++;
        return HY_OK;
    }
    t->progress.skipped++;
    t->course.consecutive_skips++;
    if (t->course.consecutive_skips < MOST_SKIPS_IN_A_ROW) return HY_OK;
    return hy_fail(HY_ERR_NUMERIC,
                   "the gradient was not finite in %d steps in a row (now step %lld); a lower "
                   "learning rate or fp32 may help; the last checkpoint is untouched",
                   t->course.consecutive_skips, (long long)t->progress.step + 1);
}

/* ---- accounts ---------------------------------------------------------------------------------- */

void hy_account_open(hy_trainer *t, hy_account *account) {
    *account = (hy_account){.begin = hy_clock()};
    t->engine.host_waited = 0;
    t->pace.stream_waited = t->engine.backend->stream_waited(t->engine.compute);
    t->data.waited = t->data.loader ? hy_loader_waited(t->data.loader) : 0;
}

static uint64_t moved_by_stores(const hy_trainer *t) {
    const hy_store *stores[] = {
        hy_store_of(&t->engine, HY_ROW_MASTER),    hy_store_of(&t->engine, HY_ROW_WORKING),
        hy_store_of(&t->engine, HY_ROW_GRADS),     hy_store_of(&t->engine, HY_ROW_OPTIM),
        hy_store_of(&t->engine, HY_ROW_OPTIM + 1), hy_store_of(&t->engine, HY_ROW_SLOW + 0),
        hy_store_of(&t->engine, HY_ROW_SLOW + 1),  hy_store_of(&t->engine, HY_ROW_SNAPSHOT),
        hy_store_of(&t->engine, HY_ROW_AVERAGE),   &t->engine.work.activations};
    uint64_t bytes = t->engine.bytes_moved;
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) bytes += stores[i]->bytes_moved;
    return bytes;
}

void hy_account_close(hy_trainer *t, hy_account *account) {
    hy_progress *p = &t->progress;
    hy_phase phase = t->engine.ledger.phase;
    double seconds = hy_clock() - account->begin;
    uint64_t moved = moved_by_stores(t);
    account->waited = t->engine.host_waited + t->engine.backend->stream_waited(t->engine.compute) -
                      t->pace.stream_waited + hy_loader_waited(t->data.loader) - t->data.waited;
    account->bytes_moved = moved - t->pace.bytes_accounted;
    t->pace.bytes_accounted = moved;
    p->seconds += seconds;
    p->phase_seconds[phase] += seconds;
    p->phase_wait[phase] += account->waited;
    p->phase_bytes_moved[phase] += (int64_t)account->bytes_moved;
}

static void advance(hy_trainer *t, int64_t counted, double loss) {
    hy_progress *p = &t->progress;
    p->loss_tail[p->step % HY_LOSS_TAIL] = loss;
    p->step++;
    p->spent += 1;
    p->sequences += t->settings.train.batch_size * t->settings.train.grad_accum_steps;
    p->tokens += counted;
}

/* ---- what comes next --------------------------------------------------------------------------- */

hy_status hy_trainer_measure_residual(hy_trainer *t) {
    double d[3];
    hy_progress *p = &t->progress;
    p->residual_cosine = p->residual_length = NAN;
    if (!p->is_residual_due || p->machine.phase == HY_CORRECT) return HY_OK;
    if (!t->engine.snapshot_is_valid) {
        p->is_residual_due = false;
        return HY_OK;
    }
    HY_TRY(hy_trainer_measure(
        t, hy_store_of(&t->engine, HY_ROW_SLOW + 0), hy_store_of(&t->engine, HY_ROW_SNAPSHOT),
        hy_store_of(&t->engine, HY_ROW_MASTER), hy_store_of(&t->engine, HY_ROW_SLOW + 0), d));
    p->is_residual_due = false;
    p->residual_cosine = d[0] > 0 && d[1] > 0 ? d[2] / sqrt(d[0] * d[1]) : NAN;
    p->residual_length = d[0] > 0 ? sqrt(d[1] / d[0]) : NAN;
    t->engine.snapshot_is_valid = false; /* the move is corrected: nothing will undo it now */
    return HY_OK;
}

hy_status hy_trainer_observe(hy_trainer *t, double loss, double grad_norm, hy_verdict verdict) {
    hy_progress *p = &t->progress;
    bool is_move = p->machine.phase == HY_PREDICT;
    /* With fp16 a gradient beyond its range means a loss scale too large, not a run gone wrong. */
    bool is_overflow =
        t->engine.types.of[p->machine.phase] == HY_F16 && isfinite(loss) && !isfinite(grad_norm);
    hy_health health =
        is_move || is_overflow
            ? HY_HEALTHY
            : hy_divergence_observe(&p->divergence, &t->course.limits, loss, grad_norm);
    hy_observation seen = {.started =
                               (p->spent - (is_move ? 0 : 1)) / (double)t->course.steps_total,
                           .spent = p->spent / (double)t->course.steps_total,
                           .confidence = hy_confidence_value(&p->confidence),
                           .has_diverged = health != HY_HEALTHY,
                           .verdict = verdict};
    if (t->course.is_in_fork) seen.confidence = 1; /* the arm with moves moves */
    if (health != HY_HEALTHY) {
        hy_say(t, HY_WARNING, "step %lld: %s (loss %.4g, gradient norm %.3g)", (long long)p->step,
               hy_health_text(health), loss, grad_norm);
    }
    p->machine = hy_phase_next(&t->course.rules, p->machine, &seen);
    return p->machine.rolls_back ? hy_trainer_roll_back(t) : HY_OK;
}

static const char *obstacle_text(const hy_trainer *t) {
    const hy_progress *p = &t->progress;
    hy_observation seen = {.spent = p->spent / (double)t->course.steps_total,
                           .confidence = hy_confidence_value(&p->confidence)};
    return hy_phase_obstacle_text(hy_phase_obstacle_now(&t->course.rules, &p->machine, &seen));
}

void hy_trainer_describe(const hy_trainer *t, const hy_phase_state *was, const hy_account *account,
                         hy_step_info *info) {
    const hy_progress *p = &t->progress;
    double left = fmax(0, (double)t->course.steps_total - p->spent);
    double per_unit = p->spent > 0 ? p->seconds / p->spent : 0;
    *info = (hy_step_info){.step = p->step,
                           .steps_total = p->step + (int64_t)ceil(left - 0.5),
                           .phase = was->phase,
                           .reason = hy_phase_reason_text(was->reason),
                           .grad_norm = NAN,
                           .lr = hy_schedule_rate(&t->course.schedule, (int64_t)p->spent),
                           .tokens = p->tokens,
                           .tokens_per_second = t->pace.recent,
                           .seconds = hy_clock() - account->begin,
                           .elapsed = p->seconds,
                           .remaining = per_unit * left,
                           .confidence = hy_confidence_value(&p->confidence),
                           .precision = t->engine.types.of[was->phase],
                           .batch_size = t->settings.train.batch_size,
                           .grad_accum = t->settings.train.grad_accum_steps,
                           .vram_bytes = t->engine.ledger.live_in[HY_DEVICE],
                           .vram_peak_bytes = t->engine.ledger.peak_in[HY_DEVICE],
                           .host_pinned_bytes = t->engine.ledger.live_in[HY_PINNED],
                           .bytes_moved = account->bytes_moved,
                           .wait_seconds = account->waited,
                           .spent = p->spent,
                           .was_rolled_back = p->machine.rolls_back && t->engine.has_snapshot,
                           .residual_cosine = p->residual_cosine,
                           .residual_length = p->residual_length,
                           .obstacle = obstacle_text(t)};
    hy_trainer_describe_gpu(t, info);
}

/* ---- the step ---------------------------------------------------------------------------------- */

static hy_status run_micro_batches(hy_trainer *t, hy_dtype dtype, int64_t counted) {
    hy_store *weights;
    int32_t micro_batches = (int32_t)t->settings.train.grad_accum_steps;
    HY_TRY(hy_trainer_begin_update(t, dtype));
    HY_TRY(hy_trainer_weights_raw(t, dtype, &weights));
    for (int32_t i = 0; i < micro_batches; i++) {
        HY_TRY(enqueue_micro_batch(t, t->engine.work.train[hy_plan_index(dtype)], weights, i,
                                   counted));
    }
    return HY_OK;
}

/* Everything up to where the gradients of the step are whole. May be done again: nothing of the run's
 * state has changed, but for an update of the step before that was pending, which knows how far it is. */
static hy_status make_gradients(hy_trainer *t, hy_dtype dtype, int64_t *counted) {
    if (!hy_trainer_restores_ahead(t)) HY_TRY(hy_trainer_await_optimizer(t));
    HY_TRY(hy_trainer_measure_residual(t));
    HY_TRY(count_targets(t, counted));
    HY_TRY(hy_trainer_begin_window(t));
    HY_TRY(run_micro_batches(t, dtype, *counted));
    return hy_trainer_sum_gradients(t);
}

static hy_status compute_step(hy_trainer *t, hy_dtype dtype, double lr, int64_t *counted) {
    hy_status status;
    int64_t passes = t->progress.backward_passes;
    while ((status = make_gradients(t, dtype, counted)) != HY_OK) {
        HY_TRY(hy_trainer_survive(t, status, HY_WITH_LESS));
        t->progress.backward_passes = passes;
    }
    t->life.is_state_whole = false;
    while ((status = hy_trainer_enqueue_update(t, lr)) != HY_OK) {
        HY_TRY(hy_trainer_survive(t, status, HY_AS_IT_IS));
    }
    while ((status = fetch_result(t)) != HY_OK) {
        HY_TRY(hy_trainer_survive(t, status, HY_AS_IT_IS));
    }
    return HY_OK;
}

/* An average that lost a step begins anew; the run stops with this step. */
static hy_status sample_tail(hy_trainer *t) {
    hy_status status = hy_trainer_sample_tail(t);
    if (status != HY_ERR_MEMORY) return status;
    t->progress.tail_samples = 0;
    hy_trainer_give_up_later(t);
    return HY_OK;
}

hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info) {
    hy_account account;
    hy_phase_state was = t->progress.machine;
    hy_dtype dtype = t->engine.types.of[was.phase];
    double lr = hy_schedule_rate(&t->course.schedule, (int64_t)t->progress.spent);
    int64_t counted;
    hy_account_open(t, &account);
    hy_trainer_enter_phase(t, was.phase);
    HY_TRY(compute_step(t, dtype, lr, &counted));
    for (int32_t i = 0; i < t->settings.train.grad_accum_steps; i++) hy_loader_pop(t->data.loader);
    bool was_skipped = t->engine.work.result->clip[1] == 0;
    double loss = t->engine.work.result->loss_sum / (double)counted;
    double norm = t->engine.work.result->clip[0] / t->progress.loss_scale.scale;
    adapt_loss_scale(t, dtype, was_skipped);
    HY_TRY(note_skip(t, was_skipped));
    advance(t, counted, loss);
    HY_TRY(sample_tail(t));
    HY_TRY(hy_trainer_observe(t, loss, norm, HY_NO_MOVE));
    t->progress.phase_steps[was.phase]++;
    t->life.is_state_whole = true;
    hy_account_close(t, &account);
    t->pace.step_seconds = hy_clock() - account.begin;
    int64_t rows = t->settings.train.batch_size * t->settings.train.grad_accum_steps;
    hy_trainer_note_rate(t, (double)(rows * t->settings.train.seq_len) / t->pace.step_seconds);
    hy_trainer_describe(t, &was, &account, info);
    info->loss = loss;
    info->lr = lr;
    info->grad_norm = norm;
    info->was_skipped = was_skipped;
    return hy_trainer_end_step(t);
}

double hy_trainer_tail_loss(const hy_trainer *t) {
    int64_t count = t->progress.step < HY_LOSS_TAIL ? t->progress.step : HY_LOSS_TAIL;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += t->progress.loss_tail[i];
    return count ? sum / (double)count : NAN;
}
