/* own_passes.c: the caller's forward and backward over the micro-batches of a step. See
 * own_model.h.
 *
 * How many targets a micro-batch counts is known only after its backward pass. So gradients are
 * taken of loss_scale times the sum of losses, and the division by the step's count comes at the
 * end, in the update. Low precision: the weights lent to forward and backward are rounded to the
 * phase's type; the exact ones wait in a copy and are back, bit for bit, before others look. */
#include <string.h>

#include "base/error.h"
#include "kernels/half.h"
#include "own/own_model.h"

/* Sums of micro-batch means: a micro-batch's gradient is divided by its own count and set aside; the last
 * one brings the sum back. */
static void sum_means(hy_own_run *run, int64_t counted, bool is_first, bool is_last) {
    float *mean = run->mean_grads, share = counted ? 1.0f / (float)counted : 0;
    for (int32_t i = 0; i < run->loop->count; i++) {
        const hy_parameter *p = &run->loop->parameters[i];
        for (int64_t j = 0; j < p->count; j++) {
            mean[j] = (is_first ? 0 : mean[j]) + share * p->grads[j];
        }
        if (is_last) memcpy(p->grads, mean, (size_t)p->count * sizeof *mean);
        mean += p->count;
    }
}

/* Forward, or with a loss scale backward, over the micro-batches that come next. */
static hy_status run_batches(hy_own_run *run, int64_t batches, double loss_scale,
                             hy_own_losses *out) {
    bool is_backward = loss_scale > 0;
    const char *which = is_backward ? "backward" : "forward";
    const hy_own_model *model = &run->model;
    for (int64_t i = 0; i < batches; i++) {
        int64_t batch = run->next_batch + i, counted = 0;
        double sum = 0;
        for (int32_t k = 0; is_backward && (i == 0 || run->mean_grads) && k < run->loop->count;
             k++) {
            const hy_parameter *p = &run->loop->parameters[k];
            memset(p->grads, 0, (size_t)p->count * sizeof *p->grads);
        }
        hy_status status = is_backward
                               ? model->backward(model->user, batch, loss_scale, &sum, &counted)
                               : model->forward(model->user, batch, &sum, &counted);
        HY_FAIL_IF(status != HY_OK, status, "the %s callback gave \"%s\" on micro-batch %lld",
                   which, hy_status_name(status), (long long)batch);
        HY_FAIL_IF(counted < 0, HY_ERR_INPUT,
                   "the %s callback counted %lld targets in micro-batch %lld; expected 0 or more",
                   which, (long long)counted, (long long)batch);
        if (is_backward && run->mean_grads) sum_means(run, counted, i == 0, i + 1 == batches);
        out->sum += sum;
        out->counted += counted;
        run->summary.backward_passes += is_backward;
    }
    HY_FAIL_IF(out->counted == 0, HY_ERR_INPUT,
               "the %s callback counted no target from micro-batch %lld on", which,
               (long long)run->next_batch);
    return HY_OK;
}

/* The same while the weights are rounded to the phase's type. */
static hy_status run_rounded(hy_own_run *run, hy_phase phase, int64_t batches, double loss_scale,
                             hy_own_losses *out) {
    hy_dtype dtype = run->precision[phase];
    *out = (hy_own_losses){0};
    if (dtype == HY_F32) return run_batches(run, batches, loss_scale, out);
    hy_loop_gather(run->loop, run->exact);
    for (int32_t i = 0; i < run->loop->count; i++) {
        const hy_parameter *p = &run->loop->parameters[i];
        for (int64_t j = 0; j < p->count; j++) {
            p->weights[j] = dtype == HY_BF16 ? hy_bf16_to_f32(hy_f32_to_bf16(p->weights[j]))
                                             : hy_f16_to_f32(hy_f32_to_f16(p->weights[j]));
        }
    }
    hy_status status = run_batches(run, batches, loss_scale, out);
    hy_loop_scatter(run->loop, run->exact);
    return status;
}

hy_status hy_own_backward(hy_own_run *run, hy_phase phase, hy_own_losses *out, double *grad_scale) {
    double loss_scale = run->precision[phase] == HY_F16 ? run->scale.scale : 1;
    int64_t batches = run->settings.train.grad_accum_steps;
    HY_TRY(run_rounded(run, phase, batches, loss_scale, out));
    run->next_batch += batches;
    *grad_scale = 1 / (run->mean_grads ? loss_scale : loss_scale * (double)out->counted);
    return HY_OK;
}

hy_status hy_own_guard_pass(hy_own_run *run, double *loss) {
    hy_own_losses losses;
    HY_TRY(run_rounded(run, HY_PREDICT, run->guard_batches, 0, &losses));
    *loss = losses.sum / (double)losses.counted;
    return HY_OK;
}

hy_status hy_own_evaluate(hy_own_run *run, hy_own_losses *out) {
    *out = (hy_own_losses){0};
    hy_status status = run->model.evaluate(run->model.user, &out->sum, &out->counted);
    HY_FAIL_IF(status != HY_OK, status, "the evaluate callback gave \"%s\"",
               hy_status_name(status));
    HY_FAIL_IF(out->counted < 1, HY_ERR_INPUT,
               "the evaluate callback counted %lld targets; at least 1 is expected",
               (long long)out->counted);
    return HY_OK;
}
