/* delta_grads.cuh: the gradients of a chunk, when the states before it and their gradients after it
 * are known.
 *
 * With Z = T' dV' (dvalues), E = L (dout V'')  and  M = -strength L (Z V''), lower and strictly
 * lower, and all lengths as factors of rows:
 *     dv = strength Z                        dq = e dout S' + E k
 *     dk = -e strength Z S' + M k   (where k reads the state)
 *          + f V' dS' + E' q + M' k (where it is written)
 *     db = (1 - strength) Z V'
 *     d log decay = q dq + k (dk of reading) - k (dk of writing), summed over this token and later
 *         ones of the chunk, and S dS at its end
 * A block of eight warps has a cell; a warp has 16 tokens and half of the columns. Its shared memory
 * is used twice: for dout, Z and S, then for k, q and dS. */
#pragma once

#include "kernels/cuda/delta_chunk.cuh"

#define HY_DELTA_GRADS_THREADS 256

template <int D_> struct hy_delta_grads_shared {
    static constexpr int D = D_, PACKS = D / 8;
    static constexpr int TILE = HY_DELTA_CHUNK * D * 2, STATE = D * D * 2;
    static constexpr int SQUARE = HY_DELTA_CHUNK * HY_DELTA_CHUNK * 2;
    /* First dout, Z, S, V'; then k, q, dS in the places of the first three. */
    static constexpr int DOUT = 0, Z = TILE, S = 2 * TILE, V = S + STATE, E = V + TILE;
    static constexpr int K = DOUT, Q = Z, M = E + SQUARE, NUMBERS = M + SQUARE;
    static constexpr int ENDS = NUMBERS + HY_CELL_NUMBERS * 4; /* S dS, of each warp */
    /* Products of rows and their gradients, by halves of the columns; those of k replace numbers
     * that are no longer needed. */
    static constexpr int Q_DOTS = ENDS + 64;
    static constexpr int READ_DOTS = NUMBERS + HY_CELL_LOG * HY_DELTA_CHUNK * 4;
    static constexpr int WHOLE_DOTS = NUMBERS + HY_CELL_IN * HY_DELTA_CHUNK * 4;
    static constexpr int BYTES = Q_DOTS + 2 * HY_DELTA_CHUNK * 4;
    static_assert(HY_CELL_FROM == HY_CELL_LOG + 1 && HY_CELL_QUERY == HY_CELL_IN + 1, "");
    static_assert(BYTES <= 99 * 1024, "");
};

#if HY_HAS_TILES

/* dv and db: a quarter of a row per thread. */
template <typename O, int D>
__device__ __forceinline__ void hy_delta_write_values(const hy_delta_args &g,
                                                      const hy_delta_cell &c, const char *shared,
                                                      const float *numbers) {
    typedef hy_delta_grads_shared<D> S;
    int i = threadIdx.x / 4, quarter = threadIdx.x % 4;
    float strength = numbers[HY_CELL_STRENGTH * HY_DELTA_CHUNK + i], sum = 0;
    O *to = (O *)g.dqkv + hy_delta_v_at(g, c) + i * hy_delta_width(g);
    HY_EACH(p, S::PACKS / 4) {
        int pack = p * 4 + quarter;
        uint4 z4 = *(const uint4 *)(shared + S::Z + hy_delta_place<S::PACKS>(i, pack));
        uint4 v4 = *(const uint4 *)(shared + S::V + hy_delta_place<S::PACKS>(i, pack));
        uint32_t z[4] = {z4.x, z4.y, z4.z, z4.w}, v[4] = {v4.x, v4.y, v4.z, v4.w}, out[4];
        HY_EACH(j, 4) {
            float2 x = hy_delta_unpair(z[j]), y = hy_delta_unpair(v[j]);
            sum += x.x * y.x;
            sum += x.y * y.y;
            out[j] = hy_pair<O>(strength * x.x, strength * x.y);
        }
        if (i < c.there && pack * 8 < g.Dv)
            *(uint4 *)(to + pack * 8) = make_uint4(out[0], out[1], out[2], out[3]);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (i < c.there && quarter == 0)
        hy_store_any(g.dgates, (c.row + i) * 2 * g.H + c.h, g.dgates_type, sum * (1 - strength));
}

/* E and M of 16 tokens i and 32 tokens j. */
template <int D>
__device__ __forceinline__ void hy_delta_squares(char *memory, const float *numbers) {
    typedef hy_delta_grads_shared<D> S;
    constexpr int N = HY_DELTA_CHUNK;
    int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    uint32_t shared = hy_shared_address(memory);
    float e[4][4], m[4][4];
    if (half * 2 > rows) return; /* above the diagonal: never read */
    hy_delta_clear<4>(e);
    hy_delta_clear<4>(m);
    HY_EACH(step, D / 16) {
        uint32_t a[4], z[4], b[4];
        hy_delta_down<S::PACKS>(a, shared + S::DOUT, rows * 16, step * 2);
        hy_delta_down<S::PACKS>(z, shared + S::Z, rows * 16, step * 2);
        HY_EACH(n, 2) {
            if (half * 2 + n > rows) continue;
            hy_delta_across<S::PACKS>(b, shared + S::V, half * 32 + n * 16, step * 2);
            hy_delta_mma(e + 2 * n, a, b);
            hy_delta_mma(m + 2 * n, z, b);
        }
    }
    HY_EACH(r, 2) {
        int i = rows * 16 + r * 8 + lane / 4;
        float log2 = numbers[HY_CELL_LOG * N + i], of_q = numbers[HY_CELL_Q * N + i];
        float of_k = -numbers[HY_CELL_K * N + i] * numbers[HY_CELL_STRENGTH * N + i];
        int from = __float_as_int(numbers[HY_CELL_FROM * N + i]);
        HY_EACH(n, 4) {
            float x[2], y[2];
            HY_EACH(s, 2) {
                int j = half * 32 + n * 8 + lane % 4 * 2 + s;
                bool is_seen = j <= i && j >= from;
                float decay = is_seen ? hy_exp2(log2 - numbers[HY_CELL_LOG * N + j]) : 0.0f;
                decay *= numbers[HY_CELL_K * N + j];
                x[s] = e[n][r * 2 + s] * (decay * of_q);
                y[s] = j < i ? m[n][r * 2 + s] * (decay * of_k) : 0.0f;
            }
            uint32_t at = hy_delta_place<8>(i, half * 4 + n) + lane % 4 * 4;
            *(uint32_t *)(memory + S::E + at) = hy_pair<hy_delta_half>(x[0], x[1]);
            *(uint32_t *)(memory + S::M + at) = hy_pair<hy_delta_half>(y[0], y[1]);
        }
    }
}

/* Rows of a result times a number per token. */
template <int D>
__device__ __forceinline__ void hy_delta_scale_rows(float (*sum)[4], float first, float second) {
    HY_EACH(n, D / 16) {
        HY_EACH(r, 4) sum[n][r] *= r < 2 ? first : second;
    }
}

/* Products of rows of a result with rows of a tile, over a warp's columns, stored per token unless
 * dots is NULL. Returns the lane's part of their sum. */
template <int D>
__device__ __forceinline__ float hy_delta_dot_rows(float *dots, const char *tile,
                                                   const float (*sum)[4]) {
    constexpr int PACKS = D / 8;
    int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    float part = 0;
    HY_EACH(r, 2) {
        int i = rows * 16 + r * 8 + lane / 4;
        float dot = 0;
        HY_EACH(n, D / 16) {
            uint32_t at = hy_delta_place<PACKS>(i, half * (PACKS / 2) + n);
            float2 two = hy_delta_unpair(*(const uint32_t *)(tile + at + lane % 4 * 4));
            dot += two.x * sum[n][2 * r];
            dot += two.y * sum[n][2 * r + 1];
        }
        part += dot;
        if (!dots) continue;
        dot += __shfl_xor_sync(0xffffffffu, dot, 1);
        dot += __shfl_xor_sync(0xffffffffu, dot, 2);
        if (lane % 4 == 0) dots[half * HY_DELTA_CHUNK + i] = dot;
    }
    return part;
}
__device__ __forceinline__ float hy_delta_dot(const float *dots, int i) {
    return dots[i] + dots[HY_DELTA_CHUNK + i];
}

/* A gradient of the divided row x / length, times 1 / length, becomes one of x: less its part along
 * x. Stored in the type of the tensor. */
template <typename O, int D>
__device__ __forceinline__ void hy_delta_write_rows(O *to, int64_t width, int there, int columns,
                                                    const char *tile, float (*sum)[4],
                                                    const float along[2]) {
    constexpr int PACKS = D / 8;
    int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    HY_EACH(r, 2) {
        int i = rows * 16 + r * 8 + lane / 4;
        HY_EACH(m, D / 64) {
            uint32_t w[4];
            HY_EACH(s, 4) {
                int n = m * 4 + s;
                uint32_t at = hy_delta_place<PACKS>(i, half * (PACKS / 2) + n);
                float2 two = hy_delta_unpair(*(const uint32_t *)(tile + at + lane % 4 * 4));
                w[s] = hy_pair<O>(sum[n][2 * r] - along[r] * two.x,
                                  sum[n][2 * r + 1] - along[r] * two.y);
            }
            hy_delta_exchange(w);
            int column = (half * (PACKS / 2) + m * 4 + lane % 4) * 8;
            if (i < there && column < columns)
                *(uint4 *)(to + i * width + column) = make_uint4(w[0], w[1], w[2], w[3]);
        }
    }
}

/* The same before it is summed over the value heads of a key head: fp32, not yet less anything. */
template <int D>
__device__ __forceinline__ void hy_delta_write_head(float *to, int64_t width, int there,
                                                    int columns, const float (*sum)[4]) {
    int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    HY_EACH(r, 2) {
        int i = rows * 16 + r * 8 + lane / 4;
        HY_EACH(n, D / 16) {
            int column = half * (D / 2) + n * 8 + lane % 4 * 2;
            if (i < there && column < columns)
                *(float2 *)(to + i * width + column) =
                    make_float2(sum[n][2 * r], sum[n][2 * r + 1]);
        }
    }
}

/* Gradients of a and of the parameters of the decay: a token per thread, in the first two warps. */
template <int D>
__device__ __forceinline__ void hy_delta_write_decays(const hy_delta_args &g,
                                                      const hy_delta_cell &c, char *shared) {
    typedef hy_delta_grads_shared<D> S;
    enum { N = HY_DELTA_CHUNK };
    float *ends = (float *)(shared + S::ENDS);
    int i = threadIdx.x, lane = i % 32;
    bool is_there = i < c.there;
    float sum = 0, of_log = 0, of_bias = 0;
    if (i < N) {
        sum = hy_delta_dot((const float *)(shared + S::Q_DOTS), i) +
              2 * hy_delta_dot((const float *)(shared + S::READ_DOTS), i) -
              hy_delta_dot((const float *)(shared + S::WHOLE_DOTS), i);
    }
    if (i == N - 1) {
        for (int j = 0; j < 8; j++) sum += ends[j];
        for (int j = 0; j < D / 16; j++) sum += g.products[c.index * 8 + j];
    }
    HY_EACH(k, 5) {
        float later = __shfl_down_sync(0xffffffffu, sum, 1 << k);
        if (lane + (1 << k) < 32) sum += later;
    }
    if (i == 32) ends[8] = sum; /* of the second half: also later than the first */
    __syncthreads();
    if (i < 32) sum += ends[8];
    if (is_there) {
        hy_delta_gate gate = hy_delta_gate_of(g, c.row + i, c.h);
        of_bias = -expf(gate.a_log) * hy_delta_sigmoid(gate.a + gate.dt_bias) * sum;
        of_log = hy_delta_log_decay(gate.a, gate.a_log, gate.dt_bias) * sum;
        hy_store_any(g.dgates, (c.row + i) * 2 * g.H + g.H + c.h, g.dgates_type, of_bias);
    }
    of_log = hy_warp_sum(of_log);
    of_bias = hy_warp_sum(of_bias);
    if (i == 32) ends[9] = of_log, ends[10] = of_bias;
    __syncthreads();
    if (i != 0) return;
    float *to = g.partial + ((int64_t)c.b * g.chunks + c.chunk) * 2 * g.H;
    to[c.h] = of_log + ends[9];
    to[g.H + c.h] = of_bias + ends[10];
}

#endif

template <typename O, int D>
__global__ void __launch_bounds__(HY_DELTA_GRADS_THREADS, 2) hy_delta_grads(hy_delta_args g) {
#if HY_HAS_TILES
    typedef hy_delta_grads_shared<D> S;
    constexpr int N = HY_DELTA_CHUNK, THREADS = HY_DELTA_GRADS_THREADS;
    extern __shared__ uint4 hy_delta_shared[];
    char *memory = (char *)hy_delta_shared;
    uint32_t shared = hy_shared_address(memory);
    const float *numbers = (const float *)(memory + S::NUMBERS);
    float *of_query = (float *)(memory + S::Q_DOTS), *reading = (float *)(memory + S::READ_DOTS);
    float *whole = (float *)(memory + S::WHOLE_DOTS), *ends = (float *)(memory + S::ENDS);
    hy_delta_cell c(g, blockIdx.z, blockIdx.y, blockIdx.x);
    int lane = threadIdx.x % 32, rows = threadIdx.x / 32 % 4, half = threadIdx.x / 128;
    int64_t width = hy_delta_width(g), wide = (int64_t)g.H * g.Dv;
    int packs = half * (D / 16); /* of a warp's columns */

    hy_delta_fetch<S::PACKS, N, THREADS>(
        shared + S::DOUT, g.dout + c.row * wide + (int64_t)c.h * g.Dv, wide, c.there, g.Dv / 8);
    hy_delta_fetch<S::PACKS, N, THREADS>(shared + S::Z, g.dvalues + c.index * (N * D), D, N,
                                         S::PACKS);
    hy_delta_fetch<S::PACKS, N, THREADS>(shared + S::V, g.values + c.index * (N * D), D, N,
                                         S::PACKS);
    hy_delta_fetch_numbers<THREADS>(shared + S::NUMBERS, g.numbers + c.index * HY_CELL_NUMBERS);
    hy_copy_commit();
    hy_delta_fetch<S::PACKS, D, THREADS>(shared + S::S, g.states + c.index * (D * D), D, D,
                                         S::PACKS);
    hy_copy_commit();
    hy_copy_wait<1>();
    __syncthreads();
    hy_delta_write_values<O, D>(g, c, memory, numbers);
    hy_delta_squares<D>(memory, numbers);
    hy_copy_wait<0>();
    __syncthreads();

    /* dout S' and Z S' */
    float of_q[D / 16][4], of_k[D / 16][4];
    hy_delta_clear<D / 16>(of_q);
    hy_delta_clear<D / 16>(of_k);
#pragma unroll 2
    for (int step = 0; step < D / 16; step++) {
        uint32_t a[4], z[4], b[4];
        hy_delta_down<S::PACKS>(a, shared + S::DOUT, rows * 16, step * 2);
        hy_delta_down<S::PACKS>(z, shared + S::Z, rows * 16, step * 2);
        HY_EACH(n, D / 32) {
            hy_delta_down_transposed<S::PACKS>(b, shared + S::S, step * 16, packs + n * 2);
            hy_delta_mma(of_q + 2 * n, a, b);
            hy_delta_mma(of_k + 2 * n, z, b);
        }
    }
    __syncthreads();
    hy_delta_fetch<S::PACKS, N, THREADS>(shared + S::K, g.qkv + hy_delta_k_at(g, c), width, c.there,
                                         g.Dk / 8);
    hy_copy_commit();
    hy_delta_fetch<S::PACKS, D, THREADS>(shared + S::S, g.dstates + c.index * (D * D), D, D,
                                         S::PACKS);
    hy_delta_fetch<S::PACKS, N, THREADS>(shared + S::Q, g.qkv + hy_delta_q_at(g, c), width, c.there,
                                         g.Dk / 8);
    hy_copy_commit();
    int i = rows * 16 + lane / 4;
    const float *in = numbers + HY_CELL_IN * N, *strength = numbers + HY_CELL_STRENGTH * N;
    const float *query = numbers + HY_CELL_QUERY * N, *out = numbers + HY_CELL_OUT * N;
    hy_delta_scale_rows<D>(of_q, query[i], query[i + 8]);
    hy_delta_scale_rows<D>(of_k, -in[i] * strength[i], -in[i + 8] * strength[i + 8]);
    hy_copy_wait<1>();
    __syncthreads();

    /* E k and M k */
    HY_EACH(step, HY_DELTA_RUNS) {
        uint32_t a[4], m[4], b[4];
        if (step > rows) continue;
        hy_delta_down<8>(a, shared + S::E, rows * 16, step * 2);
        hy_delta_down<8>(m, shared + S::M, rows * 16, step * 2);
        HY_EACH(n, D / 32) {
            hy_delta_down_transposed<S::PACKS>(b, shared + S::K, step * 16, packs + n * 2);
            hy_delta_mma(of_q + 2 * n, a, b);
            hy_delta_mma(of_k + 2 * n, m, b);
        }
    }
    hy_copy_wait<0>();
    __syncthreads();
    hy_delta_dot_rows<D>(of_query, memory + S::Q, of_q);
    float read = hy_delta_dot_rows<D>(reading, memory + S::K, of_k);
    __syncthreads();
    bool is_alone = g.H == g.K;
    float *heads = g.heads + (c.row * g.H + c.h) * 2 * g.Dk;
    if (is_alone) {
        float along[2];
        HY_EACH(r, 2) {
            float length = numbers[HY_CELL_Q * N + i + 8 * r] / g.scale;
            along[r] = length * length * hy_delta_dot(of_query, i + 8 * r);
        }
        hy_delta_write_rows<O, D>((O *)g.dqkv + hy_delta_q_at(g, c), width, c.there, g.Dk,
                                  memory + S::Q, of_q, along);
    } else {
        hy_delta_write_head<D>(heads, (int64_t)g.H * 2 * g.Dk, c.there, g.Dk, of_q);
    }

    /* V' dS', then E' q and M' k */
    float factor[2] = {out[i], out[i + 8]};
    HY_EACH(step, D / 16) {
        uint32_t a[4], b[4];
        hy_delta_down<S::PACKS>(a, shared + S::V, rows * 16, step * 2);
        HY_EACH(r, 4) {
            float2 two = hy_delta_unpair(a[r]);
            a[r] = hy_pair<hy_delta_half>(two.x * factor[r % 2], two.y * factor[r % 2]);
        }
        HY_EACH(n, D / 32) {
            hy_delta_down_transposed<S::PACKS>(b, shared + S::S, step * 16, packs + n * 2);
            hy_delta_mma(of_k + 2 * n, a, b);
        }
    }
    float end = hy_warp_sum(hy_delta_dot_rows<D>(NULL, memory + S::K, of_k) - read);
    if (lane == 0) ends[threadIdx.x / 32] = end;
    HY_EACH(step, HY_DELTA_RUNS) {
        uint32_t a[4], m[4], b[4];
        if (step < rows) continue;
        hy_delta_across_transposed<8>(a, shared + S::E, step * 16, rows * 2);
        hy_delta_across_transposed<8>(m, shared + S::M, step * 16, rows * 2);
        HY_EACH(n, D / 32) {
            hy_delta_down_transposed<S::PACKS>(b, shared + S::Q, step * 16, packs + n * 2);
            hy_delta_mma(of_k + 2 * n, a, b);
            hy_delta_down_transposed<S::PACKS>(b, shared + S::K, step * 16, packs + n * 2);
            hy_delta_mma(of_k + 2 * n, m, b);
        }
    }
    hy_delta_dot_rows<D>(whole, memory + S::K, of_k);
    __syncthreads();
    if (is_alone) {
        float along[2];
        HY_EACH(r, 2) {
            float length = numbers[HY_CELL_K * N + i + 8 * r];
            along[r] = length * length * hy_delta_dot(whole, i + 8 * r);
        }
        hy_delta_write_rows<O, D>((O *)g.dqkv + hy_delta_k_at(g, c), width, c.there, g.Dk,
                                  memory + S::K, of_k, along);
    } else {
        hy_delta_write_head<D>(heads + g.Dk, (int64_t)g.H * 2 * g.Dk, c.there, g.Dk, of_k);
    }
    hy_delta_write_decays<D>(g, c, memory);
#endif
}
