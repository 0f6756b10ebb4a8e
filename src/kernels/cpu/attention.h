/* attention.h: shared by forward and backward attention: the layout of a call and the masks.
 *
 * Work is divided into tiles of TILE queries; a tile reads its keys in chunks of at most CHUNK.
 * Query i of a sequence sees keys [first_key(i), i], in block-sparse attention without a gap
 * (sparse.h). Chunks that no query of the tile sees are skipped, so sliding windows, document masks
 * and gaps save work. */
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/cpu/rows.h"

enum { HY_ATTENTION_TILE = 96, HY_ATTENTION_CHUNK = 512 };

typedef struct hy_heads {
    int64_t B, T, H, K, D;
    int64_t window;
    int32_t local, global; /* of sparse.h; local 0: no gaps */
    float scale, softcap;
    const int32_t *doc_starts; /* (N), or NULL */
} hy_heads;

static inline hy_heads hy_heads_of(const hy_op_call *call, const hy_tensor *doc_starts) {
    return (hy_heads){.B = call->attr.heads.batch,
                      .T = call->attr.heads.seq,
                      .H = call->attr.heads.heads,
                      .K = call->attr.heads.kv_heads,
                      .D = call->attr.heads.head_dim,
                      .window = call->attr.heads.window,
                      .local = call->attr.heads.sparse_local,
                      .global = call->attr.heads.sparse_global,
                      .scale = call->attr.heads.scale,
                      .softcap = call->attr.heads.softcap,
                      .doc_starts = doc_starts->data};
}

/* The factor of q k before a score is complete or goes into tanh (hy_cpu_cap). */
static inline float hy_score_scale(const hy_heads *a) {
    return a->softcap > 0 ? a->scale / a->softcap : a->scale;
}

/* Element h of sinks. */
static inline float hy_sink(const hy_tensor *sinks, int64_t h) {
    float buffer;
    return *hy_read(sinks, h, 1, &buffer);
}

/* Adds the sink of head h to the sum of a row; returns the factor of its values. */
static inline float hy_close_row(const hy_tensor *sinks, int64_t h, float *max, float *sum) {
    if (!sinks->data) return 1.0f / *sum;
    float sink = hy_sink(sinks, h), highest = fmaxf(*max, sink);
    float shrink = expf(*max - highest);
    *sum = *sum * shrink + expf(sink - highest);
    *max = highest;
    return shrink / *sum;
}

static inline int64_t hy_query_tiles(int64_t T) { return hy_ceil_div(T, HY_ATTENTION_TILE); }

/* The first key that query i of sequence b sees. */
static inline int64_t hy_first_key(const hy_heads *a, int64_t b, int64_t i) {
    int64_t first = a->window > 0 ? hy_max64(0, i - a->window + 1) : 0;
    return a->doc_starts ? hy_max64(first, a->doc_starts[b * a->T + i]) : first;
}

/* The smallest of them over queries [i, i + rows). */
static inline int64_t hy_first_key_of_tile(const hy_heads *a, int64_t b, int64_t i, int64_t rows) {
    int64_t first = i;
    for (int64_t r = 0; r < rows; r++) first = hy_min64(first, hy_first_key(a, b, i + r));
    return first;
}

/* What query i does not see between its first key and itself. */
static inline hy_gap hy_gap_of_query(const hy_heads *a, int64_t b, int64_t i) {
    if (a->local == 0) return (hy_gap){0, 0};
    return hy_sparse_gap(a->local, a->global, (int32_t)hy_first_key(a, b, i), (int32_t)i);
}

/* What none of queries [i, i + rows) sees before the first of them. A query whose document begins
 * among them sees nothing before. */
static inline hy_gap hy_gap_of_tile(const hy_heads *a, int64_t b, int64_t i, int64_t rows) {
    hy_gap gap = hy_gap_of_query(a, b, i);
    for (int64_t r = 1; r < rows && !hy_gap_is_empty(gap); r++) {
        if (hy_first_key(a, b, i + r) < i) gap = hy_gap_join(gap, hy_gap_of_query(a, b, i + r));
    }
    return gap;
}

/* The next keys at or after *key that are not in the gap, at most `most`; moves *key to them. */
static inline int64_t hy_next_keys(hy_gap gap, int64_t end, int64_t most, int64_t *key) {
    bool is_before = *key < gap.begin && !hy_gap_is_empty(gap);
    if (*key >= gap.begin && *key < gap.end) *key = gap.end;
    return hy_min64(most, (is_before ? hy_min64(end, gap.begin) : end) - *key);
}

/* The keys that query i sees among [key, key + keys): two pieces, relative to key. */
typedef struct hy_seen {
    int64_t begin[2], end[2];
} hy_seen;

static inline hy_seen hy_seen_of(const hy_heads *a, int64_t b, int64_t i, int64_t key,
                                 int64_t keys) {
    hy_gap gap = hy_gap_of_query(a, b, i);
    int64_t begin = hy_min64(hy_max64(hy_first_key(a, b, i) - key, 0), keys);
    int64_t end = hy_max64(hy_min64(i + 1 - key, keys), begin);
    if (hy_gap_is_empty(gap)) return (hy_seen){{begin, end}, {end, end}};
    int64_t gap_begin = hy_min64(hy_max64(gap.begin - key, begin), end);
    int64_t gap_end = hy_min64(hy_max64(gap.end - key, gap_begin), end);
    return (hy_seen){{begin, gap_end}, {gap_begin, end}};
}

static inline bool hy_sees_none(const hy_seen *seen) {
    return seen->begin[0] == seen->end[0] && seen->begin[1] == seen->end[1];
}

/* Clears the numbers of keys that are not seen in a row of `keys`. */
static inline void hy_clear_hidden(float *row, const hy_seen *seen, int64_t keys) {
    memset(row, 0, (size_t)seen->begin[0] * sizeof *row);
    memset(row + seen->end[0], 0, (size_t)(seen->begin[1] - seen->end[0]) * sizeof *row);
    memset(row + seen->end[1], 0, (size_t)(keys - seen->end[1]) * sizeof *row);
}
