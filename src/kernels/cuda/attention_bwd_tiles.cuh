/* attention_bwd_tiles.cuh: what the two kernels of the attention backward are built from.
 *
 * Both kernels give 16 or 32 rows (keys in one, queries in the other) to a pair of warps that share the
 * work by product, not by rows: warp 0 of the pair makes the weights p from q and k, warp 1 makes dp from
 * dout and v; p and ds cross between them in shared memory, packed as the next product reads them. So
 * each warp keeps one operand and one sum in registers for all its rows, which halves what it reads from
 * shared memory: on an H200 that, not the tensor cores, is what runs out first. */
#ifndef HY_KERNELS_CUDA_ATTENTION_BWD_TILES_CUH
#define HY_KERNELS_CUDA_ATTENTION_BWD_TILES_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tile.cuh"

/* How rows of head size D are cut. */
template <int D_> struct hy_bwd_shape {
    static constexpr int D = D_;
    static constexpr int ROWS = D > 128 ? 16 : 32; /* of a pair of warps, kept in registers */
    static constexpr int TILE = 2 * ROWS;          /* of a block; and of what it walks over */
    static constexpr int M = ROWS / 16;
    static constexpr int STEPS = D / 16;
    static constexpr int CHUNKS = D / 8; /* pieces of 16 bytes in a row */
    /* An odd number of chunks: the eight rows that ldmatrix reads at once lie in different banks. */
    static constexpr int ROW_BYTES = 16 * (CHUNKS | 1);
    static constexpr int TILE_BYTES = TILE * ROW_BYTES;
    static constexpr int THREADS = 128;
};

/* What both kernels are told. */
template <typename T> struct hy_bwd_args {
    hy_cuda_heads a;
    const T *dout, *qkv, *out;
    T *dqkv;
    const float *lse;
    float *lse2, *delta; /* (B, H, padded): lse in units of log2, sum(dout out); past T inf and 0 */
    int2 *first_keys;    /* (B, tiles): least and greatest first key of a tile's queries; with docs */
    float *partial;      /* (parts, 2, B T, K D): dk and dv before parts are summed */
    int tiles, padded;   /* tiles of a sequence, and its rows in whole tiles */
    int parts;           /* a key head's query heads are dealt out to so many blocks */
    int band;            /* units whose rows should share the L2 cache */
};

/* A block's unit (a head of a sequence, or a part of one) and its rank among the unit's tiles. Within a
 * band of units the tiles with most work go first, so that the last ones are short. */
struct hy_bwd_place {
    int unit, rank;
};
__device__ __forceinline__ hy_bwd_place hy_bwd_place_of(int units, int tiles, int band) {
    int of_band = band * tiles, first = (int)(blockIdx.x / of_band) * band;
    int in_band = blockIdx.x % of_band, wide = min(band, units - first);
    return {first + in_band % wide, in_band / wide};
}

#if HY_HAS_TILES

__device__ __forceinline__ float hy_bwd_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Named barriers of a pair of warps: one arrives after writing, the other waits before reading. */
__device__ __forceinline__ void hy_pair_arrive(int barrier) {
    asm volatile("bar.arrive %0, 64;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void hy_pair_wait(int barrier) {
    asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
}

/* threadIdx.x, read here and now: what is computed from it is not kept in registers over the loop. */
__device__ __forceinline__ int hy_bwd_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* Starts the copy of one tile of rows; rows from `there` on become zeros. */
template <typename S, typename T>
__device__ __forceinline__ void hy_bwd_fetch(uint32_t shared, const T *rows, int64_t width, int there) {
    constexpr int APART = S::THREADS / S::CHUNKS; /* rows copied at a time */
    int thread = hy_bwd_thread(), row = thread / S::CHUNKS, chunk = thread % S::CHUNKS;
    if (APART * S::CHUNKS < S::THREADS && row >= APART) return;
    const T *from = rows + row * width + chunk * 8;
    uint32_t to = shared + row * S::ROW_BYTES + chunk * 16;
#pragma unroll
    for (int i = 0; i < S::TILE; i += APART) {
        if (S::TILE % APART != 0 && i + row >= S::TILE) break;
        bool is_there = i + row < there;
        hy_copy_async(to + i * S::ROW_BYTES, is_there ? from : rows, is_there);
        from += APART * width;
    }
}

/* Where a lane reads its row of the four 8x8 matrices that ldmatrix brings. `by_row`: an operand that
 * is multiplied row by row, two matrices down, then two across; also what is read transposed.
 * `by_column`: the second operand where its rows are the columns of the product. */
template <typename S> __device__ __forceinline__ uint32_t hy_bwd_by_row() {
    int lane = threadIdx.x % 32;
    return lane % 16 * S::ROW_BYTES + lane / 16 * 16;
}
template <typename S> __device__ __forceinline__ uint32_t hy_bwd_by_column() {
    int lane = threadIdx.x % 32;
    return (lane % 8 + lane / 16 * 8) * S::ROW_BYTES + lane / 8 % 2 * 16;
}

template <typename S> struct hy_bwd_operand {
    uint32_t r[S::STEPS][S::M][4];
};

template <typename S>
__device__ __forceinline__ void hy_bwd_load(hy_bwd_operand<S> &operand, uint32_t rows) {
    rows += hy_bwd_by_row<S>();
#pragma unroll
    for (int step = 0; step < S::STEPS; step++) {
#pragma unroll
        for (int m = 0; m < S::M; m++) {
            hy_load_tiles(operand.r[step][m], rows + m * 16 * S::ROW_BYTES + step * 32);
        }
    }
}

/* s (ROWS, 16 N) = operand (ROWS, D) times rows (16 N, D) transposed; `at` is the lane's by_column. */
template <typename S, typename T, int N>
__device__ __forceinline__ void hy_bwd_dot(float s[S::M][2 * N][4], const hy_bwd_operand<S> &operand,
                                           uint32_t at) {
#pragma unroll
    for (int m = 0; m < S::M; m++) {
#pragma unroll
        for (int n = 0; n < 2 * N; n++) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
    }
#pragma unroll
    for (int step = 0; step < S::STEPS; step++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t b[4];
            hy_load_tiles(b, at + n * 16 * S::ROW_BYTES + step * 32);
#pragma unroll
            for (int m = 0; m < S::M; m++) {
                hy_mma<T>(s[m][2 * n], operand.r[step][m], b[0], b[1]);
                hy_mma<T>(s[m][2 * n + 1], operand.r[step][m], b[2], b[3]);
            }
        }
    }
}

/* sum (ROWS, 16 W) += p (ROWS, 16 N) times rows (16 N, 16 W); `at` is the lane's by_row. */
template <typename S, typename T, int N, int W>
__device__ __forceinline__ void hy_bwd_add(float (*sum)[S::M][4], const uint32_t p[S::M][N][4],
                                           uint32_t at) {
#pragma unroll
    for (int k = 0; k < N; k++) {
#pragma unroll
        for (int n = 0; n < W; n++) {
            uint32_t b[4];
            hy_load_tiles_transposed(b, at + k * 16 * S::ROW_BYTES + n * 32);
#pragma unroll
            for (int m = 0; m < S::M; m++) {
                hy_mma<T>(sum[2 * n][m], p[m][k], b[0], b[1]);
                hy_mma<T>(sum[2 * n + 1][m], p[m][k], b[2], b[3]);
            }
        }
    }
}

/* A product's result as the first operand of the next. */
template <typename S, typename T, int N>
__device__ __forceinline__ void hy_bwd_pack(uint32_t p[S::M][N][4], const float s[S::M][2 * N][4]) {
#pragma unroll
    for (int m = 0; m < S::M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float *two = &s[m][2 * n + r / 2][r % 2 * 2];
                p[m][n][r] = hy_pair<T>(two[0], two[1]);
            }
        }
    }
}

/* The two numbers of a pair. */
template <typename T> __device__ __forceinline__ float2 hy_bwd_unpair(uint32_t pair);
template <> __device__ __forceinline__ float2 hy_bwd_unpair<__nv_bfloat16>(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 hy_bwd_unpair<__half>(uint32_t pair) {
    return __half22float2(*(__half2 *)&pair);
}

/* Packed rows through shared memory, from one warp of a pair to the other: a lane reads what the same
 * lane wrote. */
template <typename S, int N>
__device__ __forceinline__ void hy_bwd_send(char *slot, const uint32_t p[S::M][N][4]) {
    uint4 *to = (uint4 *)slot + threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < S::M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) to[(m * N + n) * 32] = *(const uint4 *)p[m][n];
    }
}
template <typename S, int N>
__device__ __forceinline__ void hy_bwd_receive(uint32_t p[S::M][N][4], const char *slot) {
    const uint4 *from = (const uint4 *)slot + threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < S::M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) *(uint4 *)p[m][n] = from[(m * N + n) * 32];
    }
}

/* Writes W times 16 columns of a pair's rows, times scale; rows from `there` on are left out. O is T, or
 * float for partial sums. */
template <typename O> __device__ __forceinline__ void hy_bwd_store_two(O *to, float x, float y) {
    *(uint32_t *)to = hy_pair<O>(x, y);
}
template <> __device__ __forceinline__ void hy_bwd_store_two<float>(float *to, float x, float y) {
    *(float2 *)to = make_float2(x, y);
}
template <typename S, int W, typename O>
__device__ __forceinline__ void hy_bwd_store(O *to, int64_t width, const float (*sum)[S::M][4],
                                             float scale, int there) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < S::M; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = m * 16 + r * 8 + lane / 4;
            if (row >= there) continue;
            O *at = to + row * width + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 2 * W; n++) {
                hy_bwd_store_two<O>(at + n * 8, sum[n][m][2 * r] * scale,
                                    sum[n][m][2 * r + 1] * scale);
            }
        }
    }
}

#endif
#endif
