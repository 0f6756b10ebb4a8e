/* loss.c: softmax cross-entropy of rows of logits, and its gradient in place.
 *
 * A row is read in blocks. Each block is reduced to its maximum and its sum of exponentials
 * relative to that maximum, and the blocks are combined in double precision: nothing overflows and
 * the logits are read once. For the gradient, an fp32 row keeps its exponentials in place, so the
 * second pass only scales them; a narrow row computes them again instead of rounding them twice.
 * Scaled or capped logits are computed again, too: the gradient needs them. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/vector_math.h"

enum { MAX_BLOCKS = 1024, BLOCK = 2048 };

HY_CLONES static void softmax_run(float *x, float shift, float factor, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) x[i] = hy_exp(x[i] - shift) * factor;
}

/* ---- logits ---------------------------------------------------------------------------------- */

static hy_logit_shape shape_of(const hy_op_call *call) {
    return hy_logit_shape_of(call->attr.loss.factor, call->attr.loss.softcap);
}

/* The derivative at a logit that has become z. */
static inline float shape_slope(hy_logit_shape s, float z) {
    float t = s.cap > 0 ? z / s.cap : 0;
    return s.factor * (1.0f - t * t);
}

/* z becomes factor * softmax times the derivative. */
HY_CLONES static void shaped_softmax_run(hy_logit_shape s, float *z, float shift, float factor,
                                         int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        z[i] = hy_exp(z[i] - shift) * factor * shape_slope(s, z[i]);
    }
}

/* Elements [at, at + n) of the logits, as the softmax sees them. */
static const float *read_logits(const hy_op_call *call, int64_t at, int64_t n, float *buffer) {
    hy_logit_shape s = shape_of(call);
    const float *x = hy_read(&call->t[HY_CROSS_ENTROPY_LOGITS], at, n, buffer);
    if (s.is_plain) return x;
    hy_cpu_shape_logits(s, x, buffer, n);
    return buffer;
}

/* ---- a row ----------------------------------------------------------------------------------- */

/* The result of the first pass. A row of more than MAX_BLOCKS blocks keeps no exponentials. */
typedef struct row_state {
    float block_max[MAX_BLOCKS]; /* maximum of each kept block */
    double max, sum;             /* over the row: sum of exp(x - max) */
} row_state;

static bool keeps_exponentials(const hy_op_call *call) {
    return call->attr.loss.wants_grad && call->t[HY_CROSS_ENTROPY_LOGITS].dtype == HY_F32 &&
           call->attr.loss.vocab <= (int64_t)MAX_BLOCKS * BLOCK && shape_of(call).is_plain;
}

static void read_row(const hy_op_call *call, int64_t first, row_state *state) {
    const hy_tensor *logits = &call->t[HY_CROSS_ENTROPY_LOGITS];
    bool keeps = keeps_exponentials(call);
    float buffer[BLOCK];
    state->max = -INFINITY;
    state->sum = 0;
    for (int64_t at = 0; at < call->attr.loss.vocab; at += BLOCK) {
        int64_t n = hy_min64(BLOCK, call->attr.loss.vocab - at);
        const float *x = read_logits(call, first + at, n, buffer);
        float largest = hy_cpu_max(x, n);
        /* A block of minus infinities adds nothing; a shift of 0 avoids NaN. */
        float shift = largest == -INFINITY ? 0 : largest;
        double sum = keeps ? hy_cpu_exp_sum_kept(hy_element(logits, first + at), shift, n)
                           : hy_cpu_exp_sum(x, shift, n);
        if (keeps) state->block_max[at / BLOCK] = shift;
        double joined = fmax(state->max, (double)shift);
        state->sum = state->sum * exp(state->max - joined) + sum * exp((double)shift - joined);
        state->max = joined;
    }
}

/* The row becomes factor * softmax, times the derivative of logits that are not plain. */
static void write_softmax(const hy_op_call *call, int64_t first, const row_state *state,
                          double factor) {
    const hy_tensor *logits = &call->t[HY_CROSS_ENTROPY_LOGITS];
    hy_logit_shape s = shape_of(call);
    float buffer[BLOCK];
    for (int64_t at = 0; at < call->attr.loss.vocab; at += BLOCK) {
        int64_t n = hy_min64(BLOCK, call->attr.loss.vocab - at);
        if (keeps_exponentials(call)) {
            double block = exp((double)state->block_max[at / BLOCK] - state->max);
            hy_cpu_scale(hy_element(logits, first + at), (float)(block * factor / state->sum), n);
        } else if (!s.is_plain) {
            float *values = hy_target(logits, first + at, buffer);
            hy_cpu_shape_logits(s, hy_read(logits, first + at, n, buffer), values, n);
            shaped_softmax_run(s, values, (float)state->max, (float)(factor / state->sum), n);
            hy_write(logits, first + at, n, values);
        } else {
            float *values = hy_target(logits, first + at, buffer);
            hy_read(logits, first + at, n, buffer);
            softmax_run(values, (float)state->max, (float)(factor / state->sum), n);
            hy_write(logits, first + at, n, values);
        }
    }
}

static void clear(const hy_tensor *t, int64_t at, int64_t n) {
    memset(hy_element(t, at), 0, (size_t)n * hy_dtype_size(t->dtype));
}

static int32_t target_of(const hy_op_call *call, int64_t row) {
    const int32_t *targets = call->t[HY_CROSS_ENTROPY_TARGETS].data;
    return hy_target_of(targets[row], call->attr.loss.reads_prompts);
}

static void loss_row(const hy_op_call *call, int64_t row) {
    const hy_tensor *logits = &call->t[HY_CROSS_ENTROPY_LOGITS];
    const float *weights = call->t[HY_CROSS_ENTROPY_WEIGHTS].data;
    int32_t target = target_of(call, row);
    float *loss = (float *)call->t[HY_CROSS_ENTROPY_LOSSES].data + row;
    int64_t V = hy_tensor_width(logits), vocab = call->attr.loss.vocab, first = row * V;
    bool wants_grad = call->attr.loss.wants_grad;
    if (target < 0) {
        *loss = 0;
        if (wants_grad) clear(logits, first, V);
        return;
    }
    row_state state;
    float buffer;
    double logit = (double)*read_logits(call, first + target, 1, &buffer);
    read_row(call, first, &state);
    double log_probability = logit - state.max - log(state.sum);
    *loss = (float)-log_probability;
    if (!wants_grad) return;
    double factor = (double)call->attr.loss.scale;
    if (weights) factor *= (double)weights[row];
    if (factor == 0) {
        clear(logits, first, V);
        return;
    }
    write_softmax(call, first, &state, factor);
    /* The gradient of the target, p - 1, computed from the logit: exact even if p is almost 1. */
    float gradient = (float)(factor * expm1(log_probability));
    if (!shape_of(call).is_plain) gradient *= shape_slope(shape_of(call), (float)logit);
    hy_cpu_narrow(logits->dtype, &gradient, hy_element(logits, first + target), 1);
    if (vocab < V) clear(logits, first + vocab, V - vocab);
}

/* ---- the op ---------------------------------------------------------------------------------- */

static void loss_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    for (int64_t row = first; row < first + rows; row++) loss_row(call, row);
}

hy_status hy_cpu_cross_entropy(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *logits = &call->t[HY_CROSS_ENTROPY_LOGITS];
    int64_t N = hy_tensor_height(logits);
    for (int64_t i = 0; i < N; i++) {
        HY_FAIL_IF(target_of(call, i) >= call->attr.loss.vocab, HY_ERR_INPUT,
                   "cross-entropy: target %lld is %d, expected below %d", (long long)i,
                   target_of(call, i), call->attr.loss.vocab);
    }
    return hy_cpu_for_rows(run, N, hy_max64(1, 16 * 1024 / hy_tensor_width(logits)), loss_rows);
}
