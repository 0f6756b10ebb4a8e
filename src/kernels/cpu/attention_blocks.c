/* attention_blocks.c: attention of new tokens with a cache in blocks, for sequences at positions of
 * their own.
 *
 * The keys and values of all new rows are first written to the cache. A task is a few new rows of a
 * sequence and all query heads that share a key head, as the rows of one small matrix: so keys and
 * values are read, and converted if they are narrow, once for the whole group. It goes through the keys in ranges of HY_KEY_RANGE positions,
 * from multiples of it; fp32 keys and values are used where they lie in their blocks. A range is
 * summed by itself, and then joined with the earlier ones (online softmax). Scores and weighted
 * sums have one order (dots.h), so a row has the same bits whatever the other rows and sequences
 * are, and however a prompt is divided into calls. Keys that no row of a task sees are not read
 * (block-sparse attention): a range then consists of the keys before and after the gap. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/dots.h"
#include "kernels/cpu/softmax.h"

/* Values of SOME keys are used for all rows while they are in the cache. */
enum { RANGE = HY_KEY_RANGE, TILE = HY_ATTENTION_TILE, SOME = 32 };
/* The length of a row of scores, whose last tile may reach beyond the range. */
enum { SCORES = RANGE + 16 };

typedef struct blocked {
    hy_heads heads;
    const int32_t *first, *blocks; /* (B), (B,W) */
    int64_t W, rows;               /* blocks per sequence, rows of a block */
    int64_t pool;                  /* blocks of the cache */
    int64_t group;                 /* query heads that share a key head */
    int64_t tile_rows;             /* new rows per task */
} blocked;

static blocked blocked_of(const hy_op_call *call) {
    const hy_tensor *cache = &call->t[HY_ATTENTION_CACHED_CACHE],
                    *blocks = &call->t[HY_ATTENTION_CACHED_BLOCKS];
    blocked c = {.heads = hy_heads_of(call, &(hy_tensor){0}),
                 .first = call->t[HY_ATTENTION_CACHED_FIRST].data,
                 .blocks = blocks->data,
                 .W = hy_tensor_width(blocks),
                 .rows = cache->shape[1],
                 .pool = cache->shape[0]};
    c.group = c.heads.H / c.heads.K;
    c.tile_rows = hy_min64(hy_max64(1, TILE / c.group), c.heads.T);
    return c;
}

static int64_t cache_row(const blocked *c, int64_t b, int64_t position) {
    int64_t block = c->blocks[b * c->W + position / c->rows];
    return block * c->rows + position % c->rows;
}

/* ---- a range --------------------------------------------------------------------------------- */

/* The rows of a task: row m is a query at position `position + m / group` of sequence b. */
typedef struct tile {
    int64_t b, position, rows, kv_head;
    float *q;             /* packed (dots.h) */
    float *out;           /* (rows, D): sums of weighted values so far */
    float *max, *sum;     /* of each row so far */
    float *own_k, *own_v; /* (RANGE, D) if the cache is not fp32 */
    float *scores;        /* of a range (rows, SCORES), then its weights */
    float *part;          /* its sums of weighted values (rows, D) */
    float *part_max, *part_sum;
} tile;

/* The keys of a range: positions from `begin` on, and if some of the range are in the gap of all rows,
 * from the `before`-th key on positions from `after` on. Beyond the last, keys repeat it. */
typedef struct range {
    int64_t begin, before, after, keys;
    const float *k[RANGE + HY_DOTS_COLS], *v[RANGE];
} range;

/* The positions [begin, end), without the gap. */
static void place_range(range *r, hy_gap gap, int64_t begin, int64_t end) {
    int64_t gap_end = hy_min64(hy_max64(gap.end, begin), end);
    int64_t gap_begin = hy_min64(hy_max64(gap.begin, begin), gap_end);
    if (hy_gap_is_empty(gap)) gap_begin = gap_end = end;
    r->begin = begin;
    r->before = gap_begin - begin;
    r->after = gap_end;
    r->keys = r->before + end - gap_end;
}

/* The number of keys of the range before a position. */
static int64_t keys_before(const range *r, int64_t position) {
    int64_t of_second = hy_min64(hy_max64(position - r->after, 0), r->keys - r->before);
    return hy_min64(hy_max64(position - r->begin, 0), r->before) + of_second;
}

/* Keys and values of the positions of a range. */
static void read_range(const hy_op_call *call, const blocked *c, const tile *t, range *r) {
    const hy_tensor *cache = &call->t[HY_ATTENTION_CACHED_CACHE];
    int64_t D = c->heads.D, width = hy_tensor_width(cache);
    for (int64_t i = 0; i < r->keys; i++) {
        int64_t position = i < r->before ? r->begin + i : r->after + i - r->before;
        int64_t at = cache_row(c, t->b, position) * width + t->kv_head * D;
        r->k[i] = hy_read(cache, at, D, t->own_k + i * D);
        r->v[i] = hy_read(cache, at + c->heads.K * D, D, t->own_v + i * D);
    }
    for (int64_t i = 0; i < HY_DOTS_COLS; i++) r->k[r->keys + i] = r->k[r->keys - 1];
}

/* Scores are not scaled yet. */
static void score_range(const blocked *c, const tile *t, const range *r) {
    _Alignas(64) float sums[HY_DOTS_TILE];
    const hy_dots *dots = hy_dots_get();
    int64_t padded = hy_dots_padded(dots, c->heads.D);
    for (int64_t key = 0; key < r->keys; key += dots->cols) {
        for (int64_t row = 0; row < t->rows; row += dots->rows) {
            int rows = (int)hy_min64(dots->rows, t->rows - row);
            dots->run(rows, c->heads.D, t->q + row * padded, r->k + key, sums);
            for (int i = 0; i < rows; i++) {
                float *scores = t->scores + (row + i) * SCORES + key;
                for (int k = 0; k < dots->cols; k++) scores[k] = sums[i * dots->cols + k];
            }
        }
    }
}

static void weigh_range(const blocked *c, const tile *t, const range *r) {
    const hy_dots *dots = hy_dots_get();
    int64_t D = c->heads.D;
    memset(t->part, 0, sizeof(float) * (size_t)(t->rows * D));
    for (int64_t key = 0; key < r->keys; key += SOME) {
        for (int64_t row = 0; row < t->rows; row += dots->rows) {
            dots->weigh((int)hy_min64(dots->rows, t->rows - row), hy_min64(SOME, r->keys - key),
                        t->scores + row * SCORES + key, SCORES, r->v + key, D, t->part + row * D,
                        D);
        }
    }
}

/* The keys of the range that a row sees. Which keys its gap divides follows from the row alone, so the
 * two sums of a row are the same beside any other rows. */
static hy_seen seen_of_range(const blocked *c, const tile *t, int64_t i, const range *r) {
    hy_gap gap = hy_gap_of_query(&c->heads, t->b, i);
    int64_t begin = keys_before(r, hy_first_key(&c->heads, t->b, i));
    int64_t end = keys_before(r, i + 1);
    if (hy_gap_is_empty(gap)) return (hy_seen){{begin, end}, {end, end}};
    return (hy_seen){{begin, keys_before(r, gap.end)}, {keys_before(r, gap.begin), end}};
}

/* Converts scores to weights. A row that sees none of the keys has the sum 0. */
static void soften(const blocked *c, const tile *t, const range *r) {
    for (int64_t m = 0; m < t->rows; m++) {
        hy_seen seen = seen_of_range(c, t, t->position + m / c->group, r);
        float *row = t->scores + m * SCORES, highest = -INFINITY, sum = 0;
        hy_clear_hidden(row, &seen, r->keys);
        for (int i = 0; i < 2; i++) {
            int64_t begin = seen.begin[i], count = seen.end[i] - begin;
            if (count == 0) continue;
            hy_cpu_scale(row + begin, hy_score_scale(&c->heads), count);
            if (c->heads.softcap > 0) hy_cpu_cap(row + begin, c->heads.softcap, count);
            highest = fmaxf(highest, hy_cpu_max(row + begin, count));
        }
        for (int i = 0; i < 2; i++) {
            int64_t begin = seen.begin[i], count = seen.end[i] - begin;
            if (count > 0) sum += hy_cpu_exp_sum_kept(row + begin, highest, count);
        }
        t->part_max[m] = highest;
        t->part_sum[m] = sum;
    }
}

HY_CLONES static void add_scaled(float *out, float old, const float *x, float factor, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) out[i] = out[i] * old + x[i] * factor;
}

/* Adds the sums of a range to those so far. */
static void join(const blocked *c, const tile *t) {
    for (int64_t m = 0; m < t->rows; m++) {
        if (t->part_sum[m] == 0) continue;
        float highest = fmaxf(t->max[m], t->part_max[m]);
        float old = expf(t->max[m] - highest), factor = expf(t->part_max[m] - highest);
        t->sum[m] = t->sum[m] * old + t->part_sum[m] * factor;
        t->max[m] = highest;
        add_scaled(t->out + m * c->heads.D, old, t->part + m * c->heads.D, factor, c->heads.D);
    }
}

static void attend(const hy_op_call *call, const blocked *c, const tile *t) {
    int64_t end = t->position + t->rows / c->group;
    range r;
    for (int64_t m = 0; m < t->rows; m++) {
        t->max[m] = -INFINITY;
        t->sum[m] = 0;
    }
    memset(t->out, 0, sizeof(float) * (size_t)(t->rows * c->heads.D));
    hy_gap gap = hy_gap_of_query(&c->heads, t->b, t->position); /* all rows see none of it */
    int64_t key = hy_first_key(&c->heads, t->b, t->position);
    for (int64_t next; key < end; key = next) {
        next = hy_min64(key - key % RANGE + RANGE, end);
        place_range(&r, gap, key, next);
        if (r.keys == 0) continue;
        read_range(call, c, t, &r);
        score_range(c, t, &r);
        soften(c, t, &r);
        weigh_range(c, t, &r);
        join(c, t);
    }
}

/* Writes the keys and values of a row of qkv to a row of the cache. */
static void put_row(const hy_op_call *call, int64_t row, int64_t cache_row) {
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

/* ---- the op ---------------------------------------------------------------------------------- */

static tile take_tile(const hy_op_call *call, hy_cpu_workspace *workspace) {
    blocked c = blocked_of(call);
    const hy_tensor *cache = &call->t[HY_ATTENTION_CACHED_CACHE];
    size_t M = (size_t)(c.tile_rows * c.group) * sizeof(float), D = (size_t)c.heads.D;
    return (tile){
        .q = hy_cpu_take(workspace, M * (size_t)hy_dots_padded(hy_dots_get(), c.heads.D)),
        .out = hy_cpu_take(workspace, M * D),
        .max = hy_cpu_take(workspace, M),
        .sum = hy_cpu_take(workspace, M),
        .scores = hy_cpu_take(workspace, M * SCORES),
        .own_k = hy_cpu_take(workspace, hy_buffer_bytes(cache, RANGE * c.heads.D)),
        .own_v = hy_cpu_take(workspace, hy_buffer_bytes(cache, RANGE * c.heads.D)),
        .part = hy_cpu_take(workspace, M * D),
        .part_max = hy_cpu_take(workspace, M),
        .part_sum = hy_cpu_take(workspace, M),
    };
}

size_t hy_cpu_attention_cached_workspace(const hy_op_call *call, int threads) {
    hy_cpu_workspace workspace = {0};
    take_tile(call, &workspace);
    return workspace.used * (size_t)threads;
}

static void append_task(const hy_cpu_run *run, int64_t row, int worker) {
    (void)worker;
    blocked c = blocked_of(run->call);
    int64_t b = row / c.heads.T;
    if (c.first[b] < 0) return;
    put_row(run->call, row, cache_row(&c, b, c.first[b] + row % c.heads.T));
}

/* Packs the queries of the tile; new row r is row `row + r` of qkv. */
static void read_queries(const hy_op_call *call, const blocked *c, const tile *t, int64_t row) {
    const hy_dots *dots = hy_dots_get();
    const hy_tensor *qkv = &call->t[HY_ATTENTION_CACHED_QKV];
    int64_t D = c->heads.D, padded = hy_dots_padded(dots, D);
    float buffer[HY_CPU_RUN];
    for (int64_t m = 0; m < t->rows; m++) {
        int64_t h = t->kv_head * c->group + m % c->group, first = m / dots->rows * dots->rows;
        const float *q =
            hy_read(qkv, (row + m / c->group) * hy_tensor_width(qkv) + h * D, D, buffer);
        hy_dots_pack(dots, q, 0, D, (int)hy_min64(dots->rows, t->rows - first), (int)(m - first),
                     t->q + first * padded);
    }
}

/* Tasks run from the last rows of the sequences, which see most keys, to the first. */
static void blocks_task(const hy_cpu_run *run, int64_t task, int worker) {
    const hy_op_call *call = run->call;
    const hy_tensor *out = &call->t[HY_ATTENTION_CACHED_OUT],
                    *sinks = &call->t[HY_ATTENTION_CACHED_SINKS];
    blocked c = blocked_of(call);
    int64_t pairs = c.heads.B * c.heads.K, tiles = hy_ceil_div(c.heads.T, c.tile_rows);
    int64_t b = task % pairs / c.heads.K, D = c.heads.D, many = c.group * D;
    if (c.first[b] < 0) return;
    size_t share = hy_cpu_attention_cached_workspace(call, 1);
    hy_cpu_workspace workspace = {.base = (char *)call->workspace.data + share * (size_t)worker};
    tile t = take_tile(call, &workspace);
    int64_t first = (tiles - 1 - task / pairs) * c.tile_rows;
    int64_t rows = hy_min64(c.tile_rows, c.heads.T - first), row = b * c.heads.T + first;
    t.b = b, t.kv_head = task % c.heads.K, t.rows = rows * c.group;
    t.position = c.first[b] + first;
    read_queries(call, &c, &t, row);
    attend(call, &c, &t);
    for (int64_t m = 0; m < t.rows; m++) {
        int64_t h = t.kv_head * c.group + m % c.group;
        hy_cpu_scale(t.out + m * D, hy_close_row(sinks, h, &t.max[m], &t.sum[m]), D);
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (row + r) * c.heads.H * D + t.kv_head * many;
        hy_cpu_narrow(out->dtype, t.out + r * many, hy_element(out, at), many);
    }
}

/* The table must have every block that is read or written. */
static hy_status check_table(const hy_op_call *call) {
    blocked c = blocked_of(call);
    for (int64_t b = 0; b < c.heads.B; b++) {
        if (c.first[b] < 0) continue;
        int64_t end = c.first[b] + c.heads.T, key = hy_first_key(&c.heads, b, c.first[b]);
        hy_gap gap = hy_gap_of_query(&c.heads, b, c.first[b]);
        HY_FAIL_IF(end > c.W * c.rows, HY_ERR_INPUT,
                   "cached attention: sequence %lld ends at position %lld, but its %lld blocks of "
                   "%lld have %lld positions",
                   (long long)b, (long long)end, (long long)c.W, (long long)c.rows,
                   (long long)(c.W * c.rows));
        for (int64_t i = key / c.rows; i * c.rows < end; i++) {
            int32_t block = c.blocks[b * c.W + i];
            if (hy_gap_hides(gap, (int32_t)(i * c.rows), (int32_t)c.rows)) continue;
            HY_FAIL_IF(block < 0 || block >= c.pool, HY_ERR_INPUT,
                       "cached attention: block %lld of sequence %lld is %d, expected 0 to %lld",
                       (long long)i, (long long)b, block, (long long)(c.pool - 1));
        }
    }
    return HY_OK;
}

hy_status hy_cpu_attention_cached(const hy_cpu_run *run) {
    HY_TRY(check_table(run->call));
    blocked c = blocked_of(run->call);
    hy_cpu_for_each(run, c.heads.B * c.heads.T, append_task);
    hy_cpu_for_each(run, c.heads.B * c.heads.K * hy_ceil_div(c.heads.T, c.tile_rows), blocks_task);
    return HY_OK;
}
