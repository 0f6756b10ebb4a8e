/* reduce.c: sums of columns (bias gradients) and of all elements (norms), clipping, and scaling of
 * rows to norm one.
 *
 * All sums use double precision; blocks depend only on the shape and are added in order. */
#include <math.h>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/rows.h"

/* ---- columns --------------------------------------------------------------------------------- */

HY_CLONES static void add_run(double *sums, const float *x, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) sums[i] += (double)x[i];
}

/* Separate from its loop: GCC before 12 does not clone a public function that its own file
 * calls. */
void hy_cpu_add_to_sums(double *sums, const float *x, int64_t n) { add_run(sums, x, n); }

void hy_cpu_fold_columns(const double *partial, int64_t blocks, int64_t stride,
                         const hy_tensor *out, bool accumulate) {
    int64_t C = hy_tensor_count(out);
    for (int64_t at = 0; at < C; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, C - at);
        double sums[HY_CPU_RUN] = {0};
        float buffer[HY_CPU_RUN];
        for (int64_t b = 0; b < blocks; b++) {
            const double *block = partial + b * stride + at;
            for (int64_t i = 0; i < n; i++) sums[i] += block[i];
        }
        if (accumulate) hy_cpu_add_to_sums(sums, hy_read(out, at, n, buffer), n);
        float *values = hy_target(out, at, buffer);
        for (int64_t i = 0; i < n; i++) values[i] = (float)sums[i];
        hy_write(out, at, n, values);
    }
}

/* A task sums one block of rows over one stripe of columns. */
#define STRIPE 512

size_t hy_cpu_bias_grad_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    const hy_tensor *dy = &call->t[HY_BIAS_GRAD_DY];
    return (size_t)(hy_block_count(hy_tensor_height(dy)) * hy_tensor_width(dy)) * sizeof(double);
}

static void bias_grad_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *dy = &run->call->t[HY_BIAS_GRAD_DY];
    int64_t N = hy_tensor_height(dy), C = hy_tensor_width(dy), stripes = hy_ceil_div(C, STRIPE);
    int64_t block = task / stripes, col = task % stripes * STRIPE, n = hy_min64(STRIPE, C - col);
    int64_t rows = hy_block_rows(N);
    double sums[STRIPE] = {0};
    float buffer[STRIPE];
    for (int64_t row = block * rows; row < hy_min64((block + 1) * rows, N); row++) {
        hy_cpu_add_to_sums(sums, hy_read(dy, row * C + col, n, buffer), n);
    }
    double *partial = (double *)run->call->workspace.data + block * C + col;
    for (int64_t i = 0; i < n; i++) partial[i] = sums[i];
}

hy_status hy_cpu_bias_grad(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *dy = &call->t[HY_BIAS_GRAD_DY];
    int64_t C = hy_tensor_width(dy), blocks = hy_block_count(hy_tensor_height(dy));
    hy_cpu_for_each(run, blocks * hy_ceil_div(C, STRIPE), bias_grad_task);
    hy_cpu_fold_columns(call->workspace.data, blocks, C, &call->t[HY_BIAS_GRAD_DBIAS],
                        call->attr.accumulate);
    return HY_OK;
}

/* ---- all elements ---------------------------------------------------------------------------- */

#define ELEMENTS_PER_TASK (64 * 1024)

HY_CLONES static double sum_run(const float *x, int64_t n) {
    double sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}

HY_CLONES static double square_run(const float *x, int64_t n) {
    double sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

size_t hy_cpu_reduce_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    return (size_t)hy_ceil_div(hy_tensor_count(&call->t[HY_REDUCE_X]), ELEMENTS_PER_TASK) *
           sizeof(double);
}

/* Writes the sum of a task to its place in the workspace. */
static void reduce_range(const hy_op_call *call, int64_t begin, int64_t count) {
    const hy_tensor *x = &call->t[HY_REDUCE_X];
    bool is_squared = call->kind == HY_OP_SQ_NORM;
    float buffer[HY_CPU_RUN];
    double sum = 0;
    for (int64_t at = begin; at < begin + count; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, begin + count - at);
        const float *values = hy_read(x, at, n, buffer);
        sum += is_squared ? square_run(values, n) : sum_run(values, n);
    }
    ((double *)call->workspace.data)[begin / ELEMENTS_PER_TASK] = sum;
}

hy_status hy_cpu_reduce(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_REDUCE_X]);
    hy_cpu_for_rows(run, count, ELEMENTS_PER_TASK, reduce_range);
    double *out = run->call->t[HY_REDUCE_OUT].data;
    double total = run->call->attr.accumulate ? *out : 0;
    for (int64_t i = 0; i < hy_ceil_div(count, ELEMENTS_PER_TASK); i++) {
        total += ((double *)run->call->workspace.data)[i];
    }
    *out = total;
    return HY_OK;
}

hy_status hy_cpu_clip(const hy_cpu_run *run) {
    double total = *(const double *)run->call->t[HY_CLIP_TOTAL].data;
    float *result = run->call->t[HY_CLIP_RESULT].data;
    double scale = (double)run->call->attr.clip.grad_scale;
    double max_norm = (double)run->call->attr.clip.max_norm;
    double norm = sqrt(total), true_norm = norm * fabs(scale);
    if (max_norm > 0 && true_norm > max_norm) scale *= max_norm / true_norm;
    result[0] = (float)norm;
    result[1] = isfinite(norm) ? (float)scale : 0.0f;
    return HY_OK;
}

/* ---- rows to norm one ------------------------------------------------------------------------ */

/* A row is divided into stripes; first all sums of squares, then all quotients. */
#define STRIPE_ELEMENTS (64 * 1024)

static int64_t unit_stripes(const hy_op_call *call) {
    return hy_ceil_div(hy_tensor_width(&call->t[HY_TO_UNIT_X]), STRIPE_ELEMENTS);
}

size_t hy_cpu_to_unit_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    int64_t rows = hy_tensor_height(&call->t[HY_TO_UNIT_X]);
    return (size_t)(rows * unit_stripes(call)) * sizeof(double);
}

/* A task has the elements [*begin, *end) of the tensor. */
static void stripe_of(const hy_op_call *call, int64_t task, int64_t *begin, int64_t *end) {
    int64_t C = hy_tensor_width(&call->t[HY_TO_UNIT_X]), stripes = unit_stripes(call);
    int64_t row = task / stripes, first = task % stripes * STRIPE_ELEMENTS;
    *begin = row * C + first;
    *end = row * C + hy_min64(C, first + STRIPE_ELEMENTS);
}

static void square_stripe(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_op_call *call = run->call;
    int64_t begin, end;
    float buffer[HY_CPU_RUN];
    double sum = 0;
    stripe_of(call, task, &begin, &end);
    for (int64_t at = begin; at < end; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, end - at);
        sum += square_run(hy_read(&call->t[HY_TO_UNIT_X], at, n, buffer), n);
    }
    ((double *)call->workspace.data)[task] = sum;
}

HY_CLONES static void scale_run(const float *x, float factor, float *out, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * factor;
}

static void scale_stripe(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_op_call *call = run->call;
    const hy_tensor *x = &call->t[HY_TO_UNIT_X], *y = &call->t[HY_TO_UNIT_Y];
    int64_t begin, end, stripes = unit_stripes(call);
    const double *sums = (const double *)call->workspace.data + task / stripes * stripes;
    float buffer[HY_CPU_RUN], y_buffer[HY_CPU_RUN];
    double total = 0;
    for (int64_t i = 0; i < stripes; i++) total += sums[i];
    float factor = (float)(1.0 / (sqrt(total) + (double)call->attr.to_unit.eps));
    stripe_of(call, task, &begin, &end);
    for (int64_t at = begin; at < end; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, end - at);
        float *out = hy_target(y, at, y_buffer);
        scale_run(hy_read(x, at, n, buffer), factor, out, n);
        hy_write(y, at, n, out);
    }
}

hy_status hy_cpu_to_unit(const hy_cpu_run *run) {
    int64_t tasks = hy_tensor_height(&run->call->t[HY_TO_UNIT_X]) * unit_stripes(run->call);
    hy_cpu_for_each(run, tasks, square_stripe);
    hy_cpu_for_each(run, tasks, scale_stripe);
    return HY_OK;
}
