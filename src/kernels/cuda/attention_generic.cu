/* attention_generic.cu: attention for calls that the tensor-core tiles do not support: fp32, mixed
 * types, odd head sizes up to 256, cards before sm_80.
 *
 * Plain fp32 multiply-adds on tiles in shared memory. A block owns MINE rows of one head ("mine")
 * and iterates over THEIRS rows of the other side at a time ("theirs"): queries iterate over keys
 * for the output and dq, keys over queries for dk and dv. So every sum has one owner and one order.
 * 128 threads are arranged as 16 by 8: thread (ty, tx) computes dot products of rows ty + 16 r of
 * mine with rows tx + 8 j of theirs, and holds columns 4 tx + 32 c of the sums of its rows. A tile
 * fits into the 64 KB of sm_75. */
#include "kernels/cuda/attention.cuh"

enum { TX = 8, TY = 16, THREADS = TX * TY, WARPS = THREADS / 32 };

/* The division of a head of up to D elements. */
template <int D_, int MINE_, int THEIRS_> struct shape {
    static constexpr int D = D_, MINE = MINE_, THEIRS = THEIRS_;
    static constexpr int R = MINE / TY, J = THEIRS / TX; /* rows of a thread */
    static constexpr int C = D / (4 * TX);               /* its columns, in fours */
    /* row strides, to avoid bank conflicts */
    static constexpr int LD = D + 4, WEIGHT_LD = THEIRS + 4;
};

/* Either direction, as the kernels see it. */
typedef struct generic_call {
    hy_cuda_heads a;
    hy_tensor qkv, out;
    float *lse;
    hy_tensor dout, dqkv; /* backward */
    float *delta;         /* (B, H, T): sum(dout out) of each row */
} generic_call;

/* ---- tiles ----------------------------------------------------------------------------------- */

/* The position of rows of a head in a tensor. */
typedef struct rows_of {
    const void *data;
    hy_dtype dtype;
    int64_t first, apart; /* elements: of row 0, and between rows */
} rows_of;

/* Copies rows [row, row + ROWS) to shared memory; from row `end` on, zeros. Columns from D on are
 * unchanged. A warp loads four of its rows at once. */
template <typename S, int ROWS, typename T>
__device__ void load_rows_as(float *to, const T *from, int64_t apart, int row, int end, int D) {
    constexpr int COLUMNS = S::D / 32, TURN = ROWS / WARPS < 4 ? ROWS / WARPS : 4;
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < ROWS; r += WARPS * TURN) {
        float held[TURN][COLUMNS];
        HY_EACH(i, TURN * COLUMNS) {
            int at = row + r + i / COLUMNS * WARPS, c = i % COLUMNS * 32 + lane;
            held[i / COLUMNS][i % COLUMNS] =
                at < end && c < D ? hy_to_float(from[at * apart + c]) : 0.0f;
        }
        HY_EACH(i, TURN * COLUMNS) {
            int c = i % COLUMNS * 32 + lane;
            if (c < D) to[(r + i / COLUMNS * WARPS) * S::LD + c] = held[i / COLUMNS][i % COLUMNS];
        }
    }
}

template <typename S, int ROWS>
__device__ __forceinline__ void load_rows(float *to, const rows_of &from, int row, int end, int D) {
    if (from.dtype == HY_F32) {
        load_rows_as<S, ROWS>(to, (const float *)from.data + from.first, from.apart, row, end, D);
    } else if (from.dtype == HY_BF16) {
        load_rows_as<S, ROWS>(to, (const __nv_bfloat16 *)from.data + from.first, from.apart, row,
                              end, D);
    } else {
        load_rows_as<S, ROWS>(to, (const __half *)from.data + from.first, from.apart, row, end, D);
    }
}

__device__ __forceinline__ void clear(float *to, int count) {
    for (int i = threadIdx.x; i < count; i += THREADS) to[i] = 0;
}

/* product[r][j] = mine[ty + 16 r] . theirs[tx + 8 j] */
template <typename S>
__device__ __forceinline__ void multiply(float product[S::R][S::J], const float *mine,
                                         const float *theirs, int D) {
    int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    HY_EACH(r, S::R) {
        HY_EACH(j, S::J) product[r][j] = 0;
    }
#pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        float4 y[S::J];
        HY_EACH(j, S::J) y[j] = *(const float4 *)&theirs[(tx + TX * j) * S::LD + d];
        HY_EACH(r, S::R) {
            float4 x = *(const float4 *)&mine[(ty + TY * r) * S::LD + d];
            HY_EACH(j, S::J) {
                product[r][j] = fmaf(x.x, y[j].x, product[r][j]);
                product[r][j] = fmaf(x.y, y[j].y, product[r][j]);
                product[r][j] = fmaf(x.z, y[j].z, product[r][j]);
                product[r][j] = fmaf(x.w, y[j].w, product[r][j]);
            }
        }
    }
}

/* sum[r] += weights[ty + 16 r] theirs. The eight threads of one ty, which are in one warp, write
 * and read a row of weights: `weights` needs no barrier. */
template <typename S>
__device__ __forceinline__ void weigh(float sum[S::R][S::C][4], const float value[S::R][S::J],
                                      float *weights, const float *theirs) {
    int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    __syncwarp();
    HY_EACH(r, S::R) {
        HY_EACH(j, S::J) {
            weights[(ty + TY * r) * S::WEIGHT_LD + tx + TX * j] = value[r][j];
        }
    }
    __syncwarp();
#pragma unroll 4
    for (int k = 0; k < S::THEIRS; k++) {
        float w[S::R];
        HY_EACH(r, S::R) w[r] = weights[(ty + TY * r) * S::WEIGHT_LD + k];
        HY_EACH(c, S::C) {
            float4 y = *(const float4 *)&theirs[k * S::LD + 4 * tx + 32 * c];
            HY_EACH(r, S::R) {
                sum[r][c][0] += w[r] * y.x;
                sum[r][c][1] += w[r] * y.y;
                sum[r][c][2] += w[r] * y.z;
                sum[r][c][3] += w[r] * y.w;
            }
        }
    }
}

/* Writes row ty + 16 r of a sum times `factor` to a tensor, from element `first` on. */
template <typename S>
__device__ __forceinline__ void store_row(const float sum[S::C][4], float factor, void *data,
                                          hy_dtype dtype, int64_t first, int D) {
    int tx = threadIdx.x % TX;
    HY_EACH(c, S::C) {
        HY_EACH(e, 4) {
            int column = 4 * tx + 32 * c + e;
            if (column < D) hy_store_any(data, first + column, dtype, sum[c][e] * factor);
        }
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

__device__ __forceinline__ rows_of head_of(const hy_tensor &t, int64_t width, int64_t row,
                                           int64_t head, int D) {
    return {t.data, t.dtype, row * width + head * D, width};
}

/* A score from q k. */
template <bool IS_CAPPED>
__device__ __forceinline__ float score_of(const hy_cuda_heads &a, float dot) {
    return IS_CAPPED ? a.softcap * tanhf(dot * a.scale / a.softcap) : dot * a.scale;
}

/* Converts the scores of one tile of keys to weights; earlier sums are rescaled if the maximum
 * grows. */
template <typename S, bool IS_CAPPED>
__device__ __forceinline__ void soften(float score[S::R][S::J], float m[S::R], float total[S::R],
                                       float sum[S::R][S::C][4], const int first[S::R], int query,
                                       int key, const hy_cuda_heads &a) {
    int tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    HY_EACH(r, S::R) {
        float high = m[r], added = 0;
        HY_EACH(j, S::J) {
            int at = key + tx + TX * j;
            int i = query + ty + TY * r;
            bool is_seen = at >= first[r] && at <= i && !hy_is_in_gap(a, first[r], i, at);
            score[r][j] = is_seen ? score_of<IS_CAPPED>(a, score[r][j]) : -INFINITY;
            high = fmaxf(high, score[r][j]);
        }
        for (int d = 1; d < TX; d <<= 1) high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, d));
        float shrink = expf(m[r] - high);
        HY_EACH(j, S::J) added += score[r][j] = expf(score[r][j] - high);
        m[r] = high;
        total[r] = total[r] * shrink + added;
        HY_EACH(c, S::C) {
            HY_EACH(e, 4) sum[r][c][e] *= shrink;
        }
    }
}

/* The smallest first key of queries [query, end): where a block begins. */
__device__ __forceinline__ int first_key_of_rows(const hy_cuda_heads &a, int b, int query,
                                                 int end) {
    int low = query;
    for (int i = query + threadIdx.x % 32; i < end; i += 32) low = min(low, hy_first_key(a, b, i));
    for (int d = 16; d > 0; d >>= 1) low = min(low, __shfl_xor_sync(0xffffffffu, low, d));
    return low;
}

template <typename S, bool IS_CAPPED>
static __global__ void __launch_bounds__(THREADS, 2) forward_kernel(const generic_call call) {
    extern __shared__ __align__(16) float shared[];
    float *mine = shared, *theirs = mine + S::MINE * S::LD;
    float *weights = theirs + S::THEIRS * S::LD;
    const hy_cuda_heads &a = call.a;
    int tiles = (a.T + S::MINE - 1) / S::MINE, D = a.D;
    int query = (tiles - 1 - blockIdx.x % tiles) * S::MINE, head = blockIdx.x / tiles;
    int b = head / a.H, h = head % a.H, kv_head = h / (a.H / a.K);
    int end = min(query + S::MINE, a.T), tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    int64_t width = (int64_t)(a.H + 2 * a.K) * D, row = (int64_t)b * a.T;
    rows_of q = head_of(call.qkv, width, row, h, D);
    rows_of k = head_of(call.qkv, width, row, a.H + kv_head, D);
    rows_of v = head_of(call.qkv, width, row, a.H + a.K + kv_head, D);

    clear(shared, (S::MINE + S::THEIRS) * S::LD);
    __syncthreads();
    load_rows<S, S::MINE>(mine, q, query, end, D);
    float sum[S::R][S::C][4] = {}, m[S::R], total[S::R];
    int first[S::R];
    for (int r = 0; r < S::R; r++) {
        m[r] = -1e30f; /* finite: a row may see nothing of its first tiles */
        total[r] = 0;
        first[r] = hy_first_key(a, b, min(query + ty + TY * r, a.T - 1));
    }
    hy_gap gap = hy_gap_of_rows(a, b, query, end);
    for (int key = first_key_of_rows(a, b, query, end); key < end; key += S::THEIRS) {
        if (hy_gap_hides(gap, key, 1)) key = gap.end;
        float score[S::R][S::J];
        __syncthreads();
        load_rows<S, S::THEIRS>(theirs, k, key, end, D);
        __syncthreads();
        multiply<S>(score, mine, theirs, D);
        __syncthreads();
        load_rows<S, S::THEIRS>(theirs, v, key, end, D);
        soften<S, IS_CAPPED>(score, m, total, sum, first, query, key, a);
        __syncthreads();
        weigh<S>(sum, score, weights, theirs);
    }
    for (int r = 0; r < S::R; r++) {
        int i = query + ty + TY * r;
        for (int d = 1; d < TX; d <<= 1) total[r] += __shfl_xor_sync(0xffffffffu, total[r], d);
        if (i >= end) continue;
        float high = m[r], shrink = 1;
        if (a.sinks) {
            float sink = hy_sink(a, h);
            high = fmaxf(high, sink);
            shrink = expf(m[r] - high);
            total[r] = total[r] * shrink + expf(sink - high);
        }
        if (tx == 0) call.lse[(int64_t)head * a.T + i] = high + logf(total[r]);
        store_row<S>(sum[r], shrink / total[r], call.out.data, call.out.dtype,
                     ((row + i) * a.H + h) * D, D);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* One warp per row and head. */
static __global__ void __launch_bounds__(THREADS) delta_kernel(const generic_call call) {
    const hy_cuda_heads &a = call.a;
    int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, rows = (int64_t)a.B * a.T;
    if (at >= rows * a.H) return;
    int64_t n = at / a.H, h = at % a.H;
    float sum = 0;
    for (int d = threadIdx.x % 32; d < a.D; d += 32) {
        sum += hy_load_any(call.dout.data, at * a.D + d, call.dout.dtype) *
               hy_load_any(call.out.data, at * a.D + d, call.out.dtype);
    }
    sum = hy_warp_sum(sum);
    if (threadIdx.x % 32 == 0) call.delta[(n / a.T * a.H + h) * a.T + n % a.T] = sum;
}

/* q k becomes p = exp(score - lse), dp becomes ds = p (dp - delta) scale, times 1 - tanh^2 if scores
 * are capped. */
template <bool IS_CAPPED>
__device__ __forceinline__ void weigh_pair(float *score, float *dp, bool is_seen, float lse,
                                           float delta, const hy_cuda_heads &a) {
    float z = score_of<IS_CAPPED>(a, *score), p = is_seen ? expf(z - lse) : 0.0f;
    *score = p;
    *dp = is_seen ? p * (*dp - delta) * a.scale : 0.0f;
    if (IS_CAPPED) *dp *= 1.0f - (z / a.softcap) * (z / a.softcap);
}

/* dq: my queries iterate over their keys. */
template <typename S, bool IS_CAPPED>
static __global__ void __launch_bounds__(THREADS, 2) dq_kernel(const generic_call call) {
    extern __shared__ __align__(16) float shared[];
    float *my_q = shared, *my_dout = my_q + S::MINE * S::LD;
    float *k_tile = my_dout + S::MINE * S::LD, *v_tile = k_tile + S::THEIRS * S::LD;
    float *weights = v_tile + S::THEIRS * S::LD;
    const hy_cuda_heads &a = call.a;
    int tiles = (a.T + S::MINE - 1) / S::MINE, D = a.D;
    int query = (tiles - 1 - blockIdx.x % tiles) * S::MINE, head = blockIdx.x / tiles;
    int b = head / a.H, h = head % a.H, kv_head = h / (a.H / a.K);
    int end = min(query + S::MINE, a.T), tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    int64_t width = (int64_t)(a.H + 2 * a.K) * D, row = (int64_t)b * a.T;
    rows_of q = head_of(call.qkv, width, row, h, D);
    rows_of dout = head_of(call.dout, (int64_t)a.H * D, row, h, D);
    rows_of k = head_of(call.qkv, width, row, a.H + kv_head, D);
    rows_of v = head_of(call.qkv, width, row, a.H + a.K + kv_head, D);

    clear(shared, 2 * (S::MINE + S::THEIRS) * S::LD);
    __syncthreads();
    load_rows<S, S::MINE>(my_q, q, query, end, D);
    load_rows<S, S::MINE>(my_dout, dout, query, end, D);
    float dq[S::R][S::C][4] = {}, lse[S::R], delta[S::R];
    int first[S::R];
    for (int r = 0; r < S::R; r++) {
        int i = min(query + ty + TY * r, a.T - 1);
        lse[r] = call.lse[(int64_t)head * a.T + i];
        delta[r] = call.delta[(int64_t)head * a.T + i];
        first[r] = hy_first_key(a, b, i);
    }
    hy_gap gap = hy_gap_of_rows(a, b, query, end);
    for (int key = first_key_of_rows(a, b, query, end); key < end; key += S::THEIRS) {
        if (hy_gap_hides(gap, key, 1)) key = gap.end;
        float score[S::R][S::J], dp[S::R][S::J];
        __syncthreads();
        load_rows<S, S::THEIRS>(k_tile, k, key, end, D);
        load_rows<S, S::THEIRS>(v_tile, v, key, end, D);
        __syncthreads();
        multiply<S>(score, my_q, k_tile, D);
        multiply<S>(dp, my_dout, v_tile, D);
        HY_EACH(r, S::R) {
            HY_EACH(j, S::J) {
                int i = query + ty + TY * r, at = key + tx + TX * j;
                bool is_seen =
                    i < end && at >= first[r] && at <= i && !hy_is_in_gap(a, first[r], i, at);
                weigh_pair<IS_CAPPED>(&score[r][j], &dp[r][j], is_seen, lse[r], delta[r], a);
            }
        }
        weigh<S>(dq, dp, weights, k_tile);
    }
    for (int r = 0; r < S::R; r++) {
        int i = query + ty + TY * r;
        if (i >= end) continue;
        store_row<S>(dq[r], 1, call.dqkv.data, call.dqkv.dtype, (row + i) * width + (int64_t)h * D,
                     D);
    }
}

/* dk and dv: my keys iterate over the queries that may see them, of each head that shares them. */
template <typename S, bool IS_CAPPED>
static __global__ void __launch_bounds__(THREADS, 2) dkv_kernel(const generic_call call) {
    extern __shared__ __align__(16) float shared[];
    float *my_k = shared, *my_v = my_k + S::MINE * S::LD;
    float *q_tile = my_v + S::MINE * S::LD, *dout_tile = q_tile + S::THEIRS * S::LD;
    float *weights = dout_tile + S::THEIRS * S::LD;
    const hy_cuda_heads &a = call.a;
    int tiles = (a.T + S::MINE - 1) / S::MINE, D = a.D, group = a.H / a.K;
    int key = blockIdx.x % tiles * S::MINE, b = blockIdx.x / tiles / a.K;
    int kv_head = blockIdx.x / tiles % a.K, tx = threadIdx.x % TX, ty = threadIdx.x / TX;
    int64_t width = (int64_t)(a.H + 2 * a.K) * D, row = (int64_t)b * a.T;
    rows_of k = head_of(call.qkv, width, row, a.H + kv_head, D);
    rows_of v = head_of(call.qkv, width, row, a.H + a.K + kv_head, D);
    int key_end = min(key + S::MINE, a.T);
    /* No query beyond the window of the last key sees any of mine. */
    int end = a.window > 0 && a.window < a.T - key_end ? key_end + a.window - 1 : a.T;
    clear(shared, 2 * (S::MINE + S::THEIRS) * S::LD);
    __syncthreads();
    load_rows<S, S::MINE>(my_k, k, key, key_end, D);
    load_rows<S, S::MINE>(my_v, v, key, key_end, D);
    float dk[S::R][S::C][4] = {}, dv[S::R][S::C][4] = {};
    for (int h = kv_head * group; h < (kv_head + 1) * group; h++) {
        int64_t head = (int64_t)b * a.H + h;
        rows_of q = head_of(call.qkv, width, row, h, D);
        rows_of dout = head_of(call.dout, (int64_t)a.H * D, row, h, D);
        for (int query = key; query < end; query += S::THEIRS) {
            int first[S::J];
            bool sees_any = false;
            HY_EACH(j, S::J) {
                int i = query + tx + TX * j;
                first[j] = i < end ? hy_first_key(a, b, i) : a.T;
                bool is_hidden =
                    hy_is_in_gap(a, first[j], i, key) && hy_is_in_gap(a, first[j], i, key_end - 1);
                sees_any |= first[j] < key_end && !is_hidden;
            }
            if (!__syncthreads_or(sees_any)) continue;
            load_rows<S, S::THEIRS>(q_tile, q, query, end, D);
            load_rows<S, S::THEIRS>(dout_tile, dout, query, end, D);
            __syncthreads();
            float score[S::R][S::J], dp[S::R][S::J];
            multiply<S>(score, my_k, q_tile, D);
            multiply<S>(dp, my_v, dout_tile, D);
            HY_EACH(j, S::J) {
                int i = min(query + tx + TX * j, a.T - 1);
                float lse = call.lse[head * a.T + i], delta = call.delta[head * a.T + i];
                HY_EACH(r, S::R) {
                    int at = key + ty + TY * r;
                    bool is_seen = at >= first[j] && at <= i && !hy_is_in_gap(a, first[j], i, at);
                    weigh_pair<IS_CAPPED>(&score[r][j], &dp[r][j], is_seen, lse, delta, a);
                }
            }
            weigh<S>(dv, score, weights, dout_tile);
            weigh<S>(dk, dp, weights, q_tile);
        }
    }
    for (int r = 0; r < S::R; r++) {
        int i = key + ty + TY * r;
        if (i >= key_end) continue;
        int64_t to = (row + i) * width + (int64_t)(a.H + kv_head) * D;
        store_row<S>(dk[r], 1, call.dqkv.data, call.dqkv.dtype, to, D);
        store_row<S>(dv[r], 1, call.dqkv.data, call.dqkv.dtype, to + (int64_t)a.K * D, D);
    }
}

/* One block per head: the weight of the sink in a row is exp(sink - lse). */
static __global__ void __launch_bounds__(THREADS)
    sink_kernel(hy_cuda_heads a, const float *lse, const float *delta, int64_t apart,
                hy_tensor dsinks, bool accumulate) {
    int h = blockIdx.x;
    float sink = hy_sink(a, h);
    double sum = 0;
    for (int64_t n = threadIdx.x; n < (int64_t)a.B * a.T; n += THREADS) {
        int64_t unit = n / a.T * a.H + h, t = n % a.T;
        sum -= (double)expf(sink - lse[unit * a.T + t]) * (double)delta[unit * apart + t];
    }
    sum = hy_block_sum<WARPS>(sum);
    if (threadIdx.x != 0) return;
    if (accumulate) sum += (double)hy_load_any(dsinks.data, h, dsinks.dtype);
    hy_store_any(dsinks.data, h, dsinks.dtype, (float)sum);
}

/* ---- launches -------------------------------------------------------------------------------- */

hy_status hy_attention_sink_gradient(const hy_cuda_run *run, const float *delta, int64_t apart) {
    const hy_tensor *dsinks = &run->call->t[HY_ATTENTION_BWD_DSINKS];
    hy_cuda_heads a = hy_cuda_heads_of(run->call);
    if (!hy_has(dsinks)) return HY_OK;
    sink_kernel<<<(unsigned)a.H, THREADS, 0, run->stream>>>(
        a, (const float *)run->call->t[HY_ATTENTION_BWD_LSE].data, delta, apart, *dsinks,
        run->call->attr.accumulate);
    return hy_cuda_launched(run);
}

/* `sides` tiles of each side: q and k, or q, dout, k and v. */
template <typename S> static constexpr int shared_bytes(int sides) {
    int floats = sides * (S::MINE + S::THEIRS) * S::LD + S::MINE * S::WEIGHT_LD;
    return floats * (int)sizeof(float);
}

template <typename S> static hy_status forward(const hy_cuda_run *run, const generic_call &call) {
    static_assert(shared_bytes<S>(1) <= 99 * 1024, "the limit of sm_120");
    int64_t blocks = hy_ceil_div(call.a.T, S::MINE) * call.a.B * call.a.H;
    auto kernel = call.a.softcap > 0 ? forward_kernel<S, true> : forward_kernel<S, false>;
    return hy_launch_with_shared(run, kernel, blocks, THREADS, shared_bytes<S>(1), call);
}

hy_status hy_cuda_attention_generic(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    generic_call call = {hy_cuda_heads_of(run->call), t[HY_ATTENTION_QKV], t[HY_ATTENTION_OUT],
                         (float *)t[HY_ATTENTION_LSE].data};
    if (call.a.D <= 64) return forward<shape<64, 64, 32>>(run, call);
    if (call.a.D <= 128) return forward<shape<128, 64, 32>>(run, call);
    return forward<shape<256, 32, 16>>(run, call);
}

template <typename S> static hy_status backward(const hy_cuda_run *run, const generic_call &call) {
    static_assert(shared_bytes<S>(2) <= 99 * 1024, "the limit of sm_120");
    int64_t tiles = hy_ceil_div(call.a.T, S::MINE) * call.a.B;
    int shared = shared_bytes<S>(2);
    bool is_capped = call.a.softcap > 0;
    auto dq = is_capped ? dq_kernel<S, true> : dq_kernel<S, false>;
    auto dkv = is_capped ? dkv_kernel<S, true> : dkv_kernel<S, false>;
    HY_TRY(hy_launch_with_shared(run, dq, tiles * call.a.H, THREADS, shared, call));
    return hy_launch_with_shared(run, dkv, tiles * call.a.K, THREADS, shared, call);
}

hy_status hy_cuda_attention_bwd_generic(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    generic_call call = {hy_cuda_heads_of(run->call),       t[HY_ATTENTION_BWD_QKV],
                         t[HY_ATTENTION_BWD_OUT],           (float *)t[HY_ATTENTION_BWD_LSE].data,
                         t[HY_ATTENTION_BWD_DOUT],          t[HY_ATTENTION_BWD_DQKV],
                         (float *)run->call->workspace.data};
    int64_t rows = (int64_t)call.a.B * call.a.T * call.a.H;
    delta_kernel<<<(unsigned)hy_ceil_div(rows, WARPS), THREADS, 0, run->stream>>>(call);
    HY_TRY(hy_cuda_launched(run));
    HY_TRY(hy_attention_sink_gradient(run, call.delta, call.a.T));
    if (call.a.D <= 64) return backward<shape<64, 64, 32>>(run, call);
    if (call.a.D <= 128) return backward<shape<128, 32, 16>>(run, call);
    return backward<shape<256, 16, 8>>(run, call);
}

size_t hy_cuda_attention_bwd_generic_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    (void)cuda;
    int64_t rows = (int64_t)call->attr.heads.batch * call->attr.heads.seq * call->attr.heads.heads;
    return (size_t)rows * sizeof(float);
}
