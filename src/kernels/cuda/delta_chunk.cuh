/* delta_chunk.cuh: what a chunk needs before states are known: decays, lengths, T and P.
 *
 * A block has a cell, each of its four warps 16 tokens. T = (I + A)^-1 is made of blocks of 16: those
 * on the diagonal by substitution in fp32, the others from them, each warp a column of blocks, with
 * operands as sums of two bf16 numbers: T has the errors of its own rounding only. */
#pragma once

#include "kernels/cuda/delta_tiles.cuh"

#define HY_DELTA_PREPARE_THREADS 128

/* exp(-exp(a_log) softplus(a + dt_bias)) is the decay; here its logarithm. */
__device__ __forceinline__ float hy_delta_log_decay(float a, float a_log, float dt_bias) {
    float x = a + dt_bias, softplus = x > 20 ? x : log1pf(expf(x));
    return -expf(a_log) * softplus;
}
__device__ __forceinline__ float hy_delta_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* The inputs of the gates of token `row` of head h. */
typedef struct hy_delta_gate {
    float b, a, a_log, dt_bias;
} hy_delta_gate;

__device__ __forceinline__ hy_delta_gate hy_delta_gate_of(const hy_delta_args &g, int64_t row,
                                                          int h) {
    hy_delta_gate gate;
    gate.b = hy_load_any(g.gates, row * 2 * g.H + h, g.gates_type);
    gate.a = hy_load_any(g.gates, row * 2 * g.H + g.H + h, g.gates_type);
    gate.a_log = hy_load_any(g.a_log, h, g.a_log_type);
    gate.dt_bias = hy_load_any(g.dt_bias, h, g.dt_bias_type);
    return gate;
}

/* The position of the first token of a token's document; that of a cached sequence is before. */
__device__ __forceinline__ int hy_delta_start(const hy_delta_args &g, int64_t row, int t) {
    if (g.first) return -1;
    return g.doc_starts ? min(max(g.doc_starts[row], 0), t) : 0;
}

/* First q and k, then A, T, P and the inverses of the diagonal blocks. */
template <int D> struct hy_delta_prepare_shared {
    static constexpr int PACKS = D / 8;
    static constexpr int TILE = HY_DELTA_CHUNK * D * 2;
    static constexpr int SQUARE = HY_DELTA_CHUNK * HY_DELTA_CHUNK * 2;
    static constexpr int APART = 68; /* numbers from row to row of A */
    static constexpr int K = TILE;
    static constexpr int T = 0, SCORES = SQUARE, A = 2 * SQUARE;
    static constexpr int INVERSE = A + HY_DELTA_CHUNK * APART * 4; /* rows are 20 numbers apart */
    static constexpr int END = INVERSE + HY_DELTA_CHUNK * 20 * 4;
    static constexpr int NUMBERS = END > 2 * TILE ? END : 2 * TILE;
    static constexpr int BYTES = NUMBERS + HY_CELL_NUMBERS * 4;
    static_assert(BYTES <= 99 * 1024, "");
};

#if HY_HAS_TILES

/* 1 / sqrt(sum of squares + eps) of a row of a tile. */
template <int PACKS> __device__ __forceinline__ float hy_delta_length(const char *tile, int row) {
    float sum = 0;
    HY_EACH(p, PACKS) {
        uint4 pack = *(const uint4 *)(tile + hy_delta_place<PACKS>(row, p));
        uint32_t w[4] = {pack.x, pack.y, pack.z, pack.w};
        HY_EACH(j, 4) {
            float2 two = hy_delta_unpair(w[j]);
            sum += two.x * two.x;
            sum += two.y * two.y;
        }
    }
    return rsqrtf(sum + HY_DELTA_EPS);
}

/* Strength, decay and document of each token, by the first 64 threads. */
__device__ __forceinline__ void hy_delta_decays(const hy_delta_args &g, const hy_delta_cell &c,
                                                float *numbers) {
    int i = threadIdx.x, lane = i % 32;
    float strength = 0, log2 = 0;
    int from = 0;
    if (i >= HY_DELTA_CHUNK) return;
    if (i < c.there) {
        hy_delta_gate gate = hy_delta_gate_of(g, c.row + i, c.h);
        strength = hy_delta_sigmoid(gate.b);
        log2 = hy_delta_log_decay(gate.a, gate.a_log, gate.dt_bias) * HY_LOG2E;
    }
    int last = min(i, c.there - 1), t = c.chunk * HY_DELTA_CHUNK + last;
    from = hy_delta_start(g, c.row + last, t) - c.chunk * HY_DELTA_CHUNK;
    HY_EACH(k, 5) {
        float before = __shfl_up_sync(0xffffffffu, log2, 1 << k);
        if (lane >= 1 << k) log2 += before;
    }
    numbers[HY_CELL_STRENGTH * HY_DELTA_CHUNK + i] = strength;
    numbers[HY_CELL_LOG * HY_DELTA_CHUNK + i] = log2;
    numbers[HY_CELL_FROM * HY_DELTA_CHUNK + i] = __int_as_float(from);
}

/* The other numbers; log of the second half still lacks the first half's sum. */
template <int PACKS>
__device__ __forceinline__ void hy_delta_factors(const hy_delta_args &g, const char *q,
                                                 const char *k, float *numbers) {
    enum { N = HY_DELTA_CHUNK };
    int i = threadIdx.x % N;
    bool is_key = threadIdx.x >= N;
    float half = numbers[HY_CELL_LOG * N + 31];
    float log2 = numbers[HY_CELL_LOG * N + i] + (i >= 32 ? half : 0.0f);
    float all = numbers[HY_CELL_LOG * N + 63] + half;
    int from = __float_as_int(numbers[HY_CELL_FROM * N + i]);
    int last = __float_as_int(numbers[HY_CELL_FROM * N + 63]);
    float length = hy_delta_length<PACKS>(is_key ? k : q, i) * (is_key ? 1.0f : g.scale);
    float in = from < 0 ? hy_exp2(log2) : 0.0f;
    __syncthreads(); /* all have read */
    if (is_key) {
        numbers[HY_CELL_IN * N + i] = in * length;
        numbers[HY_CELL_OUT * N + i] = i >= last ? hy_exp2(all - log2) * length : 0.0f;
        numbers[HY_CELL_K * N + i] = length;
    } else {
        numbers[HY_CELL_QUERY * N + i] = in * length;
        numbers[HY_CELL_Q * N + i] = length;
        numbers[HY_CELL_LOG * N + i] = log2;
        if (i < 16) numbers[HY_CELL_KEEP + i] = last < 0 ? hy_exp2(all) : 0.0f;
    }
}

/* Sixteen rows of q k' and k k', up to the diagonal, times decay and lengths. */
template <int D>
__device__ __forceinline__ void hy_delta_products(uint32_t q, uint32_t k, const float *numbers,
                                                  float *A, char *P) {
    constexpr int PACKS = D / 8, N = HY_DELTA_CHUNK;
    typedef hy_delta_prepare_shared<D> shape;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float of_q[8][4], of_k[8][4];
    hy_delta_clear<8>(of_q);
    hy_delta_clear<8>(of_k);
    HY_EACH(step, D / 16) {
        uint32_t a[4], c[4], b[4];
        hy_delta_down<PACKS>(a, q, warp * 16, step * 2);
        hy_delta_down<PACKS>(c, k, warp * 16, step * 2);
        HY_EACH(n, HY_DELTA_RUNS) {
            if (n > warp) continue;
            hy_delta_across<PACKS>(b, k, n * 16, step * 2);
            hy_delta_mma(of_q + 2 * n, a, b);
            hy_delta_mma(of_k + 2 * n, c, b);
        }
    }
    __syncthreads(); /* A and P replace q and k */
    HY_EACH(half, 2) {
        int i = warp * 16 + half * 8 + lane / 4;
        float log2 = numbers[HY_CELL_LOG * N + i], of_i = numbers[HY_CELL_Q * N + i];
        float length = numbers[HY_CELL_K * N + i] * numbers[HY_CELL_STRENGTH * N + i];
        int from = __float_as_int(numbers[HY_CELL_FROM * N + i]);
        HY_EACH(n, 8) {
            float p[2], two[2];
            if (n / 2 > warp) continue;
            HY_EACH(s, 2) {
                int j = n * 8 + lane % 4 * 2 + s;
                bool is_seen = j <= i && j >= from;
                float decay = is_seen ? hy_exp2(log2 - numbers[HY_CELL_LOG * N + j]) : 0.0f;
                decay *= numbers[HY_CELL_K * N + j];
                p[s] = of_q[n][half * 2 + s] * (decay * of_i);
                two[s] = j < i ? of_k[n][half * 2 + s] * (decay * length) : 0.0f;
            }
            *(uint32_t *)(P + hy_delta_place<8>(i, n) + lane % 4 * 4) =
                hy_pair<hy_delta_half>(p[0], p[1]);
            *(float2 *)(A + i * shape::APART + n * 8 + lane % 4 * 2) = make_float2(two[0], two[1]);
        }
    }
}

/* Column `column` of the inverse of the diagonal block of A that it is in. */
__device__ __forceinline__ void hy_delta_substitute(const float *A, int apart, float *inverse,
                                                    int column) {
    int first = column / 16 * 16, own = column % 16;
    float x[16];
    HY_EACH(i, 16) {
        const float *row = A + (first + i) * apart + first;
        float sum = i == own ? 1.0f : 0.0f;
        HY_EACH(m, i) sum -= row[m] * x[m];
        x[i] = sum;
        inverse[(first + i) * 20 + own] = sum;
    }
}

/* A second or first operand as a sum of two bf16 numbers. */
__device__ __forceinline__ void hy_delta_split(float x, float y, uint32_t &high, uint32_t &low) {
    high = hy_pair<hy_delta_half>(x, y);
    float2 two = hy_delta_unpair(high);
    low = hy_pair<hy_delta_half>(x - two.x, y - two.y);
}
__device__ __forceinline__ void hy_delta_split_rows(const float *rows, int apart, uint32_t high[4],
                                                    uint32_t low[4]) {
    int lane = threadIdx.x % 32;
    HY_EACH(r, 4) { /* two eights of columns of the result, each with two eights to sum over */
        const float *at = rows + (r / 2 * 8 + lane / 4) * apart + r % 2 * 8 + lane % 4 * 2;
        hy_delta_split(at[0], at[1], high[r], low[r]);
    }
}
__device__ __forceinline__ void hy_delta_split_sum(const float (*sum)[4], float sign,
                                                   uint32_t high[4], uint32_t low[4]) {
    HY_EACH(r, 4) {
        const float *two = &sum[r / 2][r % 2 * 2];
        hy_delta_split(sign * two[0], sign * two[1], high[r], low[r]);
    }
}
__device__ __forceinline__ void hy_delta_mma_split(float (*sum)[4], const uint32_t a[2][4],
                                                   const uint32_t b[2][4]) {
    hy_delta_mma(sum, a[1], b[0]);
    hy_delta_mma(sum, a[0], b[1]);
    hy_delta_mma(sum, a[0], b[0]);
}

/* Writes a transposed block of T to the tile of results. */
__device__ __forceinline__ void hy_delta_put_block(char *tile, const float (*block)[4], int row,
                                                   int column) {
    int lane = threadIdx.x % 32;
    uint32_t a[4];
    hy_delta_pack(a, block);
    HY_EACH(r, 4) {
        uint32_t pair = hy_transposed(a[r]);
        int i = row + r / 2 * 8 + lane / 4, pack = column / 8 + r % 2;
        *(uint32_t *)(tile + hy_delta_place<8>(i, pack) + lane % 4 * 4) = pair;
    }
}

/* Column c of blocks of T, transposed: T_ic = -T_ii sum over c <= m < i of A_im T_mc. */
__device__ __forceinline__ void hy_delta_invert(const float *A, int apart, const float *inverse,
                                                char *tile, int c) {
    int lane = threadIdx.x % 32;
    uint32_t done[HY_DELTA_RUNS][2][4];
    float block[2][4];
    HY_EACH(n, 2) {
        HY_EACH(r, 4) {
            int i = n * 8 + lane % 4 * 2 + r % 2, j = r / 2 * 8 + lane / 4;
            block[n][r] = inverse[(c * 16 + i) * 20 + j];
        }
    }
    hy_delta_put_block(tile, block, c * 16, c * 16);
    hy_delta_split_sum(block, 1, done[0][0], done[0][1]);
    HY_EACH(step, HY_DELTA_RUNS - 1) {
        int i = c + 1 + step;
        if (i >= HY_DELTA_RUNS) break;
        float sum[2][4];
        uint32_t a[2][4], b[2][4];
        hy_delta_clear<2>(sum);
        HY_EACH(m, step + 1) {
            hy_delta_split_rows(A + i * 16 * apart + (c + m) * 16, apart, b[0], b[1]);
            hy_delta_mma_split(sum, done[m], b);
        }
        hy_delta_split_sum(sum, -1, a[0], a[1]);
        hy_delta_split_rows(inverse + i * 16 * 20, 20, b[0], b[1]);
        hy_delta_clear<2>(block);
        hy_delta_mma_split(block, a, b);
        hy_delta_put_block(tile, block, i * 16, c * 16);
        hy_delta_split_sum(block, 1, done[step + 1][0], done[step + 1][1]);
    }
}

/* Copies the lower blocks of a tile to memory. */
__device__ __forceinline__ void hy_delta_write_lower(hy_delta_half *to, const char *tile) {
    HY_EACH(i, HY_DELTA_CHUNK * 8 / HY_DELTA_PREPARE_THREADS) {
        int at = i * HY_DELTA_PREPARE_THREADS + threadIdx.x, row = at / 8, pack = at % 8;
        if (pack / 2 <= row / 16)
            *(uint4 *)(to + row * 64 + pack * 8) =
                *(const uint4 *)(tile + hy_delta_place<8>(row, pack));
    }
}

#endif

template <int D>
__global__ void __launch_bounds__(HY_DELTA_PREPARE_THREADS, 5) hy_delta_prepare(hy_delta_args g) {
#if HY_HAS_TILES
    typedef hy_delta_prepare_shared<D> shape;
    constexpr int THREADS = HY_DELTA_PREPARE_THREADS, N = HY_DELTA_CHUNK;
    extern __shared__ uint4 hy_delta_shared[];
    char *shared = (char *)hy_delta_shared;
    float *numbers = (float *)(shared + shape::NUMBERS), *A = (float *)(shared + shape::A);
    float *inverse = (float *)(shared + shape::INVERSE);
    uint32_t q = hy_shared_address(shared), k = q + shape::K;
    hy_delta_cell c(g, blockIdx.z, blockIdx.y, blockIdx.x);
    if (g.first && g.first[c.b] < 0) return;
    int64_t width = hy_delta_width(g);
    char *T = shared + shape::T, *scores = shared + shape::SCORES;
    hy_delta_fetch<shape::PACKS, N, THREADS>(q, g.qkv + hy_delta_q_at(g, c), width, c.there,
                                             g.Dk / 8);
    hy_delta_fetch<shape::PACKS, N, THREADS>(k, g.qkv + hy_delta_k_at(g, c), width, c.there,
                                             g.Dk / 8);
    hy_copy_commit();
    hy_delta_decays(g, c, numbers);
    hy_copy_wait<0>();
    __syncthreads();
    hy_delta_factors<shape::PACKS>(g, shared, shared + shape::K, numbers);
    __syncthreads();
    hy_delta_products<D>(q, k, numbers, A, scores);
    __syncthreads();
    if (threadIdx.x < N) hy_delta_substitute(A, shape::APART, inverse, threadIdx.x);
    __syncthreads();
    hy_delta_invert(A, shape::APART, inverse, T, threadIdx.x / 32);
    __syncthreads();
    hy_delta_write_lower(g.inverse + c.index * N * N, T);
    hy_delta_write_lower(g.scores + c.index * N * N, scores);
    for (int i = threadIdx.x; i < HY_CELL_NUMBERS / 4; i += THREADS) {
        ((uint4 *)(g.numbers + c.index * HY_CELL_NUMBERS))[i] = ((const uint4 *)numbers)[i];
    }
#endif
}
