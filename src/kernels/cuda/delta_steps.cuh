/* delta_steps.cuh: the states of a head, chunk by chunk, and from the last chunk back.
 *
 * A block has 16 columns of the state for each of its warps. The tensors of the next chunk arrive
 * while this one is computed: those that are needed first are in two stages, the others in one. A
 * warp's state stays in fp32 in registers. In comments of sizes a column is one of the state. */
#pragma once

#include "kernels/cuda/delta_tiles.cuh"

/* What a pass over the chunks is for: the output, what the backward pass needs, or a chunk of a
 * prompt with a state before it and after it. */
typedef enum hy_delta_pass { HY_DELTA_FORWARD, HY_DELTA_AGAIN, HY_DELTA_PROMPT } hy_delta_pass;

template <int D_, int WARPS> struct hy_delta_steps_shared {
    static constexpr int D = D_, THREADS = 32 * WARPS;
    static constexpr int COLUMNS = 16 * WARPS; /* of a block */
    static constexpr int PACKS = D / 8, SLICE = COLUMNS / 8;
    static constexpr int TILE = HY_DELTA_CHUNK * D * 2;
    static constexpr int SLICE_TILE = HY_DELTA_CHUNK * COLUMNS * 2;
    static constexpr int SQUARE = HY_DELTA_CHUNK * HY_DELTA_CHUNK * 2;
    /* A stage: k, 64 rows of the slice, a square, numbers. */
    static constexpr int ROWS = TILE, MATRIX = ROWS + SLICE_TILE, NUMBERS = MATRIX + SQUARE;
    static constexpr int STAGE = NUMBERS + HY_CELL_NUMBERS * 4;
    /* What comes later: q, another square. */
    static constexpr int LATE = 2 * STAGE, LATE_MATRIX = LATE + TILE;
    static constexpr int BYTES = LATE_MATRIX + SQUARE, BYTES_WITHOUT_LATE = LATE;
    static_assert(BYTES <= 99 * 1024, "");
};

#if HY_HAS_TILES

/* sum (16 columns, 64 tokens) += state (16, D) times rows (64, D) transposed. */
template <int D>
__device__ __forceinline__ void hy_delta_read_state(float (*sum)[4], const float (*state)[4],
                                                    uint32_t rows) {
    HY_EACH(step, D / 16) {
        uint32_t a[4], b[4];
        hy_delta_pack(a, state + 2 * step);
        HY_EACH(n, HY_DELTA_RUNS) {
            hy_delta_across<D / 8>(b, rows, n * 16, step * 2);
            hy_delta_mma(sum + 2 * n, a, b);
        }
    }
}

/* state (16 columns, D) += a (16, 64 tokens) times rows (64, D). */
template <int D>
__device__ __forceinline__ void
hy_delta_add_state(float (*state)[4], const uint32_t a[HY_DELTA_RUNS][4], uint32_t rows) {
    HY_EACH(step, HY_DELTA_RUNS) {
        HY_EACH(n, D / 16) {
            uint32_t b[4];
            hy_delta_down_transposed<D / 8>(b, rows, step * 16, n * 2);
            hy_delta_mma(state + 2 * n, a[step], b);
        }
    }
}

/* sum (16 columns, 64 tokens i) += a (16, 64 tokens j) times the lower square transposed. */
__device__ __forceinline__ void
hy_delta_times_lower(float (*sum)[4], const uint32_t a[HY_DELTA_RUNS][4], uint32_t square) {
    HY_EACH(step, HY_DELTA_RUNS) {
        HY_EACH(n, HY_DELTA_RUNS) {
            uint32_t b[4];
            if (n < step) continue;
            hy_delta_across<8>(b, square, n * 16, step * 2);
            hy_delta_mma(sum + 2 * n, a[step], b);
        }
    }
}

/* sum (16 columns, 64 tokens j) += a (16, 64 tokens i) times the lower square. */
__device__ __forceinline__ void
hy_delta_times_upper(float (*sum)[4], const uint32_t a[HY_DELTA_RUNS][4], uint32_t square) {
    HY_EACH(step, HY_DELTA_RUNS) {
        HY_EACH(n, HY_DELTA_RUNS) {
            uint32_t b[4];
            if (n > step) continue;
            hy_delta_down_transposed<8>(b, square, step * 16, n * 2);
            hy_delta_mma(sum + 2 * n, a[step], b);
        }
    }
}

/* Every token's column of a result, times its number of a kind. */
__device__ __forceinline__ void hy_delta_scale_tokens(float (*sum)[4], const float *kind) {
    HY_EACH(s, HY_DELTA_RUNS) {
        float2 two[2];
        hy_delta_columns(two, kind, s * 16);
        HY_EACH(n, 2) {
            HY_EACH(r, 4) sum[2 * s + n][r] *= r % 2 ? two[n].y : two[n].x;
        }
    }
}

/* Packs a result with 64 tokens as a first operand; the second with a factor for each token. */
__device__ __forceinline__ void hy_delta_pack_tokens(uint32_t a[HY_DELTA_RUNS][4],
                                                     const float (*sum)[4]) {
    HY_EACH(s, HY_DELTA_RUNS) hy_delta_pack(a[s], sum + 2 * s);
}
__device__ __forceinline__ void
hy_delta_pack_tokens_times(uint32_t a[HY_DELTA_RUNS][4], const float (*sum)[4], const float *kind) {
    HY_EACH(s, HY_DELTA_RUNS) {
        float2 two[2];
        hy_delta_columns(two, kind, s * 16);
        hy_delta_pack_times(a[s], sum + 2 * s, two);
    }
}

/* Words of a state (columns, D) that a lane stores: eight numbers of row lane / 4 (+ 8 half), in
 * the eights 4 m + lane % 4. */
template <int D>
__device__ __forceinline__ void hy_delta_state_words(uint32_t w[4], const float (*state)[4], int m,
                                                     int half) {
    HY_EACH(i, 4) {
        const float *two = &state[4 * m + i][half * 2];
        w[i] = hy_pair<hy_delta_half>(two[0], two[1]);
    }
    hy_delta_exchange(w);
}
template <int D> __device__ __forceinline__ int64_t hy_delta_state_at(int column, int m, int half) {
    int lane = threadIdx.x % 32;
    return (int64_t)(column + half * 8 + lane / 4) * D + (m * 4 + lane % 4) * 8;
}

/* A state of a cached sequence, (Dk, Dv) in memory. */
template <int D, typename F>
__device__ __forceinline__ void hy_delta_each_state(const hy_delta_args &g, int column, F f) {
    int lane = threadIdx.x % 32;
    HY_EACH(n, D / 8) {
        HY_EACH(r, 4) {
            int key = n * 8 + lane % 4 * 2 + r % 2, value = column + r / 2 * 8 + lane / 4;
            if (key < g.Dk && value < g.Dv) f(n, r, (int64_t)key * g.Dv + value);
        }
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The early tensors of a chunk, into a stage: k, v, T, numbers. */
template <typename S>
__device__ __forceinline__ void hy_delta_fetch_early(const hy_delta_args &g, uint32_t stage,
                                                     const hy_delta_cell &c, int column) {
    int64_t width = hy_delta_width(g);
    hy_delta_fetch<S::PACKS, HY_DELTA_CHUNK, S::THREADS>(stage, g.qkv + hy_delta_k_at(g, c), width,
                                                         c.there, g.Dk / 8);
    hy_delta_fetch<S::SLICE, HY_DELTA_CHUNK, S::THREADS>(
        stage + S::ROWS, g.qkv + hy_delta_v_at(g, c) + column, width, c.there, (g.Dv - column) / 8);
    hy_delta_fetch_lower<S::THREADS>(stage + S::MATRIX,
                                     g.inverse + c.index * (HY_DELTA_CHUNK * HY_DELTA_CHUNK));
    hy_delta_fetch_numbers<S::THREADS>(stage + S::NUMBERS, g.numbers + c.index * HY_CELL_NUMBERS);
}
template <typename S>
__device__ __forceinline__ void hy_delta_fetch_late(const hy_delta_args &g, uint32_t shared,
                                                    const hy_delta_cell &c,
                                                    const hy_delta_half *square) {
    hy_delta_fetch<S::PACKS, HY_DELTA_CHUNK, S::THREADS>(
        shared + S::LATE, g.qkv + hy_delta_q_at(g, c), hy_delta_width(g), c.there, g.Dk / 8);
    hy_delta_fetch_lower<S::THREADS>(shared + S::LATE_MATRIX,
                                     square + c.index * (HY_DELTA_CHUNK * HY_DELTA_CHUNK));
}

/* R times strength: strength (v - e k S), as a first operand. */
template <typename S>
__device__ __forceinline__ void hy_delta_remainder(uint32_t a[HY_DELTA_RUNS][4], float (*sum)[4],
                                                   uint32_t v, int column, const float *numbers) {
    HY_EACH(s, HY_DELTA_RUNS) {
        uint32_t pairs[4];
        float2 in[2], strength[2];
        hy_delta_across_transposed<S::SLICE>(pairs, v, s * 16, column / 8);
        hy_delta_columns(in, numbers + HY_CELL_IN * HY_DELTA_CHUNK, s * 16);
        hy_delta_columns(strength, numbers + HY_CELL_STRENGTH * HY_DELTA_CHUNK, s * 16);
        HY_EACH(r, 4) {
            float *two = &sum[2 * s + r / 2][r % 2 * 2];
            float2 value = hy_delta_unpair(pairs[r]), factor = in[r / 2], by = strength[r / 2];
            a[s][r] = hy_pair<hy_delta_half>(by.x * (value.x - factor.x * two[0]),
                                             by.y * (value.y - factor.y * two[1]));
        }
    }
}

template <typename O>
__device__ __forceinline__ void hy_delta_pack_as(uint32_t a[HY_DELTA_RUNS][4],
                                                 const float (*sum)[4]) {
    HY_EACH(s, HY_DELTA_RUNS) {
        HY_EACH(r, 4) {
            const float *two = &sum[2 * s + r / 2][r % 2 * 2];
            a[s][r] = hy_pair<O>(two[0], two[1]);
        }
    }
}

/* Stores the state before a chunk, for the backward pass. */
template <int D>
__device__ __forceinline__ void hy_delta_keep_state(hy_delta_half *to, int column,
                                                    const float (*state)[4]) {
    HY_EACH(m, D / 32) {
        HY_EACH(half, 2) {
            uint32_t w[4];
            hy_delta_state_words<D>(w, state, m, half);
            *(uint4 *)(to + hy_delta_state_at<D>(column, m, half)) =
                make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

#endif

template <typename O, int D, int WARPS, hy_delta_pass PASS>
__global__ void __launch_bounds__(32 * WARPS, 2) hy_delta_forward(hy_delta_args g) {
#if HY_HAS_TILES
    typedef hy_delta_steps_shared<D, WARPS> S;
    constexpr int N = HY_DELTA_CHUNK;
    extern __shared__ uint4 hy_delta_shared[];
    uint32_t shared = hy_shared_address(hy_delta_shared);
    int column = blockIdx.x * S::COLUMNS, own = threadIdx.x / 32 * 16, h = blockIdx.y;
    int b = blockIdx.z, begin = PASS == HY_DELTA_PROMPT ? g.first[b] : 0;
    float state[D / 8][4];
    float *kept = NULL;
    if (begin < 0) return;
    hy_delta_clear<D / 8>(state);
    if (PASS == HY_DELTA_PROMPT) {
        kept = g.state + ((int64_t)g.slots[b] * g.H + h) * g.Dk * g.Dv;
        if (begin > 0)
            hy_delta_each_state<D>(g, column + own,
                                   [&](int n, int r, int64_t at) { state[n][r] = kept[at]; });
    }
    hy_delta_fetch_early<S>(g, shared, hy_delta_cell(g, b, 0, h), column);
    hy_copy_commit();
    for (int chunk = 0; chunk < g.chunks; chunk++) {
        hy_delta_cell c(g, b, chunk, h);
        uint32_t stage = shared + chunk % 2 * S::STAGE;
        const float *numbers =
            (const float *)((char *)hy_delta_shared + chunk % 2 * S::STAGE + S::NUMBERS);
        uint32_t a[HY_DELTA_RUNS][4];
        float sum[8][4], keep;
        hy_copy_wait<0>();
        __syncthreads(); /* this chunk is there, the last one is done */
        if (PASS != HY_DELTA_AGAIN) hy_delta_fetch_late<S>(g, shared, c, g.scores);
        hy_copy_commit();
        if (chunk + 1 < g.chunks)
            hy_delta_fetch_early<S>(g, shared + (chunk + 1) % 2 * S::STAGE,
                                    hy_delta_cell(g, b, chunk + 1, h), column);
        hy_copy_commit();
        keep = numbers[HY_CELL_KEEP];
        if (PASS == HY_DELTA_AGAIN)
            hy_delta_keep_state<D>(g.states + c.index * (D * D), column + own, state);
        hy_delta_clear<8>(sum);
        hy_delta_read_state<D>(sum, state, stage);
        hy_delta_remainder<S>(a, sum, stage + S::ROWS, own, numbers);
        float values[8][4];
        hy_delta_clear<8>(values);
        hy_delta_times_lower(values, a, stage + S::MATRIX);
        if (PASS == HY_DELTA_AGAIN) {
            hy_delta_pack_tokens(a, values);
            hy_delta_store_tokens(g.values + c.index * (N * D) + column + own, D, N, a);
        } else {
            hy_copy_wait<1>();
            __syncthreads();
            hy_delta_clear<8>(sum);
            hy_delta_read_state<D>(sum, state, shared + S::LATE);
            hy_delta_scale_tokens(sum, numbers + HY_CELL_QUERY * N);
            hy_delta_pack_tokens(a, values);
            hy_delta_times_lower(sum, a, shared + S::LATE_MATRIX);
            hy_delta_pack_as<O>(a, sum);
            if (column + own < g.Dv)
                hy_delta_store_tokens((O *)g.out + (c.row * g.H + h) * g.Dv + column + own,
                                      (int64_t)g.H * g.Dv, c.there, a);
        }
        hy_delta_pack_tokens_times(a, values, numbers + HY_CELL_OUT * N);
        HY_EACH(n, D / 8) {
            HY_EACH(r, 4) state[n][r] *= keep;
        }
        hy_delta_add_state<D>(state, a, stage);
    }
    if (PASS == HY_DELTA_PROMPT)
        hy_delta_each_state<D>(g, column + own,
                               [&](int n, int r, int64_t at) { kept[at] = state[n][r]; });
#endif
}

/* ---- backward -------------------------------------------------------------------------------- */

#if HY_HAS_TILES

/* The early tensors: k, dout, P, numbers. The late ones: q, T. */
template <typename S>
__device__ __forceinline__ void hy_delta_fetch_early_bwd(const hy_delta_args &g, uint32_t stage,
                                                         const hy_delta_cell &c, int column) {
    hy_delta_fetch<S::PACKS, HY_DELTA_CHUNK, S::THREADS>(stage, g.qkv + hy_delta_k_at(g, c),
                                                         hy_delta_width(g), c.there, g.Dk / 8);
    hy_delta_fetch<S::SLICE, HY_DELTA_CHUNK, S::THREADS>(
        stage + S::ROWS, g.dout + (c.row * g.H + c.h) * g.Dv + column, (int64_t)g.H * g.Dv, c.there,
        (g.Dv - column) / 8);
    hy_delta_fetch_lower<S::THREADS>(stage + S::MATRIX,
                                     g.scores + c.index * (HY_DELTA_CHUNK * HY_DELTA_CHUNK));
    hy_delta_fetch_numbers<S::THREADS>(stage + S::NUMBERS, g.numbers + c.index * HY_CELL_NUMBERS);
}

/* Stores the gradient of the state after a chunk; returns a lane's part of its product with the
 * state before it. */
template <int D>
__device__ __forceinline__ float hy_delta_keep_gradient(const hy_delta_args &g, int64_t cell,
                                                        int column, const float (*state)[4]) {
    float product = 0;
    HY_EACH(m, D / 32) {
        uint4 before[2];
        HY_EACH(half, 2) {
            int64_t at = cell * (D * D) + hy_delta_state_at<D>(column, m, half);
            before[half] = *(const uint4 *)(g.states + at);
        }
        HY_EACH(half, 2) {
            uint32_t w[4];
            int64_t at = cell * (D * D) + hy_delta_state_at<D>(column, m, half);
            uint32_t s[4] = {before[half].x, before[half].y, before[half].z, before[half].w};
            hy_delta_state_words<D>(w, state, m, half);
            *(uint4 *)(g.dstates + at) = make_uint4(w[0], w[1], w[2], w[3]);
            HY_EACH(i, 4) {
                float2 x = hy_delta_unpair(w[i]), y = hy_delta_unpair(s[i]);
                product += x.x * y.x;
                product += x.y * y.y;
            }
        }
    }
    return product;
}

/* dout of a warp's columns as a first operand. */
template <typename S>
__device__ __forceinline__ void hy_delta_load_dout(uint32_t a[HY_DELTA_RUNS][4], uint32_t rows,
                                                   int column) {
    HY_EACH(s, HY_DELTA_RUNS) {
        hy_delta_across_transposed<S::SLICE>(a[s], rows, s * 16, column / 8);
    }
}

#endif

/* From the last chunk back: the gradient of the state after each chunk, and dvalues = T' dV', the
 * gradient of R over strength. */
template <int D, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 2) hy_delta_back(hy_delta_args g) {
#if HY_HAS_TILES
    typedef hy_delta_steps_shared<D, WARPS> S;
    constexpr int N = HY_DELTA_CHUNK;
    extern __shared__ uint4 hy_delta_shared[];
    uint32_t shared = hy_shared_address(hy_delta_shared);
    int column = blockIdx.x * S::COLUMNS, own = threadIdx.x / 32 * 16, h = blockIdx.y;
    int b = blockIdx.z;
    float state[D / 8][4];
    hy_delta_clear<D / 8>(state);
    hy_delta_fetch_early_bwd<S>(g, shared + (g.chunks - 1) % 2 * S::STAGE,
                                hy_delta_cell(g, b, g.chunks - 1, h), column);
    hy_copy_commit();
    for (int chunk = g.chunks - 1; chunk >= 0; chunk--) {
        hy_delta_cell c(g, b, chunk, h);
        uint32_t stage = shared + chunk % 2 * S::STAGE;
        const float *numbers =
            (const float *)((char *)hy_delta_shared + chunk % 2 * S::STAGE + S::NUMBERS);
        uint32_t a[HY_DELTA_RUNS][4], dout[HY_DELTA_RUNS][4];
        float sum[8][4], keep;
        hy_copy_wait<0>();
        __syncthreads();
        hy_delta_fetch_late<S>(g, shared, c, g.inverse);
        hy_copy_commit();
        if (chunk > 0)
            hy_delta_fetch_early_bwd<S>(g, shared + (chunk + 1) % 2 * S::STAGE,
                                        hy_delta_cell(g, b, chunk - 1, h), column);
        hy_copy_commit();
        keep = numbers[HY_CELL_KEEP];
        float product = hy_delta_keep_gradient<D>(g, c.index, column + own, state);
        product = hy_warp_sum(product);
        if (threadIdx.x % 32 == 0) g.products[c.index * 8 + (column + own) / 16] = keep * product;
        /* dV' = f k dS + P' dout */
        hy_delta_clear<8>(sum);
        hy_delta_read_state<D>(sum, state, stage);
        hy_delta_scale_tokens(sum, numbers + HY_CELL_OUT * N);
        hy_delta_load_dout<S>(dout, stage + S::ROWS, own);
        hy_delta_times_upper(sum, dout, stage + S::MATRIX);
        hy_delta_pack_tokens(a, sum);
        hy_copy_wait<1>();
        __syncthreads();
        /* T' dV' */
        hy_delta_clear<8>(sum);
        hy_delta_times_upper(sum, a, shared + S::LATE_MATRIX);
        hy_delta_pack_tokens(a, sum);
        hy_delta_store_tokens(g.dvalues + c.index * (N * D) + column + own, D, N, a);
        /* dS = decay dS + q' (e dout) - k' (e strength dvalues) */
        HY_EACH(n, D / 8) {
            HY_EACH(r, 4) state[n][r] *= keep;
        }
        HY_EACH(s, HY_DELTA_RUNS) {
            float2 in[2], strength[2], query[2];
            hy_delta_columns(in, numbers + HY_CELL_IN * N, s * 16);
            hy_delta_columns(strength, numbers + HY_CELL_STRENGTH * N, s * 16);
            hy_delta_columns(query, numbers + HY_CELL_QUERY * N, s * 16);
            HY_EACH(n, 2) {
                in[n].x *= -strength[n].x;
                in[n].y *= -strength[n].y;
            }
            hy_delta_pack_times(a[s], sum + 2 * s, in);
            HY_EACH(r, 4) {
                float2 two = hy_delta_unpair(dout[s][r]), by = query[r / 2];
                dout[s][r] = hy_pair<hy_delta_half>(two.x * by.x, two.y * by.y);
            }
        }
        hy_delta_add_state<D>(state, dout, shared + S::LATE);
        hy_delta_add_state<D>(state, a, stage);
    }
#endif
}
