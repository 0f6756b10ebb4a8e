/* head_norm.cu: rmsnorm of every query and key head of a packed qkv row (Qwen3), and its backward.
 *
 * A row has H query heads, K key heads and K value heads of D numbers; values are copied unchanged.
 * A head belongs to a group of lanes inside a warp, a power of two of them, each with one or two
 * packs; a group iterates over heads of the whole matrix. All heads of a kind share the weights: a
 * lane keeps its columns of both sums in registers, and the sums of blocks are added at the end
 * (columns.cuh). A head is read before it is written: dqkv may be dout. With is_whole, the q and k
 * parts of rows are normed by the kernels of norm.cu. With has_gates the heads of qkv and dqkv are
 * at other places than those of out and dout. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/norm.cuh"

#define THREADS 256
/* Blocks per multiprocessor, as registers allow, with one or two packs per lane. */
#define FORWARD_BLOCKS 3
#define BACKWARD_BLOCKS(chunks) ((chunks) == 1 ? 3 : 2)

/* Forward: from qkv to out; w is read and rstd written. Backward: from dout to dqkv; x is qkv, rstd
 * is read. */
typedef struct head_call {
    const void *from, *x, *wq, *wk;
    void *to;
    float *rstd, *partial; /* (blocks, 2, D): dwq, dwk */
    int64_t N;
    int H, K, D;
    int lanes;      /* lanes per group */
    bool has_gates; /* in qkv and dqkv */
    float eps, offset;
    hy_dtype from_type, x_type, wq_type, wk_type, to_type;
} head_call;

static head_call head_call_of(const hy_op_call *call, bool is_bwd) {
    const hy_tensor *t = call->t;
    const hy_tensor *from = is_bwd ? &t[HY_HEAD_NORM_BWD_DOUT] : &t[HY_HEAD_NORM_QKV];
    const hy_tensor *x = is_bwd ? &t[HY_HEAD_NORM_BWD_QKV] : &t[HY_HEAD_NORM_QKV];
    const hy_tensor *wq = is_bwd ? &t[HY_HEAD_NORM_BWD_WQ] : &t[HY_HEAD_NORM_WQ];
    const hy_tensor *wk = is_bwd ? &t[HY_HEAD_NORM_BWD_WK] : &t[HY_HEAD_NORM_WK];
    const hy_tensor *to = is_bwd ? &t[HY_HEAD_NORM_BWD_DQKV] : &t[HY_HEAD_NORM_OUT];
    head_call n = {};
    n.from = from->data, n.x = x->data, n.wq = wq->data, n.wk = wk->data, n.to = to->data;
    n.from_type = from->dtype, n.x_type = x->dtype, n.to_type = to->dtype;
    n.wq_type = wq->dtype, n.wk_type = wk->dtype;
    n.rstd = (float *)(is_bwd ? t[HY_HEAD_NORM_BWD_RSTD] : t[HY_HEAD_NORM_RSTD]).data;
    n.partial = is_bwd ? (float *)call->workspace.data : NULL;
    n.N = hy_height(x);
    n.H = call->attr.heads.heads;
    n.K = call->attr.heads.kv_heads;
    n.D = call->attr.heads.head_dim;
    n.has_gates = call->attr.heads.has_gates;
    n.eps = call->attr.heads.eps;
    n.offset = call->attr.heads.norm_offset;
    return n;
}

/* The first number of a head of qkv: after it comes its gate, if it is a query with one. */
static __device__ __forceinline__ int64_t head_of_qkv(const head_call &n, int64_t row, int head) {
    if (!n.has_gates) return (row * (n.H + 2 * n.K) + head) * n.D;
    int place = head < n.H ? 2 * head : n.H + head;
    return (row * (2 * n.H + 2 * n.K) + place) * n.D;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The position of a group: a row and one of its heads, advanced without divisions. */
struct head_walk {
    int64_t row, row_step;
    int head, head_step, heads;

    __device__ __forceinline__ head_walk(const head_call &n) {
        int64_t group = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / n.lanes;
        int64_t groups = (int64_t)gridDim.x * THREADS / n.lanes;
        heads = n.H + 2 * n.K;
        row = group / heads;
        head = (int)(group % heads);
        row_step = groups / heads;
        head_step = (int)(groups % heads);
    }
    __device__ __forceinline__ void move() {
        row += row_step;
        head += head_step;
        if (head >= heads) head -= heads, row++;
    }
};

/* A head that a group has taken. */
typedef struct head_spot {
    int64_t base, of_qkv, rstd; /* index of its first number, that in qkv, that of its statistic */
    bool is_there, is_query, is_value;
} head_spot;

static __device__ __forceinline__ head_spot take_head(const head_call &n, head_walk &at) {
    head_spot spot;
    spot.base = (at.row * at.heads + at.head) * n.D;
    spot.of_qkv = head_of_qkv(n, at.row, at.head);
    spot.rstd = at.row * (n.H + n.K) + at.head;
    spot.is_there = at.row < n.N;
    spot.is_query = at.head < n.H;
    spot.is_value = at.head >= n.H + n.K;
    at.move();
    return spot;
}

/* Sums over a group, several at once. Some groups of a warp may be past the last head: all lanes
 * must take part. */
template <int count>
static __device__ __forceinline__ void group_sums(float (&x)[count], int lanes) {
    for (int d = lanes / 2; d > 0; d >>= 1) {
        HY_EACH(i, count) x[i] += __shfl_xor_sync(0xffffffffu, x[i], d);
    }
}

/* Both weights as fp32 in shared memory: wq, then wk. */
static __device__ __forceinline__ void keep_weights(const head_call &n, float *shared) {
    for (int i = threadIdx.x; i < n.D; i += THREADS) {
        float q = hy_load_any(n.wq, i, n.wq_type), k = hy_load_any(n.wk, i, n.wk_type);
        shared[i] = n.offset != 0 ? n.offset + q : q;
        shared[n.D + i] = n.offset != 0 ? n.offset + k : k;
    }
    __syncthreads();
}

/* ---- forward --------------------------------------------------------------------------------- */

template <typename T, int chunks>
static __device__ __forceinline__ void write_head(const head_call &n, const head_spot &spot,
                                                  const hy_pack<T> *x, float rstd,
                                                  const float *weights, int lane) {
    constexpr int width = hy_pack<T>::count;
    const float *w = weights + (spot.is_query ? 0 : n.D);
    HY_EACH(p, chunks) {
        int column = (lane + p * n.lanes) * width;
        float v[width];
        if (!spot.is_there || column >= n.D) break;
        hy_unpack(x[p], v);
        HY_EACH(j, width) v[j] = spot.is_value ? v[j] : v[j] * rstd * w[column + j];
        hy_store_pack((T *)n.to + spot.base + column, hy_packed<T>(v));
    }
    if (lane == 0 && spot.is_there && !spot.is_value) n.rstd[spot.rstd] = rstd;
}

template <typename T, int chunks>
static __global__ void __launch_bounds__(THREADS, FORWARD_BLOCKS) head_norm_rows(head_call n) {
    /* Heads a group processes at once, so that enough loads are in flight. */
    constexpr int width = hy_pack<T>::count, heads = 4 / chunks;
    extern __shared__ float4 shared[];
    float *weights = (float *)shared;
    int lane = threadIdx.x % n.lanes;
    keep_weights(n, weights);
    head_walk at(n);
    while (__any_sync(0xffffffffu, at.row < n.N)) {
        hy_pack<T> x[heads][chunks];
        head_spot spot[heads];
        float square[heads];
        HY_EACH(h, heads) {
            spot[h] = take_head(n, at);
            HY_EACH(p, chunks) {
                int column = (lane + p * n.lanes) * width;
                bool is_there = spot[h].is_there && column < n.D;
                x[h][p] = is_there ? hy_load_pack((const T *)n.x + spot[h].of_qkv + column)
                                   : hy_zero_pack<T>();
            }
        }
        HY_EACH(h, heads) {
            square[h] = 0;
            HY_EACH(p, chunks) {
                float v[width];
                hy_unpack(x[h][p], v);
                HY_EACH(j, width) square[h] += v[j] * v[j];
            }
        }
        group_sums(square, n.lanes);
        HY_EACH(h, heads) {
            float rstd = 1.0f / sqrtf(square[h] / (float)n.D + n.eps);
            write_head<T, chunks>(n, spot[h], x[h], rstd, weights, lane);
        }
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* A lane's columns of dwq and dwk. */
template <int chunks, int width> struct own_sums { float q[chunks][width], k[chunks][width]; };

/* All groups of a block store their sums in shared memory; then each column is added in order. */
template <int chunks, int width>
static __device__ __forceinline__ void
write_sums(const head_call &n, const own_sums<chunks, width> &own, float *shared) {
    int lane = threadIdx.x % n.lanes, groups = THREADS / n.lanes;
    float *mine = shared + threadIdx.x / n.lanes * 2 * n.D;
    __syncthreads();
    HY_EACH(p, chunks) {
        int column = (lane + p * n.lanes) * width;
        if (column >= n.D) break;
        HY_EACH(j, width) {
            mine[column + j] = own.q[p][j];
            mine[n.D + column + j] = own.k[p][j];
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * n.D; c += THREADS) {
        float sum = 0;
        for (int g = 0; g < groups; g++) sum += shared[g * 2 * n.D + c];
        n.partial[(int64_t)blockIdx.x * 2 * n.D + c] = sum;
    }
}

/* Adds dy xhat of a head to the sums of its kind; returns this lane's part of sum(g xhat). */
template <typename T, int chunks>
static __device__ __forceinline__ float
add_head(const head_call &n, const head_spot &spot, const hy_pack<T> *dy, const hy_pack<T> *x,
         float rstd, const float *weights, int lane, own_sums<chunks, hy_pack<T>::count> &own) {
    constexpr int width = hy_pack<T>::count;
    const float *w = weights + (spot.is_query ? 0 : n.D);
    float sum = 0;
    HY_EACH(p, chunks) {
        int column = (lane + p * n.lanes) * width;
        float d[width], v[width];
        if (!spot.is_there || spot.is_value || column >= n.D) break;
        hy_unpack(dy[p], d);
        hy_unpack(x[p], v);
        HY_EACH(j, width) {
            float product = d[j] * (v[j] * rstd);
            sum += product * w[column + j];
            own.q[p][j] += spot.is_query ? product : 0.0f;
            own.k[p][j] += spot.is_query ? 0.0f : product;
        }
    }
    return sum;
}

/* dx = rstd (g - xhat mean(g xhat)), g = dy w; values are copied. */
template <typename T, int chunks>
static __device__ __forceinline__ void
write_gradient(const head_call &n, const head_spot &spot, const hy_pack<T> *dy, const hy_pack<T> *x,
               float rstd, float mean, const float *weights, int lane) {
    constexpr int width = hy_pack<T>::count;
    const float *w = weights + (spot.is_query ? 0 : n.D);
    HY_EACH(p, chunks) {
        int column = (lane + p * n.lanes) * width;
        float d[width], v[width];
        if (!spot.is_there || column >= n.D) break;
        hy_unpack(dy[p], d);
        hy_unpack(x[p], v);
        HY_EACH(j, width) {
            float dx = rstd * (d[j] * w[column + j] - v[j] * rstd * mean);
            d[j] = spot.is_value ? d[j] : dx;
        }
        hy_store_pack((T *)n.to + spot.of_qkv + column, hy_packed<T>(d));
    }
}

#define BWD_HEADS 2 /* at once */

template <typename T, int chunks>
static __global__ void __launch_bounds__(THREADS, BACKWARD_BLOCKS(chunks))
    head_norm_bwd_rows(head_call n) {
    constexpr int width = hy_pack<T>::count;
    extern __shared__ float4 shared[];
    float *weights = (float *)shared;
    int lane = threadIdx.x % n.lanes;
    own_sums<chunks, width> own = {};
    keep_weights(n, weights);
    head_walk at(n);
    while (__any_sync(0xffffffffu, at.row < n.N)) {
        hy_pack<T> dy[BWD_HEADS][chunks], x[BWD_HEADS][chunks];
        head_spot spot[BWD_HEADS];
        float rstd[BWD_HEADS], sum[BWD_HEADS];
        HY_EACH(h, BWD_HEADS) {
            spot[h] = take_head(n, at);
            bool is_normed = spot[h].is_there && !spot[h].is_value;
            rstd[h] = is_normed ? n.rstd[spot[h].rstd] : 0.0f;
            HY_EACH(p, chunks) {
                int column = (lane + p * n.lanes) * width;
                dy[h][p] = x[h][p] = hy_zero_pack<T>();
                if (!spot[h].is_there || column >= n.D) continue;
                dy[h][p] = hy_load_pack((const T *)n.from + spot[h].base + column);
                if (is_normed) x[h][p] = hy_load_pack((const T *)n.x + spot[h].of_qkv + column);
            }
        }
        HY_EACH(h, BWD_HEADS) {
            sum[h] = add_head<T, chunks>(n, spot[h], dy[h], x[h], rstd[h], weights, lane, own);
        }
        group_sums(sum, n.lanes);
        HY_EACH(h, BWD_HEADS) {
            write_gradient<T, chunks>(n, spot[h], dy[h], x[h], rstd[h], sum[h] / (float)n.D,
                                      weights, lane);
        }
    }
    if (n.partial) write_sums(n, own, weights);
}

/* ---- any heads ------------------------------------------------------------------------------- */

/* One warp per head, one element per lane at a time. */
static __global__ void __launch_bounds__(THREADS) head_norm_any(head_call n, bool is_bwd) {
    int64_t index = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32, heads = n.H + 2 * n.K;
    int64_t row = index / heads;
    int head = (int)(index % heads), lane = threadIdx.x % 32;
    int64_t of_qkv = head_of_qkv(n, row, head), base = index * n.D;
    int64_t from = is_bwd ? base : of_qkv, to = is_bwd ? of_qkv : base;
    const void *w = head < n.H ? n.wq : n.wk;
    hy_dtype w_type = head < n.H ? n.wq_type : n.wk_type;
    if (row >= n.N) return;
    float *rstd_at = n.rstd + row * (n.H + n.K) + head, rstd = 0, mean = 0, sum = 0;
    bool is_value = head >= n.H + n.K;
    if (is_bwd && !is_value) rstd = *rstd_at;
    for (int i = lane; i < n.D && !is_value; i += 32) {
        float x = hy_load_any(n.x, of_qkv + i, n.x_type),
              d = hy_load_any(n.from, from + i, n.from_type);
        sum += is_bwd ? d * (n.offset + hy_load_any(w, i, w_type)) * (x * rstd) : x * x;
    }
    sum = hy_warp_sum(sum) / (float)n.D;
    if (is_bwd)
        mean = sum;
    else
        rstd = 1.0f / sqrtf(sum + n.eps);
    for (int i = lane; i < n.D; i += 32) {
        float d = hy_load_any(n.from, from + i, n.from_type);
        if (!is_value) {
            float xhat = hy_load_any(n.x, of_qkv + i, n.x_type) * rstd,
                  weight = (n.offset + hy_load_any(w, i, w_type));
            d = is_bwd ? rstd * (d * weight - xhat * mean) : xhat * weight;
        }
        hy_store_any(n.to, to + i, n.to_type, d);
    }
    if (!is_bwd && !is_value && lane == 0) *rstd_at = rstd;
}

static void launch_any(const hy_cuda_run *run, const head_call &n, bool is_bwd) {
    int64_t heads = n.N * (n.H + 2 * n.K);
    unsigned blocks = (unsigned)hy_ceil_div(heads, THREADS / 32);
    head_norm_any<<<blocks, THREADS, 0, run->stream>>>(n, is_bwd);
}

/* Columns of dy xhat over the heads of one kind: `count` heads from `first` on. */
struct head_source {
    static constexpr int width = 1;
    typedef float chunk;
    head_call n;
    int first, count;

    __device__ __forceinline__ chunk fetch(int64_t line, int64_t column) const {
        int64_t row = line / count, head = first + line % count;
        int64_t from = (row * (n.H + 2 * n.K) + head) * n.D + column;
        int64_t x = head_of_qkv(n, row, (int)head) + column;
        return hy_load_any(n.from, from, n.from_type) *
               (hy_load_any(n.x, x, n.x_type) * n.rstd[row * (n.H + n.K) + head]);
    }
    __device__ __forceinline__ void add(chunk p, float *sum) const { sum[0] += p; }
};

/* ---- all heads together ---------------------------------------------------------------------- */

/* Copies the values of rows, from one tensor to another. */
template <typename A>
static __global__ void __launch_bounds__(THREADS)
    pass_values(A from, A to, int64_t chunks, int64_t per_row, int64_t apart) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float v[A::width];
    if (i >= chunks) return;
    int64_t at = (i / per_row + 1) * apart - (per_row - i % per_row) * A::width;
    from.open(from.fetch(at), v);
    to.store(at, v);
}

static void launch_values(const hy_cuda_run *run, const hy_tensor *from, const hy_tensor *to) {
    const hy_heads_attr *a = &run->call->attr.heads;
    int64_t count = (int64_t)a->kv_heads * a->head_dim, apart = hy_width(from);
    if (from->data == to->data) return;
    hy_by_chunks(count | apart, {from, to}, [&](auto access) {
        using A = decltype(access);
        int64_t per_row = count / A::width, chunks = hy_height(from) * per_row;
        pass_values<<<(unsigned)hy_ceil_div(chunks, THREADS), THREADS, 0, run->stream>>>(
            A::of(from), A::of(to), chunks, per_row, apart);
    });
}

/* Columns [first, first + count) of the rows of a tensor; absent if it is. */
static hy_tensor columns_of(const hy_tensor *t, int64_t first, int64_t count) {
    hy_tensor part = *t;
    if (!hy_has(t)) return part;
    part.data = (char *)t->data + (size_t)first * hy_dtype_size(t->dtype);
    part.shape[0] = hy_height(t);
    part.shape[1] = count;
    part.ndim = 2;
    return part;
}

/* The norm of the q heads (0) or the k heads (1) of a call, as an op on rows. */
static hy_op_call norm_of(const hy_op_call *call, int kind) {
    const hy_heads_attr *a = &call->attr.heads;
    const hy_tensor *t = call->t;
    bool is_bwd = call->kind == HY_OP_HEAD_NORM_BWD;
    int64_t first = kind ? (int64_t)a->heads * a->head_dim : 0;
    int64_t count = (int64_t)(kind ? a->kv_heads : a->heads) * a->head_dim;
    hy_op_call norm = {};
    norm.kind = is_bwd ? HY_OP_NORM_BWD : HY_OP_NORM;
    norm.attr.accumulate = call->attr.accumulate;
    norm.attr.norm.eps = a->eps;
    norm.attr.norm.is_rms = true;
    norm.attr.norm.offset = a->norm_offset;
    norm.workspace = call->workspace;
    if (is_bwd) {
        norm.t[HY_NORM_BWD_DY] = columns_of(&t[HY_HEAD_NORM_BWD_DOUT], first, count);
        norm.t[HY_NORM_BWD_X] = columns_of(&t[HY_HEAD_NORM_BWD_QKV], first, count);
        norm.t[HY_NORM_BWD_WEIGHT] = t[HY_HEAD_NORM_BWD_WQ + kind];
        norm.t[HY_NORM_BWD_RSTD] = columns_of(&t[HY_HEAD_NORM_BWD_RSTD], kind, 1);
        norm.t[HY_NORM_BWD_DX] = columns_of(&t[HY_HEAD_NORM_BWD_DQKV], first, count);
        norm.t[HY_NORM_BWD_DWEIGHT] = t[HY_HEAD_NORM_BWD_DWQ + kind];
    } else {
        norm.t[HY_NORM_X] = columns_of(&t[HY_HEAD_NORM_QKV], first, count);
        norm.t[HY_NORM_WEIGHT] = t[HY_HEAD_NORM_WQ + kind];
        norm.t[HY_NORM_Y] = columns_of(&t[HY_HEAD_NORM_OUT], first, count);
        norm.t[HY_NORM_RSTD] = columns_of(&t[HY_HEAD_NORM_RSTD], kind, 1);
    }
    return norm;
}

static hy_status run_whole(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    bool is_bwd = run->call->kind == HY_OP_HEAD_NORM_BWD;
    int64_t apart = hy_width(&t[0]);
    for (int kind = 0; kind < 2; kind++) {
        hy_op_call norm = norm_of(run->call, kind);
        hy_cuda_run part = {&norm, run->cuda, run->stream};
        HY_TRY(is_bwd ? hy_cuda_norm_bwd_apart(&part, apart, 2)
                      : hy_cuda_norm_apart(&part, apart, 2));
    }
    if (is_bwd)
        launch_values(run, &t[HY_HEAD_NORM_BWD_DOUT], &t[HY_HEAD_NORM_BWD_DQKV]);
    else
        launch_values(run, &t[HY_HEAD_NORM_QKV], &t[HY_HEAD_NORM_OUT]);
    return hy_cuda_launched(run);
}

/* ---- the ops --------------------------------------------------------------------------------- */

/* How heads are divided among groups; lanes 0: a head is too large for a group. */
typedef struct head_plan {
    int lanes, lane_packs;
    int64_t blocks;
} head_plan;

/* A group has as many lanes as a head has packs, rounded up to a power of two; at most a warp, with
 * at most two packs per lane. */
static head_plan plan_of(const hy_cuda *cuda, const head_call &n, bool is_bwd) {
    int64_t packs = n.D / (n.x_type == HY_F32 ? 4 : 8);
    head_plan p = {1, packs <= 32 ? 1 : 2, 0};
    while (p.lanes < packs && p.lanes < 32) p.lanes *= 2;
    int per_processor = is_bwd ? BACKWARD_BLOCKS(p.lane_packs) : FORWARD_BLOCKS;
    int64_t most = (int64_t)cuda->card.multiprocessors * per_processor;
    int64_t wanted = hy_ceil_div(n.N * (n.H + 2 * n.K), THREADS / p.lanes);
    p.blocks = wanted < most ? wanted : most;
    if (packs > 64) p.lanes = 0;
    return p;
}

hy_status hy_cuda_head_norm(const hy_cuda_run *run) {
    const hy_tensor *qkv = &run->call->t[HY_HEAD_NORM_QKV], *out = &run->call->t[HY_HEAD_NORM_OUT];
    if (run->call->attr.heads.is_whole) return run_whole(run);
    head_call n = head_call_of(run->call, false);
    head_plan p = plan_of(run->cuda, n, false);
    n.lanes = p.lanes;
    if (!p.lanes || !hy_fit_packs(n.D, {qkv, out})) {
        launch_any(run, n, false);
        return hy_cuda_launched(run);
    }
    hy_by_type(n.x_type, [&](auto zero) {
        using T = decltype(zero);
        auto kernel = p.lane_packs == 1 ? head_norm_rows<T, 1> : head_norm_rows<T, 2>;
        kernel<<<(unsigned)p.blocks, THREADS, 2 * (size_t)n.D * sizeof(float), run->stream>>>(n);
    });
    return hy_cuda_launched(run);
}

/* Room for either way: the choice also depends on the addresses of the tensors. */
size_t hy_cuda_head_norm_bwd_workspace(const hy_cuda *cuda, const hy_op_call *call) {
    head_call n = head_call_of(call, true);
    if (!hy_has(&call->t[HY_HEAD_NORM_BWD_DWQ]) && !hy_has(&call->t[HY_HEAD_NORM_BWD_DWK]))
        return 0;
    if (call->attr.heads.is_whole) { /* one after the other */
        hy_op_call q = norm_of(call, 0), k = norm_of(call, 1);
        size_t of_q = hy_cuda_norm_bwd_workspace(cuda, &q),
               of_k = hy_cuda_norm_bwd_workspace(cuda, &k);
        return of_q > of_k ? of_q : of_k;
    }
    size_t packed = (size_t)(plan_of(cuda, n, true).blocks * 2 * n.D) * sizeof(float);
    size_t single = hy_column_bytes(cuda, n.N * n.H, n.D, 1);
    return packed > single ? packed : single;
}

hy_status hy_cuda_head_norm_bwd(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t, *dwq = &t[HY_HEAD_NORM_BWD_DWQ],
                    *dwk = &t[HY_HEAD_NORM_BWD_DWK];
    if (run->call->attr.heads.is_whole) return run_whole(run);
    head_call n = head_call_of(run->call, true);
    head_plan p = plan_of(run->cuda, n, true);
    n.lanes = p.lanes;
    if (!hy_has(dwq) && !hy_has(dwk)) n.partial = NULL;
    if (!p.lanes || !hy_fit_packs(n.D, {&t[HY_HEAD_NORM_BWD_QKV], &t[HY_HEAD_NORM_BWD_DOUT],
                                        &t[HY_HEAD_NORM_BWD_DQKV]})) {
        /* The sums come first, because dqkv may overwrite dout. */
        if (hy_has(dwq)) hy_column_sums(run, head_source{n, 0, n.H}, n.N * n.H, dwq, n.partial);
        if (hy_has(dwk)) hy_column_sums(run, head_source{n, n.H, n.K}, n.N * n.K, dwk, n.partial);
        launch_any(run, n, true);
        return hy_cuda_launched(run);
    }
    size_t bytes = (size_t)(THREADS / n.lanes) * 2 * (size_t)n.D * sizeof(float);
    hy_by_type(n.x_type, [&](auto zero) {
        using T = decltype(zero);
        auto kernel = p.lane_packs == 1 ? head_norm_bwd_rows<T, 1> : head_norm_bwd_rows<T, 2>;
        kernel<<<(unsigned)p.blocks, THREADS, bytes, run->stream>>>(n);
    });
    if (n.partial) hy_fold_columns(run, n.partial, p.blocks, 2 * n.D, dwq, dwk);
    return hy_cuda_launched(run);
}
