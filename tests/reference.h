/* reference.h: every op again, in plain loops and double precision, to test the fast ones.
 *
 * reference_run takes a call whose real tensors are all double (integers stay int32) and follows
 * kernels.h as simply as possible. test_kernels_reference.c compares its backward ops with finite
 * differences of its forward ops. */
#ifndef HY_TESTS_REFERENCE_H
#define HY_TESTS_REFERENCE_H

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

static inline double *reference_data(const hy_op_call *c, int i) { return c->t[i].data; }

/* out = value, or out += value */
static inline void reference_put(const hy_op_call *c, double *out, double value) {
    *out = c->attr.accumulate ? *out + value : value;
}

#include "reference_delta.h"

/* ---- matmul and sums ------------------------------------------------------------------------- */

static inline void reference_matmul(const hy_op_call *c) {
    const double *a = reference_data(c, HY_MATMUL_A), *b = reference_data(c, HY_MATMUL_B),
                 *bias = reference_data(c, HY_MATMUL_BIAS);
    const double *add = reference_data(c, HY_MATMUL_C);
    double *d = reference_data(c, HY_MATMUL_D);
    int64_t batch = hy_matmul_batch(c);
    int64_t M = hy_tensor_height(&c->t[HY_MATMUL_D]) / batch,
            N = hy_tensor_width(&c->t[HY_MATMUL_D]);
    bool ta = c->attr.matmul.trans_a, tb = c->attr.matmul.trans_b;
    int64_t K =
        ta ? hy_tensor_height(&c->t[HY_MATMUL_A]) / batch : hy_tensor_width(&c->t[HY_MATMUL_A]);
    for (int64_t at = 0; at < batch * M * N; at++) {
        int64_t matrix = at / (M * N), i = at / N % M, j = at % N;
        const double *x = a + matrix * M * K, *y = b + matrix * K * N;
        double sum = 0;
        for (int64_t k = 0; k < K; k++) {
            sum += (ta ? x[k * M + i] : x[i * K + k]) * (tb ? y[j * K + k] : y[k * N + j]);
        }
        double value = (double)c->attr.matmul.alpha * sum;
        if (add) value += add[at];
        if (bias) value += bias[j];
        reference_put(c, &d[at], value);
    }
}

static inline void reference_bias_grad(const hy_op_call *c) {
    int64_t N = hy_tensor_height(&c->t[HY_BIAS_GRAD_DY]),
            C = hy_tensor_width(&c->t[HY_BIAS_GRAD_DY]);
    for (int64_t j = 0; j < C; j++) {
        double sum = 0;
        for (int64_t n = 0; n < N; n++) sum += reference_data(c, HY_BIAS_GRAD_DY)[n * C + j];
        reference_put(c, &reference_data(c, HY_BIAS_GRAD_DBIAS)[j], sum);
    }
}

static inline void reference_reduce(const hy_op_call *c) {
    const double *x = reference_data(c, HY_REDUCE_X);
    double sum = 0;
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_REDUCE_X]); i++) {
        sum += c->kind == HY_OP_SQ_NORM ? x[i] * x[i] : x[i];
    }
    reference_put(c, reference_data(c, HY_REDUCE_OUT), sum);
}

/* ---- norms ----------------------------------------------------------------------------------- */

static inline void reference_norm(const hy_op_call *c) {
    const double *w = reference_data(c, HY_NORM_WEIGHT), *bias = reference_data(c, HY_NORM_BIAS);
    const double *residual = reference_data(c, HY_NORM_RESIDUAL);
    double offset = (double)c->attr.norm.offset;
    double *mean_out = reference_data(c, HY_NORM_MEAN), *rstd_out = reference_data(c, HY_NORM_RSTD);
    int64_t N = hy_tensor_height(&c->t[HY_NORM_X]), C = hy_tensor_width(&c->t[HY_NORM_X]);
    for (int64_t n = 0; n < N; n++) {
        const double *x = reference_data(c, HY_NORM_X) + n * C;
        double *y = reference_data(c, HY_NORM_Y) + n * C, mean = 0, square = 0;
        for (int64_t i = 0; i < C; i++) mean += x[i] / (double)C;
        if (c->attr.norm.is_rms) mean = 0;
        for (int64_t i = 0; i < C; i++) square += (x[i] - mean) * (x[i] - mean) / (double)C;
        double rstd = 1 / sqrt(square + (double)c->attr.norm.eps);
        for (int64_t i = 0; i < C; i++) {
            y[i] = (residual ? residual[n * C + i] : 0) + (x[i] - mean) * rstd * (offset + w[i]) +
                   (bias ? bias[i] : 0);
        }
        if (mean_out) mean_out[n] = mean;
        rstd_out[n] = rstd;
    }
}

static inline void reference_norm_bwd(const hy_op_call *c) {
    const double *dy = reference_data(c, HY_NORM_BWD_DY), *x = reference_data(c, HY_NORM_BWD_X),
                 *w = reference_data(c, HY_NORM_BWD_WEIGHT);
    const double *residual = reference_data(c, HY_NORM_BWD_RESIDUAL);
    double *dx = reference_data(c, HY_NORM_BWD_DX), *dw = reference_data(c, HY_NORM_BWD_DWEIGHT),
           *db = reference_data(c, HY_NORM_BWD_DBIAS);
    int64_t N = hy_tensor_height(&c->t[HY_NORM_BWD_X]), C = hy_tensor_width(&c->t[HY_NORM_BWD_X]);
    double offset = (double)c->attr.norm.offset;
    double *sum_w = calloc((size_t)C, sizeof(double)), *sum_b = calloc((size_t)C, sizeof(double));
    for (int64_t n = 0; n < N; n++) {
        double mean = c->attr.norm.is_rms ? 0 : reference_data(c, HY_NORM_BWD_MEAN)[n];
        double rstd = reference_data(c, HY_NORM_BWD_RSTD)[n], g_mean = 0, gx_mean = 0;
        for (int64_t i = n * C, j = 0; j < C; i++, j++) {
            double xhat = (x[i] - mean) * rstd;
            double g = dy[i] * (offset + w[j]);
            g_mean += g / (double)C;
            gx_mean += g * xhat / (double)C;
            sum_w[j] += dy[i] * xhat;
            sum_b[j] += dy[i];
        }
        if (c->attr.norm.is_rms) g_mean = 0;
        for (int64_t i = n * C, j = 0; j < C; i++, j++) {
            double xhat = (x[i] - mean) * rstd;
            double g = dy[i] * (offset + w[j]);
            dx[i] = (residual ? residual[i] : 0) + rstd * (g - g_mean - xhat * gx_mean);
        }
    }
    for (int64_t j = 0; dw && j < C; j++) reference_put(c, &dw[j], sum_w[j]);
    for (int64_t j = 0; db && j < C; j++) reference_put(c, &db[j], sum_b[j]);
    free(sum_w);
    free(sum_b);
}

/* What is normed together: a head, or with is_whole all heads of q or of k. */
typedef struct reference_part {
    int64_t count; /* parts of a row */
    int64_t at, n; /* columns of this one */
    bool is_query;
    int64_t raw; /* its first column in qkv */
} reference_part;

static inline reference_part reference_part_of(const hy_op_call *c, int64_t i) {
    int64_t H = c->attr.heads.heads, K = c->attr.heads.kv_heads, D = c->attr.heads.head_dim;
    if (c->attr.heads.is_whole) {
        return (reference_part){2, i ? H * D : 0, (i ? K : H) * D, i == 0, i ? H * D : 0};
    }
    int64_t gates = c->attr.heads.has_gates ? (i < H ? i : H) : 0;
    return (reference_part){H + K, i * D, D, i < H, (i + gates) * D};
}

static inline void reference_head_norm(const hy_op_call *c) {
    int64_t K = c->attr.heads.kv_heads, D = c->attr.heads.head_dim;
    int64_t N = hy_tensor_height(&c->t[HY_HEAD_NORM_QKV]), P = (c->attr.heads.heads + 2 * K) * D;
    int64_t A = hy_tensor_width(&c->t[HY_HEAD_NORM_QKV]);
    for (int64_t n = 0; n < N; n++) {
        const double *row = reference_data(c, HY_HEAD_NORM_QKV) + n * A;
        double *out = reference_data(c, HY_HEAD_NORM_OUT) + n * P;
        for (int64_t k = 0; k < reference_part_of(c, 0).count; k++) {
            reference_part p = reference_part_of(c, k);
            const double *w = reference_data(c, p.is_query ? HY_HEAD_NORM_WQ : HY_HEAD_NORM_WK);
            const double *x = row + p.raw;
            double square = 0, offset = (double)c->attr.heads.norm_offset;
            for (int64_t i = 0; i < p.n; i++) square += x[i] * x[i] / (double)p.n;
            double rstd = 1 / sqrt(square + (double)c->attr.heads.eps);
            for (int64_t i = 0; i < p.n; i++) out[p.at + i] = x[i] * rstd * (offset + w[i]);
            reference_data(c, HY_HEAD_NORM_RSTD)[n * p.count + k] = rstd;
        }
        for (int64_t i = 1; i <= K * D; i++) out[P - i] = row[A - i];
    }
}

static inline void reference_head_norm_bwd(const hy_op_call *c) {
    int64_t K = c->attr.heads.kv_heads, D = c->attr.heads.head_dim;
    int64_t N = hy_tensor_height(&c->t[HY_HEAD_NORM_BWD_DOUT]);
    int64_t P = (c->attr.heads.heads + 2 * K) * D, A = hy_tensor_width(&c->t[HY_HEAD_NORM_BWD_QKV]);
    double *sum = calloc((size_t)(2 * P), sizeof(double));
    for (int64_t n = 0; n < N; n++) {
        const double *dy = reference_data(c, HY_HEAD_NORM_BWD_DOUT) + n * P,
                     *x = reference_data(c, HY_HEAD_NORM_BWD_QKV) + n * A;
        double *dx = reference_data(c, HY_HEAD_NORM_BWD_DQKV) + n * A;
        for (int64_t k = 0; k < reference_part_of(c, 0).count; k++) {
            reference_part p = reference_part_of(c, k);
            const double *w =
                reference_data(c, p.is_query ? HY_HEAD_NORM_BWD_WQ : HY_HEAD_NORM_BWD_WK);
            double rstd = reference_data(c, HY_HEAD_NORM_BWD_RSTD)[n * p.count + k], mean = 0;
            double offset = (double)c->attr.heads.norm_offset;
            for (int64_t i = 0, j = p.at, r = p.raw; i < p.n; i++, j++, r++) {
                mean += dy[j] * (offset + w[i]) * x[r] * rstd / (double)p.n;
                sum[(p.is_query ? 0 : P) + i] += dy[j] * x[r] * rstd;
            }
            for (int64_t i = 0, j = p.at, r = p.raw; i < p.n; i++, j++, r++) {
                dx[r] = rstd * (dy[j] * (offset + w[i]) - x[r] * rstd * mean);
            }
        }
        for (int64_t i = 1; i <= K * D; i++) dx[A - i] = dy[P - i];
    }
    for (int k = 0; k < 2; k++) {
        int at = HY_HEAD_NORM_BWD_DWQ + k;
        double *dw = reference_data(c, at);
        for (int64_t i = 0; dw && i < hy_tensor_count(&c->t[at]); i++) {
            reference_put(c, &dw[i], sum[k * P + i]);
        }
    }
    free(sum);
}

/* ---- positions and attention ----------------------------------------------------------------- */

/* The position of row n: n mod T, or behind the first of its sequence; below 0: idle. */
static inline int64_t reference_place(const hy_tensor *first, int64_t T, int64_t n) {
    if (!first->data) return n % T;
    int64_t begin = ((const int32_t *)first->data)[n / T];
    return begin < 0 ? -1 : begin + n % T;
}

static inline void reference_rope(const hy_op_call *c) {
    int64_t heads = c->attr.heads.heads + c->attr.heads.kv_heads, D = c->attr.heads.head_dim;
    int64_t N = hy_tensor_height(&c->t[HY_ROPE_QKV]), P = hy_tensor_width(&c->t[HY_ROPE_QKV]);
    int64_t turned = c->attr.heads.rotary ? c->attr.heads.rotary : D, half = turned / 2;
    const double *query = reference_data(c, HY_ROPE_QUERY);
    for (int64_t n = 0; n < N; n++) {
        int64_t place = reference_place(&c->t[HY_ROPE_FIRST], c->attr.heads.seq, n);
        const double *table = reference_data(c, HY_ROPE_TABLE) + place * turned;
        for (int64_t h = 0; place >= 0 && h < heads; h++) {
            double *x = reference_data(c, HY_ROPE_QKV) + n * P + h * D;
            for (int64_t i = 0; i < half; i++) {
                double cosine = table[2 * i], sine = table[2 * i + 1];
                if (c->attr.heads.inverse) sine = -sine;
                double a = x[i], b = x[i + half];
                x[i] = a * cosine - b * sine;
                x[i + half] = a * sine + b * cosine;
            }
            for (int64_t i = 0; query && h < c->attr.heads.heads && i < D; i++) {
                x[i] *= query[place];
            }
        }
    }
}

/* A score from q k. */
static inline double reference_score(const hy_op_call *c, double dot) {
    double cap = (double)c->attr.heads.softcap, score = dot * (double)c->attr.heads.scale;
    return cap > 0 ? cap * tanh(score / cap) : score;
}

/* Whether query i, of the document that begins at `document`, sees key j. */
static inline bool reference_sees(const hy_op_call *c, int64_t document, int64_t i, int64_t j) {
    const hy_heads_attr *a = &c->attr.heads;
    if (j > i || j < document) return false;
    if (a->window > 0) return i - j < a->window;
    int64_t block = (i - document) / 64, of_key = (j - document) / 64;
    return a->sparse_local == 0 || of_key < a->sparse_global || block - of_key < a->sparse_local;
}

/* Weights of query i of head h over keys 0..i, and their log-sum-exp; sinks may be NULL. */
static inline double reference_weights(const hy_op_call *c, const double *qkv,
                                       const int32_t *doc_starts, const double *sinks, int64_t b,
                                       int64_t h, int64_t i, double *p) {
    int64_t T = c->attr.heads.seq, H = c->attr.heads.heads, K = c->attr.heads.kv_heads;
    int64_t D = c->attr.heads.head_dim, P = (H + 2 * K) * D, kv = h / (H / K);
    const double *q = qkv + (b * T + i) * P + h * D;
    double highest = sinks ? sinks[h] : -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; j++) {
        const double *k = qkv + (b * T + j) * P + (H + kv) * D;
        bool is_seen = reference_sees(c, doc_starts ? doc_starts[b * T + i] : 0, i, j);
        double score = 0;
        for (int64_t d = 0; d < D; d++) score += q[d] * k[d];
        p[j] = is_seen ? reference_score(c, score) : -INFINITY;
        highest = fmax(highest, p[j]);
    }
    for (int64_t j = 0; j <= i; j++) sum += exp(p[j] - highest);
    if (sinks) sum += exp(sinks[h] - highest);
    double lse = highest + log(sum);
    for (int64_t j = 0; j <= i; j++) p[j] = exp(p[j] - lse);
    return lse;
}

static inline void reference_attention(const hy_op_call *c) {
    int64_t B = c->attr.heads.batch, T = c->attr.heads.seq, H = c->attr.heads.heads;
    int64_t K = c->attr.heads.kv_heads, D = c->attr.heads.head_dim, P = (H + 2 * K) * D;
    const double *qkv = reference_data(c, HY_ATTENTION_QKV);
    double *p = malloc((size_t)T * sizeof *p);
    for (int64_t b = 0; b < B; b++) {
        for (int64_t h = 0; h < H; h++) {
            for (int64_t i = 0; i < T; i++) {
                double lse = reference_weights(c, qkv, c->t[HY_ATTENTION_DOC_STARTS].data,
                                               reference_data(c, HY_ATTENTION_SINKS), b, h, i, p);
                double *out = reference_data(c, HY_ATTENTION_OUT) + (b * T + i) * H * D + h * D;
                reference_data(c, HY_ATTENTION_LSE)[(b * H + h) * T + i] = lse;
                for (int64_t d = 0; d < D; d++) out[d] = 0;
                for (int64_t j = 0; j <= i; j++) {
                    const double *v = qkv + (b * T + j) * P + (H + K + h / (H / K)) * D;
                    for (int64_t d = 0; d < D; d++) out[d] += p[j] * v[d];
                }
            }
        }
    }
    free(p);
}

/* Row n of sequence b stands at position first + n and sees the cache up to there. */
/* The row of the cache for a position of sequence b. */
static inline double *reference_cached(const hy_op_call *c, int64_t b, int64_t position) {
    const hy_tensor *cache = &c->t[HY_ATTENTION_CACHED_CACHE],
                    *blocks = &c->t[HY_ATTENTION_CACHED_BLOCKS];
    int64_t X = cache->shape[1], W = hy_tensor_width(blocks);
    int64_t row = ((const int32_t *)blocks->data)[b * W + position / X] * X + position % X;
    return (double *)cache->data + row * cache->shape[2];
}

static inline int64_t reference_cached_place(const hy_op_call *c, int64_t n) {
    return reference_place(&c->t[HY_ATTENTION_CACHED_FIRST], c->attr.heads.seq, n);
}

/* The output of one head of row n. */
static inline void reference_cached_head(const hy_op_call *c, int64_t n, int64_t h) {
    int64_t H = c->attr.heads.heads, K = c->attr.heads.kv_heads, D = c->attr.heads.head_dim;
    int64_t b = n / c->attr.heads.seq, kv = h / (H / K), end = reference_cached_place(c, n) + 1;
    const double *q = reference_data(c, HY_ATTENTION_CACHED_QKV) + n * (H + 2 * K) * D + h * D;
    const double *sinks = reference_data(c, HY_ATTENTION_CACHED_SINKS);
    double *out = reference_data(c, HY_ATTENTION_CACHED_OUT) + (n * H + h) * D;
    double highest = sinks ? sinks[h] : -INFINITY, sum = 0;
    double *p = calloc((size_t)end, sizeof *p);
    for (int64_t j = 0; j < end; j++) {
        p[j] = -INFINITY;
        if (!reference_sees(c, 0, end - 1, j)) continue;
        const double *k = reference_cached(c, b, j) + kv * D;
        double dot = 0;
        for (int64_t d = 0; d < D; d++) dot += q[d] * k[d];
        p[j] = reference_score(c, dot);
        highest = fmax(highest, p[j]);
    }
    for (int64_t j = 0; j < end; j++) sum += p[j] = exp(p[j] - highest);
    if (sinks) sum += exp(sinks[h] - highest);
    for (int64_t d = 0; d < D; d++) out[d] = 0;
    for (int64_t j = 0; j < end; j++) {
        if (!reference_sees(c, 0, end - 1, j)) continue;
        const double *v = reference_cached(c, b, j) + (K + kv) * D;
        for (int64_t d = 0; d < D; d++) out[d] += p[j] / sum * v[d];
    }
    free(p);
}

static inline void reference_attention_cached(const hy_op_call *c) {
    int64_t N = (int64_t)c->attr.heads.batch * c->attr.heads.seq, H = c->attr.heads.heads;
    int64_t D = c->attr.heads.head_dim, width = c->t[HY_ATTENTION_CACHED_CACHE].shape[2];
    for (int64_t n = 0; n < N; n++) {
        int64_t place = reference_cached_place(c, n);
        if (place < 0) continue;
        double *row = reference_cached(c, n / c->attr.heads.seq, place);
        const double *new = reference_data(c, HY_ATTENTION_CACHED_QKV) + n *(H * D + width);
        memcpy(row, new + H *D, (size_t)width * sizeof *row);
    }
    for (int64_t i = 0; i < N * H; i++) {
        if (reference_cached_place(c, i / H) >= 0) reference_cached_head(c, i / H, i % H);
    }
}

static inline void reference_attention_bwd(const hy_op_call *c) {
    int64_t B = c->attr.heads.batch, T = c->attr.heads.seq, H = c->attr.heads.heads;
    int64_t K = c->attr.heads.kv_heads, D = c->attr.heads.head_dim, P = (H + 2 * K) * D;
    const double *qkv = reference_data(c, HY_ATTENTION_BWD_QKV);
    double *dqkv = reference_data(c, HY_ATTENTION_BWD_DQKV), *p = malloc((size_t)T * sizeof *p);
    const double *sinks = reference_data(c, HY_ATTENTION_BWD_SINKS);
    double *dsinks = reference_data(c, HY_ATTENTION_BWD_DSINKS),
           cap = (double)c->attr.heads.softcap;
    memset(dqkv, 0, (size_t)(B * T * P) * sizeof *dqkv);
    for (int64_t h = 0; dsinks && h < H; h++) reference_put(c, &dsinks[h], 0);
    for (int64_t row = 0; row < B * H * T; row++) {
        int64_t b = row / (H * T), h = row / T % H, i = row % T, kv = h / (H / K);
        const double *q = qkv + (b * T + i) * P + h * D;
        const double *dout = reference_data(c, HY_ATTENTION_BWD_DOUT) + (b * T + i) * H * D + h * D;
        double *dq = dqkv + (b * T + i) * P + h * D, mean = 0;
        double lse =
            reference_weights(c, qkv, c->t[HY_ATTENTION_BWD_DOC_STARTS].data, sinks, b, h, i, p);
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t j = 0; j <= i; j++) {
                const double *k = qkv + (b * T + j) * P + (H + kv) * D, *v = k + K * D;
                double *dk = dqkv + (b * T + j) * P + (H + kv) * D, *dv = dk + K * D, dp = 0;
                for (int64_t d = 0; d < D; d++) dp += dout[d] * v[d];
                if (pass == 0) {
                    mean += p[j] * dp;
                    continue;
                }
                double ds = p[j] * (dp - mean) * (double)c->attr.heads.scale;
                if (cap > 0 && p[j] > 0) { /* the score again: log p + lse */
                    double t = (log(p[j]) + lse) / cap;
                    ds *= 1 - t * t;
                }
                for (int64_t d = 0; d < D; d++) {
                    dq[d] += ds * k[d];
                    dk[d] += ds * q[d];
                    dv[d] += p[j] * dout[d];
                }
            }
        }
        if (dsinks) dsinks[h] -= exp(sinks[h] - lse) * mean;
    }
    free(p);
}

/* ---- activations ----------------------------------------------------------------------------- */

static inline double reference_act(hy_act kind, double x) {
    double root = sqrt(2 / acos(-1));
    switch (kind) {
    case HY_ACT_GELU: return x * erfc(-x / sqrt(2)) / 2;
    case HY_ACT_RELU2: return x > 0 ? x * x : 0;
    case HY_ACT_SILU: return x / (1 + exp(-x));
    default: return 0.5 * x * (1 + tanh(root * (x + 0.044715 * x * x * x)));
    }
}

static inline double reference_act_slope(hy_act kind, double x) {
    double root = sqrt(2 / acos(-1)), t = tanh(root * (x + 0.044715 * x * x * x));
    double s = 1 / (1 + exp(-x));
    switch (kind) {
    case HY_ACT_GELU: return erfc(-x / sqrt(2)) / 2 + x * exp(-x * x / 2) / sqrt(2 * acos(-1));
    case HY_ACT_RELU2: return x > 0 ? 2 * x : 0;
    case HY_ACT_SILU: return s * (1 + x * (1 - s));
    default: return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
    }
}

static inline void reference_gelu_op(const hy_op_call *c) {
    const double *x = reference_data(c, HY_GELU_X);
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_GELU_X]); i++) {
        reference_data(c, HY_GELU_Y)[i] = reference_act(c->attr.act.kind, x[i]);
    }
}

static inline void reference_gelu_bwd(const hy_op_call *c) {
    const double *dy = reference_data(c, HY_GELU_BWD_DY), *x = reference_data(c, HY_GELU_BWD_X);
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_GELU_BWD_X]); i++) {
        reference_data(c, HY_GELU_BWD_DX)[i] = dy[i] * reference_act_slope(c->attr.act.kind, x[i]);
    }
}

static inline void reference_swiglu(const hy_op_call *c) {
    bool is_forward = c->kind == HY_OP_SWIGLU;
    const double *dy = reference_data(c, HY_SWIGLU_BWD_DY);
    const double *gate_up =
        reference_data(c, is_forward ? HY_SWIGLU_GATE_UP : HY_SWIGLU_BWD_GATE_UP);
    double *out = reference_data(c, is_forward ? HY_SWIGLU_Y : HY_SWIGLU_BWD_DGATE_UP);
    const hy_tensor *narrow = &c->t[is_forward ? HY_SWIGLU_Y : HY_SWIGLU_BWD_DY];
    hy_act kind = c->attr.act.kind == HY_ACT_DEFAULT ? HY_ACT_SILU : c->attr.act.kind;
    const double *weights =
        reference_data(c, is_forward ? HY_SWIGLU_WEIGHTS : HY_SWIGLU_BWD_WEIGHTS);
    const int32_t *order = c->t[is_forward ? HY_SWIGLU_ORDER : HY_SWIGLU_BWD_ORDER].data;
    double *dweights = is_forward ? NULL : reference_data(c, HY_SWIGLU_BWD_DWEIGHTS);
    double *active = is_forward ? NULL : reference_data(c, HY_SWIGLU_BWD_ACTIVE);
    int64_t F = hy_tensor_width(narrow);
    for (int64_t n = 0; n < hy_tensor_height(narrow); n++) {
        int64_t at = order ? order[n] : n;
        double weight = weights ? weights[at] : 1, dweight = 0;
        for (int64_t i = 0; i < F; i++) {
            double g = gate_up[n * 2 * F + i], u = gate_up[n * 2 * F + F + i];
            double y = reference_act(kind, g) * u;
            if (is_forward) {
                out[n * F + i] = weight * y;
                continue;
            }
            double d = weight * dy[n * F + i];
            dweight += dy[n * F + i] * y;
            out[n * 2 * F + i] = d * u * reference_act_slope(kind, g);
            out[n * 2 * F + F + i] = d * reference_act(kind, g);
            if (active) active[n * F + i] = weight * y;
        }
        if (dweights) dweights[at] = dweight;
    }
}

/* ---- embedding and loss ---------------------------------------------------------------------- */

/* The row of the position table for place n: its number in its sequence, or in its document. */
static inline int64_t reference_position(const hy_op_call *c, int64_t n) {
    const int32_t *doc_starts = c->t[HY_EMBED_DOC_STARTS].data;
    int64_t T = c->attr.embed.seq, place = T > 0 ? n % T : 0;
    if (c->kind == HY_OP_EMBED && c->t[HY_EMBED_FIRST].data) {
        return reference_place(&c->t[HY_EMBED_FIRST], T, n);
    }
    return place - (doc_starts ? doc_starts[n] : 0);
}

static inline void reference_embed(const hy_op_call *c) {
    const int32_t *tokens = c->t[HY_EMBED_TOKENS].data;
    int64_t N = hy_tensor_count(&c->t[HY_EMBED_TOKENS]), C = hy_tensor_width(&c->t[HY_EMBED_X]);
    for (int64_t n = 0; n < N; n++) {
        for (int64_t i = 0; reference_position(c, n) >= 0 && i < C; i++) {
            double value = reference_data(c, HY_EMBED_WTE)[tokens[n] * C + i] *
                           (c->attr.embed.scale != 0 ? (double)c->attr.embed.scale : 1);
            if (c->t[HY_EMBED_WPE].data)
                value += reference_data(c, HY_EMBED_WPE)[reference_position(c, n) * C + i];
            reference_data(c, HY_EMBED_X)[n * C + i] = value;
        }
    }
}

static inline void reference_embed_bwd(const hy_op_call *c) {
    const int32_t *tokens = c->t[HY_EMBED_BWD_TOKENS].data;
    int64_t N = hy_tensor_count(&c->t[HY_EMBED_BWD_TOKENS]),
            C = hy_tensor_width(&c->t[HY_EMBED_BWD_DX]);
    for (int k = 2; k < 4; k++) {
        double *out = reference_data(c, k);
        for (int64_t i = 0; out && !c->attr.accumulate && i < hy_tensor_count(&c->t[k]); i++)
            out[i] = 0;
    }
    for (int64_t n = 0; n < N; n++) {
        for (int64_t i = 0; i < C; i++) {
            double value = reference_data(c, HY_EMBED_BWD_DX)[n * C + i];
            if (c->t[HY_EMBED_BWD_DWTE].data)
                reference_data(c, HY_EMBED_BWD_DWTE)[tokens[n] * C + i] +=
                    value * (c->attr.embed.scale != 0 ? (double)c->attr.embed.scale : 1);
            if (c->t[HY_EMBED_BWD_DWPE].data)
                reference_data(c, HY_EMBED_BWD_DWPE)[reference_position(c, n) * C + i] += value;
        }
    }
}

/* A logit as the softmax sees it, and the derivative. */
static inline double reference_logit(const hy_op_call *c, double x, double *slope) {
    double factor = c->attr.loss.factor != 0 ? (double)c->attr.loss.factor : 1;
    double cap = (double)c->attr.loss.softcap, t = cap > 0 ? tanh(factor * x / cap) : 0;
    *slope = factor * (1 - t * t);
    return cap > 0 ? cap * t : factor * x;
}

static inline void reference_cross_entropy(const hy_op_call *c) {
    int64_t N = hy_tensor_height(&c->t[HY_CROSS_ENTROPY_LOGITS]),
            V = hy_tensor_width(&c->t[HY_CROSS_ENTROPY_LOGITS]), vocab = c->attr.loss.vocab;
    for (int64_t n = 0; n < N; n++) {
        double *x = reference_data(c, HY_CROSS_ENTROPY_LOGITS) + n * V, highest = -INFINITY,
               sum = 0, slope;
        int32_t target = ((const int32_t *)c->t[HY_CROSS_ENTROPY_TARGETS].data)[n];
        for (int64_t i = 0; i < vocab; i++)
            highest = fmax(highest, reference_logit(c, x[i], &slope));
        for (int64_t i = 0; i < vocab; i++) sum += exp(reference_logit(c, x[i], &slope) - highest);
        double lse = highest + log(sum);
        reference_data(c, HY_CROSS_ENTROPY_LOSSES)[n] =
            target < 0 ? 0 : lse - reference_logit(c, x[target], &slope);
        for (int64_t i = 0; c->attr.loss.wants_grad && i < V; i++) {
            double p = i < vocab ? exp(reference_logit(c, x[i], &slope) - lse) : 0;
            x[i] =
                target < 0 ? 0 : (double)c->attr.loss.scale * slope * (p - (i == target ? 1 : 0));
        }
    }
}

/* ---- optimizer ------------------------------------------------------------------------------- */

static inline void reference_clip(const hy_op_call *c) {
    double norm = sqrt(*reference_data(c, HY_CLIP_TOTAL)),
           grad_scale = (double)c->attr.clip.grad_scale;
    double limit = (double)c->attr.clip.max_norm / (grad_scale * norm);
    double factor = c->attr.clip.max_norm > 0 && limit < 1 ? limit : 1;
    reference_data(c, HY_CLIP_RESULT)[0] = norm;
    reference_data(c, HY_CLIP_RESULT)[1] = isfinite(norm) ? grad_scale * factor : 0;
}

static inline void reference_adamw(const hy_op_call *c) {
    double *param = reference_data(c, HY_UPDATE_PARAM), *m = reference_data(c, HY_UPDATE_M),
           *v = reference_data(c, HY_UPDATE_V);
    double *master = reference_data(c, HY_UPDATE_MASTER),
           scale = reference_data(c, HY_UPDATE_CLIP)[1];
    double lr = (double)c->attr.adamw.lr, b1 = (double)c->attr.adamw.beta1;
    double b2 = (double)c->attr.adamw.beta2;
    for (int64_t i = 0; scale != 0 && i < hy_tensor_count(&c->t[HY_UPDATE_PARAM]); i++) {
        double g = reference_data(c, HY_UPDATE_GRAD)[i] * scale,
               *p = master ? master + i : param + i;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        double mhat = m[i] / (double)c->attr.adamw.correction1;
        double vhat = v[i] / (double)c->attr.adamw.correction2;
        *p -= lr * (mhat / (sqrt(vhat) + (double)c->attr.adamw.eps) +
                    (double)c->attr.adamw.weight_decay * *p);
        param[i] = *p;
    }
}

static inline void reference_sgd(const hy_op_call *c) {
    double *param = reference_data(c, HY_UPDATE_PARAM), *momentum = reference_data(c, HY_UPDATE_M);
    double *master = reference_data(c, HY_UPDATE_MASTER),
           scale = reference_data(c, HY_UPDATE_CLIP)[1];
    double mu = (double)c->attr.sgd.momentum;
    for (int64_t i = 0; scale != 0 && i < hy_tensor_count(&c->t[HY_UPDATE_PARAM]); i++) {
        double *p = master ? master + i : param + i;
        double g =
            reference_data(c, HY_UPDATE_GRAD)[i] * scale + (double)c->attr.sgd.weight_decay * *p;
        double step = g;
        if (momentum) {
            momentum[i] = mu * momentum[i] + g;
            step = c->attr.sgd.is_nesterov ? g + mu * momentum[i] : momentum[i];
        }
        param[i] = *p -= (double)c->attr.sgd.lr * step;
    }
}

static inline void reference_lion(const hy_op_call *c) {
    double *param = reference_data(c, HY_UPDATE_PARAM), *m = reference_data(c, HY_UPDATE_M);
    double *master = reference_data(c, HY_UPDATE_MASTER),
           scale = reference_data(c, HY_UPDATE_CLIP)[1];
    double lr = (double)c->attr.lion.lr, b1 = (double)c->attr.lion.beta1;
    double b2 = (double)c->attr.lion.beta2;
    for (int64_t i = 0; scale != 0 && i < hy_tensor_count(&c->t[HY_UPDATE_PARAM]); i++) {
        double g = reference_data(c, HY_UPDATE_GRAD)[i] * scale,
               *p = master ? master + i : param + i;
        double step = b1 * m[i] + (1 - b1) * g;
        double sign = step > 0 ? 1 : step < 0 ? -1 : 0;
        *p -= lr * (sign + (double)c->attr.lion.weight_decay * *p);
        m[i] = b2 * m[i] + (1 - b2) * g;
        param[i] = *p;
    }
}

static inline void reference_adafactor(const hy_op_call *c) {
    const hy_adafactor_attr *a = &c->attr.adafactor;
    double *param = reference_data(c, HY_UPDATE_PARAM), *v = reference_data(c, HY_UPDATE_M);
    double *master = reference_data(c, HY_UPDATE_MASTER), *exact = master ? master : param;
    const double *grad = reference_data(c, HY_UPDATE_GRAD);
    double scale = reference_data(c, HY_UPDATE_CLIP)[1], mix = (double)a->mix;
    int64_t count = hy_tensor_count(&c->t[HY_UPDATE_PARAM]);
    int64_t N = hy_tensor_width(&c->t[HY_UPDATE_PARAM]), M = count / N;
    double updates = 0, params = 0, alpha = (double)a->rate;
    if (scale == 0) return;
    double *u = malloc((size_t)count * sizeof *u);
    for (int64_t i = 0; i < (a->is_factored ? M + N : count); i++) v[i] *= 1 - mix;
    for (int64_t i = 0; i < count; i++) {
        double square = scale * grad[i] * scale * grad[i];
        if (a->is_factored) {
            v[i / N] += mix * square / (double)N;
            v[M + i % N] += mix * square / (double)M;
        } else {
            v[i] += mix * square;
        }
        params += exact[i] * exact[i] / (double)count;
    }
    double eps = (double)a->eps1, mean = 0;
    for (int64_t row = 0; a->is_factored && row < M; row++) mean += v[row] / (double)M;
    for (int64_t i = 0; i < count; i++) {
        double variance = a->is_factored ? v[i / N] * v[M + i % N] / fmax(mean, eps) : v[i];
        u[i] = scale * grad[i] / sqrt(fmax(variance, eps * eps));
        updates += u[i] * u[i] / (double)count;
    }
    if (a->is_relative) alpha *= fmax((double)a->eps2, sqrt(params));
    alpha /= fmax(1, sqrt(updates) / (double)a->threshold);
    for (int64_t i = 0; i < count; i++) {
        exact[i] -= (double)a->lr * (double)a->weight_decay * exact[i] + alpha * u[i];
        param[i] = exact[i];
    }
    free(u);
}

static inline void reference_muon_blend(const hy_op_call *c) {
    const double *grad = reference_data(c, HY_MUON_BLEND_GRAD),
                 *m = reference_data(c, HY_MUON_BLEND_M);
    double scale = reference_data(c, HY_MUON_BLEND_CLIP)[1], mu = (double)c->attr.muon.momentum;
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_MUON_BLEND_OUT]); i++) {
        double g = grad[i] * scale, next = mu * m[i] + (1 - mu) * g;
        reference_data(c, HY_MUON_BLEND_OUT)[i] =
            c->attr.muon.is_nesterov ? mu * next + (1 - mu) * g : next;
    }
}

static inline void reference_to_unit(const hy_op_call *c) {
    int64_t C = hy_tensor_width(&c->t[HY_TO_UNIT_X]);
    for (int64_t row = 0; row < hy_tensor_height(&c->t[HY_TO_UNIT_X]); row++) {
        const double *x = reference_data(c, HY_TO_UNIT_X) + row * C;
        double *y = reference_data(c, HY_TO_UNIT_Y) + row * C, total = 0;
        for (int64_t i = 0; i < C; i++) total += x[i] * x[i];
        for (int64_t i = 0; i < C; i++) y[i] = x[i] / (sqrt(total) + (double)c->attr.to_unit.eps);
    }
}

static inline void reference_muon(const hy_op_call *c) {
    const hy_muon_attr *a = &c->attr.muon;
    double *param = reference_data(c, HY_UPDATE_PARAM), *m = reference_data(c, HY_UPDATE_M);
    double *master = reference_data(c, HY_UPDATE_MASTER),
           scale = reference_data(c, HY_UPDATE_CLIP)[1];
    const double *direction = reference_data(c, HY_UPDATE_DIRECTION);
    double mu = (double)a->momentum, lr = (double)a->lr;
    for (int64_t i = 0; scale != 0 && i < hy_tensor_count(&c->t[HY_UPDATE_PARAM]); i++) {
        double *p = master ? master + i : param + i;
        double along = (double)a->coefficient[(i >= a->ends[0]) + (i >= a->ends[1])];
        bool decays = !a->is_cautious || direction[i] * *p > 0;
        m[i] = mu * m[i] + (1 - mu) * reference_data(c, HY_UPDATE_GRAD)[i] * scale;
        *p -= lr * ((decays ? (double)a->weight_decay * *p : 0) + along * direction[i]);
        param[i] = *p;
    }
}

static inline void reference_cast(const hy_op_call *c) {
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_CAST_SRC]); i++) {
        reference_data(c, HY_CAST_DST)[i] = reference_data(c, HY_CAST_SRC)[i];
    }
}

static inline void reference_fill(const hy_op_call *c) {
    for (int64_t i = 0; i < hy_tensor_count(&c->t[HY_FILL_DST]); i++) {
        reference_data(c, HY_FILL_DST)[i] = (double)c->attr.fill.value;
    }
}

#include "expert_reference.h"

/* ---- all of them ----------------------------------------------------------------------------- */

static inline void reference_run(const hy_op_call *c) {
    static void (*const table[HY_OP_COUNT])(const hy_op_call *) = {
        [HY_OP_MATMUL] = reference_matmul,
        [HY_OP_BIAS_GRAD] = reference_bias_grad,
        [HY_OP_NORM] = reference_norm,
        [HY_OP_NORM_BWD] = reference_norm_bwd,
        [HY_OP_HEAD_NORM] = reference_head_norm,
        [HY_OP_HEAD_NORM_BWD] = reference_head_norm_bwd,
        [HY_OP_ROPE] = reference_rope,
        [HY_OP_ATTENTION] = reference_attention,
        [HY_OP_ATTENTION_BWD] = reference_attention_bwd,
        [HY_OP_ATTENTION_CACHED] = reference_attention_cached,
        [HY_OP_CONV] = reference_conv,
        [HY_OP_CONV_BWD] = reference_conv_bwd,
        [HY_OP_CONV_CACHED] = reference_conv_cached,
        [HY_OP_DELTA] = reference_delta,
        [HY_OP_DELTA_BWD] = reference_delta_bwd,
        [HY_OP_DELTA_CACHED] = reference_delta_cached,
        [HY_OP_GATE] = reference_gate,
        [HY_OP_GATE_BWD] = reference_gate_bwd,
        [HY_OP_GELU] = reference_gelu_op,
        [HY_OP_GELU_BWD] = reference_gelu_bwd,
        [HY_OP_SWIGLU] = reference_swiglu,
        [HY_OP_SWIGLU_BWD] = reference_swiglu,
        [HY_OP_EMBED] = reference_embed,
        [HY_OP_EMBED_BWD] = reference_embed_bwd,
        [HY_OP_CROSS_ENTROPY] = reference_cross_entropy,
        [HY_OP_SUM] = reference_reduce,
        [HY_OP_SQ_NORM] = reference_reduce,
        [HY_OP_CLIP] = reference_clip,
        [HY_OP_ADAMW] = reference_adamw,
        [HY_OP_SGD] = reference_sgd,
        [HY_OP_LION] = reference_lion,
        [HY_OP_ADAFACTOR] = reference_adafactor,
        [HY_OP_MUON_BLEND] = reference_muon_blend,
        [HY_OP_TO_UNIT] = reference_to_unit,
        [HY_OP_MUON] = reference_muon,
        [HY_OP_CAST] = reference_cast,
        [HY_OP_FILL] = reference_fill,
        [HY_OP_ROUTE] = reference_route,
        [HY_OP_ROUTE_BWD] = reference_route_bwd,
        [HY_OP_SORT_EXPERTS] = reference_sort_experts,
        [HY_OP_GROUPED_MATMUL] = reference_grouped_matmul,
        [HY_OP_GROUPED_GRAD] = reference_grouped_grad,
        [HY_OP_SUM_ROWS] = reference_sum_rows,
    };
    assert(table[c->kind] != NULL);
    table[c->kind](c);
}

#endif
