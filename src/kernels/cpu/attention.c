/* attention.c: causal attention, forward: over a batch, and of new tokens with a cache.
 *
 * A task is one tile of queries. The scores of a chunk of keys are one sgemm, the weighted sum of
 * values another; between them each row is exponentiated relative to its running maximum. A new
 * maximum in a later chunk rescales the earlier sums (online softmax), so memory does not grow with
 * T.
 *
 * In a batch, a tile has queries of one head; only lse = max + log(sum) is stored for the backward
 * pass. With a cache, the keys and values of all new rows are first written to it. A tile is then a
 * few rows and all query heads that share one key head, as the rows of one small matrix. So keys
 * and values are read, and converted if they are narrow, once for the whole group. */
#include "kernels/cpu/attention.h"

#include <string.h>

#include "kernels/cpu/softmax.h"

enum { TILE = HY_ATTENTION_TILE, CHUNK = HY_ATTENTION_CHUNK };

/* ---- a tile ---------------------------------------------------------------------------------- */

/* A tile of queries and the position of its keys. Row m is a query at position `position + m /
 * group` of sequence b. */
typedef struct tile {
    int64_t b, position, rows, group;
    float *own_q;   /* scratch for q */
    const float *q; /* (rows, D) */
    int64_t q_ld;
    const hy_tensor *kv;               /* rows with keys and values */
    int64_t first_row, k_head, v_head; /* in kv: row of position 0 of the sequence, and the heads */
    float *scores;                     /* (rows, CHUNK) */
    float *k, *v;                      /* (CHUNK, D) if kv is not fp32 */
    float *max, *sum;                  /* running values of each row */
    float *out;                        /* (rows, D) */
    int64_t out_ld;
    bool is_added; /* out has earlier sums */
} tile;

/* Converts the scores of keys [key, key + keys) to weights and rescales the earlier sums of the
 * rows. */
static void soften_scores(const hy_heads *a, const tile *t, int64_t key, int64_t keys,
                          bool has_sums) {
    for (int64_t m = 0; m < t->rows; m++) {
        int64_t i = t->position + m / t->group;
        int64_t begin = hy_min64(hy_max64(hy_first_key(a, t->b, i) - key, 0), keys);
        int64_t end = hy_max64(hy_min64(i + 1 - key, keys), begin);
        float *row = t->scores + m * CHUNK;
        memset(row, 0, (size_t)begin * sizeof *row);
        memset(row + end, 0, (size_t)(keys - end) * sizeof *row);
        if (end == begin) continue;
        if (a->softcap > 0) hy_cpu_cap(row + begin, a->softcap, end - begin);
        float highest = fmaxf(t->max[m], hy_cpu_max(row + begin, end - begin));
        float shrink = expf(t->max[m] - highest);
        t->sum[m] = t->sum[m] * shrink + hy_cpu_exp_sum_kept(row + begin, highest, end - begin);
        t->max[m] = highest;
        if (has_sums && shrink != 1) hy_cpu_scale(t->out + m * t->out_ld, shrink, a->D);
    }
}

/* Leaves sums of weighted values in out, not yet divided by the sums of weights. */
static void attend(const hy_cpu_run *run, const hy_heads *a, const tile *t) {
    int64_t D = a->D, positions = t->rows / t->group, end = t->position + positions;
    hy_gemm score = {.m = t->rows,
                     .k = D,
                     .a = t->q,
                     .lda = t->q_ld,
                     .c = t->scores,
                     .ldc = CHUNK,
                     .alpha = hy_score_scale(a),
                     .trans_b = true};
    hy_gemm weigh = {.m = t->rows,
                     .n = D,
                     .a = t->scores,
                     .lda = CHUNK,
                     .c = t->out,
                     .ldc = t->out_ld,
                     .alpha = 1,
                     .beta = t->is_added};
    for (int64_t m = 0; m < t->rows; m++) {
        t->max[m] = -INFINITY;
        t->sum[m] = 0;
    }
    int64_t key = hy_first_key_of_tile(a, t->b, t->position, positions);
    for (; key < end; key += CHUNK) {
        int64_t keys = hy_min64(CHUNK, end - key), row = t->first_row + key;
        score.n = weigh.k = keys;
        score.b = hy_read_block(t->kv, row, keys, t->k_head * D, D, t->k, &score.ldb);
        weigh.b = hy_read_block(t->kv, row, keys, t->v_head * D, D, t->v, &weigh.ldb);
        hy_sgemm(run->blas, &score);
        soften_scores(a, t, key, keys, weigh.beta != 0);
        hy_sgemm(run->blas, &weigh);
        weigh.beta = 1;
    }
}

/* ---- a batch --------------------------------------------------------------------------------- */

hy_status hy_check_doc_starts(const hy_op_call *call, const int32_t *doc_starts, int64_t rows,
                              int64_t seq) {
    for (int64_t n = 0; doc_starts && n < rows; n++) {
        if (doc_starts[n] >= 0 && doc_starts[n] <= n % seq) continue;
        return hy_fail(
            HY_ERR_INPUT, "%s: the document of token %lld begins at %d, expected 0 to %lld",
            hy_op_name(call->kind), (long long)(n % seq), doc_starts[n], (long long)(n % seq));
    }
    return HY_OK;
}

/* A tile with the scratch of its worker: scores of a chunk, and operands and output that are not
 * fp32. */
static tile take_batch_tile(const hy_op_call *call, hy_cpu_workspace *workspace) {
    int64_t D = call->attr.heads.head_dim;
    const hy_tensor *qkv = &call->t[HY_ATTENTION_QKV], *out = &call->t[HY_ATTENTION_OUT];
    return (tile){
        .scores = hy_cpu_take(workspace, sizeof(float) * TILE * CHUNK),
        .out = hy_cpu_take(workspace, hy_buffer_bytes(out, TILE * D)),
        .own_q = hy_cpu_take(workspace, hy_buffer_bytes(qkv, TILE * D)),
        .k = hy_cpu_take(workspace, hy_buffer_bytes(qkv, CHUNK * D)),
        .v = hy_cpu_take(workspace, hy_buffer_bytes(qkv, CHUNK * D)),
    };
}

size_t hy_cpu_attention_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace workspace = {0};
    take_batch_tile(call, &workspace);
    return workspace.used * (size_t)threads;
}

/* Tasks run from the last tile of a sequence, which sees most keys, to the first. */
static void attention_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    hy_heads a = hy_heads_of(call, &call->t[HY_ATTENTION_DOC_STARTS]);
    const hy_tensor *out = &call->t[HY_ATTENTION_OUT], *qkv = &call->t[HY_ATTENTION_QKV];
    size_t share = hy_cpu_attention_workspace(call, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    tile t = take_batch_tile(call, &workspace);

    int64_t per_tile = a.B * a.H, index = hy_query_tiles(a.T) - 1 - task / per_tile;
    int64_t b = task % per_tile / a.H, h = task % a.H, query = index * TILE;
    int64_t row = b * a.T + query, kv_head = h / (a.H / a.K);
    float max[TILE], sum[TILE], *lse = call->t[HY_ATTENTION_LSE].data;
    t.b = b, t.position = query, t.rows = hy_min64(TILE, a.T - query), t.group = 1;
    t.q = hy_read_block(qkv, row, t.rows, h * a.D, a.D, t.own_q, &t.q_ld);
    t.kv = qkv, t.first_row = b * a.T, t.k_head = a.H + kv_head, t.v_head = t.k_head + a.K;
    t.max = max, t.sum = sum, t.out_ld = a.D;
    if (out->dtype == HY_F32) {
        t.out = (float *)out->data + (row * a.H + h) * a.D;
        t.out_ld = a.H * a.D;
    }
    attend(run, &a, &t);
    for (int64_t r = 0; r < t.rows; r++) {
        float inverse = hy_close_row(&call->t[HY_ATTENTION_SINKS], h, &max[r], &sum[r]);
        hy_cpu_scale(t.out + r * t.out_ld, inverse, a.D);
        hy_write(out, ((row + r) * a.H + h) * a.D, a.D, t.out + r * t.out_ld);
        lse[(b * a.H + h) * a.T + query + r] = max[r] + logf(sum[r]);
    }
}

hy_status hy_cpu_attention(const hy_cpu_run *run) {
    hy_heads a = hy_heads_of(run->call, &run->call->t[HY_ATTENTION_DOC_STARTS]);
    HY_TRY(hy_check_doc_starts(run->call, a.doc_starts, a.B * a.T, a.T));
    hy_cpu_for_each(run, a.B * a.H * hy_query_tiles(a.T), attention_task);
    return HY_OK;
}

/* ---- a cache --------------------------------------------------------------------------------- */

/* A call: B sequences of T new rows each, the first at position `first`. */
typedef struct cached {
    hy_heads heads;
    int64_t first, room; /* room: X, rows of the cache per sequence */
    int64_t group;       /* query heads that share a key head */
    int64_t tile_rows;   /* new rows per task */
} cached;

static cached cached_of(const hy_op_call *call) {
    cached c = {.heads = hy_heads_of(call, &(hy_tensor){0}),
                .first = call->attr.heads.first,
                .room = call->t[HY_ATTENTION_CACHED_CACHE].shape[1]};
    c.group = c.heads.H / c.heads.K;
    c.tile_rows = hy_min64(hy_max64(1, TILE / c.group), c.heads.T);
    return c;
}

void hy_cache_put(const hy_op_call *call, int64_t row, int64_t cache_row) {
    const hy_tensor *qkv = &call->t[HY_ATTENTION_CACHED_QKV],
                    *cache = &call->t[HY_ATTENTION_CACHED_CACHE];
    int64_t width = hy_tensor_width(cache), to = cache_row * width;
    int64_t from =
        row * hy_tensor_width(qkv) + (int64_t)call->attr.heads.heads * call->attr.heads.head_dim;
    float buffer[HY_CPU_RUN];
    if (qkv->dtype == cache->dtype) {
        memcpy(hy_element(cache, to), hy_element(qkv, from),
               (size_t)width * hy_dtype_size(cache->dtype));
        return;
    }
    for (int64_t at = 0; at < width; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, width - at);
        const float *values = hy_read(qkv, from + at, n, buffer);
        hy_cpu_narrow(cache->dtype, values, hy_element(cache, to + at), n);
    }
}

static void append_task(const hy_cpu_run *run, int64_t row, int worker) {
    (void)worker;
    cached c = cached_of(run->call);
    int64_t b = row / c.heads.T, i = row % c.heads.T;
    hy_cache_put(run->call, row, b * c.room + c.first + i);
}

/* A tile has a row for each query of a task and each head of a group: M = tile_rows * group. */
static tile take_cached_tile(const hy_op_call *call, hy_cpu_workspace *workspace) {
    cached c = cached_of(call);
    int64_t M = c.tile_rows * c.group, D = c.heads.D;
    const hy_tensor *cache = &call->t[HY_ATTENTION_CACHED_CACHE];
    return (tile){
        .own_q = hy_cpu_take(workspace, sizeof(float) * (size_t)(M * D)),
        .out = hy_cpu_take(workspace, sizeof(float) * (size_t)(M * D)),
        .scores = hy_cpu_take(workspace, sizeof(float) * (size_t)(M * CHUNK)),
        .max = hy_cpu_take(workspace, sizeof(float) * (size_t)M),
        .sum = hy_cpu_take(workspace, sizeof(float) * (size_t)M),
        .k = hy_cpu_take(workspace, hy_buffer_bytes(cache, CHUNK * D)),
        .v = hy_cpu_take(workspace, hy_buffer_bytes(cache, CHUNK * D)),
    };
}

size_t hy_cpu_attention_cached_workspace(const hy_op_call *call, int threads) {
    if (hy_cache_has_blocks(call)) return hy_cpu_attention_blocks_workspace(call, threads);
    hy_cpu_workspace workspace = {0};
    take_cached_tile(call, &workspace);
    return workspace.used * (size_t)threads;
}

/* Tasks run from the last rows, which see most keys, to the first. */
static void cached_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    const hy_tensor *qkv = &call->t[HY_ATTENTION_CACHED_QKV],
                    *out = &call->t[HY_ATTENTION_CACHED_OUT];
    cached c = cached_of(call);
    size_t share = hy_cpu_attention_cached_workspace(call, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    tile t = take_cached_tile(call, &workspace);
    int64_t pairs = c.heads.B * c.heads.K, tiles = hy_ceil_div(c.heads.T, c.tile_rows);
    int64_t b = task % pairs / c.heads.K, kv_head = task % c.heads.K, D = c.heads.D;
    int64_t first = (tiles - 1 - task / pairs) * c.tile_rows, many = c.group * D;
    int64_t rows = hy_min64(c.tile_rows, c.heads.T - first), row = b * c.heads.T + first;
    t.b = b, t.position = c.first + first, t.rows = rows * c.group, t.group = c.group;
    t.q = t.own_q, t.q_ld = t.out_ld = D;
    t.kv = &call->t[HY_ATTENTION_CACHED_CACHE], t.first_row = b * c.room;
    t.k_head = kv_head, t.v_head = c.heads.K + kv_head;
    t.is_added = true;
    memset(t.out, 0, sizeof(float) * (size_t)(t.rows * D));
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * hy_tensor_width(qkv) + kv_head * many;
        hy_cpu_widen(qkv->dtype, hy_element(qkv, at), t.own_q + r * many, many);
    }
    attend(run, &c.heads, &t);
    for (int64_t m = 0; m < t.rows; m++) {
        const hy_tensor *sinks = &call->t[HY_ATTENTION_CACHED_SINKS];
        int64_t h = kv_head * c.group + m % c.group;
        hy_cpu_scale(t.out + m * D, hy_close_row(sinks, h, &t.max[m], &t.sum[m]), D);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * c.heads.H * D + kv_head * many;
        hy_cpu_narrow(out->dtype, t.out + r * many, hy_element(out, at), many);
    }
}

hy_status hy_cpu_attention_cached(const hy_cpu_run *run) {
    if (hy_cache_has_blocks(run->call)) return hy_cpu_attention_blocks(run);
    cached c = cached_of(run->call);
    hy_cpu_for_each(run, c.heads.B * c.heads.T, append_task);
    hy_cpu_for_each(run, c.heads.B * c.heads.K * hy_ceil_div(c.heads.T, c.tile_rows), cached_task);
    return HY_OK;
}
