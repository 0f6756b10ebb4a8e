/* head_norm.c: rmsnorm of every query and key head of a packed qkv row (Qwen3), and its backward.
 *
 * A row has H query heads, K key heads and K value heads of D numbers; values are copied unchanged.
 * All heads of a kind share the weights, so the gradients of the weights sum over rows and heads:
 * rows in blocks, heads within a row in order (columns.h). A head is read before it is written. */
#include <math.h>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/rows.h"

#define MAX_HEAD 1024 /* ops.c accepts no larger head */

HY_CLONES static float root_mean_square_inverse(const float *x, float eps, int64_t n) {
    float sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / (float)n + eps);
}

HY_CLONES static void scale_head(const float *x, float rstd, const float *w, float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * w[i];
}

/* dx = rstd (g - xhat mean(g xhat)), g = dy w; adds dy xhat to dw. */
HY_CLONES static void head_gradient(const float *dy, const float *x, const float *w, float rstd,
                                    float *dx, double *dw, int64_t n) {
    float sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += dy[i] * w[i] * (x[i] * rstd);
    float mean = sum / (float)n;
    HY_SIMD
    for (int64_t i = 0; i < n; i++) dw[i] += (double)(dy[i] * (x[i] * rstd));
    HY_SIMD
    for (int64_t i = 0; i < n; i++) dx[i] = rstd * (dy[i] * w[i] - x[i] * rstd * mean);
}

/* Copies values from src to dst at the same position, whatever the two types. */
static void pass_values(const hy_tensor *src, const hy_tensor *dst, int64_t at, int64_t n) {
    float buffer[MAX_HEAD];
    if (src->data == dst->data) return;
    for (int64_t i = 0; i < n; i += MAX_HEAD) {
        int64_t part = hy_min64(MAX_HEAD, n - i);
        hy_cpu_narrow(dst->dtype, hy_read(src, at + i, part, buffer), hy_element(dst, at + i),
                      part);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

static void head_norm_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *qkv = &call->t[HY_HEAD_NORM_QKV], *out = &call->t[HY_HEAD_NORM_OUT];
    int64_t H = call->attr.heads.heads, K = call->attr.heads.kv_heads,
            D = call->attr.heads.head_dim, P = hy_tensor_width(qkv);
    float wq_buffer[MAX_HEAD], wk_buffer[MAX_HEAD], in[MAX_HEAD], result[MAX_HEAD];
    const float *wq = hy_read(&call->t[HY_HEAD_NORM_WQ], 0, D, wq_buffer);
    const float *wk = hy_read(&call->t[HY_HEAD_NORM_WK], 0, D, wk_buffer);
    float *rstd = call->t[HY_HEAD_NORM_RSTD].data;
    for (int64_t row = first; row < first + rows; row++) {
        for (int64_t h = 0; h < H + K; h++) {
            int64_t at = row * P + h * D;
            const float *x = hy_read(qkv, at, D, in);
            float *y = hy_target(out, at, result);
            float r = root_mean_square_inverse(x, call->attr.heads.eps, D);
            scale_head(x, r, h < H ? wq : wk, y, D);
            hy_write(out, at, D, y);
            rstd[row * (H + K) + h] = r;
        }
        pass_values(qkv, out, row * P + (H + K) * D, K * D);
    }
}

hy_status hy_cpu_head_norm(const hy_cpu_run *run) {
    const hy_tensor *qkv = &run->call->t[HY_HEAD_NORM_QKV];
    int64_t each = hy_max64(1, 16 * 1024 / hy_tensor_width(qkv));
    return hy_cpu_for_rows(run, hy_tensor_height(qkv), each, head_norm_rows);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Per block of rows: D sums for wq, then D for wk. */
size_t hy_cpu_head_norm_bwd_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    int64_t blocks = hy_block_count(hy_tensor_height(&call->t[HY_HEAD_NORM_BWD_QKV]));
    return (size_t)(blocks * 2 * call->attr.heads.head_dim) * sizeof(double);
}

static void head_norm_bwd_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *dout = &call->t[HY_HEAD_NORM_BWD_DOUT], *qkv = &call->t[HY_HEAD_NORM_BWD_QKV],
                    *dqkv = &call->t[HY_HEAD_NORM_BWD_DQKV];
    int64_t H = call->attr.heads.heads, K = call->attr.heads.kv_heads,
            D = call->attr.heads.head_dim;
    int64_t P = hy_tensor_width(qkv), block = first / hy_block_rows(hy_tensor_height(qkv));
    float wq_buffer[MAX_HEAD], wk_buffer[MAX_HEAD], dy_buffer[MAX_HEAD], x_buffer[MAX_HEAD];
    float result[MAX_HEAD];
    const float *wq = hy_read(&call->t[HY_HEAD_NORM_BWD_WQ], 0, D, wq_buffer);
    const float *wk = hy_read(&call->t[HY_HEAD_NORM_BWD_WK], 0, D, wk_buffer);
    const float *rstd = call->t[HY_HEAD_NORM_BWD_RSTD].data;
    double *sums = (double *)call->workspace.data + block * 2 * D;
    for (int64_t i = 0; i < 2 * D; i++) sums[i] = 0;
    for (int64_t row = first; row < first + rows; row++) {
        for (int64_t h = 0; h < H + K; h++) {
            int64_t at = row * P + h * D;
            const float *dy = hy_read(dout, at, D, dy_buffer), *x = hy_read(qkv, at, D, x_buffer);
            float *dx = hy_target(dqkv, at, result);
            head_gradient(dy, x, h < H ? wq : wk, rstd[row * (H + K) + h], dx,
                          h < H ? sums : sums + D, D);
            hy_write(dqkv, at, D, dx);
        }
        pass_values(dout, dqkv, row * P + (H + K) * D, K * D);
    }
}

hy_status hy_cpu_head_norm_bwd(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    int64_t N = hy_tensor_height(&call->t[HY_HEAD_NORM_BWD_QKV]), blocks = hy_block_count(N);
    int64_t D = call->attr.heads.head_dim;
    const hy_tensor *dwq = &call->t[HY_HEAD_NORM_BWD_DWQ], *dwk = &call->t[HY_HEAD_NORM_BWD_DWK];
    const double *sums = call->workspace.data;
    bool adds = call->attr.accumulate;
    hy_cpu_for_rows(run, N, hy_block_rows(N), head_norm_bwd_rows);
    if (hy_tensor_is_given(dwq)) hy_cpu_fold_columns(sums, blocks, 2 * D, dwq, adds);
    if (hy_tensor_is_given(dwk)) hy_cpu_fold_columns(sums + D, blocks, 2 * D, dwk, adds);
    return HY_OK;
}
