/* step.c: one optimizer step on the device. See update.h.
 *
 * A step has three parts. hy_engine_gradients runs forward and backward over all micro-batches;
 * then the gradients of the step and their norm are complete, on the device. hy_engine_end_step
 * starts the update (update.c) and copies loss and norm to the host; normally only here the host
 * waits. hy_engine_count_step reads the result. A part that runs out of memory can be repeated.
 * trainer/model_provider.c calls the first part, trainer/step.c the others.
 *
 * All micro-batches of a step are known before its first backward pass, so each token has the
 * same weight however the step is split: gradients are those of (sum of losses) / (counted targets
 * of the whole step). */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "engine/engine.h"

/* fp16: the loss scale doubles after this many good steps. */
#define SCALE_GROWS_AFTER 200
#define LARGEST_SCALE 0x1p24

/* After this many steps in a row with gradients that are not finite, the run cannot recover. */
#define MOST_SKIPS_IN_A_ROW 20

/* What all micro-batches of a step have in common. */
typedef struct step_passes {
    hy_batch_plan *plan;
    hy_store *weights, *fp8; /* that passes read; fp8: NULL for a step without fp8 matmuls */
    int64_t divisor;         /* of the losses; 0: the targets of each micro-batch */
    uint64_t dropout_seed;   /* of the run */
    bool has_reference_pass; /* of answers, before each micro-batch's own */
    int32_t count;           /* micro-batches */
    float *losses;           /* (count,B,T) host: of tokens, as in hy_given_batches; or NULL */
} step_passes;

/* The seed of a micro-batch follows from the run's seed and the number of micro-batches so far,
 * so that a resumed run and a repeated step use the same one (the caller of a repeated step
 * restores that number). A fill value is a float, exact for integers of up to 24 bits, so the seed
 * is written in two halves. */
static hy_status set_dropout_seed(hy_engine *e, uint64_t seed) {
    uint64_t count = (uint64_t)hy_engine_ranks(e), rank = (uint64_t)e->request.ranks.rank;
    uint64_t number = (uint64_t)e->progress.backward_passes * count + rank;
    uint64_t bits = hy_rng_u64(seed, HY_RNG_DROPOUT, number);
    for (int i = 0; i < 2; i++) {
        hy_op_call fill = {.kind = HY_OP_FILL,
                           .attr.fill.value = (float)(bits >> 24 * i & 0xffffff)};
        fill.t[HY_FILL_DST] = hy_tensor_1d(hy_dropout_seed(&e->work->buffers) + i, HY_I32, 1);
        HY_TRY(e->device.backend->enqueue(e->device.compute, &fill));
    }
    return HY_OK;
}

/* The losses of a micro-batch's tokens, on their way to the host. */
static hy_status keep_losses(hy_engine *e, float *to, int64_t rows, int32_t index) {
    const float *from = e->work->buffers.token_losses;
    HY_FAIL_IF(!from, HY_ERR_STATE, "the loss of next tokens keeps no losses of tokens");
    return e->device.backend->copy(e->device.compute, to + index * rows, from,
                                   (size_t)rows * sizeof *from);
}

static hy_status enqueue_micro_batch(hy_engine *e, const step_passes *step, const hy_batch *batch,
                                     int32_t index) {
    hy_pass_buffers *b = &e->work->buffers;
    int64_t rows = (int64_t)step->plan->size.batch * step->plan->size.seq;
    bool accumulates;
    HY_TRY(hy_work_send_batch(e, batch, rows));
    if (e->model->shape.adapter.dropout != 0) HY_TRY(set_dropout_seed(e, step->dropout_seed));
    bool is_last = index == step->count - 1;
    hy_store *grads = hy_grads_begin_pass(e, index == 0, is_last, &accumulates);
    int64_t targets = step->divisor ? step->divisor : batch->counted;
    double scale = targets ? e->progress.loss_scale.scale / (double)targets : 0;
    hy_batch_input input = hy_work_input(e, step->weights);
    input.fp8 = step->fp8;
    input.seen = step->fp8 ? b->fp8_stats : NULL;
    input.largest = step->fp8 ? b->largest : NULL;
    input.grads = grads;
    input.dropout_seed = hy_dropout_seed(b);
    input.loss_scale = (float)scale;
    input.accumulate = accumulates;
    input.hook = hy_update_hook(e, is_last);
    if (step->has_reference_pass) HY_TRY(hy_work_reference(step->plan, &input));
    HY_TRY(hy_batch_train(step->plan, &input));
    e->progress.backward_passes++;
    if (step->losses) HY_TRY(keep_losses(e, step->losses, rows, index));
    hy_op_call sum = {
        .kind = HY_OP_SUM, .attr.accumulate = index > 0, .workspace = b->reduce_workspace};
    sum.t[HY_REDUCE_X] = hy_tensor_1d(b->losses, HY_F32, rows);
    sum.t[HY_REDUCE_OUT] = hy_tensor_1d(b->loss_sum, HY_F64, 1);
    return e->device.backend->enqueue(e->device.compute, &sum);
}

/* Of a loader's micro-batches, or of given ones. */
static hy_status run_step(hy_engine *e, step_passes step, hy_loader *loader,
                          const hy_batch *batches, hy_dtype dtype) {
    step.plan = e->work->train[hy_plan_index(dtype)];
    step.has_reference_pass = hy_engine_has_reference_pass(e);
    HY_TRY(hy_update_begin(e, dtype));
    if (step.has_reference_pass) HY_TRY(hy_update_finish(e)); /* two passes read the weights */
    HY_TRY(hy_engine_weights_pending(e, dtype, &step.weights));
    HY_TRY(hy_engine_fp8_pending(e, dtype, &step.fp8));
    if (step.fp8) { /* the fp8 statistics start at zero */
        hy_op_call fill = {.kind = HY_OP_FILL};
        int64_t count = (int64_t)HY_SEEN * e->model->params.units;
        fill.t[HY_FILL_DST] = hy_tensor_1d(e->work->buffers.fp8_stats, HY_F64, count);
        HY_TRY(e->device.backend->enqueue(e->device.compute, &fill));
    }
    HY_TRY(hy_work_clear_stats(e));
    for (int32_t i = 0; i < step.count; i++) {
        hy_batch batch;
        if (loader) {
            HY_TRY(hy_loader_peek(loader, i, &batch));
        } else {
            batch = batches[i];
        }
        HY_TRY(enqueue_micro_batch(e, &step, &batch, i));
    }
    return hy_update_clip(e, 1 / e->progress.loss_scale.scale);
}

hy_status hy_engine_gradients(hy_engine *e, hy_loader *loader, hy_dtype dtype, int64_t divisor,
                              uint64_t dropout_seed) {
    step_passes step = {
        .divisor = divisor, .dropout_seed = dropout_seed, .count = e->plan->choice.accum};
    return run_step(e, step, loader, NULL, dtype);
}

hy_status hy_engine_gradients_of(hy_engine *e, const hy_given_batches *given, hy_dtype dtype,
                                 int64_t divisor, uint64_t dropout_seed) {
    step_passes step = {.divisor = divisor,
                        .dropout_seed = dropout_seed,
                        .count = given->count,
                        .losses = given->losses};
    HY_FAIL_IF(given->count < 1, HY_ERR_INPUT, "a step of %d micro-batches, expected at least 1",
               given->count);
    return run_step(e, step, NULL, given->batches, dtype);
}

hy_status hy_engine_end_step(hy_engine *e, double lr, uint64_t seed) {
    hy_step_result *r = e->work->result;
    HY_TRY(hy_update_enqueue(e, lr, seed));
    if (hy_model_has_passes(e->model)) { /* otherwise the provider reports the loss */
        HY_TRY(e->device.backend->copy(e->device.compute, &r->loss_sum, e->work->buffers.loss_sum,
                                       sizeof(double)));
    }
    if (e->work->buffers.loss_stats) {
        size_t bytes = (size_t)hy_loss_stats(e->model->loss.kind) * sizeof(double);
        HY_TRY(e->device.backend->copy(e->device.compute, r->loss_stats,
                                       e->work->buffers.loss_stats, bytes));
    }
    HY_TRY(
        e->device.backend->copy(e->device.compute, r->clip, e->work->buffers.clip, sizeof r->clip));
    if (e->work->fp8_stats && hy_is_fp8(e->update.dtype)) {
        size_t bytes = (size_t)e->model->params.units * HY_SEEN * sizeof(double);
        HY_TRY(e->device.backend->copy(e->device.compute, e->work->fp8_stats,
                                       e->work->buffers.fp8_stats, bytes));
    }
    HY_TRY(e->device.backend->stream_sync(e->device.compute));
    return hy_exchange_check(&e->collectives->net);
}

/* ---- the result ------------------------------------------------------------------------------ */

void hy_loss_scale_adapt(hy_loss_scale *s, bool was_skipped) {
    if (was_skipped) {
        s->scale = fmax(1, s->scale / 2);
        s->good_steps = 0;
    } else if (++s->good_steps >= SCALE_GROWS_AFTER) {
        s->scale = fmin(LARGEST_SCALE, s->scale * 2);
        s->good_steps = 0;
    }
}

bool hy_engine_fp8_stats(const hy_engine *e, int32_t layer, bool is_gradients, double out[2]) {
    if (!e->work->fp8_stats || !hy_is_fp8(e->update.dtype)) return false;
    const double *fp8_stats =
        e->work->fp8_stats + HY_SEEN * (layer + 1); /* unit 0 is the embedding */
    if (is_gradients) fp8_stats += HY_SEEN_GRADIENTS;
    out[0] = fp8_stats[0];
    out[1] = fp8_stats[2] > 0 ? fp8_stats[1] / fp8_stats[2] : 0;
    return true;
}

hy_status hy_engine_count_step(hy_engine *e, int64_t step, hy_step_outcome *out) {
    hy_engine_progress *p = &e->progress;
    const hy_step_result *r = e->work->result;
    *out = (hy_step_outcome){.loss_sum = r->loss_sum,
                             .grad_norm = r->clip[0] * e->update.grad_scale,
                             .was_skipped = r->clip[1] == 0};
    hy_loss_kind loss = e->model->loss.kind;
    if (hy_loss_is_of_pairs(loss)) memcpy(out->pair_stats, r->loss_stats, sizeof out->pair_stats);
    if (loss == HY_LOSS_POLICY) memcpy(out->policy_stats, r->loss_stats, sizeof out->policy_stats);
    if (hy_engine_scales(e, e->update.dtype)) hy_loss_scale_adapt(&p->loss_scale, out->was_skipped);
    if (!out->was_skipped) {
        p->skipped_in_a_row = 0;
        p->updates++;
        hy_param *params = e->model->params.list;
        for (int32_t i = 0; i < e->model->params.count; i++)
            params[i].missed += params[i].is_skipped;
        return HY_OK;
    }
    p->skipped++;
    p->skipped_in_a_row++;
    if (p->skipped_in_a_row < MOST_SKIPS_IN_A_ROW) return HY_OK;
    return hy_fail(HY_ERR_NUMERIC,
                   "the gradient was not finite in the last %lld steps (now step %lld); try a "
                   "lower learning rate or --precision fp32; the last checkpoint is unchanged",
                   (long long)p->skipped_in_a_row, (long long)step + 1);
}
