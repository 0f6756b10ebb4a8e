/* own_passes.c: the caller's forward and backward over the micro-batches of a step. See
 * own_model.h.
 *
 * How many targets a micro-batch counts is known only after its backward pass. So gradients are
 * taken of loss_scale times the sum of losses, and the division by the step's count comes at the
 * end, in the update. Low precision: the weights lent to forward and backward are rounded to the
 * phase's type; the exact ones wait in a copy and are back, bit for bit, before others look. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "kernels/half.h"
#include "own/own_model.h"

#define LARGEST_SCALE 0x1p24
#define SMALLEST_SCALE 1.0
#define GOOD_STEPS_TO_GROW 200

/* ---- precision ------------------------------------------------------------------------------- */

static void lend_rounded(hy_own_run *run, hy_dtype dtype) {
    if (dtype == HY_F32) return;
    hy_loop_gather(run->loop, run->exact);
    for (int32_t i = 0; i < run->loop->count; i++) {
        const hy_parameter *p = &run->loop->parameters[i];
        for (int64_t j = 0; j < p->count; j++) {
            p->weights[j] = dtype == HY_BF16 ? hy_bf16_to_f32(hy_f32_to_bf16(p->weights[j]))
                                             : hy_f16_to_f32(hy_f32_to_f16(p->weights[j]));
        }
    }
}

static void take_back(hy_own_run *run, hy_dtype dtype) {
    if (dtype != HY_F32) hy_loop_scatter(run->loop, run->exact);
}

/* ---- loss scale ------------------------------------------------------------------------------ */

static double scale_of(const hy_own_run *run, hy_phase phase) {
    return run->precision[phase] == HY_F16 ? run->scale.scale : 1;
}

bool hy_own_is_scaled(const hy_own_run *run, hy_phase phase) {
    return scale_of(run, phase) > SMALLEST_SCALE;
}

void hy_own_adapt_scale(hy_own_run *run, hy_phase phase, bool was_skipped) {
    hy_loss_scale *s = &run->scale;
    if (run->precision[phase] != HY_F16) return;
    s->good_steps = was_skipped ? 0 : s->good_steps + 1;
    if (was_skipped) {
        s->scale = fmax(s->scale / 2, SMALLEST_SCALE);
    } else if (s->good_steps == GOOD_STEPS_TO_GROW) {
        s->scale = fmin(s->scale * 2, LARGEST_SCALE);
        s->good_steps = 0;
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void clear_grads(const hy_own_run *run) {
    for (int32_t i = 0; i < run->loop->count; i++) {
        const hy_parameter *p = &run->loop->parameters[i];
        memset(p->grads, 0, (size_t)p->count * sizeof *p->grads);
    }
}

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

/* ---- passes ---------------------------------------------------------------------------------- */

static hy_status check_callback(hy_status status, const char *which, int64_t batch,
                                int64_t counted) {
    HY_FAIL_IF(status != HY_OK, status, "the %s callback gave \"%s\" on micro-batch %lld", which,
               hy_status_name(status), (long long)batch);
    if (counted >= 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "the %s callback counted %lld targets in micro-batch %lld; expected 0 or more",
                   which, (long long)counted, (long long)batch);
}

static hy_status check_total(const hy_own_losses *losses, const char *which, int64_t batch) {
    if (losses->counted > 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "the %s callback counted no target from micro-batch %lld on",
                   which, (long long)batch);
}

static hy_status backward_batches(hy_own_run *run, double loss_scale, hy_own_losses *out) {
    int64_t batches = run->settings.train.grad_accum_steps;
    for (int64_t i = 0; i < batches; i++) {
        int64_t batch = run->next_batch + i, counted = 0;
        double sum = 0;
        if (i == 0 || run->mean_grads) clear_grads(run);
        hy_status status = run->model.backward(run->model.user, batch, loss_scale, &sum, &counted);
        HY_TRY(check_callback(status, "backward", batch, counted));
        if (run->mean_grads) sum_means(run, counted, i == 0, i + 1 == batches);
        out->sum += sum;
        out->counted += counted;
        run->summary.backward_passes++;
    }
    HY_TRY(check_total(out, "backward", run->next_batch));
    run->next_batch += batches;
    return HY_OK;
}

hy_status hy_own_backward(hy_own_run *run, hy_phase phase, hy_own_losses *out, double *grad_scale) {
    double loss_scale = scale_of(run, phase);
    *out = (hy_own_losses){0};
    lend_rounded(run, run->precision[phase]);
    hy_status status = backward_batches(run, loss_scale, out);
    take_back(run, run->precision[phase]);
    HY_TRY(status);
    *grad_scale = 1 / (run->mean_grads ? loss_scale : loss_scale * (double)out->counted);
    return HY_OK;
}

static hy_status forward_batches(hy_own_run *run, hy_own_losses *out) {
    for (int64_t i = 0; i < run->guard_batches; i++) {
        int64_t batch = run->next_batch + i, counted = 0;
        double sum = 0;
        hy_status status = run->model.forward(run->model.user, batch, &sum, &counted);
        HY_TRY(check_callback(status, "forward", batch, counted));
        out->sum += sum;
        out->counted += counted;
    }
    return check_total(out, "forward", run->next_batch);
}

hy_status hy_own_guard_pass(hy_own_run *run, double *loss) {
    hy_own_losses losses = {0};
    lend_rounded(run, run->precision[HY_PREDICT]);
    hy_status status = forward_batches(run, &losses);
    take_back(run, run->precision[HY_PREDICT]);
    HY_TRY(status);
    *loss = losses.sum / (double)losses.counted;
    return HY_OK;
}

hy_status hy_own_evaluate(hy_own_run *run, hy_own_losses *out) {
    *out = (hy_own_losses){0};
    hy_status status = run->model.evaluate(run->model.user, &out->sum, &out->counted);
    HY_FAIL_IF(status != HY_OK, status, "the evaluate callback gave \"%s\"",
               hy_status_name(status));
    if (out->counted > 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "the evaluate callback counted %lld targets; at least 1 is expected",
                   (long long)out->counted);
}
