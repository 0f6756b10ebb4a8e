/* delta_tiles.cuh: building blocks of the gated delta rule on tensor cores.
 *
 * In a chunk of 64 tokens, with S the state before it, q and k divided by their lengths, e the decay
 * since the chunk's start, f the decay until its end, L[i][j] that from j to i:
 *     A = strictly lower(strength_i L_ij k_i.k_j)    T = (I + A)^-1    P = lower(L_ij q_i.k_j)
 *     R = v - e (k S)    V' = T (strength R)    out = e (q S) + P V'    S = decay S + k' (f V')
 * Lengths are factors of rows: products use q and k as they are in memory. A pair of tokens of
 * different documents counts 0 in L; e is 0 for tokens of a document that begins in the chunk, f for
 * those of a document that ends in it.
 *
 * States are kept transposed (Dv, Dk), as results of mma: a warp owns 16 columns of the state for
 * the whole sequence and needs nothing from other warps, because the columns of V', of out and of
 * all gradients of the state are apart. A result of mma is packed into the first operand of the
 * next. Tensors in fp16 are converted to bf16 first, because sums of a state may exceed fp16. */
#pragma once

#include "kernels/cuda/tile.cuh"
#include "kernels/delta_layout.h"

#define HY_DELTA_RUNS (HY_DELTA_CHUNK / 16) /* sixteens of tokens */

typedef __nv_bfloat16 hy_delta_half;

/* The arguments of all kernels. */
typedef struct hy_delta_args {
    int B, T, K, H, Dk, Dv; /* K key heads */
    int chunks;             /* of a sequence */
    float scale;            /* 1 / sqrt(Dk) */
    const hy_delta_half *qkv, *dout;
    const void *gates, *a_log, *dt_bias;
    hy_dtype gates_type, a_log_type, dt_bias_type, dgates_type;
    const int32_t *doc_starts;
    const int32_t *first, *slots; /* cached; otherwise NULL */
    float *state;                 /* (slots, H, Dk, Dv) */
    void *out, *dqkv, *dgates;
    float *numbers, *products, *heads, *partial;
    hy_delta_half *inverse, *scores, *states, *dstates, *values, *dvalues;
} hy_delta_args;

__device__ __forceinline__ int64_t hy_delta_width(const hy_delta_args &g) {
    return 2 * (int64_t)g.K * g.Dk + (int64_t)g.H * g.Dv;
}

/* Where a cell is: chunk `chunk` of head h of sequence b. */
struct hy_delta_cell {
    int b, chunk, h, kh;
    int there; /* its tokens */
    int64_t row, index;

    __device__ __forceinline__ hy_delta_cell(const hy_delta_args &g, int b_, int chunk_, int h_) {
        b = b_, chunk = chunk_, h = h_, kh = h_ / (g.H / g.K);
        there = min(g.T - chunk * HY_DELTA_CHUNK, HY_DELTA_CHUNK);
        row = (int64_t)b * g.T + (int64_t)chunk * HY_DELTA_CHUNK;
        index = ((int64_t)b * g.chunks + chunk) * g.H + h;
    }
};

/* The first column of the query, the key and the value of a cell. */
__device__ __forceinline__ int64_t hy_delta_q_at(const hy_delta_args &g, const hy_delta_cell &c) {
    return c.row * hy_delta_width(g) + (int64_t)c.kh * g.Dk;
}
__device__ __forceinline__ int64_t hy_delta_k_at(const hy_delta_args &g, const hy_delta_cell &c) {
    return hy_delta_q_at(g, c) + (int64_t)g.K * g.Dk;
}
__device__ __forceinline__ int64_t hy_delta_v_at(const hy_delta_args &g, const hy_delta_cell &c) {
    return c.row * hy_delta_width(g) + 2 * (int64_t)g.K * g.Dk + (int64_t)c.h * g.Dv;
}

#if HY_HAS_TILES

/* ---- tiles in shared memory ------------------------------------------------------------------ */

/* A row of a tile has PACKS packs of 16 bytes. Eight rows that ldmatrix reads at once are in
 * different banks, because packs are exchanged within a row. Byte offset of a pack: */
template <int PACKS> __device__ __forceinline__ uint32_t hy_delta_place(int row, int pack) {
    int turn = PACKS >= 8 ? row & 7 : row >> 1 & 3;
    return (uint32_t)(row * PACKS + (pack ^ turn)) * 16;
}

/* A number that the compiler treats as new: what is derived from it is computed again instead of
 * being kept in registers over a loop. */
__device__ __forceinline__ int hy_delta_anew(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* Starts the copy of `rows` rows; packs outside (there, packs) become zeros. */
template <int PACKS, int ROWS, int THREADS>
__device__ __forceinline__ void hy_delta_fetch(uint32_t tile, const hy_delta_half *from,
                                               int64_t width, int there, int packs) {
    constexpr int APART = THREADS / PACKS; /* rows copied at a time */
    int thread = hy_delta_anew(threadIdx.x), row = thread / PACKS, pack = thread % PACKS;
    const hy_delta_half *at = from + row * width + pack * 8;
    if (pack >= packs) there = 0;
    HY_EACH(i, ROWS / APART) {
        bool is_there = row + i * APART < there;
        hy_copy_async(tile + hy_delta_place<PACKS>(row + i * APART, pack), is_there ? at : from,
                      is_there);
        at += APART * width;
    }
}

/* As above, for the lower blocks of 16 of a stored square; others are not read. */
template <int THREADS>
__device__ __forceinline__ void hy_delta_fetch_lower(uint32_t tile, const hy_delta_half *from) {
    int thread = hy_delta_anew(threadIdx.x);
    HY_EACH(i, HY_DELTA_CHUNK * 8 / THREADS) {
        int at = i * THREADS + thread, row = at / 8, pack = at % 8;
        if (pack / 2 <= row / 16)
            hy_copy_async(tile + hy_delta_place<8>(row, pack), from + row * 64 + pack * 8, true);
    }
}

/* The numbers of a cell. */
template <int THREADS>
__device__ __forceinline__ void hy_delta_fetch_numbers(uint32_t to, const float *from) {
    for (int i = threadIdx.x; i < HY_CELL_NUMBERS / 4; i += THREADS) {
        hy_copy_async(to + i * 16, from + i * 4, true);
    }
}

/* ---- operands -------------------------------------------------------------------------------- */

/* 16 rows from `row` and two packs from `pack` of a tile. down: the second matrix is eight rows
 * below the first, the third beside it. across: the second is beside the first.
 *   first operand, its rows in the tile: down. The same of a transposed tile: across, transposed.
 *   second operand, columns of the result as rows: across. As columns: down, transposed. */
template <int PACKS>
__device__ __forceinline__ uint32_t hy_delta_step(uint32_t at, int row, int pack) {
    constexpr int TURNED = PACKS >= 8 ? 8 : 4; /* tiles begin at 128 bytes */
    return (at ^ pack % TURNED * 16) + row * PACKS * 16 + pack / TURNED * TURNED * 16;
}
template <int PACKS> __device__ __forceinline__ uint32_t hy_delta_lane_down(uint32_t tile) {
    int lane = threadIdx.x % 32;
    return tile + hy_delta_place<PACKS>(lane % 16, lane / 16);
}
template <int PACKS> __device__ __forceinline__ uint32_t hy_delta_lane_across(uint32_t tile) {
    int lane = threadIdx.x % 32;
    return tile + hy_delta_place<PACKS>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}
template <int PACKS>
__device__ __forceinline__ void hy_delta_down(uint32_t r[4], uint32_t tile, int row, int pack) {
    hy_load_tiles(r, hy_delta_step<PACKS>(hy_delta_lane_down<PACKS>(tile), row, pack));
}
template <int PACKS>
__device__ __forceinline__ void hy_delta_across(uint32_t r[4], uint32_t tile, int row, int pack) {
    hy_load_tiles(r, hy_delta_step<PACKS>(hy_delta_lane_across<PACKS>(tile), row, pack));
}
template <int PACKS>
__device__ __forceinline__ void hy_delta_down_transposed(uint32_t r[4], uint32_t tile, int row,
                                                         int pack) {
    hy_load_tiles_transposed(r, hy_delta_step<PACKS>(hy_delta_lane_down<PACKS>(tile), row, pack));
}
template <int PACKS>
__device__ __forceinline__ void hy_delta_across_transposed(uint32_t r[4], uint32_t tile, int row,
                                                           int pack) {
    hy_load_tiles_transposed(r, hy_delta_step<PACKS>(hy_delta_lane_across<PACKS>(tile), row, pack));
}

/* sum (16, 16) += a b, of two mma. */
__device__ __forceinline__ void hy_delta_mma(float (*sum)[4], const uint32_t a[4],
                                             const uint32_t b[4]) {
    hy_mma<hy_delta_half>(sum[0], a, b[0], b[1]);
    hy_mma<hy_delta_half>(sum[1], a, b[2], b[3]);
}

/* Sixteen columns of a result as a first operand, times a factor for each column. */
__device__ __forceinline__ void hy_delta_pack(uint32_t a[4], const float (*sum)[4]) {
    HY_EACH(r, 4) {
        const float *two = &sum[r / 2][r % 2 * 2];
        a[r] = hy_pair<hy_delta_half>(two[0], two[1]);
    }
}
__device__ __forceinline__ void hy_delta_pack_times(uint32_t a[4], const float (*sum)[4],
                                                    const float2 factor[2]) {
    HY_EACH(r, 4) {
        const float *two = &sum[r / 2][r % 2 * 2];
        a[r] = hy_pair<hy_delta_half>(two[0] * factor[r / 2].x, two[1] * factor[r / 2].y);
    }
}

__device__ __forceinline__ float2 hy_delta_unpair(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/* A lane's two columns in each eight of the sixteen from `first` on, of a row of numbers. */
__device__ __forceinline__ void hy_delta_columns(float2 two[2], const float *numbers, int first) {
    const float *at = numbers + first + threadIdx.x % 4 * 2;
    two[0] = *(const float2 *)at;
    two[1] = *(const float2 *)(at + 8);
}

template <int COUNT> __device__ __forceinline__ void hy_delta_clear(float (*sum)[4]) {
    HY_EACH(n, COUNT) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
}

/* ---- storing --------------------------------------------------------------------------------- */

/* Four lanes exchange: word j of lane i becomes word i of lane j. */
__device__ __forceinline__ void hy_delta_exchange(uint32_t w[4]) {
    int lane = threadIdx.x % 4;
    bool is_odd = lane & 1, is_high = lane & 2;
    HY_EACH(i, 2) {
        uint32_t sent = is_odd ? w[2 * i] : w[2 * i + 1];
        uint32_t got = __shfl_xor_sync(0xffffffffu, sent, 1);
        if (is_odd)
            w[2 * i] = got;
        else
            w[2 * i + 1] = got;
    }
    HY_EACH(i, 2) {
        uint32_t sent = is_high ? w[i] : w[i + 2];
        uint32_t got = __shfl_xor_sync(0xffffffffu, sent, 2);
        if (is_high)
            w[i] = got;
        else
            w[i + 2] = got;
    }
}

/* Stores a transposed result, 16 columns of a tensor by 64 tokens, given as pairs of tokens: of the
 * eight columns `half` and tokens 8 n.. in a[n / 2][n % 2 * 2 + half]. */
template <typename O>
__device__ __forceinline__ void hy_delta_store_tokens(O *to, int64_t width, int there,
                                                      uint32_t a[HY_DELTA_RUNS][4]) {
    int lane = threadIdx.x % 32;
    HY_EACH(s, HY_DELTA_RUNS) {
        uint32_t w[4];
        HY_EACH(r, 4) w[r] = hy_transposed(a[s][r]);
        hy_delta_exchange(w);
        int row = s * 16 + lane % 4 / 2 * 8 + lane / 4;
        if (row >= there) continue;
        *(uint4 *)(to + row * width + lane % 2 * 8) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

#endif
