/* attention_blocks.cu: cached attention over a pool of blocks, of sequences at different positions.
 *
 * For one token of each sequence, partial sums over ranges of keys and then the sum of ranges; for
 * chunks of a prompt, blocks of threads that go through all ranges. On tensor cores where possible
 * (attention_blocks_tiles.cu); the kernels here serve every type and head size. */
#include "kernels/cuda/attention_blocks.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS };

/* ---- appending ------------------------------------------------------------------------------- */

/* The output of an idle sequence: zeros, so that nothing undefined is read later. */
__device__ __forceinline__ void clear_out(const hy_block_call &c, int64_t at, int64_t count) {
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        hy_store_any(c.out, at + i, c.out_type, 0);
    }
}

/* A block for each new row. */
static __global__ void __launch_bounds__(THREADS) append_rows(hy_block_call c) {
    int b = blockIdx.x / c.a.T, t = blockIdx.x % c.a.T, first = c.first[b];
    int64_t queries = (int64_t)c.a.H * c.a.D, width = 2 * (int64_t)c.a.K * c.a.D;
    if (first < 0) return clear_out(c, blockIdx.x * queries, queries);
    int64_t from = (int64_t)blockIdx.x * (queries + width) + queries;
    int64_t to = hy_pool_row(c, b, first + t) * width;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        hy_store_any(c.cache, to + i, c.cache_type, hy_load_any(c.qkv, from + i, c.qkv_type));
    }
}

/* ---- a range --------------------------------------------------------------------------------- */

/* What a warp finds for a query. */
template <int COLUMNS> struct finding {
    float sum[COLUMNS];
    float high, total;
};

/* Queries [query, query + R) against every WARPS-th key of a range; `first` is the position of the
 * sequence's first row. */
template <typename T, int C, int R>
__device__ __forceinline__ void walk(const hy_block_call &c, int b, int kv_head, int query,
                                     int first, int range, finding<32 * C> *found) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, D = c.a.D;
    int64_t width = 2 * (int64_t)c.a.K * D;
    const T *keys = (const T *)c.cache + (int64_t)kv_head * D;
    const T *values = keys + (int64_t)c.a.K * D;
    float q[R][C], sum[R][C], high[R], total[R];
    int position[R];
    HY_EACH(r, R) {
        int at = min(query + r, c.queries - 1);
        int64_t begin = hy_query_at(c, b, kv_head, at);
        position[r] = first + at / c.group;
        high[r] = -INFINITY;
        total[r] = 0;
        HY_EACH(i, C) {
            int column = lane + 32 * i;
            sum[r][i] = 0;
            q[r][i] = column < D ? hy_load_any(c.qkv, begin + column, c.qkv_type) : 0.0f;
        }
    }
    int from = range * HY_KEY_RANGE, low = hy_first_seen(c, position[0]);
    int to = min(from + HY_KEY_RANGE, position[R - 1] + 1);
    for (int key = from + warp; key < to; key += WARPS) {
        float k[C], v[C];
        if (key < low || hy_is_in_gap(c.a, 0, position[0], key)) continue;
        int64_t row = hy_pool_row(c, b, key) * width;
        HY_EACH(i, C) {
            int column = lane + 32 * i;
            k[i] = column < D ? hy_to_float(keys[row + column]) : 0.0f;
            v[i] = column < D ? hy_to_float(values[row + column]) : 0.0f;
        }
        HY_EACH(r, R) {
            if (key > position[r] || key < hy_first_seen(c, position[r])) continue;
            if (hy_is_in_gap(c.a, 0, position[r], key)) continue;
            float dot = 0;
            HY_EACH(i, C) dot = fmaf(q[r][i], k[i], dot);
            float score = hy_block_score(c, hy_warp_sum(dot)), now = fmaxf(high[r], score);
            float shrink = exp2f(high[r] - now), weight = exp2f(score - now);
            high[r] = now;
            total[r] = total[r] * shrink + weight;
            HY_EACH(i, C) sum[r][i] = sum[r][i] * shrink + weight * v[i];
        }
    }
    HY_EACH(r, R) {
        finding<32 *C> *mine = &found[warp * R + r];
        HY_EACH(i, C) mine->sum[lane + 32 * i] = sum[r][i];
        if (lane == 0) mine->high = high[r], mine->total = total[r];
    }
}

/* The sum over some keys relative to the weight 2^high, and the total of their weights. */
typedef struct share {
    float sum, high, total;
} share;

__device__ __forceinline__ void add_share(share &all, const share &one) {
    float high = fmaxf(all.high, one.high);
    if (high == -INFINITY) return; /* nothing was seen yet */
    float shrink = exp2f(all.high - high), weight = exp2f(one.high - high);
    all.sum = all.sum * shrink + one.sum * weight;
    all.total = all.total * shrink + one.total * weight;
    all.high = high;
}

/* A column of what the warps found for query r of a block. */
template <int C, int R>
__device__ __forceinline__ share share_of_warps(const finding<32 * C> *found, int r, int column) {
    share all = {0, -INFINITY, 0};
    for (int w = 0; w < WARPS; w++) {
        const finding<32 *C> *one = &found[w * R + r];
        add_share(all, share{one->sum[column], one->high, one->total});
    }
    return all;
}

/* ---- one token of each sequence -------------------------------------------------------------- */

/* Blocks (spread, queries / R, B K): each takes every so many ranges. */
template <typename T, int C, int R>
static __global__ void __launch_bounds__(THREADS) attend_step(hy_block_call c) {
    __shared__ finding<32 * C> found[WARPS * R];
    int b = blockIdx.z / c.a.K, kv_head = blockIdx.z % c.a.K, query = blockIdx.y * R;
    int position = c.first[b];
    if (position < 0) return;
    int from = hy_first_seen(c, position) / HY_KEY_RANGE, last = position / HY_KEY_RANGE;
    for (int range = blockIdx.x; range <= last; range += gridDim.x) {
        if (range < from || hy_range_is_hidden(c, position, range)) continue;
        walk<T, C, R>(c, b, kv_head, query, position, range, found);
        __syncthreads();
        for (int i = threadIdx.x; i < R * 32 * C; i += THREADS) {
            int r = i / (32 * C), column = i % (32 * C), head = kv_head * c.group + query + r;
            if (query + r >= c.queries || column >= c.a.D) continue;
            share all = share_of_warps<C, R>(found, r, column);
            float *to = hy_partial_of(c, b, head, range);
            to[column] = all.sum;
            if (column == 0) to[c.a.D] = all.high, to[c.a.D + 1] = all.total;
        }
        __syncthreads();
    }
}

/* Blocks (H, B): adds the ranges of a query, from the first on. */
static __global__ void __launch_bounds__(THREADS) join_ranges(hy_block_call c) {
    hy_let_next_start();
    hy_wait_for_previous();
    int head = blockIdx.x, b = blockIdx.y, position = c.first[b], D = c.a.D;
    if (position < 0) return clear_out(c, ((int64_t)b * c.a.H + head) * D, D);
    int from = hy_first_seen(c, position) / HY_KEY_RANGE, last = position / HY_KEY_RANGE;
    float high = hy_block_sink(c, head), sink = high;
    for (int range = from; range <= last; range++) {
        if (!hy_range_is_hidden(c, position, range))
            high = fmaxf(high, hy_partial_of(c, b, head, range)[D]);
    }
    int64_t to = ((int64_t)b * c.a.H + head) * D;
    for (int column = threadIdx.x; column < D; column += THREADS) {
        float total = exp2f(sink - high), sum = 0;
        for (int range = from; range <= last; range++) {
            if (hy_range_is_hidden(c, position, range)) continue;
            const float *one = hy_partial_of(c, b, head, range);
            float weight = exp2f(one[D] - high);
            total = fmaf(one[D + 1], weight, total);
            sum = fmaf(one[column], weight, sum);
        }
        hy_store_any(c.out, to + column, c.out_type, sum / total);
    }
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* Blocks (queries / R, K, B): each goes through all ranges that its queries see. A thread adds up
 * every THREADS-th of the block's columns. */
template <typename T, int C, int R>
static __global__ void __launch_bounds__(THREADS) attend_chunk(hy_block_call c) {
    __shared__ finding<32 * C> found[WARPS * R];
    constexpr int MINE = R * 32 * C / THREADS;
    int b = blockIdx.z, kv_head = blockIdx.y, query = blockIdx.x * R, first = c.first[b];
    share all[MINE];
    if (first < 0) return;
    HY_EACH(i, MINE) all[i] = {0, -INFINITY, 0};
    int last = (first + min(query + R - 1, c.queries - 1) / c.group) / HY_KEY_RANGE;
    int range = hy_first_seen(c, first + query / c.group) / HY_KEY_RANGE;
    for (; range <= last; range++) {
        if (hy_range_is_hidden(c, first + query / c.group, range)) continue;
        walk<T, C, R>(c, b, kv_head, query, first, range, found);
        __syncthreads();
        HY_EACH(i, MINE) {
            int at = threadIdx.x + i * THREADS;
            add_share(all[i], share_of_warps<C, R>(found, at / (32 * C), at % (32 * C)));
        }
        __syncthreads();
    }
    HY_EACH(i, MINE) {
        int at = threadIdx.x + i * THREADS, r = at / (32 * C), column = at % (32 * C);
        if (query + r >= c.queries || column >= c.a.D) continue;
        float sink = hy_block_sink(c, kv_head * c.group + (query + r) % c.group);
        add_share(all[i], share{0, sink, sink > -INFINITY ? 1.0f : 0.0f});
        hy_store_any(c.out, hy_out_at(c, b, kv_head, query + r) + column, c.out_type,
                     all[i].sum / all[i].total);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

static hy_block_call describe(const hy_op_call *call) {
    const hy_tensor *t = call->t, *cache = &t[HY_ATTENTION_CACHED_CACHE];
    hy_block_call c = {};
    c.a = hy_cuda_heads_of(call);
    c.group = c.a.H / c.a.K;
    c.queries = c.a.T * c.group;
    while (1 << c.shift < cache->shape[1]) c.shift++;
    c.entries = (int)hy_width(&t[HY_ATTENTION_CACHED_BLOCKS]);
    c.ranges = (int)hy_ceil_div((int64_t)c.entries << c.shift, HY_KEY_RANGE);
    c.first = (const int32_t *)t[HY_ATTENTION_CACHED_FIRST].data;
    c.blocks = (const int32_t *)t[HY_ATTENTION_CACHED_BLOCKS].data;
    c.qkv = t[HY_ATTENTION_CACHED_QKV].data, c.qkv_type = t[HY_ATTENTION_CACHED_QKV].dtype;
    c.cache = cache->data, c.cache_type = cache->dtype;
    c.out = t[HY_ATTENTION_CACHED_OUT].data, c.out_type = t[HY_ATTENTION_CACHED_OUT].dtype;
    bool is_capped = c.a.softcap > 0;
    c.inner = is_capped ? c.a.scale / c.a.softcap : c.a.scale * HY_LOG2E;
    c.cap = is_capped ? c.a.softcap * HY_LOG2E : 0.0f;
    c.partial = (float *)call->workspace.data;
    return c;
}

size_t hy_attention_blocks_workspace(const hy_op_call *call) {
    hy_block_call c = describe(call);
    if (c.a.T > 1) return 0;
    return (size_t)c.a.B * c.a.H * c.ranges * (size_t)(c.a.D + 2) * sizeof(float);
}

int hy_block_spread(const hy_cuda *cuda, const hy_block_call &c, int64_t others) {
    int64_t wanted = hy_ceil_div(4 * (int64_t)cuda->card.multiprocessors, others);
    return (int)(wanted < c.ranges ? wanted : c.ranges);
}

template <typename T, int C, int R>
static void launch_step(const hy_cuda_run *run, const hy_block_call &c) {
    unsigned tiles = (unsigned)hy_ceil_div(c.queries, R), heads = (unsigned)(c.a.B * c.a.K);
    unsigned spread = (unsigned)hy_block_spread(run->cuda, c, (int64_t)tiles * heads);
    attend_step<T, C, R><<<dim3(spread, tiles, heads), THREADS, 0, run->stream>>>(c);
}

/* R queries share what is read of the cache, as many as fit into registers. */
template <typename T, int C, int R>
static void launch(const hy_cuda_run *run, const hy_block_call &c) {
    if (c.queries == 1) {
        launch_step<T, C, 1>(run, c);
    } else if (c.a.T == 1) {
        launch_step<T, C, R>(run, c);
    } else {
        dim3 grid((unsigned)hy_ceil_div(c.queries, R), (unsigned)c.a.K, (unsigned)c.a.B);
        attend_chunk<T, C, R><<<grid, THREADS, 0, run->stream>>>(c);
    }
}

template <typename T> static void launch_head_size(const hy_cuda_run *run, const hy_block_call &c) {
    if (c.a.D <= 64)
        launch<T, 2, 8>(run, c);
    else if (c.a.D <= 128)
        launch<T, 4, 8>(run, c);
    else
        launch<T, 8, 4>(run, c);
}

static hy_status append(const hy_cuda_run *run, const hy_block_call &c) {
    append_rows<<<(unsigned)(c.a.B * c.a.T), THREADS, 0, run->stream>>>(c);
    return hy_cuda_launched(run);
}

hy_status hy_attention_blocks(const hy_cuda_run *run) {
    hy_block_call c = describe(run->call);
    bool has_tiles = hy_block_has_tiles(run->cuda, c), is_step = c.a.T == 1;
    if (!has_tiles || !is_step) HY_TRY(append(run, c));
    if (has_tiles) {
        HY_TRY(is_step ? hy_block_step_tiles(run, c) : hy_block_chunk_tiles(run, c));
    } else {
        hy_by_type(c.cache_type, [&](auto zero) { launch_head_size<decltype(zero)>(run, c); });
        HY_TRY(hy_cuda_launched(run));
    }
    if (!is_step) return HY_OK;
    return hy_launch_early(run, join_ranges, 1, dim3((unsigned)c.a.H, (unsigned)c.a.B), THREADS, 0,
                           c);
}
