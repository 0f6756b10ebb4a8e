/* attention_cached.cu: attention of new tokens to all earlier tokens, with a cache.
 *
 * There are three kernels: write keys and values of the new rows to the cache; compute partial sums
 * over stretches of keys; combine the stretches of each row. The speed depends on reading the
 * cache, so a block works on several queries at a time that share a key head: those of one group of
 * heads and of neighbouring rows, numbered row * group + head ("queries" below). A warp takes every
 * WARPS-th key of the block's stretch; its lanes hold the columns of a head. Each sum has one owner
 * and one order. A cache in blocks has its own kernels (attention_blocks.cu). */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/tile.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, STRETCH = 128 /* minimum number of keys per block */ };

typedef struct cached_call {
    hy_cuda_heads a;
    int first;          /* position of row 0 */
    int group, queries; /* heads that share keys; T * group */
    int stretch;        /* keys per block */
    int stretches;      /* number of blocks over the keys */
    float inner;        /* factor of q k; capped: before tanh */
    int64_t room;       /* rows of the cache per sequence */
    hy_tensor qkv, cache, out;
    float *partial; /* (B K, queries, stretches, D + 2): sums, then maximum and total */
} cached_call;

/* ---- appending ------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) append_rows(cached_call c, int64_t count) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t width = 2 * (int64_t)c.a.K * c.a.D, packed = width + (int64_t)c.a.H * c.a.D;
    if (i >= count) return;
    int64_t row = i / width, column = i % width;
    int64_t to = (row / c.a.T * c.room + c.first + row % c.a.T) * width + column;
    float x = hy_load_any(c.qkv.data, row * packed + (int64_t)c.a.H * c.a.D + column, c.qkv.dtype);
    hy_store_any(c.cache.data, to, c.cache.dtype, x);
}

/* ---- partial sums ---------------------------------------------------------------------------- */

__device__ __forceinline__ int first_seen(const cached_call &c, int position) {
    return c.a.window > 0 ? max(0, position - c.a.window + 1) : 0;
}

/* The result of a warp or block for a query. */
template <int COLUMNS> struct finding {
    float sum[COLUMNS];
    float high, total;
};

/* Adds a key to the result of a query. `score` is the same in all lanes. */
template <int C>
__device__ __forceinline__ void take_key(float score, const float value[C], float sum[C],
                                         float &high, float &total) {
    float now = fmaxf(high, score), shrink = expf(high - now), weight = expf(score - now);
    high = now;
    total = total * shrink + weight;
    HY_EACH(i, C) sum[i] = sum[i] * shrink + weight * value[i];
}

/* Queries [query, query + R) of a group against every WARPS-th key of [from, to). */
template <typename T, int C, int R, bool IS_CAPPED>
__device__ __forceinline__ void walk(const cached_call &c, int b, int kv_head, int query, int from,
                                     int to, finding<32 * C> *found) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, D = c.a.D;
    int64_t packed = ((int64_t)c.a.H + 2 * c.a.K) * D, width = 2 * (int64_t)c.a.K * D;
    const T *keys = (const T *)c.cache.data + b * c.room * width + (int64_t)kv_head * D;
    const T *values = keys + (int64_t)c.a.K * D;
    float q[R][C], sum[R][C], high[R], total[R];
    int position[R];
    HY_EACH(r, R) {
        int at = min(query + r, c.queries - 1);
        int64_t head = (int64_t)kv_head * c.group + at % c.group;
        int64_t begin = ((int64_t)b * c.a.T + at / c.group) * packed + head * D;
        position[r] = c.first + at / c.group;
        high[r] = -INFINITY;
        total[r] = 0;
        HY_EACH(i, C) {
            int column = lane + 32 * i;
            sum[r][i] = 0;
            q[r][i] =
                column < D ? hy_load_any(c.qkv.data, begin + column, c.qkv.dtype) * c.inner : 0.0f;
        }
    }
    for (int key = from + warp; key < to; key += WARPS) {
        float k[C], v[C];
        HY_EACH(i, C) {
            int column = lane + 32 * i;
            k[i] = column < D ? hy_to_float(keys[key * width + column]) : 0.0f;
            v[i] = column < D ? hy_to_float(values[key * width + column]) : 0.0f;
        }
        HY_EACH(r, R) {
            if (key > position[r] || key < first_seen(c, position[r])) continue;
            float score = 0;
            HY_EACH(i, C) score = fmaf(q[r][i], k[i], score);
            score = hy_warp_sum(score);
            if (IS_CAPPED) score = c.a.softcap * hy_tanh(score);
            take_key<C>(score, v, sum[r], high[r], total[r]);
        }
    }
    HY_EACH(r, R) {
        finding<32 *C> *mine = &found[warp * R + r];
        HY_EACH(i, C) mine->sum[lane + 32 * i] = sum[r][i];
        if (lane == 0) mine->high = high[r], mine->total = total[r];
    }
}

template <typename T, int C, int R, bool IS_CAPPED>
static __global__ void __launch_bounds__(THREADS) attend(cached_call c) {
    __shared__ finding<32 * C> found[WARPS * R];
    int b = blockIdx.y / c.a.K, kv_head = blockIdx.y % c.a.K, query = blockIdx.x * R;
    int last = c.first + min(query + R - 1, c.queries - 1) / c.group;
    int from = max((int)blockIdx.z * c.stretch, first_seen(c, c.first + query / c.group));
    int to = min(((int)blockIdx.z + 1) * c.stretch, last + 1);
    walk<T, C, R, IS_CAPPED>(c, b, kv_head, query, from, to, found);
    __syncthreads();
    for (int i = threadIdx.x; i < R * 32 * C; i += THREADS) {
        int r = i / (32 * C), column = i % (32 * C);
        if (query + r >= c.queries || column >= c.a.D) continue;
        float high = -INFINITY, total = 0, sum = 0;
        for (int w = 0; w < WARPS; w++) high = fmaxf(high, found[w * R + r].high);
        for (int w = 0; w < WARPS; w++) {
            const finding<32 *C> *one = &found[w * R + r];
            float share = one->total > 0 ? expf(one->high - high) : 0.0f;
            total += one->total * share;
            sum += one->sum[column] * share;
        }
        int64_t row = ((int64_t)blockIdx.y * c.queries + query + r) * c.stretches + blockIdx.z;
        float *to_row = c.partial + row * (c.a.D + 2);
        to_row[column] = sum;
        if (column == 0) to_row[c.a.D] = high, to_row[c.a.D + 1] = total;
    }
}

/* ---- joining --------------------------------------------------------------------------------- */

/* One block for each query of each key head. */
static __global__ void __launch_bounds__(THREADS) join(cached_call c) {
    int b = blockIdx.y / c.a.K, kv_head = blockIdx.y % c.a.K, query = blockIdx.x, D = c.a.D;
    const float *rows =
        c.partial + ((int64_t)blockIdx.y * c.queries + query) * c.stretches * (D + 2);
    float high = -INFINITY;
    for (int s = 0; s < c.stretches; s++) high = fmaxf(high, rows[s * (D + 2) + D]);
    int64_t head = (int64_t)kv_head * c.group + query % c.group;
    float sink = c.a.sinks ? hy_sink(c.a, (int)head) : -INFINITY;
    high = fmaxf(high, sink);
    int64_t to = (((int64_t)b * c.a.T + query / c.group) * c.a.H + head) * D;
    for (int column = threadIdx.x; column < D; column += THREADS) {
        float total = c.a.sinks ? expf(sink - high) : 0.0f, sum = 0;
        for (int s = 0; s < c.stretches; s++) {
            const float *row = rows + s * (D + 2);
            float share = row[D + 1] > 0 ? expf(row[D] - high) : 0.0f;
            total += row[D + 1] * share;
            sum += row[column] * share;
        }
        hy_store_any(c.out.data, to + column, c.out.dtype, sum / total);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Queries per block: more of them read the cache less often, as long as their sums fit into
 * registers. There are as many stretches as keep the card busy, but none so short that a block has
 * nothing to do. */
static cached_call describe(const hy_cuda *cuda, const hy_op_call *call) {
    cached_call c = {};
    c.a = hy_cuda_heads_of(call);
    c.inner = c.a.softcap > 0 ? c.a.scale / c.a.softcap : c.a.scale;
    c.first = call->attr.heads.first;
    c.group = c.a.H / c.a.K;
    c.queries = c.a.T * c.group;
    int of_block = c.queries == 1 ? 1 : c.a.D <= 128 ? 8 : 4;
    int64_t blocks = hy_ceil_div(c.queries, of_block) * (int64_t)c.a.B * c.a.K;
    int64_t wanted = hy_ceil_div(4 * (int64_t)cuda->card.multiprocessors, blocks);
    int64_t most = hy_ceil_div(c.first + c.a.T, STRETCH);
    c.stretches = (int)(wanted < most ? wanted : most);
    c.stretch = (int)hy_ceil_div(c.first + c.a.T, c.stretches);
    c.room = call->t[HY_ATTENTION_CACHED_CACHE].shape[1];
    c.qkv = call->t[HY_ATTENTION_CACHED_QKV], c.cache = call->t[HY_ATTENTION_CACHED_CACHE],
    c.out = call->t[HY_ATTENTION_CACHED_OUT];
    c.partial = (float *)call->workspace.data;
    return c;
}

/* It grows with the position of the first row; a plan asks for the last position. */
size_t hy_cuda_attention_cached_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    if (hy_has(&call->t[HY_ATTENTION_CACHED_FIRST])) return hy_attention_blocks_workspace(call);
    cached_call c = describe(cuda, call);
    return (size_t)c.a.B * c.a.K * c.queries * c.stretches * (size_t)(c.a.D + 2) * sizeof(float);
}

template <typename T, int C, int R>
static void launch(const hy_cuda_run *run, const cached_call &c) {
    dim3 grid((unsigned)hy_ceil_div(c.queries, R), (unsigned)(c.a.B * c.a.K),
              (unsigned)c.stretches);
    auto kernel = c.a.softcap > 0 ? attend<T, C, R, true> : attend<T, C, R, false>;
    kernel<<<grid, THREADS, 0, run->stream>>>(c);
}

template <typename T> static void launch_head_size(const hy_cuda_run *run, const cached_call &c) {
    bool is_single = c.queries == 1;
    if (c.a.D <= 32)
        is_single ? launch<T, 1, 1>(run, c) : launch<T, 1, 8>(run, c);
    else if (c.a.D <= 64)
        is_single ? launch<T, 2, 1>(run, c) : launch<T, 2, 8>(run, c);
    else if (c.a.D <= 128)
        is_single ? launch<T, 4, 1>(run, c) : launch<T, 4, 8>(run, c);
    else
        is_single ? launch<T, 8, 1>(run, c) : launch<T, 8, 4>(run, c);
}

hy_status hy_cuda_attention_cached(const hy_cuda_run *run) {
    if (hy_has(&run->call->t[HY_ATTENTION_CACHED_FIRST])) return hy_attention_blocks(run);
    cached_call c = describe(run->cuda, run->call);
    int64_t count = (int64_t)c.a.B * c.a.T * 2 * c.a.K * c.a.D;
    append_rows<<<(unsigned)hy_ceil_div(count, THREADS), THREADS, 0, run->stream>>>(c, count);
    HY_TRY(hy_cuda_launched(run));
    hy_by_type(c.cache.dtype, [&](auto zero) { launch_head_size<decltype(zero)>(run, c); });
    HY_TRY(hy_cuda_launched(run));
    join<<<dim3((unsigned)c.queries, (unsigned)(c.a.B * c.a.K)), THREADS, 0, run->stream>>>(c);
    return hy_cuda_launched(run);
}
