/* attention.h: shared by forward and backward attention: the layout of a call and the masks.
 *
 * Work is divided into tiles of TILE queries; a tile reads its keys in chunks of at most CHUNK.
 * Query i of a sequence sees keys [first_key(i), i]. Chunks that no query of the tile sees are
 * skipped, so sliding windows and document masks save work. */
#pragma once

#include <math.h>

#include "kernels/cpu/rows.h"

enum { HY_ATTENTION_TILE = 96, HY_ATTENTION_CHUNK = 512 };

typedef struct hy_heads {
    int64_t B, T, H, K, D;
    int64_t window;
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
