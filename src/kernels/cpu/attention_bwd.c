/* attention_bwd.c: causal attention, backward.
 *
 * The weights p are recomputed from the scores and the log-sum-exp. With delta = sum(dout out) of a
 * row, dp = dout v and ds = p (dp - delta) scale, times 1 - tanh^2 if scores are capped:
 *     dq = ds k,   dk = ds^T q,   dv = p^T dout.
 * dq belongs to one tile of queries; dk and dv are sums over all tiles and all query heads that
 * share the key head. A unit is one (sequence, key head). If there are few units, the tiles of a
 * unit are divided among several parts, each with its own sums, which are added in order at the
 * end. The number of parts depends only on the shape, so the number of threads does not affect the
 * result. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/vector_math.h"

enum { TILE = HY_ATTENTION_TILE, CHUNK = HY_ATTENTION_CHUNK };

/* ---- dividing the work ----------------------------------------------------------------------- */

#define ENOUGH_TASKS 32

typedef struct layout {
    hy_heads a;
    int64_t group; /* query heads per key head */
    int64_t units; /* (sequence, key head) */
    int64_t items; /* (tile, query head) pairs per unit */
    int64_t parts; /* parts per unit: item i belongs to part i mod parts */
    int64_t slots; /* buffers for sums of dk and dv; 0: a part adds directly to an fp32 dqkv */
} layout;

/* Several parts keep their sums until the end. A single part is finished by the worker that
 * computed it, so one slot per worker is enough. */
static layout layout_of(const hy_op_call *call, int threads) {
    layout l = {.a = hy_heads_of(call, &call->t[HY_ATTENTION_BWD_DOC_STARTS])};
    l.group = l.a.H / l.a.K;
    l.units = l.a.B * l.a.K;
    l.items = l.group * hy_query_tiles(l.a.T);
    l.parts = hy_min64(hy_ceil_div(ENOUGH_TASKS, l.units), l.items);
    if (l.parts > 1) {
        l.slots = l.units * l.parts;
    } else {
        l.slots = call->t[HY_ATTENTION_BWD_DQKV].dtype == HY_F32 ? 0 : threads;
    }
    return l;
}

/* All slots, shared, come first; then the scratch of each worker. */
static float *take_slots(const layout *l, hy_cpu_workspace *workspace) {
    return hy_cpu_take(workspace, (size_t)(l->slots * l->a.T * 2 * l->a.D) * sizeof(float));
}

typedef struct scratch {
    float *p, *dp;         /* (TILE, CHUNK) */
    float *q, *dout, *out; /* (TILE, D), for narrow types */
    float *dq;             /* (TILE, D), for a narrow dqkv */
    float *k, *v;          /* (CHUNK, D), for narrow types */
} scratch;

static scratch take_scratch(const hy_op_call *call, hy_cpu_workspace *workspace) {
    int64_t D = call->attr.heads.head_dim;
    const hy_tensor *t = call->t;
    return (scratch){
        .p = hy_cpu_take(workspace, sizeof(float) * TILE * CHUNK),
        .dp = hy_cpu_take(workspace, sizeof(float) * TILE * CHUNK),
        .q = hy_cpu_take(workspace, hy_buffer_bytes(&t[HY_ATTENTION_BWD_QKV], TILE * D)),
        .dout = hy_cpu_take(workspace, hy_buffer_bytes(&t[HY_ATTENTION_BWD_DOUT], TILE * D)),
        .out = hy_cpu_take(workspace, hy_buffer_bytes(&t[HY_ATTENTION_BWD_OUT], TILE * D)),
        .dq = hy_cpu_take(workspace, hy_buffer_bytes(&t[HY_ATTENTION_BWD_DQKV], TILE * D)),
        .k = hy_cpu_take(workspace, hy_buffer_bytes(&t[HY_ATTENTION_BWD_QKV], CHUNK * D)),
        .v = hy_cpu_take(workspace, hy_buffer_bytes(&t[HY_ATTENTION_BWD_QKV], CHUNK * D)),
    };
}

size_t hy_cpu_attention_bwd_workspace(const hy_op_call *call, int threads) {
    layout l = layout_of(call, threads);
    hy_cpu_workspace shared = {0}, own = {0};
    take_slots(&l, &shared);
    take_scratch(call, &own);
    return shared.used + own.used * (size_t)threads;
}

/* Where a part sums dk and dv: T rows each, `ld` apart. */
typedef struct sums {
    float *dk, *dv;
    int64_t ld;
} sums;

static sums sums_in_dqkv(const hy_op_call *call, const hy_heads *a, int64_t unit) {
    int64_t width = (a->H + 2 * a->K) * a->D, kv_head = unit % a->K;
    float *row = (float *)call->t[HY_ATTENTION_BWD_DQKV].data + unit / a->K * a->T * width;
    return (sums){row + (a->H + kv_head) * a->D, row + (a->H + a->K + kv_head) * a->D, width};
}

static sums sums_in_slot(const hy_op_call *call, const layout *l, int64_t slot) {
    hy_cpu_workspace workspace = {.base = call->workspace.data};
    float *first = take_slots(l, &workspace) + slot * l->a.T * 2 * l->a.D;
    return (sums){first, first + l->a.D, 2 * l->a.D};
}

/* ---- one tile -------------------------------------------------------------------------------- */

typedef struct tile {
    int64_t b, h;
    int64_t query, rows;
    float delta[TILE];
    const float *lse;
} tile;

HY_CLONES static float dot(const float *x, const float *y, int64_t n) {
    float sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* Scores become weights p, dp becomes ds. */
HY_CLONES static void weights_row(float *p, float *dp, float lse, float delta, float scale,
                                  int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float weight = hy_exp(p[i] - lse);
        p[i] = weight;
        dp[i] = weight * (dp[i] - delta) * scale;
    }
}

/* As above, if scores come before tanh. */
HY_CLONES static void capped_weights_row(float *p, float *dp, float lse, float delta, float scale,
                                         float cap, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float t = hy_tanh(p[i]), weight = hy_exp(cap * t - lse);
        p[i] = weight;
        dp[i] = weight * (dp[i] - delta) * (1.0f - t * t) * scale;
    }
}

static void weigh_chunk(const hy_heads *a, const tile *t, int64_t key, int64_t keys,
                        const scratch *own) {
    for (int64_t r = 0; r < t->rows; r++) {
        hy_seen seen = hy_seen_of(a, t->b, t->query + r, key, keys);
        float *p = own->p + r * CHUNK, *dp = own->dp + r * CHUNK;
        for (int i = 0; i < 2; i++) {
            int64_t begin = seen.begin[i], count = seen.end[i] - begin;
            if (a->softcap > 0) {
                capped_weights_row(p + begin, dp + begin, t->lse[r], t->delta[r], a->scale,
                                   a->softcap, count);
            } else {
                weights_row(p + begin, dp + begin, t->lse[r], t->delta[r], a->scale, count);
            }
        }
        hy_clear_hidden(p, &seen, keys);
        hy_clear_hidden(dp, &seen, keys);
    }
}

/* A matrix in memory: its address and row stride. */
typedef struct matrix {
    const float *data;
    int64_t ld;
} matrix;

static matrix read_head(const hy_tensor *t, int64_t row, int64_t rows, int64_t head, int64_t D,
                        float *buffer) {
    matrix m;
    m.data = hy_read_block(t, row, rows, head * D, D, buffer, &m.ld);
    return m;
}

/* c (m,n) = op(a) op(b) alpha + beta c */
static void multiply(const hy_blas *blas, int64_t m, int64_t n, int64_t k, matrix a, bool trans_a,
                     matrix b, bool trans_b, float alpha, float beta, float *c, int64_t ldc) {
    hy_gemm g = {m, n, k, a.data, b.data, c, a.ld, b.ld, ldc, alpha, beta, trans_a, trans_b};
    hy_sgemm(blas, &g);
}

/* Computes dq of the tile, and its contributions to dk and dv, over the chunks of keys it sees. */
static void backward_tile(const hy_cpu_run *run, const hy_heads *a, tile *t, const sums *sum,
                          const scratch *own) {
    const hy_tensor *tensors = run->call->t, *qkv = &tensors[HY_ATTENTION_BWD_QKV];
    const hy_tensor *dqkv = &tensors[HY_ATTENTION_BWD_DQKV];
    const hy_blas *blas = run->blas;
    int64_t D = a->D, sequence = t->b * a->T, kv_head = t->h / (a->H / a->K);
    int64_t row = sequence + t->query, end = t->query + t->rows;
    int64_t width = hy_tensor_width(dqkv);
    matrix q = read_head(qkv, row, t->rows, t->h, D, own->q);
    matrix dout = read_head(&tensors[HY_ATTENTION_BWD_DOUT], row, t->rows, t->h, D, own->dout);
    matrix out = read_head(&tensors[HY_ATTENTION_BWD_OUT], row, t->rows, t->h, D, own->out);
    matrix p = {own->p, CHUNK}, dp = {own->dp, CHUNK};
    bool is_direct = dqkv->dtype == HY_F32;
    float *dq = is_direct ? (float *)dqkv->data + row * width + t->h * D : own->dq;
    int64_t dq_ld = is_direct ? width : D;
    float beta = 0;
    for (int64_t r = 0; r < t->rows; r++) {
        t->delta[r] = dot(dout.data + r * dout.ld, out.data + r * out.ld, D);
    }
    hy_gap gap = hy_gap_of_tile(a, t->b, t->query, t->rows);
    int64_t key = hy_first_key_of_tile(a, t->b, t->query, t->rows);
    for (int64_t keys; key < end; key += keys) {
        keys = hy_next_keys(gap, end, CHUNK, &key);
        matrix k = read_head(qkv, sequence + key, keys, a->H + kv_head, D, own->k);
        matrix v = read_head(qkv, sequence + key, keys, a->H + a->K + kv_head, D, own->v);
        multiply(blas, t->rows, keys, D, q, false, k, true, hy_score_scale(a), 0, own->p, CHUNK);
        multiply(blas, t->rows, keys, D, dout, false, v, true, 1, 0, own->dp, CHUNK);
        weigh_chunk(a, t, key, keys, own);
        multiply(blas, keys, D, t->rows, p, true, dout, false, 1, 1, sum->dv + key * sum->ld,
                 sum->ld);
        multiply(blas, keys, D, t->rows, dp, true, q, false, 1, 1, sum->dk + key * sum->ld,
                 sum->ld);
        multiply(blas, t->rows, D, keys, dp, false, k, false, 1, beta, dq, dq_ld);
        beta = 1;
    }
    for (int64_t r = 0; r < t->rows; r++) {
        hy_write(dqkv, (row + r) * width + t->h * D, D, dq + r * dq_ld);
    }
}

/* ---- parts and units ------------------------------------------------------------------------- */

/* Writes rows [begin, end) of dk and dv of a unit to their place. */
static void store_sums(const hy_op_call *call, const hy_heads *a, int64_t unit, const sums *sum,
                       int64_t begin, int64_t end) {
    const hy_tensor *dqkv = &call->t[HY_ATTENTION_BWD_DQKV];
    int64_t width = hy_tensor_width(dqkv), kv_head = unit % a->K, D = a->D;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = (unit / a->K * a->T + i) * width + (a->H + kv_head) * D;
        hy_cpu_narrow(dqkv->dtype, sum->dk + i * sum->ld, hy_element(dqkv, at), D);
        hy_cpu_narrow(dqkv->dtype, sum->dv + i * sum->ld, hy_element(dqkv, at + a->K * D), D);
    }
}

static void part_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    layout l = layout_of(call, run->threads);
    const hy_heads *a = &l.a;
    int64_t unit = task / l.parts, part = task % l.parts;
    hy_cpu_workspace workspace = {.base = call->workspace.data}, share = {0};
    take_slots(&l, &workspace);
    take_scratch(call, &share);
    workspace.used += share.used * (size_t)worker;
    scratch own = take_scratch(call, &workspace);
    sums sum = l.slots == 0 ? sums_in_dqkv(call, a, unit)
                            : sums_in_slot(call, &l, l.parts > 1 ? task : worker);

    for (int64_t i = 0; i < a->T; i++) {
        memset(sum.dk + i * sum.ld, 0, (size_t)a->D * sizeof(float));
        memset(sum.dv + i * sum.ld, 0, (size_t)a->D * sizeof(float));
    }
    for (int64_t item = part; item < l.items; item += l.parts) {
        tile t = {.b = unit / a->K,
                  .h = unit % a->K * l.group + item % l.group,
                  .query = item / l.group * TILE};
        t.rows = hy_min64(TILE, a->T - t.query);
        t.lse =
            (const float *)call->t[HY_ATTENTION_BWD_LSE].data + (t.b * a->H + t.h) * a->T + t.query;
        backward_tile(run, a, &t, &sum, &own);
    }
    if (l.parts == 1 && l.slots > 0) store_sums(call, a, unit, &sum, 0, a->T);
}

/* Adds the parts of a unit, in order, to the first, for one tile of rows. */
static void fold_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    layout l = layout_of(run->call, run->threads);
    int64_t tiles = hy_query_tiles(l.a.T), unit = task / tiles, begin = task % tiles * TILE;
    int64_t end = hy_min64(begin + TILE, l.a.T);
    sums total = sums_in_slot(run->call, &l, unit * l.parts);
    for (int64_t part = 1; part < l.parts; part++) {
        sums more = sums_in_slot(run->call, &l, unit * l.parts + part);
        float *sum = total.dk + begin * total.ld;
        hy_cpu_add(sum, more.dk + begin * more.ld, sum, (end - begin) * total.ld);
    }
    store_sums(run->call, &l.a, unit, &total, begin, end);
}

/* The gradient of the sinks of heads [first, first + heads): a row's weight of the sink is
 * exp(sink - lse). */
static void sink_gradient(const hy_op_call *call, int64_t first, int64_t heads) {
    enum { MAX_HEAD = 1024 }; /* ops.c accepts no larger head */
    const hy_tensor *t = call->t, *dout = &t[HY_ATTENTION_BWD_DOUT];
    const hy_tensor *out = &t[HY_ATTENTION_BWD_OUT], *dsinks = &t[HY_ATTENTION_BWD_DSINKS];
    hy_heads a = hy_heads_of(call, &t[HY_ATTENTION_BWD_DOC_STARTS]);
    const float *lse = t[HY_ATTENTION_BWD_LSE].data;
    float x[MAX_HEAD], y[MAX_HEAD];
    for (int64_t h = first; h < first + heads; h++) {
        float sink = hy_sink(&t[HY_ATTENTION_BWD_SINKS], h), result;
        double sum = 0;
        for (int64_t n = 0; n < a.B * a.T; n++) {
            int64_t at = (n * a.H + h) * a.D;
            float delta = dot(hy_read(dout, at, a.D, x), hy_read(out, at, a.D, y), a.D);
            float weight = expf(sink - lse[(n / a.T * a.H + h) * a.T + n % a.T]);
            sum -= (double)weight * (double)delta;
        }
        if (call->attr.accumulate) sum += (double)hy_sink(dsinks, h);
        result = (float)sum;
        hy_cpu_narrow(dsinks->dtype, &result, hy_element(dsinks, h), 1);
    }
}

hy_status hy_cpu_attention_bwd(const hy_cpu_run *run) {
    layout l = layout_of(run->call, run->threads);
    HY_TRY(hy_check_doc_starts(run->call, l.a.doc_starts, l.a.B * l.a.T, l.a.T));
    hy_cpu_for_each(run, l.units * l.parts, part_task);
    if (l.parts > 1) hy_cpu_for_each(run, l.units * hy_query_tiles(l.a.T), fold_task);
    if (!hy_tensor_is_given(&run->call->t[HY_ATTENTION_BWD_DSINKS])) return HY_OK;
    return hy_cpu_for_rows(run, l.a.H, 1, sink_gradient);
}
