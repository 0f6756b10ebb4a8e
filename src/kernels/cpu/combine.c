/* combine.c: linear combinations of tensors and dot products of their differences, for the formulas
 * of predictors and the measurement of a prediction. Elementwise; sums in task order. */
#include "base/rng.h"
#include "kernels/cpu/rows.h"

#define ELEMENTS_PER_TASK (64 * 1024)
#define INPUTS 3

HY_CLONES static void add_scaled(float *restrict sum, const float *restrict x, float coefficient,
                                 int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += coefficient * x[i];
}

static void add_noise(float *sum, const hy_op_attr *attr, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t index = attr->first + (uint64_t)(at + i);
        double z = hy_rng_normal(attr->seed, HY_RNG_PREDICT, index);
        sum[i] += attr->combine.noise * (float)z;
    }
}

static void combine_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *out = &call->t[HY_COMBINE_OUT];
    float sum[HY_CPU_RUN] = {0}, buffer[HY_CPU_RUN];
    for (int k = 0; k < INPUTS; k++) {
        const hy_tensor *x = &call->t[HY_COMBINE_X0 + k];
        if (!hy_tensor_is_given(x)) continue;
        add_scaled(sum, hy_read(x, at, n, buffer), call->attr.combine.coefficient[k], n);
    }
    if (call->attr.combine.noise != 0) add_noise(sum, &call->attr, at, n);
    hy_cpu_narrow(out->dtype, sum, hy_element(out, at), n);
}

hy_status hy_cpu_combine(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_COMBINE_OUT]);
    return hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, combine_elements);
}

/* ---- dot products of differences ------------------------------------------------------------- */

size_t hy_cpu_diff_dot_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    return (size_t)hy_ceil_div(hy_tensor_count(&call->t[HY_DIFF_DOT_A]), ELEMENTS_PER_TASK) * 3 *
           sizeof(double);
}

/* x - y, or x if y is absent. */
static const float *difference(const hy_tensor *x, const hy_tensor *y, int64_t at, int64_t n,
                               float *out) {
    float buffer[HY_CPU_RUN];
    const float *a = hy_read(x, at, n, out);
    if (!hy_tensor_is_given(y)) return a;
    const float *b = hy_read(y, at, n, buffer);
    for (int64_t i = 0; i < n; i++) out[i] = a[i] - b[i];
    return out;
}

/* Writes the three sums of a task to its place in the workspace. */
static void diff_dot_range(const hy_op_call *call, int64_t begin, int64_t count) {
    const hy_tensor *t = call->t;
    double *sums = (double *)call->workspace.data + 3 * (begin / ELEMENTS_PER_TASK);
    float first[HY_CPU_RUN], second[HY_CPU_RUN];
    sums[0] = sums[1] = sums[2] = 0;
    for (int64_t at = begin; at < begin + count; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, begin + count - at);
        const float *x = difference(&t[HY_DIFF_DOT_A], &t[HY_DIFF_DOT_B], at, n, first);
        const float *y = difference(&t[HY_DIFF_DOT_C], &t[HY_DIFF_DOT_D], at, n, second);
        for (int64_t i = 0; i < n; i++) {
            sums[0] += (double)x[i] * (double)x[i];
            sums[1] += (double)y[i] * (double)y[i];
            sums[2] += (double)x[i] * (double)y[i];
        }
    }
}

hy_status hy_cpu_diff_dot(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_DIFF_DOT_A]),
            tasks = hy_ceil_div(count, ELEMENTS_PER_TASK);
    hy_cpu_for_rows(run, count, ELEMENTS_PER_TASK, diff_dot_range);
    const double *sums = run->call->workspace.data;
    double *out = run->call->t[HY_DIFF_DOT_OUT].data;
    for (int k = 0; k < 3; k++) {
        double total = run->call->attr.accumulate ? out[k] : 0;
        for (int64_t i = 0; i < tasks; i++) total += sums[3 * i + k];
        out[k] = total;
    }
    return HY_OK;
}
