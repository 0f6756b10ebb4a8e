/* matmul_plain.cu: our own matmul for cases that cuBLASLt does not support, and small helpers of
 * plans.
 *
 * Any shape, alignment and mixture of types: tiles of 64 x 64 in shared memory, 4 x 4 results per
 * thread, fp32 sums over K in order. It is the fallback for odd 16-bit shapes and for bf16 on cards
 * before sm_80, not a fast path. */
#include "kernels/cuda/matmul.cuh"

enum { TILE = 64, DEPTH = 16, THREADS = 256 };

typedef struct plain_matmul {
    int64_t M, N, K;
    const void *a, *b, *bias, *c, *pre;
    void *d, *act;
    int64_t a_row, a_col, b_row, b_col; /* strides of op(a) and op(b) */
    hy_dtype out, bias_dtype;
    float alpha;
    bool is_gelu;
} plain_matmul;

/* gelu in its tanh form is x sigmoid(2u), 2u = x (A + B x^2). */
#define GELU_A 1.5957691216f
#define GELU_B 0.0713548162726f

__device__ __forceinline__ float gelu_gate(float x) {
    return 1.0f / (1.0f + __expf(-x * (GELU_A + GELU_B * x * x)));
}
__device__ __forceinline__ float gelu(float x) { return x * gelu_gate(x); }
__device__ __forceinline__ float gelu_slope(float x) {
    float s = gelu_gate(x);
    return s + x * s * (1.0f - s) * (GELU_A + 3.0f * GELU_B * x * x);
}

/* One result: additions, activation, stores. */
__device__ __forceinline__ void finish(const plain_matmul &p, int64_t row, int64_t col, float sum) {
    int64_t at = row * p.N + col;
    float x = p.alpha * sum;
    if (p.c) x += hy_load_any(p.c, at, p.out);
    if (p.bias) x += hy_load_any(p.bias, col, p.bias_dtype);
    if (p.pre) x *= gelu_slope(hy_load_any(p.pre, at, p.out));
    if (p.act) hy_store_any(p.act, at, p.out, gelu(x));
    hy_store_any(p.d, at, p.out, p.is_gelu ? gelu(x) : x);
}

/* Loads a tile of TILE by DEPTH elements, `line` along the tile and k along the depth; threads
 * follow whichever is contiguous in memory. */
template <typename T>
__device__ __forceinline__ void load_tile(float tile[DEPTH][TILE + 1], const T *from, int64_t line,
                                          int64_t lines, int64_t line_stride, int64_t k, int64_t K,
                                          int64_t k_stride) {
    for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        int l = k_stride == 1 ? i / DEPTH : i % TILE;
        int d = k_stride == 1 ? i % DEPTH : i / TILE;
        bool is_there = line + l < lines && k + d < K;
        tile[d][l] =
            is_there ? hy_to_float(from[(line + l) * line_stride + (k + d) * k_stride]) : 0.0f;
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) plain_kernel(plain_matmul p) {
    __shared__ float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1], result[TILE][TILE + 1];
    int64_t row = (int64_t)blockIdx.x * TILE, col = (int64_t)blockIdx.y * TILE;
    int across = threadIdx.x % 16, down = threadIdx.x / 16;
    float sum[16] = {}; /* 4 rows of 4, 16 apart */
    for (int64_t k = 0; k < p.K; k += DEPTH) {
        load_tile(a, (const T *)p.a, row, p.M, p.a_row, k, p.K, p.a_col);
        load_tile(b, (const T *)p.b, col, p.N, p.b_col, k, p.K, p.b_row);
        __syncthreads();
        for (int d = 0; d < DEPTH; d++) {
            HY_EACH(i, 16) {
                sum[i] += a[d][down + i / 4 * 16] * b[d][across + i % 4 * 16];
            }
        }
        __syncthreads();
    }
    HY_EACH(i, 16) result[down + i / 4 * 16][across + i % 4 * 16] = sum[i];
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        int64_t r = row + i / TILE, c = col + i % TILE;
        if (r < p.M && c < p.N) finish(p, r, c, result[i / TILE][i % TILE]);
    }
}

void hy_matmul_plain(const hy_matmul_key *key, const hy_matmul_args *args, cudaStream_t stream) {
    plain_matmul p = {};
    p.M = key->M, p.N = key->N, p.K = key->K;
    p.a = args->a, p.b = args->b, p.d = args->d;
    p.bias = args->bias, p.act = args->act, p.pre = args->pre;
    p.c = args->beta != 0 ? args->c : NULL;
    p.a_row = key->trans_a ? 1 : key->K, p.a_col = key->trans_a ? key->M : 1;
    p.b_row = key->trans_b ? 1 : key->N, p.b_col = key->trans_b ? key->K : 1;
    p.out = key->out, p.bias_dtype = key->bias;
    p.alpha = args->alpha;
    p.is_gelu = key->gelu == HY_GELU_ONLY;
    dim3 grid((unsigned)hy_ceil_div(key->M, TILE), (unsigned)hy_ceil_div(key->N, TILE));
    hy_by_type(key->in, [&](auto zero) {
        using T = decltype(zero);
        plain_kernel<T><<<grid, THREADS, 0, stream>>>(p);
    });
}

/* ---- helpers of plans ------------------------------------------------------------------------ */

static __global__ void convert_bias_kernel(const void *bias, hy_dtype from, void *out, hy_dtype to,
                                           int64_t N) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) hy_store_any(out, i, to, hy_load_any(bias, i, from));
}

void hy_matmul_convert_bias(const void *bias, hy_dtype from, void *out, hy_dtype to, int64_t N,
                            cudaStream_t stream) {
    convert_bias_kernel<<<(unsigned)hy_ceil_div(N, 256), 256, 0, stream>>>(bias, from, out, to, N);
}

template <typename T>
static __global__ void compare_kernel(const T *x, const T *y, int64_t count, float slack,
                                      unsigned *differing) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    unsigned found = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float a = hy_to_float(x[i]), b = hy_to_float(y[i]);
        found += !(fabsf(a - b) <= slack + 0.01f * (fabsf(a) + fabsf(b))); /* also counts NaN */
    }
    if (found) atomicAdd(differing, found);
}

static unsigned blocks_for(int64_t count) {
    return (unsigned)(count < 256 * 4096 ? hy_ceil_div(count, 256) : 4096);
}

void hy_matmul_compare(const void *x, const void *y, hy_dtype dtype, int64_t count, float slack,
                       unsigned *differing, cudaStream_t stream) {
    hy_by_type(dtype, [&](auto zero) {
        using T = decltype(zero);
        compare_kernel<<<blocks_for(count), 256, 0, stream>>>((const T *)x, (const T *)y, count,
                                                              slack, differing);
    });
}

/* A multiplicative hash of the position: good enough for timing, where only zeros would be too
 * fast. */
static __device__ __forceinline__ float random_at(int64_t i, uint32_t seed) {
    uint32_t h = (uint32_t)i * 0x9E3779B1u + (uint32_t)(i >> 32) + seed;
    h = (h ^ h >> 15) * 0x85EBCA77u;
    h = (h ^ h >> 13) * 0xC2B2AE3Du;
    return (float)(int32_t)(h ^ h >> 16) * 0x1p-31f;
}

template <typename T> static __global__ void fill_kernel(T *out, int64_t count, uint32_t seed) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        out[i] = hy_from_float<T>(random_at(i, seed));
    }
}

static __global__ void fill_codes_kernel(uint8_t *out, hy_dtype dtype, int64_t count,
                                         uint32_t seed) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        out[i] = hy_fp8_encode(dtype, random_at(i, seed));
    }
}

void hy_matmul_fill(void *out, hy_dtype dtype, int64_t count, uint32_t seed, cudaStream_t stream) {
    if (hy_is_fp8(dtype)) {
        fill_codes_kernel<<<blocks_for(count), 256, 0, stream>>>((uint8_t *)out, dtype, count,
                                                                 seed);
        return;
    }
    hy_by_type(dtype, [&](auto zero) {
        using T = decltype(zero);
        fill_kernel<<<blocks_for(count), 256, 0, stream>>>((T *)out, count, seed);
    });
}
