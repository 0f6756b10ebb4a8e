/* head_norm.c: rmsnorm of every query and key head of a packed qkv row (Qwen3), or of all heads of a
 * kind together (OLMo 2), and its backward.
 *
 * A row has H query heads, K key heads and K value heads of D numbers; values are copied unchanged.
 * Behind each query head of qkv may be its gate, which is not read (Qwen3.5).
 * What is normed together is a part; it is read in pieces of at most MAX_HEAD. Parts of a kind share
 * the weights, so the gradients of the weights sum over rows and parts: rows in blocks, parts within
 * a row in order (columns.h). A piece is read before it is written. */
#include <math.h>

#include "kernels/cpu/columns.h"
#include "kernels/cpu/rows.h"

#define MAX_HEAD 1024 /* ops.c accepts no larger head */

HY_CLONES static void scale_head(const float *x, float rstd, const float *w, float *y, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * w[i];
}

/* The sum of g xhat, g = dy w. */
HY_CLONES static float gradient_sum(const float *dy, const float *x, const float *w, float rstd,
                                    int64_t n) {
    float sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += dy[i] * w[i] * (x[i] * rstd);
    return sum;
}

/* dx = rstd (g - xhat mean), mean = mean(g xhat); adds dy xhat to dw. */
HY_CLONES static void head_gradient(const float *dy, const float *x, const float *w, float rstd,
                                    float mean, float *dx, double *dw, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) dw[i] += (double)(dy[i] * (x[i] * rstd));
    HY_SIMD
    for (int64_t i = 0; i < n; i++) dx[i] = rstd * (dy[i] * w[i] - x[i] * rstd * mean);
}

/* Copies n values that end where row `row` does, whatever the two types. */
static void pass_values(const hy_tensor *src, const hy_tensor *dst, int64_t row, int64_t n) {
    float buffer[MAX_HEAD];
    int64_t from = (row + 1) * hy_tensor_width(src) - n, to = (row + 1) * hy_tensor_width(dst) - n;
    if (src->data == dst->data) return;
    for (int64_t i = 0; i < n; i += MAX_HEAD) {
        int64_t part = hy_min64(MAX_HEAD, n - i);
        hy_cpu_narrow(dst->dtype, hy_read(src, from + i, part, buffer), hy_element(dst, to + i),
                      part);
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Columns [at, at + n) of a normed row, [raw, raw + n) of a row of qkv; kind 0: queries, 1: keys. */
typedef struct part {
    int64_t at, raw, n;
    int kind;
} part;

static int64_t part_count(const hy_heads_attr *a) {
    return a->is_whole ? 2 : a->heads + a->kv_heads;
}

static part part_of(const hy_heads_attr *a, int64_t i) {
    int64_t H = a->heads, K = a->kv_heads, D = a->head_dim;
    if (a->is_whole) return (part){i ? H * D : 0, i ? H * D : 0, (i ? K : H) * D, (int)i};
    int64_t gates = a->has_gates ? hy_min64(i, H) : 0; /* before it */
    return (part){i * D, (i + gates) * D, D, i >= H};
}

/* The weights of a piece as fp32, with the offset. The last piece of each kind is kept: it is the
 * only one if a part is a head. */
typedef struct weights {
    const hy_tensor *of[2];
    float offset;
    const float *kept[2];
    int64_t at[2];
    float buffer[2][MAX_HEAD];
} weights;

/* Leaves the buffers as they are. */
static void weights_init(weights *w, const hy_tensor *wq, const hy_tensor *wk, float offset) {
    w->of[0] = wq, w->of[1] = wk;
    w->offset = offset;
    w->kept[0] = w->kept[1] = NULL;
}

static const float *weights_at(weights *w, int kind, int64_t at, int64_t n) {
    if (w->kept[kind] && w->at[kind] == at) return w->kept[kind];
    float *buffer = w->buffer[kind];
    const float *numbers = hy_read(w->of[kind], at, n, buffer);
    if (w->offset != 0) {
        for (int64_t i = 0; i < n; i++) buffer[i] = w->offset + numbers[i];
        numbers = buffer;
    }
    w->kept[kind] = numbers;
    w->at[kind] = at;
    return numbers;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Norms a part of a row; returns rstd. */
static float norm_part(const hy_op_call *call, int64_t row, part p, weights *w) {
    const hy_tensor *qkv = &call->t[HY_HEAD_NORM_QKV], *out = &call->t[HY_HEAD_NORM_OUT];
    int64_t from = row * hy_tensor_width(qkv) + p.raw, to = row * hy_tensor_width(out) + p.at;
    float in[MAX_HEAD], result[MAX_HEAD];
    const float *x = NULL;
    double square = 0;
    for (int64_t i = 0; i < p.n; i += MAX_HEAD) {
        int64_t n = hy_min64(MAX_HEAD, p.n - i);
        x = hy_read(qkv, from + i, n, in);
        square += (double)hy_cpu_square_sum(x, n);
    }
    float rstd = 1.0f / sqrtf((float)square / (float)p.n + call->attr.heads.eps);
    for (int64_t i = 0; i < p.n; i += MAX_HEAD) {
        int64_t n = hy_min64(MAX_HEAD, p.n - i);
        float *y = hy_target(out, to + i, result);
        if (p.n > MAX_HEAD) x = hy_read(qkv, from + i, n, in);
        scale_head(x, rstd, weights_at(w, p.kind, i, n), y, n);
        hy_write(out, to + i, n, y);
    }
    return rstd;
}

static void head_norm_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *t = call->t, *qkv = &t[HY_HEAD_NORM_QKV];
    const hy_heads_attr *a = &call->attr.heads;
    int64_t parts = part_count(a), values = (int64_t)a->kv_heads * a->head_dim;
    float *rstd = t[HY_HEAD_NORM_RSTD].data;
    weights w;
    weights_init(&w, &t[HY_HEAD_NORM_WQ], &t[HY_HEAD_NORM_WK], a->norm_offset);
    for (int64_t row = first; row < first + rows; row++) {
        for (int64_t i = 0; i < parts; i++) {
            part p = part_of(a, i);
            rstd[row * parts + i] = norm_part(call, row, p, &w);
        }
        pass_values(qkv, &t[HY_HEAD_NORM_OUT], row, values);
    }
}

hy_status hy_cpu_head_norm(const hy_cpu_run *run) {
    const hy_tensor *qkv = &run->call->t[HY_HEAD_NORM_QKV];
    int64_t each = hy_max64(1, 16 * 1024 / hy_tensor_width(qkv));
    return hy_cpu_for_rows(run, hy_tensor_height(qkv), each, head_norm_rows);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Sums per block of rows: those of wq, then those of wk. */
static int64_t sums_of_block(const hy_op_call *call) {
    return hy_tensor_count(&call->t[HY_HEAD_NORM_BWD_WQ]) +
           hy_tensor_count(&call->t[HY_HEAD_NORM_BWD_WK]);
}

size_t hy_cpu_head_norm_bwd_workspace(const hy_op_call *call, int threads) {
    (void)threads;
    int64_t blocks = hy_block_count(hy_tensor_height(&call->t[HY_HEAD_NORM_BWD_QKV]));
    return (size_t)(blocks * sums_of_block(call)) * sizeof(double);
}

/* The gradient of a part of a row. */
static void norm_bwd_part(const hy_op_call *call, int64_t row, part p, float rstd, weights *w,
                          double *dw) {
    const hy_tensor *dout = &call->t[HY_HEAD_NORM_BWD_DOUT], *qkv = &call->t[HY_HEAD_NORM_BWD_QKV],
                    *dqkv = &call->t[HY_HEAD_NORM_BWD_DQKV];
    int64_t at = row * hy_tensor_width(qkv) + p.raw, of_out = row * hy_tensor_width(dout) + p.at;
    float dy_buffer[MAX_HEAD], x_buffer[MAX_HEAD], result[MAX_HEAD];
    const float *dy = NULL, *x = NULL;
    double sum = 0;
    for (int64_t i = 0; i < p.n; i += MAX_HEAD) {
        int64_t n = hy_min64(MAX_HEAD, p.n - i);
        dy = hy_read(dout, of_out + i, n, dy_buffer);
        x = hy_read(qkv, at + i, n, x_buffer);
        sum += (double)gradient_sum(dy, x, weights_at(w, p.kind, i, n), rstd, n);
    }
    float mean = (float)sum / (float)p.n;
    for (int64_t i = 0; i < p.n; i += MAX_HEAD) {
        int64_t n = hy_min64(MAX_HEAD, p.n - i);
        float *dx = hy_target(dqkv, at + i, result);
        if (p.n > MAX_HEAD) {
            dy = hy_read(dout, of_out + i, n, dy_buffer);
            x = hy_read(qkv, at + i, n, x_buffer);
        }
        head_gradient(dy, x, weights_at(w, p.kind, i, n), rstd, mean, dx, dw + i, n);
        hy_write(dqkv, at + i, n, dx);
    }
}

static void head_norm_bwd_rows(const hy_op_call *call, int64_t first, int64_t rows) {
    const hy_tensor *t = call->t, *qkv = &t[HY_HEAD_NORM_BWD_QKV];
    const hy_heads_attr *a = &call->attr.heads;
    int64_t block = first / hy_block_rows(hy_tensor_height(qkv)), count = sums_of_block(call);
    int64_t parts = part_count(a), values = (int64_t)a->kv_heads * a->head_dim;
    const float *rstd = t[HY_HEAD_NORM_BWD_RSTD].data;
    weights w;
    weights_init(&w, &t[HY_HEAD_NORM_BWD_WQ], &t[HY_HEAD_NORM_BWD_WK], a->norm_offset);
    double *sums = (double *)call->workspace.data + block * count;
    double *of_kind[2] = {sums, sums + hy_tensor_count(w.of[0])};
    for (int64_t i = 0; i < count; i++) sums[i] = 0;
    for (int64_t row = first; row < first + rows; row++) {
        for (int64_t i = 0; i < parts; i++) {
            part p = part_of(a, i);
            norm_bwd_part(call, row, p, rstd[row * parts + i], &w, of_kind[p.kind]);
        }
        pass_values(&t[HY_HEAD_NORM_BWD_DOUT], &t[HY_HEAD_NORM_BWD_DQKV], row, values);
    }
}

hy_status hy_cpu_head_norm_bwd(const hy_cpu_run *run) {
    const hy_op_call *call = run->call;
    int64_t N = hy_tensor_height(&call->t[HY_HEAD_NORM_BWD_QKV]), blocks = hy_block_count(N);
    int64_t count = sums_of_block(call), keys = hy_tensor_count(&call->t[HY_HEAD_NORM_BWD_WQ]);
    const hy_tensor *dwq = &call->t[HY_HEAD_NORM_BWD_DWQ], *dwk = &call->t[HY_HEAD_NORM_BWD_DWK];
    const double *sums = call->workspace.data;
    bool adds = call->attr.accumulate;
    hy_cpu_for_rows(run, N, hy_block_rows(N), head_norm_bwd_rows);
    if (hy_tensor_is_given(dwq)) hy_cpu_fold_columns(sums, blocks, count, dwq, adds);
    if (hy_tensor_is_given(dwk)) hy_cpu_fold_columns(sums + keys, blocks, count, dwk, adds);
    return HY_OK;
}
