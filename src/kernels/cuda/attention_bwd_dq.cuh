/* attention_bwd_dq.cuh: dq, by iterating over the keys that some queries see.
 *
 * Each warp has its own queries, with q and dout as operands and dq as a sum in registers; warps
 * exchange nothing. The kernel runs before that of dk and dv and stores results for it: delta of
 * each row, lse in units of log2, and, with doc_starts, the smallest and largest first key of each
 * span. */
#pragma once

#include "kernels/cuda/attention_bwd_tiles.cuh"

template <typename S> struct hy_dq_shape : S {
    static constexpr int ROWS_AT = S::TILES_END; /* lse2, delta and first key of each query */
    /* followed by eight numbers of the loop, and the gaps of each warp */
    static constexpr int GAPS_AT = ROWS_AT + 3 * S::OWN * 4 + 32;
    static constexpr int SHARED = GAPS_AT + S::THREADS / 32 * 16;
    static_assert(SHARED <= 99 * 1024, "the limit of sm_120");
    static_assert(S::OWN * 32 == S::ROWS * S::THREADS, "no two warps share a row");
};

#if HY_HAS_TILES

/* Stores the first key of each query in `first`, and the smallest and largest of them; those of
 * each span in `spans`, if present. */
template <typename S>
__device__ __forceinline__ int2 hy_dq_find_first_keys(const hy_cuda_heads &a, int b, int query,
                                                      int *first, int2 *spans) {
    for (int row = threadIdx.x; row < S::OWN; row += S::THREADS) {
        first[row] = hy_first_key(a, b, min(query + row, a.T - 1));
    }
    if (!a.doc_starts && a.window <= 0) return make_int2(0, 0);
    __syncthreads();
    int2 both = make_int2(a.T, 0);
    for (int span = 0; span < S::OWN / HY_BWD_SPAN; span++) {
        int key = first[span * HY_BWD_SPAN + threadIdx.x % HY_BWD_SPAN];
        int low = __reduce_min_sync(0xffffffffu, key), high = __reduce_max_sync(0xffffffffu, key);
        if (spans && threadIdx.x == 0) spans[span] = make_int2(low, high);
        both = make_int2(min(both.x, low), max(both.y, high));
    }
    return both;
}

/* delta of the block's rows, from dout in shared memory and out; and lse in units of log2. Both are
 * stored in shared memory, and in the workspace for the other kernel. */
template <typename S, typename T>
__device__ __forceinline__ void hy_dq_find_delta(const hy_bwd_args<T> &g, int unit, int query,
                                                 const T *out, const char *dout, float *lse2,
                                                 float *delta) {
    constexpr int SHARE = S::THREADS / S::OWN; /* threads of a row */
    int row = threadIdx.x / SHARE, own = threadIdx.x % SHARE;
    int64_t at = (int64_t)unit * g.padded + query + row;
    bool is_there = query + row < g.a.T;
    float sum = 0;
    if (is_there) {
        out += row * (int64_t)g.a.H * S::D;
#pragma unroll
        for (int pack = 0; pack < S::PACKS; pack += SHARE) {
            hy_pack<T> x = hy_load_pack(out + (pack + own) * 8);
            int place = hy_bwd_place<S>(row, pack + own);
            hy_pack<T> y = hy_load_pack((const T *)(dout + row * S::ROW_BYTES) + place * 8);
            HY_EACH(i, 8) sum += hy_to_float(x.v[i]) * hy_to_float(y.v[i]);
        }
    }
    for (int d = SHARE / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (own != 0) return;
    float log = is_there ? g.lse[(int64_t)unit * g.a.T + query + row] * HY_LOG2E : INFINITY;
    lse2[row] = g.lse2[at] = log;
    delta[row] = g.delta[at] = sum;
}

/* Clears the weights of keys that a query does not see. `first` has the first keys of the lane's
 * rows; `own` is the first query of the warp. */
template <typename S, bool IS_SPARSE>
__device__ __forceinline__ void hy_dq_hide(float p[S::M][2 * S::N][4], const int *first,
                                           const hy_cuda_heads &a, int own, int key) {
    int lane = threadIdx.x % 32;
    HY_EACH(m, S::M) {
        HY_EACH(e, 4) {
            int row = m * 16 + e / 2 * 8, low = first[row] - key, high = own + row + lane / 4 - key;
            hy_gap gap = {};
            if (IS_SPARSE) gap = hy_sparse_gap(a.local, a.global, low, high);
            HY_EACH(n, 2 * S::N) {
                int column = n * 8 + lane % 4 * 2 + e % 2;
                bool is_in_gap = IS_SPARSE && column >= gap.begin && column < gap.end;
                if (column < low || column > high || is_in_gap) p[m][n][e] = 0;
            }
        }
    }
}

/* The state of a warp. */
template <typename S> struct hy_dq_warp {
    int own;           /* the first of them */
    int high;          /* the largest first key of the block's queries */
    const float *rows; /* lse2 of the lane's rows; delta and first keys follow, OWN apart */
};

/* The gaps of a warp's queries, in shared memory. */
template <typename S> __device__ __forceinline__ hy_gaps *hy_dq_gaps() {
    extern __shared__ __align__(256) char shared[];
    return (hy_gaps *)(shared + S::GAPS_AT) + hy_bwd_anew(threadIdx.x) / 32;
}

/* One chunk of keys: ds from scores and dp, and its contribution to dq. `keys` and `values` are
 * where the chunk begins in shared memory. Capped, p has its factor 1 - tanh^2. */
template <typename S, typename T, bool IS_CAPPED, bool IS_SPARSE>
__device__ __forceinline__ void hy_dq_chunk(float (*sum)[S::M][4], const hy_bwd_operand<S> &q,
                                            const hy_bwd_operand<S> &dout, const hy_dq_warp<S> &w,
                                            const hy_cuda_heads &a, float scale2, float inner,
                                            uint32_t keys, uint32_t values, int key) {
    float p[S::M][2 * S::N][4], dp[S::M][2 * S::N][4];
    uint32_t ds[S::M][S::N][4];
    hy_bwd_dot<S, T>(p, q, keys + hy_bwd_by_column<S>());
    hy_bwd_dot<S, T>(dp, dout, values + hy_bwd_by_column<S>());
    HY_EACH(i, 2 * S::M) { /* rows of the lane */
        float lse2 = w.rows[i * 8];
        HY_EACH(n, 2 * S::N) {
            float *two = &p[i / 2][n][i % 2 * 2];
            HY_EACH(e, 2) {
                if (IS_CAPPED) two[e] = hy_tanh(two[e] * inner);
                float factor = IS_CAPPED ? 1.0f - two[e] * two[e] : 1.0f;
                two[e] = hy_exp2(two[e] * scale2 - lse2);
                if (IS_CAPPED) two[e] *= factor;
            }
        }
    }
    bool is_edge = key + S::CHUNK - 1 > w.own || key < w.high;
    if (IS_SPARSE) is_edge |= hy_gap_touches(hy_dq_gaps<S>()->any, key, S::CHUNK);
    if (is_edge) hy_dq_hide<S, IS_SPARSE>(p, (const int *)(w.rows + 2 * S::OWN), a, w.own, key);
    HY_EACH(i, 2 * S::M) {
        float delta = w.rows[S::OWN + i * 8];
        HY_EACH(n, 2 * S::N) {
            float *two = &p[i / 2][n][i % 2 * 2];
            two[0] *= dp[i / 2][n][i % 2 * 2] - delta;
            two[1] *= dp[i / 2][n][i % 2 * 2 + 1] - delta;
        }
    }
    hy_bwd_pack<S, T>(ds, p);
    hy_bwd_add<S, T>(sum, ds, keys + hy_bwd_by_row<S>());
}

/* Starts the copy of a tile of keys and values. */
template <typename S, typename T>
__device__ __forceinline__ void hy_dq_fetch(const hy_bwd_args<T> &g, uint32_t to, int b,
                                            int kv_head, int key) {
    int heads = hy_bwd_anew(g.a.H), there = g.a.T - key;
    int64_t width = (int64_t)(heads + 2 * g.a.K) * S::D;
    const T *from = g.qkv + ((int64_t)b * g.a.T + key) * width + (int64_t)(heads + kv_head) * S::D;
    hy_bwd_fetch<S, S::TILE>(to, from, width, there);
    hy_bwd_fetch<S, S::TILE>(to + S::TILE_BYTES, from + (int64_t)g.a.K * S::D, width, there);
}

#endif

/* Blocks of the last queries, which see most keys, go first, so the last ones are short. */
template <typename S, typename T, bool IS_CAPPED, bool IS_SPARSE>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    hy_attention_dq_kernel(const __grid_constant__ hy_bwd_args<T> g) {
#if HY_HAS_TILES
    extern __shared__ __align__(256) char shared[]; /* a flat row is 256 bytes */
    float *lse2 = (float *)(shared + S::ROWS_AT), *delta = lse2 + S::OWN;
    int *first = (int *)(delta + S::OWN);
    /* Sequence, key head, last tile, largest first key, tiles left out: read again in each step. */
    int *walk = first + S::OWN;
    uint32_t base = hy_shared_address(shared), own_at = base + S::OWN_AT;
    const hy_cuda_heads &a = g.a;

    int units = a.B * a.H, unit = blockIdx.x % units, rank = blockIdx.x / units;
    int b = unit / a.H, h = unit % a.H, kv_head = h / (a.H / a.K);
    int query = ((a.T - 1) / S::OWN - rank) * S::OWN;
    int64_t width = (int64_t)(a.H + 2 * a.K) * S::D, row = (int64_t)b * a.T + query;
    int64_t out_at = (row * a.H + h) * S::D;

    hy_bwd_fetch<S, S::OWN>(own_at, g.qkv + row * width + (int64_t)h * S::D, width, a.T - query);
    hy_bwd_fetch<S, S::OWN>(own_at + S::OWN_BYTES, g.dout + out_at, (int64_t)a.H * S::D,
                            a.T - query);
    hy_copy_commit();
    int2 *spans = a.doc_starts && h == 0 ? g.first_keys + b * g.spans + query / HY_BWD_SPAN : NULL;
    int2 span = hy_dq_find_first_keys<S>(a, b, query, first, spans);
    hy_left_out left_out = {};
    if (IS_SPARSE)
        left_out = hy_left_out_of(hy_gap_of_rows(a, b, query, min(query + S::OWN, a.T)), S::TILE);
    int tile = span.x / S::TILE, last = (min(query + S::OWN, a.T) - 1) / S::TILE - left_out.count;
    if (threadIdx.x == 0) walk[0] = b, walk[1] = kv_head, walk[2] = last, walk[3] = span.y;
    if (IS_SPARSE && threadIdx.x == 0) walk[4] = left_out.first, walk[5] = left_out.count;
    /* Tiles are numbered without those that are left out. */
    hy_dq_fetch<S>(g, base, b, kv_head, hy_tile_behind(left_out, tile) * S::TILE);
    hy_copy_commit();
    hy_copy_wait<1>();
    __syncthreads();
    hy_dq_find_delta<S, T>(g, unit, query, g.out + out_at, shared + S::OWN_AT + S::OWN_BYTES, lse2,
                           delta);
    __syncthreads();

    /* Rows of the warps before this one. */
    int skipped = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0) * S::ROWS;
    hy_bwd_operand<S> q, dout;
    hy_bwd_keep<S>(q, own_at + skipped * S::ROW_BYTES);
    hy_bwd_keep<S>(dout, own_at + S::OWN_BYTES + skipped * S::ROW_BYTES);
    hy_dq_warp<S> w;
    w.own = query + skipped;
    w.rows = lse2 + skipped + threadIdx.x % 32 / 4;
    if (IS_SPARSE) {
        int document = first[skipped + threadIdx.x % S::ROWS];
        int before = __reduce_min_sync(0xffffffffu, document);
        int after = __reduce_max_sync(0xffffffffu, document);
        if (threadIdx.x % 32 == 0) /* read after the next barrier */
            *hy_dq_gaps<S>() = hy_gaps_of(a.local, a.global, before, after, w.own, S::ROWS);
    }
    float sum[2 * S::STEPS][S::M][4];
    hy_bwd_clear<S>(sum);
    for (int stage = 0; tile <= walk[2]; tile++, stage ^= 1) {
        hy_copy_wait<0>();
        __syncthreads();
        int here = tile, after = tile + 1;
        if (IS_SPARSE) {
            hy_left_out out = {walk[4], walk[5]};
            here = hy_tile_behind(out, here), after = hy_tile_behind(out, after);
        }
        if (tile < walk[2]) {
            uint32_t next = base + (stage ^ 1) * S::STAGE_BYTES;
            hy_dq_fetch<S>(g, next, walk[0], walk[1], after * S::TILE);
        }
        hy_copy_commit();
        w.high = walk[3];
        /* No query of the warp sees keys after its last query. */
        int key = here * S::TILE, end = min(key + S::TILE, w.own + S::ROWS);
        uint32_t keys = base + stage * S::STAGE_BYTES;
#pragma unroll 1
        for (; key < end; key += S::CHUNK) {
            hy_dq_chunk<S, T, IS_CAPPED, IS_SPARSE>(sum, q, dout, w, a, g.scale2, g.inner, keys,
                                                    keys + S::TILE_BYTES, key);
            keys += S::CHUNK * S::ROW_BYTES;
        }
    }
    unit = hy_bwd_anew(blockIdx.x) % units;
    row = (int64_t)(unit / a.H) * a.T + w.own;
    T *dq = g.dqkv + row * width + (int64_t)(unit % a.H) * S::D;
    hy_bwd_store<S>(dq, width, sum, a.scale, a.T - w.own);
#endif
}
