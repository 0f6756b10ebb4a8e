/* attention_blocks.cuh: the parts of cached attention over a pool of blocks.
 *
 * A launch depends on shapes only: positions and block tables are read on the device, so a captured
 * graph serves all of them. Blocks of threads whose keys no query sees end at once.
 *
 * The queries of a key head are numbered row * group + head, as in attention_cached.cu. A query's
 * keys are summed in ranges of HY_KEY_RANGE absolute positions (chunks on tensor cores: of fewer);
 * which thread takes which key of a range depends on the position alone. Scores are in units of
 * log2. */
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tile.cuh"

typedef struct hy_block_call {
    hy_cuda_heads a;
    int group, queries; /* heads that share keys; T * group */
    int ranges;         /* of a row of the table */
    int entries, shift; /* W; log2 of the rows of a block */
    const int32_t *first, *blocks;
    const void *qkv;
    void *cache, *out;
    hy_dtype qkv_type, cache_type, out_type;
    float inner;    /* factor of q k, in units of log2; capped: before tanh */
    float cap;      /* in units of log2; 0: none */
    float *partial; /* (B, H, ranges, D + 2): sums, then maximum and total; only for T = 1 */
} hy_block_call;

/* The row of the pool that holds a position of sequence b. */
__device__ __forceinline__ int64_t hy_pool_row(const hy_block_call &c, int b, int position) {
    int block = __ldg(c.blocks + (int64_t)b * c.entries + (position >> c.shift));
    return ((int64_t)block << c.shift) + (position & ((1 << c.shift) - 1));
}

/* The first position that a row at this position sees. */
__device__ __forceinline__ int hy_first_seen(const hy_block_call &c, int position) {
    return c.a.window > 0 ? max(0, position - c.a.window + 1) : 0;
}

/* Whether a row at this position sees nothing of a range. */
__device__ __forceinline__ bool hy_range_is_hidden(const hy_block_call &c, int position,
                                                   int range) {
    return c.a.local > 0 && hy_gap_hides(hy_sparse_gap(c.a.local, c.a.global, 0, position),
                                         range * HY_KEY_RANGE, HY_KEY_RANGE);
}

/* Where a query's row begins in qkv, and in out. */
__device__ __forceinline__ int64_t hy_query_at(const hy_block_call &c, int b, int kv_head,
                                               int query) {
    int64_t head = (int64_t)kv_head * c.group + query % c.group;
    int64_t row = (int64_t)b * c.a.T + query / c.group;
    return row * ((int64_t)c.a.H + 2 * c.a.K) * c.a.D + head * c.a.D;
}
__device__ __forceinline__ int64_t hy_out_at(const hy_block_call &c, int b, int kv_head,
                                             int query) {
    int64_t head = (int64_t)kv_head * c.group + query % c.group;
    return (((int64_t)b * c.a.T + query / c.group) * c.a.H + head) * c.a.D;
}

/* The partial result of a range, for T = 1. */
__device__ __forceinline__ float *hy_partial_of(const hy_block_call &c, int b, int head,
                                                int range) {
    return c.partial + (((int64_t)b * c.a.H + head) * c.ranges + range) * (c.a.D + 2);
}

/* A score from q k. */
__device__ __forceinline__ float hy_block_score(const hy_block_call &c, float dot) {
    return c.cap > 0 ? c.cap * hy_tanh(dot * c.inner) : dot * c.inner;
}

/* The sink of a head; minus infinity: there is none. */
__device__ __forceinline__ float hy_block_sink(const hy_block_call &c, int head) {
    return c.a.sinks ? hy_sink(c.a, head) * HY_LOG2E : -INFINITY;
}

/* ---- on tensor cores (attention_blocks_tiles.cu) --------------------------------------------- */

/* Whether head size, types and card allow it. For T = 1 the new rows are then appended by the same
 * launch; otherwise they must be in the cache before. */
bool hy_block_has_tiles(const hy_cuda *cuda, const hy_block_call &c);
/* T = 1: the partial results of all ranges. */
hy_status hy_block_step_tiles(const hy_cuda_run *run, const hy_block_call &c);
/* T > 1: the output. */
hy_status hy_block_chunk_tiles(const hy_cuda_run *run, const hy_block_call &c);

/* Blocks of threads over the ranges of a step: enough to keep the card busy; each takes every so
 * many ranges, because most end at once if contexts are short. */
int hy_block_spread(const hy_cuda *cuda, const hy_block_call &c, int64_t others);
