/* attention_bwd.cu: causal attention backward on tensor cores, for 16-bit types.
 *
 * Weights p are computed again from the scores and the log-sum-exp. With delta = sum(dout out) of a row,
 * dp = dout v and ds = p (dp - delta):  dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout.
 * Two kernels: one walks over the keys of a tile of queries and sums dq, the other over the queries of a
 * tile of keys and sums dk and dv. Scores and dp are made in both, seven products in place of five; in
 * return every sum stays in registers, in a fixed order, and no block waits for another. */
#include "kernels/cuda/attention_bwd_tiles.cuh"

#define LOG2E 1.4426950408889634f

/* Positions of tensors in the call. */
enum { DOUT, QKV, DOCS, OUT, LSE, DQKV };

/* ---- dq: a tile of queries over its keys --------------------------------------------------------- */

template <int D> struct dq_shape : hy_bwd_shape<D> {
    using S = hy_bwd_shape<D>;
    static constexpr int KEYS = 32; /* whose scores a warp holds at once */
    static constexpr int N = KEYS / 16;
    static constexpr int PARTS = S::TILE / KEYS;
    /* Columns of dq, 16 at a time: those of warp 0 of a pair, and those of warp 1. */
    static constexpr int W0 = (S::STEPS + 1) / 2, W1 = S::STEPS / 2;
    static constexpr int SLOT = S::ROWS * KEYS * 2;
    static constexpr int SLOTS_AT = 4 * S::TILE_BYTES; /* two stages of keys and values before */
    static constexpr int ROWS_AT = SLOTS_AT + 2 * PARTS * SLOT;
    static constexpr int SHARED = ROWS_AT + 3 * S::TILE * 4;
    static_assert(SHARED <= 99 * 1024, "the limit of sm_120");
};

#if HY_HAS_TILES

/* What a warp knows of its rows: of each, lse (warp 0) or delta (warp 1). */
template <typename S> struct dq_rows {
    int own, end;       /* the pair's queries */
    int high;           /* the greatest first key of the block's queries */
    float value[S::M][2];
    const int *first;   /* the pair's first keys, in shared memory */
    float scale;        /* of scores, in units of log2 */
};

template <typename S>
__device__ __forceinline__ void dq_hide(float s[S::M][2 * S::N][4], const dq_rows<S> &rows, int key) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < S::M; m++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = m * 16 + e / 2 * 8 + lane / 4, first = rows.first[row] - key;
            int last = rows.own + row - key;
#pragma unroll
            for (int n = 0; n < 2 * S::N; n++) {
                int column = n * 8 + lane % 4 * 2 + e % 2;
                if (column < first || column > last) s[m][n][e] = 0;
            }
        }
    }
}

template <typename S>
__device__ __forceinline__ void dq_weigh(float s[S::M][2 * S::N][4], const dq_rows<S> &rows, int key) {
#pragma unroll
    for (int m = 0; m < S::M; m++) {
#pragma unroll
        for (int n = 0; n < 2 * S::N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[m][n][e] = hy_bwd_exp2(s[m][n][e] * rows.scale - rows.value[m][e / 2]);
            }
        }
    }
    if (key + S::KEYS - 1 > rows.own || key < rows.high) dq_hide<S>(s, rows, key);
}

/* One tile of keys, warp 0: weights for warp 1, then its columns of dq from the ds it gets back. */
template <typename S, typename T>
__device__ __forceinline__ void dq_tile_of_scores(float (*sum)[S::M][4],
                                                  const hy_bwd_operand<S> &q, uint32_t keys,
                                                  char *slots, int barrier, int key,
                                                  const dq_rows<S> &rows) {
    uint32_t p[S::M][S::N][4], by_column = keys + hy_bwd_by_column<S>();
    int parts = min(S::PARTS, (rows.end - key + S::KEYS - 1) / S::KEYS);
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
        float s[S::M][2 * S::N][4];
        hy_bwd_dot<S, T, S::N>(s, q, by_column + part * S::KEYS * S::ROW_BYTES);
        dq_weigh<S>(s, rows, key + part * S::KEYS);
        hy_bwd_pack<S, T, S::N>(p, s);
        hy_bwd_send<S, S::N>(slots + part * S::SLOT, p);
        hy_pair_arrive(barrier + part);
    }
    uint32_t by_row = keys + hy_bwd_by_row<S>();
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
        hy_pair_wait(barrier + S::PARTS + part);
        hy_bwd_receive<S, S::N>(p, slots + part * S::SLOT);
        hy_bwd_add<S, T, S::N, S::W0>(sum, p, by_row + part * S::KEYS * S::ROW_BYTES);
    }
}

/* Warp 1: dp, and with the weights of warp 0 ds and its columns of dq. */
template <typename S, typename T>
__device__ __forceinline__ void dq_tile_of_dp(float (*sum)[S::M][4], const hy_bwd_operand<S> &dout,
                                              uint32_t keys, char *slots, int barrier, int key,
                                              const dq_rows<S> &rows) {
    uint32_t by_column = keys + S::TILE_BYTES + hy_bwd_by_column<S>();
    uint32_t by_row = keys + hy_bwd_by_row<S>() + S::W0 * 32;
    int parts = min(S::PARTS, (rows.end - key + S::KEYS - 1) / S::KEYS);
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
        float s[S::M][2 * S::N][4];
        uint32_t p[S::M][S::N][4];
        char *slot = slots + part * S::SLOT;
        hy_bwd_dot<S, T, S::N>(s, dout, by_column + part * S::KEYS * S::ROW_BYTES);
        hy_pair_wait(barrier + part);
        hy_bwd_receive<S, S::N>(p, slot);
#pragma unroll
        for (int m = 0; m < S::M; m++) {
#pragma unroll
            for (int n = 0; n < 2 * S::N; n++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float2 weight = hy_bwd_unpair<T>(p[m][n / 2][n % 2 * 2 + r]);
                    s[m][n][2 * r] = weight.x * (s[m][n][2 * r] - rows.value[m][r]);
                    s[m][n][2 * r + 1] = weight.y * (s[m][n][2 * r + 1] - rows.value[m][r]);
                }
            }
        }
        hy_bwd_pack<S, T, S::N>(p, s);
        hy_bwd_send<S, S::N>(slot, p);
        hy_pair_arrive(barrier + S::PARTS + part);
        hy_bwd_add<S, T, S::N, S::W1>(sum, p, by_row + part * S::KEYS * S::ROW_BYTES);
    }
}

/* The first key of each query into `first`, and least and greatest of them. */
template <typename S>
__device__ __forceinline__ int2 dq_find_first_keys(const hy_cuda_heads &a, int b, int query,
                                                   int *first) {
    if (!a.docs && a.window <= 0) {
        if (threadIdx.x < S::TILE) first[threadIdx.x] = 0;
        return make_int2(0, 0);
    }
    for (int row = threadIdx.x; row < S::TILE; row += S::THREADS) {
        first[row] = hy_first_key(a, b, min(query + row, a.T - 1));
    }
    __syncthreads();
    int low = a.T, high = 0;
    for (int row = threadIdx.x % 32; row < S::TILE; row += 32) {
        low = min(low, first[row]);
        high = max(high, first[row]);
    }
    return make_int2(__reduce_min_sync(0xffffffffu, low), __reduce_max_sync(0xffffffffu, high));
}

/* delta of the block's rows, from dout in shared memory and out; and lse in units of log2. Both go to
 * shared memory, and to the workspace for the other kernel. */
template <typename S, typename T>
__device__ __forceinline__ void dq_find_delta(const hy_bwd_args<T> &g, int unit, int query,
                                              const T *out, const char *dout, float *lse2,
                                              float *delta) {
    constexpr int SHARE = S::THREADS / S::TILE; /* threads of a row */
    int row = threadIdx.x / SHARE, own = threadIdx.x % SHARE;
    int64_t at = (int64_t)unit * g.padded + query + row;
    bool is_there = query + row < g.a.T;
    float sum = 0;
    if (is_there) {
        out += row * (int64_t)g.a.H * S::D;
#pragma unroll
        for (int chunk = 0; chunk < S::CHUNKS; chunk += SHARE) {
            hy_pack<T> x = hy_load_pack(out + (chunk + own) * 8);
            hy_pack<T> y = hy_load_pack((const T *)(dout + row * S::ROW_BYTES) + (chunk + own) * 8);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += hy_to_float(x.v[i]) * hy_to_float(y.v[i]);
        }
    }
    for (int d = SHARE / 2; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (own != 0) return;
    float log = is_there ? g.lse[(int64_t)unit * g.a.T + query + row] * LOG2E : INFINITY;
    lse2[row] = g.lse2[at] = log;
    delta[row] = g.delta[at] = sum;
}

#endif

template <typename T, int D, int BLOCKS>
__global__ void __launch_bounds__(128, BLOCKS)
    hy_attention_dq_kernel(const __grid_constant__ hy_bwd_args<T> g) {
#if HY_HAS_TILES
    using S = dq_shape<D>;
    extern __shared__ __align__(128) char shared[];
    float *lse2 = (float *)(shared + S::ROWS_AT), *delta = lse2 + S::TILE;
    int *first = (int *)(delta + S::TILE);
    uint32_t base = hy_shared_address(shared);
    const hy_cuda_heads &a = g.a;

    hy_bwd_place place = hy_bwd_place_of(a.B * a.H, g.tiles, g.band);
    int b = place.unit / a.H, h = place.unit % a.H, kv_head = h / (a.H / a.K);
    int last = g.tiles - 1 - place.rank, query = last * S::TILE;
    int64_t width = (int64_t)(a.H + 2 * a.K) * D, row = (int64_t)b * a.T;
    int64_t out_at = (row + query) * a.H * D + (int64_t)h * D;
    const T *keys = g.qkv + row * width + (int64_t)(a.H + kv_head) * D;

    /* Queries and dout pass through stage 0; the first tile of keys goes to stage 1. */
    hy_bwd_fetch<S>(base, g.qkv + (row + query) * width + (int64_t)h * D, width, a.T - query);
    hy_bwd_fetch<S>(base + S::TILE_BYTES, g.dout + out_at, (int64_t)a.H * D, a.T - query);
    hy_copy_commit();
    int2 span = dq_find_first_keys<S>(a, b, query, first);
    if (a.docs && h == 0 && threadIdx.x == 0) g.first_keys[b * g.tiles + last] = span;
    auto fetch = [&](int tile, int stage) {
        uint32_t to = base + stage * 2 * S::TILE_BYTES;
        const T *from = keys + (int64_t)tile * S::TILE * width;
        hy_bwd_fetch<S>(to, from, width, a.T - tile * S::TILE);
        hy_bwd_fetch<S>(to + S::TILE_BYTES, from + (int64_t)a.K * D, width, a.T - tile * S::TILE);
    };
    int tile = span.x / S::TILE, stage = 1;
    fetch(tile, stage);
    hy_copy_commit();
    hy_copy_wait<1>();
    __syncthreads();
    dq_find_delta<S, T>(g, place.unit, query, g.out + out_at, shared + S::TILE_BYTES, lse2, delta);
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0), pair = warp / 2, role = warp % 2;
    hy_bwd_operand<S> operand;
    hy_bwd_load<S>(operand, base + role * S::TILE_BYTES + pair * S::ROWS * S::ROW_BYTES);
    __syncthreads();

    dq_rows<S> rows;
    rows.own = query + pair * S::ROWS;
    rows.end = rows.own + S::ROWS;
    rows.high = span.y;
    rows.first = first + pair * S::ROWS;
    rows.scale = a.scale * LOG2E;
    const float *value = (role == 0 ? lse2 : delta) + pair * S::ROWS + threadIdx.x % 32 / 4;
    float sum[2 * S::W0][S::M][4];
#pragma unroll
    for (int m = 0; m < S::M; m++) {
        rows.value[m][0] = value[m * 16];
        rows.value[m][1] = value[m * 16 + 8];
#pragma unroll
        for (int n = 0; n < 2 * S::W0; n++) sum[n][m][0] = sum[n][m][1] = sum[n][m][2] = sum[n][m][3] = 0;
    }
    char *slots = shared + S::SLOTS_AT + pair * S::PARTS * S::SLOT;
    int barrier = 1 + pair * 2 * S::PARTS;
    for (; tile <= last; tile++) {
        hy_copy_wait<0>();
        __syncthreads();
        if (tile < last) fetch(tile + 1, stage ^ 1);
        hy_copy_commit();
        uint32_t at = base + stage * 2 * S::TILE_BYTES;
        int key = tile * S::TILE;
        if (role == 0) dq_tile_of_scores<S, T>(sum, operand, at, slots, barrier, key, rows);
        else dq_tile_of_dp<S, T>(sum, operand, at, slots, barrier, key, rows);
        stage ^= 1;
    }
    T *dq = g.dqkv + (row + rows.own) * width + (int64_t)h * D;
    if (role == 0) hy_bwd_store<S, S::W0>(dq, width, sum, a.scale, a.T - rows.own);
    else hy_bwd_store<S, S::W1>(dq + S::W0 * 16, width, sum, a.scale, a.T - rows.own);
#endif
}

/* ---- dk and dv: a tile of keys over its queries -------------------------------------------------- */

template <int D> struct dkv_shape : hy_bwd_shape<D> {
    using S = hy_bwd_shape<D>;
    static constexpr int QUERIES = 16; /* whose scores a warp holds at once */
    static constexpr int N = QUERIES / 16;
    static constexpr int PARTS = S::TILE / QUERIES;
    static constexpr int SLOT = S::ROWS * QUERIES * 2;
    static constexpr int SLOTS_AT = 4 * S::TILE_BYTES; /* two stages of queries and dout before */
    static constexpr int ROWS_AT = SLOTS_AT + 2 * PARTS * SLOT;
    static constexpr int ROWS_STAGE = 2 * S::TILE * 4; /* lse2, then delta */
    static constexpr int SHARED = ROWS_AT + 2 * ROWS_STAGE;
    static_assert(SHARED <= 99 * 1024, "the limit of sm_120");
};

#if HY_HAS_TILES

/* Weights of scores s (keys, queries). */
template <typename S>
__device__ __forceinline__ void dkv_weigh(float s[S::M][2 * S::N][4], const float *lse2, float scale) {
#pragma unroll
    for (int n = 0; n < 2 * S::N; n++) {
        float2 lse = *(const float2 *)&lse2[n * 8 + threadIdx.x % 4 * 2];
#pragma unroll
        for (int m = 0; m < S::M; m++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                s[m][n][2 * r] = hy_bwd_exp2(s[m][n][2 * r] * scale - lse.x);
                s[m][n][2 * r + 1] = hy_bwd_exp2(s[m][n][2 * r + 1] * scale - lse.y);
            }
        }
    }
}

template <typename S>
__device__ __forceinline__ void dkv_hide(float s[S::M][2 * S::N][4], const hy_cuda_heads &a, int b,
                                         int query, int key) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 2 * S::N; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int i = query + n * 8 + lane % 4 * 2 + e;
            int first = hy_first_key(a, b, min(i, a.T - 1)) - key, last = i - key;
#pragma unroll
            for (int m = 0; m < S::M; m++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    int column = m * 16 + r * 8 + lane / 4;
                    if (column < first || column > last) s[m][n][2 * r + e] = 0;
                }
            }
        }
    }
}

/* s = dp becomes ds, with weights p. */
template <typename S, typename T>
__device__ __forceinline__ void dkv_subtract(float s[S::M][2 * S::N][4],
                                             const uint32_t p[S::M][S::N][4], const float *delta) {
#pragma unroll
    for (int n = 0; n < 2 * S::N; n++) {
        float2 d = *(const float2 *)&delta[n * 8 + threadIdx.x % 4 * 2];
#pragma unroll
        for (int m = 0; m < S::M; m++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float2 weight = hy_bwd_unpair<T>(p[m][n / 2][n % 2 * 2 + r]);
                s[m][n][2 * r] = weight.x * (s[m][n][2 * r] - d.x);
                s[m][n][2 * r + 1] = weight.y * (s[m][n][2 * r + 1] - d.y);
            }
        }
    }
}

/* The last tile of queries that sees a key up to `key`. With docs the tiles are looked through. */
template <typename T, int TILE>
__device__ __forceinline__ int dkv_last_tile(const hy_bwd_args<T> &g, int b, int key, int *found) {
    int last = g.tiles - 1;
    if (g.a.window > 0) last = (int)min((int64_t)last, ((int64_t)key + g.a.window - 1) / TILE);
    if (!g.a.docs) return last;
    if (threadIdx.x == 0) *found = key / TILE;
    __syncthreads();
    for (int tile = key / TILE + 1 + threadIdx.x; tile <= last; tile += blockDim.x) {
        if (g.first_keys[b * g.tiles + tile].x <= key) atomicMax(found, tile);
    }
    __syncthreads();
    return *found;
}

/* The greatest first key of a tile of queries. */
template <typename T, int TILE>
__device__ __forceinline__ int dkv_highest(const hy_bwd_args<T> &g, int b, int tile) {
    if (g.a.docs) return g.first_keys[b * g.tiles + tile].y;
    return g.a.window > 0 ? tile * TILE + TILE - g.a.window : 0;
}

#endif

template <typename T, int D, int BLOCKS>
__global__ void __launch_bounds__(128, BLOCKS)
    hy_attention_dkv_kernel(const __grid_constant__ hy_bwd_args<T> g) {
#if HY_HAS_TILES
    using S = dkv_shape<D>;
    extern __shared__ __align__(128) char shared[];
    __shared__ int found;
    uint32_t base = hy_shared_address(shared);
    const hy_cuda_heads &a = g.a;

    hy_bwd_place place = hy_bwd_place_of(a.B * a.K * g.parts, g.tiles, g.band);
    int part = place.unit % g.parts, b = place.unit / g.parts / a.K, kv_head = place.unit / g.parts % a.K;
    int heads = a.H / a.K / g.parts, h = kv_head * (a.H / a.K) + part * heads;
    int first = place.rank, key = first * S::TILE, tile = first;
    int64_t width = (int64_t)(a.H + 2 * a.K) * D, row = (int64_t)b * a.T;
    const T *keys = g.qkv + (row + key) * width + (int64_t)(a.H + kv_head) * D;

    auto fetch = [&](int stage) {
        uint32_t to = base + stage * 2 * S::TILE_BYTES;
        int query = tile * S::TILE;
        hy_bwd_fetch<S>(to, g.qkv + (row + query) * width + (int64_t)h * D, width, a.T - query);
        hy_bwd_fetch<S>(to + S::TILE_BYTES, g.dout + ((row + query) * a.H + h) * D,
                        (int64_t)a.H * D, a.T - query);
        if (threadIdx.x < S::TILE / 2) {
            int chunk = threadIdx.x % (S::TILE / 4), is_delta = threadIdx.x / (S::TILE / 4);
            const float *from = (is_delta ? g.delta : g.lse2) +
                                ((int64_t)b * a.H + h) * g.padded + query + chunk * 4;
            hy_copy_async(base + S::ROWS_AT + stage * S::ROWS_STAGE + threadIdx.x * 16, from, true);
        }
    };
    hy_bwd_fetch<S>(base + 2 * S::TILE_BYTES, keys, width, a.T - key);
    hy_bwd_fetch<S>(base + 3 * S::TILE_BYTES, keys + (int64_t)a.K * D, width, a.T - key);
    fetch(0);
    hy_copy_commit();
    int last = dkv_last_tile<T, S::TILE>(g, b, min(key + S::TILE, a.T) - 1, &found);
    int left = (last - first + 1) * heads;
    hy_copy_wait<0>();
    __syncthreads();
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0), pair = warp / 2, role = warp % 2;
    hy_bwd_operand<S> operand;
    hy_bwd_load<S>(operand, base + (2 + role) * S::TILE_BYTES + pair * S::ROWS * S::ROW_BYTES);

    float sum[S::D / 8][S::M][4];
#pragma unroll
    for (int m = 0; m < S::M; m++) {
#pragma unroll
        for (int n = 0; n < S::D / 8; n++) sum[n][m][0] = sum[n][m][1] = sum[n][m][2] = sum[n][m][3] = 0;
    }
    int own = key + pair * S::ROWS, barrier = 1 + pair * S::PARTS;
    float scale = a.scale * LOG2E;
    /* Warp 0 takes scores from q and sums dv over dout; warp 1 takes dp from dout and sums dk over q. */
    uint32_t dot_at = base + role * S::TILE_BYTES + hy_bwd_by_column<S>();
    uint32_t add_at = base + (1 - role) * S::TILE_BYTES + hy_bwd_by_row<S>();
    const float *row_values = (const float *)(shared + S::ROWS_AT) + role * S::TILE;
    char *slots = shared + S::SLOTS_AT + pair * S::PARTS * S::SLOT;
    for (int stage = 0; left > 0; left--, stage ^= 1) {
        int query = tile * S::TILE, high = dkv_highest<T, S::TILE>(g, b, tile);
        hy_copy_wait<0>();
        __syncthreads();
        if (left > 1) {
            if (++tile > last) tile = first, h++;
            fetch(stage ^ 1);
        }
        hy_copy_commit();
        /* Queries before the pair's first key see none of its keys. */
#pragma unroll 1
        for (int c = max(0, own - query) / S::QUERIES; c < S::PARTS; c++) {
            float s[S::M][2 * S::N][4];
            uint32_t p[S::M][S::N][4];
            uint32_t skip = stage * 2 * S::TILE_BYTES + c * S::QUERIES * S::ROW_BYTES;
            const float *values = row_values + stage * 2 * S::TILE + c * S::QUERIES;
            char *slot = slots + c * S::SLOT;
            int q = query + c * S::QUERIES;
            hy_bwd_dot<S, T, S::N>(s, operand, dot_at + skip);
            if (role == 0) {
                dkv_weigh<S>(s, values, scale);
                if (own + S::ROWS - 1 > q || own < high) dkv_hide<S>(s, a, b, q, own);
                hy_bwd_pack<S, T, S::N>(p, s);
                hy_bwd_send<S, S::N>(slot, p);
                hy_pair_arrive(barrier + c);
            } else {
                hy_pair_wait(barrier + c);
                hy_bwd_receive<S, S::N>(p, slot);
                dkv_subtract<S, T>(s, p, values);
                hy_bwd_pack<S, T, S::N>(p, s);
            }
            hy_bwd_add<S, T, S::N, S::STEPS>(sum, p, add_at + skip);
        }
    }
    float factor = role == 0 ? 1 : a.scale;
    int64_t head_at = (row + own) * a.K * D + (int64_t)kv_head * D;
    if (g.parts > 1) {
        float *to = g.partial + (part * 2 + 1 - role) * ((int64_t)a.B * a.T * a.K * D) + head_at;
        hy_bwd_store<S, S::STEPS>(to, (int64_t)a.K * D, sum, factor, a.T - own);
    } else {
        T *to = g.dqkv + (row + own) * width + (int64_t)(a.H + (1 - role) * a.K + kv_head) * D;
        hy_bwd_store<S, S::STEPS>(to, width, sum, factor, a.T - own);
    }
#endif
}

/* dk and dv of a key head: its parts, added in order. A thread takes four columns of dk and dv, which lie
 * side by side in a row of dqkv. */
template <typename T> __global__ void hy_attention_dkv_sum_kernel(hy_bwd_args<T> g) {
    int64_t wide = (int64_t)g.a.K * g.a.D, count = (int64_t)g.a.B * g.a.T * wide;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4, which = i / count;
    if (which >= 2) return;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int part = 0; part < g.parts; part++) {
        float4 x = *(const float4 *)(g.partial + part * 2 * count + i);
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    int64_t at = i - which * count, row = at / wide, column = at % wide;
    T *to = g.dqkv + row * ((int64_t)(g.a.H + 2 * g.a.K) * g.a.D) + (g.a.H * g.a.D + which * wide) +
            column;
    T four[4] = {hy_from_float<T>(sum.x), hy_from_float<T>(sum.y), hy_from_float<T>(sum.z),
                 hy_from_float<T>(sum.w)};
    *(uint2 *)to = *(const uint2 *)four;
}

/* ---- launching ------------------------------------------------------------------------------------ */

/* How a call is cut, and what of the workspace goes where. */
typedef struct bwd_layout {
    int tile, tiles, parts;
    size_t lse2, delta, first_keys, partial, bytes;
} bwd_layout;

/* Query heads that share keys are summed by one block, unless the longest block would then outlast the
 * others: with `slots` blocks at work at a time it may take three quarters of their common share. */
static int parts_of(const hy_cuda *cuda, const hy_cuda_heads *a, int tiles) {
    int group = a->H / a->K;
    double slots = 2.0 * cuda->card.multiprocessors;
    double share = (double)a->B * a->H * tiles * (tiles + 1) / 2 / slots;
    for (int parts = 1; parts < group; parts++) {
        if (group % parts == 0 && (double)(group / parts) * tiles <= 0.75 * share) return parts;
    }
    return group;
}

static bwd_layout layout_of(const hy_cuda *cuda, const hy_op_call *call) {
    hy_cuda_heads a = hy_cuda_heads_of(call, &call->t[DOCS]);
    bwd_layout l = {};
    l.tile = a.D > 128 ? 32 : 64;
    l.tiles = (int)hy_ceil_div(a.T, l.tile);
    l.parts = parts_of(cuda, &a, l.tiles);
    size_t rows = (size_t)a.B * a.H * l.tiles * l.tile;
    auto take = [&](size_t bytes) {
        size_t at = l.bytes;
        l.bytes += (bytes + 255) / 256 * 256;
        return at;
    };
    l.lse2 = take(rows * sizeof(float));
    l.delta = take(rows * sizeof(float));
    l.first_keys = take((size_t)a.B * l.tiles * sizeof(int2));
    l.partial =
        take(l.parts > 1 ? (size_t)l.parts * 2 * a.B * a.T * a.K * a.D * sizeof(float) : 0);
    return l;
}

size_t hy_cuda_attention_bwd_tiles_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    return layout_of(cuda, call).bytes;
}

template <typename T> static hy_bwd_args<T> args_of(const hy_cuda_run *run, const bwd_layout *l) {
    const hy_tensor *t = run->call->t;
    char *workspace = (char *)run->call->workspace.data;
    hy_bwd_args<T> g = {};
    g.a = hy_cuda_heads_of(run->call, &t[DOCS]);
    g.dout = (const T *)t[DOUT].data;
    g.qkv = (const T *)t[QKV].data;
    g.out = (const T *)t[OUT].data;
    g.dqkv = (T *)t[DQKV].data;
    g.lse = (const float *)t[LSE].data;
    g.lse2 = (float *)(workspace + l->lse2);
    g.delta = (float *)(workspace + l->delta);
    g.first_keys = (int2 *)(workspace + l->first_keys);
    g.partial = (float *)(workspace + l->partial);
    g.tiles = l->tiles;
    g.padded = l->tiles * l->tile;
    g.parts = l->parts;
    return g;
}

/* Units whose two matrices of T rows fill a quarter of the L2 cache. */
static int band_of(const hy_cuda *cuda, const hy_cuda_heads *a, int units, int heads) {
    double bytes = 4.0 * a->T * a->D * heads, fit = (double)cuda->card.l2_bytes / 4 / bytes;
    return fit < 1 ? 1 : fit > units ? units : (int)fit;
}

template <typename T, int D, int DQ_BLOCKS, int DKV_BLOCKS>
static hy_status launch(const hy_cuda_run *run) {
    bwd_layout l = layout_of(run->cuda, run->call);
    hy_bwd_args<T> g = args_of<T>(run, &l);
    const hy_cuda_heads *a = &g.a;

    auto dq = hy_attention_dq_kernel<T, D, DQ_BLOCKS>;
    int units = a->B * a->H, shared = dq_shape<D>::SHARED;
    HY_CUDA_TRY(hy_cuda_check(
        run->cuda, cudaFuncSetAttribute(dq, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "attention backward"));
    g.band = band_of(run->cuda, a, units, 1);
    dq<<<(unsigned)(units * l.tiles), 128, shared, run->stream>>>(g);

    auto dkv = hy_attention_dkv_kernel<T, D, DKV_BLOCKS>;
    units = a->B * a->K * l.parts, shared = dkv_shape<D>::SHARED;
    HY_CUDA_TRY(hy_cuda_check(
        run->cuda, cudaFuncSetAttribute(dkv, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "attention backward"));
    g.band = band_of(run->cuda, a, units, a->H / a->K / l.parts);
    dkv<<<(unsigned)(units * l.tiles), 128, shared, run->stream>>>(g);

    if (l.parts > 1) {
        int64_t fours = (int64_t)a->B * a->T * a->K * D / 2;
        hy_attention_dkv_sum_kernel<T>
            <<<(unsigned)hy_ceil_div(fours, 256), 256, 0, run->stream>>>(g);
    }
    return hy_cuda_launched(run);
}

template <typename T> static hy_status launch_for_size(const hy_cuda_run *run) {
    switch (run->call->attr.heads.head_dim) {
    case 64: return launch<T, 64, 3, 3>(run);
    case 80: return launch<T, 80, 3, 3>(run);
    case 96: return launch<T, 96, 2, 2>(run);
    case 128: return launch<T, 128, 2, 2>(run);
    case 256: return launch<T, 256, 2, 2>(run);
    default:
        return hy_cuda_fail(run->cuda, HY_ERR_INPUT,
                            "attention backward: head size %d has no tiles, expected 64, 80, 96, "
                            "128 or 256",
                            run->call->attr.heads.head_dim);
    }
}

hy_status hy_cuda_attention_bwd_tiles(const hy_cuda_run *run) {
    if (run->call->t[QKV].dtype == HY_BF16) return launch_for_size<__nv_bfloat16>(run);
    return launch_for_size<__half>(run);
}
