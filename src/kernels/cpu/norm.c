/* norm.c: layernorm and rmsnorm of rows, forward and backward.
 *
 * w is the weight plus attr.norm.offset. With xhat = (x - mean) rstd (rmsnorm: x rstd) and g = dy w,
 * the gradient of a row is
 *   dx = rstd (g - mean(g) - xhat mean(g xhat)), for rmsnorm without mean(g).
 * dw and db are column sums of dy xhat and dy (columns.h). A row is read before it is written. */
#include <math.h>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/rows.h"

/* ---- rows ------------------------------------------------------------------------------------ */

/* Sums use fp32 over SHORT elements and are added in double, so long rows lose no precision. */
enum { SHORT = 256 };

/* Mean of x, or of (x - shift)^2. */
static inline __attribute__((always_inline)) float mean_in_parts(const float *x, float shift,
                                                                 bool is_squared, int64_t n) {
    double total = 0;
    for (int64_t at = 0; at < n; at += SHORT) {
        int64_t end = hy_min64(at + SHORT, n);
        float sum = 0;
        HY_SIMD_SUM(sum)
        for (int64_t i = at; i < end; i++) {
            sum += is_squared ? (x[i] - shift) * (x[i] - shift) : x[i];
        }
        total += (double)sum;
    }
    return (float)(total / (double)n);
}

HY_CLONES static float mean_of(const float *x, int64_t n) { return mean_in_parts(x, 0, false, n); }

HY_CLONES static float mean_square(const float *x, float shift, int64_t n) {
    return mean_in_parts(x, shift, true, n);
}

/* residual may be y. */
HY_CLONES static void norm_row(const float *x, float mean, float rstd, const float *w,
                               const float *b, const float *residual, float *y, int64_t n) {
    if (residual) {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) {
            y[i] = residual[i] + ((x[i] - mean) * rstd * w[i] + (b ? b[i] : 0));
        }
    } else if (b) {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i] + b[i];
    } else {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * w[i];
    }
}

/* Means of g and g xhat over a row. */
HY_CLONES static void gradient_means(const float *dy, const float *x, const float *w, float mean,
                                     float rstd, int64_t n, float *mean_g, float *mean_gx) {
    double g_total = 0, gx_total = 0;
    for (int64_t at = 0; at < n; at += SHORT) {
        int64_t end = hy_min64(at + SHORT, n);
        float g_sum = 0, gx_sum = 0;
        HY_SIMD_SUM(g_sum, gx_sum)
        for (int64_t i = at; i < end; i++) {
            float g = dy[i] * w[i];
            g_sum += g;
            gx_sum += g * ((x[i] - mean) * rstd);
        }
        g_total += (double)g_sum;
        gx_total += (double)gx_sum;
    }
    *mean_g = (float)(g_total / (double)n);
    *mean_gx = (float)(gx_total / (double)n);
}

typedef struct row_gradient {
    float mean, rstd, mean_g, mean_gx;
} row_gradient;

HY_CLONES static void gradient_row(const float *dy, const float *x, const float *w,
                                   const float *residual, row_gradient r, float *dx, int64_t n) {
    if (residual) {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) {
            float xhat = (x[i] - r.mean) * r.rstd;
            dx[i] = residual[i] + r.rstd * (dy[i] * w[i] - r.mean_g - xhat * r.mean_gx);
        }
    } else {
        HY_SIMD
        for (int64_t i = 0; i < n; i++) {
            float xhat = (x[i] - r.mean) * r.rstd;
            dx[i] = r.rstd * (dy[i] * w[i] - r.mean_g - xhat * r.mean_gx);
        }
    }
}

HY_CLONES static void add_weight_gradient(const float *dy, const float *x, float mean, float rstd,
                                          double *dw, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) dw[i] += (double)(dy[i] * ((x[i] - mean) * rstd));
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Buffers of one worker for rows of tensors that are not fp32, by the position of the tensor. */
typedef struct buffers {
    float *of[HY_OP_TENSORS];
} buffers;

static buffers take_buffers(const hy_op_call *call, hy_cpu_workspace *workspace) {
    static const int forward[] = {HY_NORM_X, HY_NORM_WEIGHT, HY_NORM_BIAS, HY_NORM_Y,
                                  HY_NORM_RESIDUAL};
    static const int backward[] = {HY_NORM_BWD_DY, HY_NORM_BWD_X, HY_NORM_BWD_WEIGHT,
                                   HY_NORM_BWD_RESIDUAL, HY_NORM_BWD_DX};
    bool is_forward = call->kind == HY_OP_NORM;
    const int *positions = is_forward ? forward : backward;
    int64_t C = hy_tensor_width(&call->t[is_forward ? HY_NORM_X : HY_NORM_BWD_X]);
    int weight = is_forward ? HY_NORM_WEIGHT : HY_NORM_BWD_WEIGHT;
    buffers own = {0};
    for (int i = 0; i < 5; i++) {
        const hy_tensor *t = &call->t[positions[i]];
        bool is_shifted = positions[i] == weight && call->attr.norm.offset != 0;
        size_t bytes = is_shifted ? (size_t)C * sizeof(float) : hy_buffer_bytes(t, C);
        own.of[positions[i]] = hy_cpu_take(workspace, bytes);
    }
    return own;
}

static const float *read_row(const hy_op_call *call, int position, int64_t row,
                             const buffers *own) {
    int64_t C = hy_tensor_width(&call->t[position]);
    if (!hy_tensor_is_given(&call->t[position])) return NULL;
    return hy_read(&call->t[position], row * C, C, own->of[position]);
}

static const float *read_weight(const hy_op_call *call, int position, const buffers *own) {
    const hy_tensor *t = &call->t[position];
    float offset = call->attr.norm.offset, *buffer = own->of[position];
    int64_t C = hy_tensor_count(t);
    const float *weight = hy_read(t, 0, C, buffer);
    if (offset == 0) return weight;
    for (int64_t i = 0; i < C; i++) buffer[i] = offset + weight[i];
    return buffer;
}

size_t hy_cpu_norm_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace workspace = {0};
    take_buffers(call, &workspace);
    return workspace.used * (size_t)threads;
}

/* Rows per task: enough work to be worth a task. */
static int64_t norm_rows(int64_t C) { return hy_max64(1, 16 * 1024 / C); }

static void norm_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    const hy_tensor *x = &call->t[HY_NORM_X], *y = &call->t[HY_NORM_Y];
    float *mean_out = call->t[HY_NORM_MEAN].data, *rstd_out = call->t[HY_NORM_RSTD].data;
    int64_t N = hy_tensor_height(x), C = hy_tensor_width(x), rows = norm_rows(C);
    size_t share = hy_cpu_norm_workspace(call, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    buffers own = take_buffers(call, &workspace);

    const float *weight = read_weight(call, HY_NORM_WEIGHT, &own);
    const float *bias = read_row(call, HY_NORM_BIAS, 0, &own);
    for (int64_t row = task * rows; row < hy_min64((task + 1) * rows, N); row++) {
        const float *in = read_row(call, HY_NORM_X, row, &own);
        const float *added = read_row(call, HY_NORM_RESIDUAL, row, &own);
        float *out = hy_target(y, row * C, own.of[HY_NORM_Y]);
        float mean = call->attr.norm.is_rms ? 0 : mean_of(in, C);
        float rstd = 1.0f / sqrtf(mean_square(in, mean, C) + call->attr.norm.eps);
        norm_row(in, mean, rstd, weight, bias, added, out, C);
        hy_write(y, row * C, C, out);
        if (mean_out) mean_out[row] = mean;
        rstd_out[row] = rstd;
    }
}

hy_status hy_cpu_norm(const hy_cpu_run *run) {
    const hy_tensor *x = &run->call->t[HY_NORM_X];
    int64_t rows = norm_rows(hy_tensor_width(x));
    hy_cpu_for_each(run, hy_ceil_div(hy_tensor_height(x), rows), norm_task);
    return HY_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The workspace has the partial sums of the blocks first, then the buffers of workers. */
typedef struct partial_sums {
    double *dw, *db; /* (blocks, C) each */
} partial_sums;

static partial_sums take_partial(const hy_op_call *call, hy_cpu_workspace *workspace) {
    const hy_tensor *x = &call->t[HY_NORM_BWD_X];
    int64_t N = hy_tensor_height(x), C = hy_tensor_width(x);
    size_t bytes = (size_t)(hy_block_count(N) * C) * sizeof(double);
    return (partial_sums){
        .dw = hy_cpu_take(workspace, hy_tensor_is_given(&call->t[HY_NORM_BWD_DWEIGHT]) ? bytes : 0),
        .db = hy_cpu_take(workspace, hy_tensor_is_given(&call->t[HY_NORM_BWD_DBIAS]) ? bytes : 0),
    };
}

size_t hy_cpu_norm_bwd_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace shared = {0}, own = {0};
    take_partial(call, &shared);
    take_buffers(call, &own);
    return shared.used + own.used * (size_t)threads;
}

static void norm_bwd_row(const hy_op_call *call, int64_t row, const float *weight,
                         const buffers *own, double *dw, double *db) {
    const hy_tensor *dx = &call->t[HY_NORM_BWD_DX];
    int64_t C = hy_tensor_width(dx);
    bool is_rms = call->attr.norm.is_rms;
    const float *dy = read_row(call, HY_NORM_BWD_DY, row, own);
    const float *x = read_row(call, HY_NORM_BWD_X, row, own);
    const float *added = read_row(call, HY_NORM_BWD_RESIDUAL, row, own);
    row_gradient r = {.mean = is_rms ? 0 : ((const float *)call->t[HY_NORM_BWD_MEAN].data)[row],
                      .rstd = ((const float *)call->t[HY_NORM_BWD_RSTD].data)[row]};
    gradient_means(dy, x, weight, r.mean, r.rstd, C, &r.mean_g, &r.mean_gx);
    if (is_rms) r.mean_g = 0;
    if (dw) add_weight_gradient(dy, x, r.mean, r.rstd, dw, C);
    if (db) hy_cpu_add_to_sums(db, dy, C);
    float *out = hy_target(dx, row * C, own->of[HY_NORM_BWD_DX]);
    gradient_row(dy, x, weight, added, r, out, C);
    hy_write(dx, row * C, C, out);
}

static void norm_bwd_task(const hy_cpu_run *run, int64_t block, int worker) {
    const hy_op_call *call = run->call;
    const hy_tensor *x = &call->t[HY_NORM_BWD_X];
    int64_t N = hy_tensor_height(x), C = hy_tensor_width(x);
    int64_t rows = hy_block_rows(N);
    hy_cpu_workspace workspace = {.base = call->workspace.data};
    partial_sums sums = take_partial(call, &workspace);
    hy_cpu_workspace share = {0};
    take_buffers(call, &share);
    workspace.used += share.used * (size_t)worker;
    buffers own = take_buffers(call, &workspace);

    double *dw = hy_tensor_is_given(&call->t[HY_NORM_BWD_DWEIGHT]) ? sums.dw + block * C : NULL;
    double *db = hy_tensor_is_given(&call->t[HY_NORM_BWD_DBIAS]) ? sums.db + block * C : NULL;
    for (int64_t i = 0; dw && i < C; i++) dw[i] = 0;
    for (int64_t i = 0; db && i < C; i++) db[i] = 0;
    const float *weight = read_weight(call, HY_NORM_BWD_WEIGHT, &own);
    for (int64_t row = block * rows; row < hy_min64((block + 1) * rows, N); row++) {
        norm_bwd_row(call, row, weight, &own, dw, db);
    }
}

hy_status hy_cpu_norm_bwd(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *x = &call->t[HY_NORM_BWD_X];
    int64_t N = hy_tensor_height(x), C = hy_tensor_width(x);
    const hy_tensor *dw = &call->t[HY_NORM_BWD_DWEIGHT], *db = &call->t[HY_NORM_BWD_DBIAS];
    hy_cpu_for_each(run, hy_block_count(N), norm_bwd_task);
    hy_cpu_workspace workspace = {.base = call->workspace.data};
    partial_sums sums = take_partial(call, &workspace);
    bool adds = call->attr.accumulate;
    if (hy_tensor_is_given(dw)) hy_cpu_fold_columns(sums.dw, hy_block_count(N), C, dw, adds);
    if (hy_tensor_is_given(db)) hy_cpu_fold_columns(sums.db, hy_block_count(N), C, db, adds);
    return HY_OK;
}
