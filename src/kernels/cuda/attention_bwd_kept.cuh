/* attention_bwd_kept.cuh: dq from ds that the kernel of dk and dv stored, and delta before both.
 *
 * With stored ds, dq = scale ds k is one matmul, where the loop of attention_bwd_dq.cuh computes
 * three. A warp reads pieces of ds as another warp had them in its registers, a tile ahead of need,
 * and transposes keys by queries to queries by keys. The other kernel multiplies by the same 16-bit
 * numbers, so storing them loses nothing. */
#pragma once

#include "kernels/cuda/attention_bwd_tiles.cuh"

template <typename S> struct hy_kept_shape : S {
    static constexpr int SHARED = 2 * S::TILE_BYTES; /* only keys */
    static_assert(SHARED <= 99 * 1024, "the limit of sm_120");
    static_assert(S::CHUNK == S::TILE, "all pieces of a tile are held at once");
    static_assert(S::OWN * 32 == S::ROWS * S::THREADS, "no two warps share a row");
};

/* delta of each row and head, and lse in units of log2; past T they are 0 and infinite. LANES lanes
 * of a warp take a row of a head. */
template <typename T, int LANES>
__global__ void hy_attention_delta_kernel(const __grid_constant__ hy_bwd_args<T> g) {
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = thread / LANES;
    int lane = (int)(thread % LANES), packs = g.a.D / 8, h = (int)(row % g.a.H);
    int t = (int)(row / g.a.H % g.padded), b = (int)(row / g.a.H / g.padded);
    bool is_there = b < g.a.B && t < g.a.T;
    float sum = 0;
    if (is_there && lane < packs) {
        int64_t at = (((int64_t)b * g.a.T + t) * g.a.H + h) * g.a.D + lane * 8;
        hy_pack<T> x = hy_load_pack(g.out + at), y = hy_load_pack(g.dout + at);
        HY_EACH(i, 8) sum += hy_to_float(x.v[i]) * hy_to_float(y.v[i]);
    }
    for (int d = LANES / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane != 0 || b >= g.a.B) return;
    int64_t unit = (int64_t)b * g.a.H + h;
    g.lse2[unit * g.padded + t] = is_there ? g.lse[unit * g.a.T + t] * HY_LOG2E : INFINITY;
    g.delta[unit * g.padded + t] = sum;
}

#if HY_HAS_TILES

/* Loads the warp's pieces of ds for a tile of keys; those above the diagonal or past the last row
 * are zero. */
template <typename S>
__device__ __forceinline__ void hy_kept_load(uint4 ds[S::M][S::N], const uint4 *head, int own,
                                             int key, int T) {
    HY_EACH(m, S::M) {
        int query = own + m * 16;
        const uint4 *from = head + hy_bwd_piece(query, key) * 32;
        HY_EACH(n, S::N) {
            bool is_there = query < T && key + n * 16 <= query;
            ds[m][n] = is_there ? __ldcs(from + n * 32) : make_uint4(0, 0, 0, 0);
        }
    }
}

/* Transposes keys by queries to queries by keys. */
template <typename S>
__device__ __forceinline__ void hy_kept_transpose(uint32_t to[S::M][S::N][4],
                                                  const uint4 from[S::M][S::N]) {
    HY_EACH(m, S::M) {
        HY_EACH(n, S::N) {
            to[m][n][0] = hy_transposed(from[m][n].x);
            to[m][n][1] = hy_transposed(from[m][n].z);
            to[m][n][2] = hy_transposed(from[m][n].y);
            to[m][n][3] = hy_transposed(from[m][n].w);
        }
    }
}

#endif

/* Blocks of the last queries, which see most keys, go first. */
template <typename S, typename T>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    hy_attention_dq_kept_kernel(const __grid_constant__ hy_bwd_args<T> g) {
#if HY_HAS_TILES
    extern __shared__ __align__(256) char shared[];
    const hy_cuda_heads &a = g.a;
    int group = a.H / a.K, heads = g.units * group, blocks = (a.T + S::OWN - 1) / S::OWN;
    int head = g.first_unit * group + (int)(blockIdx.x % heads), b = head / a.H, h = head % a.H;
    int query = (blocks - 1 - (int)(blockIdx.x / heads)) * S::OWN;
    int own = query + (int)(threadIdx.x / 32) * S::ROWS;
    int last = (min(query + S::OWN, a.T) - 1) / S::TILE;
    int64_t width = (int64_t)(a.H + 2 * a.K) * S::D;
    const T *keys = g.qkv + (int64_t)b * a.T * width + (int64_t)(a.H + h / group) * S::D;
    const uint4 *kept = g.kept + hy_bwd_kept_of(g, b, h) + threadIdx.x % 32;
    uint32_t base = hy_shared_address(shared);

    hy_bwd_fetch<S, S::TILE>(base, keys, width, a.T);
    hy_copy_commit();
    uint4 next[S::M][S::N];
    hy_kept_load<S>(next, kept, own, 0, a.T);
    float sum[2 * S::STEPS][S::M][4];
    hy_bwd_clear<S>(sum);
    for (int tile = 0, stage = 0; tile <= last; tile++, stage ^= 1) {
        int key = tile * S::TILE, after = key + S::TILE;
        hy_copy_wait<0>();
        __syncthreads();
        if (tile < last) {
            hy_bwd_fetch<S, S::TILE>(base + (stage ^ 1) * S::TILE_BYTES, keys + after * width,
                                     width, a.T - after);
        }
        hy_copy_commit();
        if (key >= own + S::ROWS) continue; /* after the warp's last query */
        uint32_t ds[S::M][S::N][4];
        hy_kept_transpose<S>(ds, next);
        if (after < own + S::ROWS) hy_kept_load<S>(next, kept, own, after, a.T);
        hy_bwd_add<S, T>(sum, ds, base + stage * S::TILE_BYTES + hy_bwd_by_row<S>());
    }
    T *dq = g.dqkv + ((int64_t)b * a.T + own) * width + (int64_t)h * S::D;
    hy_bwd_store<S>(dq, width, sum, a.scale, a.T - own);
#endif
}
