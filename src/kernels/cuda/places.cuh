/* places.cuh: the places 0 .. N-1 of a batch, sorted by the token there, or by position.
 *
 * A stable radix sort, so the places of a token are in ascending order whatever the timing. Each
 * pass takes up to 8 bits: one kernel counts the digits of each tile of 2048 places, the next moves
 * the places of its tile after those of smaller digits and earlier tiles. Tokens outside the
 * vocabulary get the key V, which comes last. Only counts use atomics. */
#pragma once

#include "kernels/cuda/cuda.cuh"
#include "kernels/cuda/positions.cuh"

#define HY_SORT_THREADS 256 /* one per digit */
#define HY_SORT_WARPS (HY_SORT_THREADS / 32)
#define HY_SORT_ROUNDS 8 /* places per thread */
#define HY_SORT_TILE (HY_SORT_THREADS * HY_SORT_ROUNDS)

/* Rows of a table as sort keys: tokens, or, with seq, positions in documents. */
typedef struct hy_token_keys {
    const int32_t *tokens; /* or doc_starts */
    int32_t vocabulary;
    int32_t seq; /* 0: tokens */

    __device__ __forceinline__ int operator[](int place) const {
        int row = seq ? hy_position_of(place, seq, tokens) : tokens[place];
        return row >= 0 && row < vocabulary ? row : vocabulary;
    }
} hy_token_keys;

typedef struct hy_sort_pass {
    hy_token_keys keys;
    const int32_t *in; /* NULL: places in order */
    int32_t *out;
    int32_t *counts; /* (tiles, 256) */
    int N, tiles;
    int shift, mask;
} hy_sort_pass;

static __device__ __forceinline__ int hy_sort_place(const hy_sort_pass &s, int i) {
    return s.in ? s.in[i] : i;
}
static __device__ __forceinline__ int hy_sort_digit(const hy_sort_pass &s, int place) {
    return s.keys[place] >> s.shift & s.mask;
}

static __global__ void __launch_bounds__(HY_SORT_THREADS) hy_sort_count(hy_sort_pass s) {
    __shared__ int count[256];
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int r = 0; r < HY_SORT_ROUNDS; r++) {
        int i = blockIdx.x * HY_SORT_TILE + r * HY_SORT_THREADS + threadIdx.x;
        if (i < s.N) atomicAdd(&count[hy_sort_digit(s, hy_sort_place(s, i))], 1);
    }
    __syncthreads();
    s.counts[blockIdx.x * 256 + threadIdx.x] = count[threadIdx.x];
}

/* Where the first place of this tile with digit threadIdx.x goes: after all smaller digits and
 * after the same digit of earlier tiles. */
static __device__ __forceinline__ int hy_sort_base(const hy_sort_pass &s, int *warp_totals) {
    int total = 0, before = 0, digit = threadIdx.x, lane = digit % 32;
#pragma unroll 8
    for (int tile = 0; tile < s.tiles; tile++) {
        int count = s.counts[tile * 256 + digit];
        total += count;
        before += tile < (int)blockIdx.x ? count : 0;
    }
    int upto = total;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(0xffffffffu, upto, d);
        if (lane >= d) upto += other;
    }
    if (lane == 31) warp_totals[digit / 32] = upto;
    __syncthreads();
    for (int w = 0; w < digit / 32; w++) upto += warp_totals[w];
    return upto - total + before;
}

/* A warp moves a stretch of the tile, 32 places per round, in order. Lanes with equal digits find
 * each other; the first of them keeps the warp's count of the digit. */
static __global__ void __launch_bounds__(HY_SORT_THREADS) hy_sort_move(hy_sort_pass s) {
    __shared__ int next[HY_SORT_WARPS][256], warp_totals[HY_SORT_WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first = blockIdx.x * HY_SORT_TILE + warp * (32 * HY_SORT_ROUNDS) + lane;
    int place[HY_SORT_ROUNDS], digit[HY_SORT_ROUNDS];
    unsigned peers[HY_SORT_ROUNDS];
    for (int d = lane; d < 256; d += 32) next[warp][d] = 0;
    __syncwarp();
    HY_EACH(r, HY_SORT_ROUNDS) {
        int i = first + r * 32;
        place[r] = i < s.N ? hy_sort_place(s, i) : -1;
        digit[r] = i < s.N ? hy_sort_digit(s, place[r]) : -1;
    }
    HY_EACH(r, HY_SORT_ROUNDS) {
        peers[r] = __match_any_sync(0xffffffffu, digit[r]);
        if (digit[r] >= 0 && lane == __ffs(peers[r]) - 1) next[warp][digit[r]] += __popc(peers[r]);
        __syncwarp();
    }
    /* its barrier also publishes the counts of the warps */
    int base = hy_sort_base(s, warp_totals);
    for (int w = 0; w < HY_SORT_WARPS; w++) {
        int count = next[w][threadIdx.x];
        next[w][threadIdx.x] = base;
        base += count;
    }
    __syncthreads();
    HY_EACH(r, HY_SORT_ROUNDS) {
        if (digit[r] >= 0) {
            int rank = __popc(peers[r] & ((1u << lane) - 1));
            s.out[next[warp][digit[r]] + rank] = place[r];
        }
        __syncwarp();
        if (digit[r] >= 0 && lane == __ffs(peers[r]) - 1) next[warp][digit[r]] += __popc(peers[r]);
        __syncwarp();
    }
}

static inline int hy_sort_tiles(int64_t N) { return (int)hy_ceil_div(N, HY_SORT_TILE); }

/* Sorts, in as few passes of at most 8 bits as the keys 0 .. V need; returns which of the two
 * arrays of N places has the result. counts: 256 per tile. */
static inline const int32_t *hy_sort_places(hy_token_keys keys, int N, int32_t *room[2],
                                            int32_t *counts, cudaStream_t stream) {
    hy_sort_pass s = {};
    int all = 1;
    while (keys.vocabulary >> all) all++;
    int passes = (all + 7) / 8, bits = (all + passes - 1) / passes;
    s.keys = keys;
    s.counts = counts;
    s.N = N;
    s.tiles = hy_sort_tiles(N);
    s.mask = (1 << bits) - 1;
    for (int pass = 0; pass < passes; pass++) {
        s.out = room[pass % 2];
        s.shift = pass * bits;
        hy_sort_count<<<s.tiles, HY_SORT_THREADS, 0, stream>>>(s);
        hy_sort_move<<<s.tiles, HY_SORT_THREADS, 0, stream>>>(s);
        s.in = s.out;
    }
    return s.in;
}
