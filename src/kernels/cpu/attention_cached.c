/* attention_cached.c: attention of new tokens to everything before them, out of a cache.
 *
 * First the keys and values of all new rows go to their places in the cache. Then a task is a few rows
 * and all query heads that share one head of keys: their queries are the rows of one small matrix, so
 * that keys and values are read, and widened where they are narrow, once for the whole group. Scores of
 * a chunk of keys are one sgemm, the weighted sum of values another, as in attention.c. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/softmax.h"

enum { TILE = HY_ATTENTION_TILE, CHUNK = HY_ATTENTION_CHUNK };

/* A call: B sequences of T new rows each, the first of them at position `first`. */
typedef struct cached {
    hy_heads heads;
    int64_t first, room; /* room: X, rows of the cache per sequence */
    int64_t group;       /* query heads that share a head of keys */
    int64_t tile_rows;   /* new rows of a task */
} cached;

static cached cached_of(const hy_op_call *call) {
    cached c = {.heads = hy_heads_of(call, &(hy_tensor){0}),
                .first = call->attr.heads.first,
                .room = call->t[HY_ATTENTION_CACHED_CACHE].shape[1]};
    c.group = c.heads.H / c.heads.K;
    c.tile_rows = hy_min64(hy_max64(1, TILE / c.group), c.heads.T);
    return c;
}

/* ---- appending --------------------------------------------------------------------------------- */

static void append_task(const hy_cpu_run *run, int64_t row, int worker) {
    (void)worker;
    const hy_tensor *qkv = &run->call->t[HY_ATTENTION_CACHED_QKV],
                    *cache = &run->call->t[HY_ATTENTION_CACHED_CACHE];
    cached c = cached_of(run->call);
    int64_t width = hy_tensor_width(cache), b = row / c.heads.T, i = row % c.heads.T;
    int64_t from = row * hy_tensor_width(qkv) + c.heads.H * c.heads.D;
    int64_t to = (b * c.room + c.first + i) * width;
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

/* ---- looking back ------------------------------------------------------------------------------ */

/* A worker's scratch; R rows of a tile times the heads of a group make M rows. */
typedef struct scratch {
    float *q, *out;   /* (M, D) */
    float *scores;    /* (M, CHUNK) */
    float *max, *sum; /* (M) */
    float *k, *v;     /* (CHUNK, D) where the cache is not fp32 */
} scratch;

static scratch take_scratch(const hy_op_call *call, hy_cpu_workspace *workspace) {
    cached c = cached_of(call);
    int64_t M = c.tile_rows * c.group, D = c.heads.D;
    const hy_tensor *cache = &call->t[HY_ATTENTION_CACHED_CACHE];
    return (scratch){
        .q = hy_cpu_take(workspace, sizeof(float) * (size_t)(M * D)),
        .out = hy_cpu_take(workspace, sizeof(float) * (size_t)(M * D)),
        .scores = hy_cpu_take(workspace, sizeof(float) * (size_t)(M * CHUNK)),
        .max = hy_cpu_take(workspace, sizeof(float) * (size_t)M),
        .sum = hy_cpu_take(workspace, sizeof(float) * (size_t)M),
        .k = hy_cpu_take(workspace, hy_buffer_bytes(cache, CHUNK * D)),
        .v = hy_cpu_take(workspace, hy_buffer_bytes(cache, CHUNK * D)),
    };
}

size_t hy_cpu_attention_cached_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace workspace = {0};
    take_scratch(call, &workspace);
    return workspace.used * (size_t)threads;
}

/* New rows [row, row + rows) of sequence b, and the query heads of one head of keys. */
typedef struct tile {
    int64_t b, kv_head, row, rows;
} tile;

static int64_t first_key(const cached *c, int64_t position) {
    return c->heads.window > 0 ? hy_max64(0, position - c->heads.window + 1) : 0;
}

static void read_queries(const hy_op_call *call, const cached *c, const tile *t, float *q) {
    const hy_tensor *qkv = &call->t[HY_ATTENTION_CACHED_QKV];
    int64_t width = hy_tensor_width(qkv), many = c->group * c->heads.D;
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t at = (t->b * c->heads.T + t->row + r) * width + t->kv_head * many;
        hy_cpu_widen(qkv->dtype, hy_element(qkv, at), q + r * many, many);
    }
}

/* Turns the scores of keys [key, key + keys) into weights and scales what the rows hold. */
static void soften_scores(const cached *c, const tile *t, int64_t key, int64_t keys,
                          const scratch *own) {
    for (int64_t m = 0; m < t->rows * c->group; m++) {
        int64_t position = c->first + t->row + m / c->group;
        int64_t begin = hy_min64(hy_max64(first_key(c, position) - key, 0), keys);
        int64_t end = hy_max64(hy_min64(position + 1 - key, keys), begin);
        float *row = own->scores + m * CHUNK;
        memset(row, 0, (size_t)begin * sizeof *row);
        memset(row + end, 0, (size_t)(keys - end) * sizeof *row);
        if (end == begin) continue;
        float highest = fmaxf(own->max[m], hy_cpu_max(row + begin, end - begin));
        float shrink = expf(own->max[m] - highest);
        own->sum[m] = own->sum[m] * shrink + hy_cpu_exp_sum_kept(row + begin, highest, end - begin);
        own->max[m] = highest;
        if (shrink != 1) hy_cpu_scale(own->out + m * c->heads.D, shrink, c->heads.D);
    }
}

static void attend(const hy_cpu_run *run, const cached *c, const tile *t, const scratch *own) {
    const hy_tensor *cache = &run->call->t[HY_ATTENTION_CACHED_CACHE];
    int64_t D = c->heads.D, M = t->rows * c->group, base = t->b * c->room;
    hy_gemm score = {.m = M,
                     .k = D,
                     .a = own->q,
                     .lda = D,
                     .c = own->scores,
                     .ldc = CHUNK,
                     .alpha = c->heads.scale,
                     .trans_b = true};
    hy_gemm weigh = {.m = M,
                     .n = D,
                     .a = own->scores,
                     .lda = CHUNK,
                     .c = own->out,
                     .ldc = D,
                     .alpha = 1,
                     .beta = 1};
    int64_t end = c->first + t->row + t->rows;
    for (int64_t key = first_key(c, c->first + t->row); key < end; key += CHUNK) {
        int64_t keys = hy_min64(CHUNK, end - key);
        score.n = weigh.k = keys;
        score.b = hy_read_block(cache, base + key, keys, t->kv_head * D, D, own->k, &score.ldb);
        weigh.b = hy_read_block(cache, base + key, keys, (c->heads.K + t->kv_head) * D, D, own->v,
                                &weigh.ldb);
        hy_sgemm(run->blas, &score);
        soften_scores(c, t, key, keys, own);
        hy_sgemm(run->blas, &weigh);
    }
}

static void write_out(const hy_op_call *call, const cached *c, const tile *t, const scratch *own) {
    const hy_tensor *out = &call->t[HY_ATTENTION_CACHED_OUT];
    int64_t D = c->heads.D, many = c->group * D;
    for (int64_t m = 0; m < t->rows * c->group; m++) {
        hy_cpu_scale(own->out + m * D, 1.0f / own->sum[m], D);
    }
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t at = (t->b * c->heads.T + t->row + r) * c->heads.H * D + t->kv_head * many;
        hy_cpu_narrow(out->dtype, own->out + r * many, hy_element(out, at), many);
    }
}

/* Tasks run from the last rows, which see most keys, to the first. */
static void attend_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    cached c = cached_of(call);
    size_t share = hy_cpu_attention_cached_workspace(call, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    scratch own = take_scratch(call, &workspace);
    int64_t pairs = c.heads.B * c.heads.K, tiles = hy_ceil_div(c.heads.T, c.tile_rows);
    tile t = {.b = task % pairs / c.heads.K,
              .kv_head = task % c.heads.K,
              .row = (tiles - 1 - task / pairs) * c.tile_rows};
    t.rows = hy_min64(c.tile_rows, c.heads.T - t.row);
    memset(own.out, 0, sizeof(float) * (size_t)(t.rows * c.group * c.heads.D));
    for (int64_t m = 0; m < t.rows * c.group; m++) {
        own.max[m] = -INFINITY;
        own.sum[m] = 0;
    }
    read_queries(call, &c, &t, own.q);
    attend(run, &c, &t, &own);
    write_out(call, &c, &t, &own);
}

hy_status hy_cpu_attention_cached(const hy_cpu_run *run) {
    cached c = cached_of(run->call);
    hy_cpu_for_each(run, c.heads.B * c.heads.T, append_task);
    hy_cpu_for_each(run, c.heads.B * c.heads.K * hy_ceil_div(c.heads.T, c.tile_rows), attend_task);
    return HY_OK;
}
