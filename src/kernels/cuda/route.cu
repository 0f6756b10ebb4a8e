/* route.cu: which experts a token chooses, their weights and the gradient of both, and the order of
 * rows by expert. As cpu/route.c.
 *
 * A warp takes a token: its logits, scores and the keys by which it chooses are in shared memory.
 * Counts are integers, so the order of additions does not matter. Rows are sorted in tiles: counted,
 * then numbered from the first row of each expert in each tile; a thread numbers the rows of its
 * experts in order. */
#include "kernels/cuda/cuda.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, ARRAYS = 3 };
enum { SORT_THREADS = 256, SORT_TILE = 2048, SCAN_THREADS = 1024 };

typedef struct route_call {
    hy_route_attr attr;
    const void *logits;
    hy_dtype dtype; /* of logits */
    const float *bias;
    int32_t *choice;
    float *weights, *losses; /* forward */
    const float *dweights;   /* backward */
    void *dlogits;
    hy_dtype dlogits_dtype;
    int *counts; /* (sequences,E) */
    int64_t N;
    int E, k;
} route_call;

static route_call route_call_of(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    bool is_forward = call->kind == HY_OP_ROUTE;
    const hy_tensor *logits = is_forward ? &t[HY_ROUTE_LOGITS] : &t[HY_ROUTE_BWD_LOGITS];
    const hy_tensor *choice = is_forward ? &t[HY_ROUTE_CHOICE] : &t[HY_ROUTE_BWD_CHOICE];
    route_call c = {};
    c.attr = call->attr.route;
    c.logits = logits->data;
    c.dtype = logits->dtype;
    c.choice = (int32_t *)choice->data;
    c.N = hy_height(logits);
    c.E = (int)hy_width(logits);
    c.k = (int)hy_width(choice);
    c.counts = (int *)call->workspace.data;
    if (is_forward) {
        c.bias = (const float *)t[HY_ROUTE_BIAS].data;
        c.weights = (float *)t[HY_ROUTE_WEIGHTS].data;
        c.losses = (float *)t[HY_ROUTE_LOSSES].data;
    } else {
        c.dweights = (const float *)t[HY_ROUTE_BWD_DWEIGHTS].data;
        c.dlogits = t[HY_ROUTE_BWD_DLOGITS].data;
        c.dlogits_dtype = t[HY_ROUTE_BWD_DLOGITS].dtype;
    }
    return c;
}

static bool needs_counts(const hy_op_call *call) {
    return call->kind == HY_OP_ROUTE ? hy_has(&call->t[HY_ROUTE_LOSSES])
                                     : call->attr.route.balance != 0;
}

size_t hy_cuda_route_workspace(const hy_cuda *, const hy_op_call *call) {
    route_call c = route_call_of(call);
    if (!needs_counts(call)) return 0;
    return (size_t)(c.N / c.attr.seq * c.E * 4 + 255) / 256 * 256;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* The numbers of a warp's token. */
typedef struct token_scores {
    float *logit, *score, *other;
    float lse; /* not finite: the token has no scores */
} token_scores;

__device__ __forceinline__ token_scores read_scores(const route_call &c, int64_t row,
                                                    float *shared) {
    int lane = threadIdx.x % 32;
    float most = -INFINITY, sum = 0;
    token_scores s;
    s.logit = shared + (int)threadIdx.x / 32 * ARRAYS * c.E;
    s.score = s.logit + c.E;
    s.other = s.score + c.E;
    for (int e = lane; e < c.E; e += 32) {
        float x = hy_load_any(c.logits, row * c.E + e, c.dtype);
        s.logit[e] = x;
        most = x > most ? x : most;
    }
    most = hy_warp_max(most);
    for (int e = lane; e < c.E; e += 32) {
        float x = expf(s.logit[e] - most);
        s.score[e] = x;
        sum += x;
    }
    sum = hy_warp_sum(sum);
    s.lse = most + logf(sum);
    for (int e = lane; e < c.E; e += 32) {
        bool is_softmax = c.attr.score == HY_ROUTE_SOFTMAX;
        s.score[e] = is_softmax ? s.score[e] / sum : 1.0f / (1.0f + expf(-s.logit[e]));
    }
    __syncwarp();
    return s;
}

/* What scores are divided by to sum to 1. */
__device__ __forceinline__ float share_divisor(const route_call &c, const token_scores &s) {
    float sum = 0;
    if (c.attr.score == HY_ROUTE_SOFTMAX) return 1;
    for (int e = threadIdx.x % 32; e < c.E; e += 32) sum += s.score[e];
    return hy_warp_sum(sum) + HY_ROUTE_EPS;
}

/* One block per sequence. */
static __global__ void __launch_bounds__(SCAN_THREADS) count_kernel(route_call c) {
    extern __shared__ int histogram[];
    int64_t chosen = (int64_t)c.attr.seq * c.k;
    const int32_t *choice = c.choice + blockIdx.x * chosen;
    for (int e = threadIdx.x; e < c.E; e += SCAN_THREADS) histogram[e] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < chosen; i += SCAN_THREADS) {
        if ((unsigned)choice[i] < (unsigned)c.E) atomicAdd(&histogram[choice[i]], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < c.E; e += SCAN_THREADS) {
        c.counts[(int64_t)blockIdx.x * c.E + e] = histogram[e];
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* The expert of this lane's number, of lanes below k. Chosen keys become NaN, which is larger than
 * nothing and equal to nothing. */
__device__ __forceinline__ int choose(const route_call &c, const token_scores &s) {
    int lane = threadIdx.x % 32, mine = 0;
    for (int e = lane; e < c.E; e += 32) {
        float key = c.bias ? s.score[e] + c.bias[e] : s.logit[e];
        s.other[e] = key > -INFINITY ? key : -INFINITY;
    }
    __syncwarp();
    for (int j = 0; j < c.k; j++) {
        float most = -INFINITY;
        int best = c.E;
        for (int e = lane; e < c.E; e += 32) {
            float key = s.other[e];
            if (key > most || (key == most && e < best)) most = key, best = e;
        }
        for (int d = 16; d > 0; d >>= 1) {
            float key = __shfl_xor_sync(0xffffffffu, most, d);
            int e = __shfl_xor_sync(0xffffffffu, best, d);
            if (key > most || (key == most && e < best)) most = key, best = e;
        }
        if (lane == j) mine = best;
        if (lane == 0) s.other[best] = NAN;
        __syncwarp();
    }
    return mine;
}

static __global__ void __launch_bounds__(THREADS) route_kernel(route_call c) {
    extern __shared__ float shared[];
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= c.N) return;
    token_scores s = read_scores(c, row, shared);
    bool is_finite = isfinite(s.lse);
    int chosen = is_finite ? choose(c, s) : lane;
    float score = lane < c.k ? s.score[chosen] : 0.0f, sum = hy_warp_sum(score);
    float factor = c.attr.is_renormalised ? c.attr.scale / (sum + HY_ROUTE_EPS) : c.attr.scale;
    if (lane >= c.k) return;
    c.choice[row * c.k + lane] = chosen;
    c.weights[row * c.k + lane] = is_finite ? score * factor : NAN;
}

static __global__ void __launch_bounds__(THREADS) losses_kernel(route_call c) {
    extern __shared__ float shared[];
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= c.N) return;
    token_scores s = read_scores(c, row, shared);
    const int *count = c.counts + row / c.attr.seq * c.E;
    float divisor = share_divisor(c, s), balance = 0, entropy = 0;
    for (int e = threadIdx.x % 32; e < c.E; e += 32) {
        float share = s.score[e] / divisor;
        balance += (float)count[e] * share;
        if (share != 0) entropy -= share * logf(share);
    }
    balance = hy_warp_sum(balance);
    entropy = hy_warp_sum(entropy);
    if (threadIdx.x % 32 != 0) return;
    float *losses = c.losses + row * HY_ROUTE_LOSSES_COUNT;
    losses[0] = s.lse * s.lse;
    losses[1] = (float)c.E / ((float)c.k * (float)c.attr.seq) * balance;
    losses[2] = entropy;
}

/* ---- backward -------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS) route_bwd_kernel(route_call c) {
    extern __shared__ float shared[];
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= c.N) return;
    token_scores s = read_scores(c, row, shared);
    float *slope = s.other; /* the gradient of each score */
    bool is_softmax = c.attr.score == HY_ROUTE_SOFTMAX;

    const int *count = c.counts + (c.attr.balance != 0 ? row / c.attr.seq * c.E : 0);
    float divisor = 1, balanced = 0, factor = 0;
    if (c.attr.balance != 0) {
        divisor = share_divisor(c, s);
        for (int e = lane; e < c.E; e += 32) balanced += (float)count[e] * (s.score[e] / divisor);
        balanced = is_softmax ? 0.0f : hy_warp_sum(balanced);
        factor = (float)c.E / ((float)c.k * (float)c.attr.seq) * c.attr.balance;
    }
    for (int e = lane; e < c.E; e += 32) {
        slope[e] = c.attr.balance != 0 ? factor * ((float)count[e] - balanced) / divisor : 0.0f;
    }
    __syncwarp();

    int chosen = lane < c.k ? min(max(c.choice[row * c.k + lane], 0), c.E - 1) : 0;
    float score = lane < c.k ? s.score[chosen] : 0.0f;
    float dweight = lane < c.k ? c.dweights[row * c.k + lane] : 0.0f;
    float sum = hy_warp_sum(score) + HY_ROUTE_EPS, product = hy_warp_sum(dweight * score);
    if (c.attr.is_renormalised) dweight = (dweight - product / sum) / sum;
    if (lane < c.k) slope[chosen] += c.attr.scale * dweight;
    __syncwarp();

    float mean = 0;
    for (int e = lane; e < c.E; e += 32) mean += slope[e] * s.score[e];
    mean = hy_warp_sum(mean);
    for (int e = lane; e < c.E; e += 32) {
        float inner = is_softmax ? slope[e] - mean : slope[e] * (1.0f - s.score[e]);
        float z = c.attr.z != 0 ? 2.0f * c.attr.z * s.lse * expf(s.logit[e] - s.lse) : 0.0f;
        hy_store_any(c.dlogits, row * c.E + e, c.dlogits_dtype,
                     isfinite(s.lse) ? s.score[e] * inner + z : NAN);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

static void count(const hy_cuda_run *run, const route_call &c) {
    if (!needs_counts(run->call)) return;
    count_kernel<<<(unsigned)(c.N / c.attr.seq), SCAN_THREADS, (size_t)c.E * sizeof(int),
                   run->stream>>>(c);
}

static size_t shared_of(const route_call &c) {
    return (size_t)WARPS * ARRAYS * c.E * sizeof(float);
}

hy_status hy_cuda_route(const hy_cuda_run *run) {
    route_call c = route_call_of(run->call);
    unsigned blocks = (unsigned)hy_ceil_div(c.N, WARPS);
    route_kernel<<<blocks, THREADS, shared_of(c), run->stream>>>(c);
    HY_TRY(hy_cuda_launched(run));
    if (!c.losses) return HY_OK;
    count(run, c);
    losses_kernel<<<blocks, THREADS, shared_of(c), run->stream>>>(c);
    return hy_cuda_launched(run);
}

hy_status hy_cuda_route_bwd(const hy_cuda_run *run) {
    route_call c = route_call_of(run->call);
    count(run, c);
    route_bwd_kernel<<<(unsigned)hy_ceil_div(c.N, WARPS), THREADS, shared_of(c), run->stream>>>(c);
    return hy_cuda_launched(run);
}

/* ---- sorting --------------------------------------------------------------------------------- */

typedef struct sorting {
    const int32_t *choice;
    int32_t *order, *place, *offsets;
    int *counts; /* (tiles,E): rows of each expert in a tile, then its first position */
    int rows, E, tiles;
} sorting;

/* The choices of this block's tile; returns how many there are. A number that is no expert counts as
 * the nearest one. */
__device__ __forceinline__ int read_tile(const sorting &s, int *choice) {
    int first = blockIdx.x * SORT_TILE, there = min(SORT_TILE, s.rows - first);
    for (int i = threadIdx.x; i < there; i += SORT_THREADS) {
        choice[i] = min(max(s.choice[first + i], 0), s.E - 1);
    }
    return there;
}

static __global__ void __launch_bounds__(SORT_THREADS) sort_count_kernel(sorting s) {
    __shared__ int choice[SORT_TILE], histogram[HY_ROUTE_EXPERTS_MAX];
    int there = read_tile(s, choice);
    for (int e = threadIdx.x; e < s.E; e += SORT_THREADS) histogram[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < there; i += SORT_THREADS) atomicAdd(&histogram[choice[i]], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < s.E; e += SORT_THREADS) {
        s.counts[(int64_t)blockIdx.x * s.E + e] = histogram[e];
    }
}

/* One block; a thread has an expert. */
static __global__ void __launch_bounds__(SCAN_THREADS) sort_scan_kernel(sorting s) {
    __shared__ int of_warp[SCAN_THREADS / 32];
    int e = threadIdx.x, lane = e % 32, warp = e / 32, total = 0;
    if (e < s.E) {
#pragma unroll 8
        for (int tile = 0; tile < s.tiles; tile++) total += s.counts[(int64_t)tile * s.E + e];
    }
    int end = total; /* of the expert, within its warp, then among all */
    for (int d = 1; d < 32; d <<= 1) {
        int before = __shfl_up_sync(0xffffffffu, end, d);
        if (lane >= d) end += before;
    }
    if (lane == 31) of_warp[warp] = end;
    __syncthreads();
    for (int w = 0; w < warp; w++) end += of_warp[w];
    if (e >= s.E) return;
    int at = end - total;
    s.offsets[e] = at;
    if (e == s.E - 1) s.offsets[s.E] = end;
    for (int tile = 0; tile < s.tiles; tile++) {
        int *here = &s.counts[(int64_t)tile * s.E + e], count = *here;
        *here = at;
        at += count;
    }
}

static __global__ void __launch_bounds__(SORT_THREADS) sort_place_kernel(sorting s) {
    __shared__ int choice[SORT_TILE];
    int there = read_tile(s, choice), first = blockIdx.x * SORT_TILE;
    __syncthreads();
    for (int e = threadIdx.x; e < s.E; e += SORT_THREADS) {
        int at = s.counts[(int64_t)blockIdx.x * s.E + e];
        for (int i = 0; i < there; i++) {
            if (choice[i] != e) continue;
            s.order[at] = first + i;
            s.place[first + i] = at++;
        }
    }
}

static int64_t sort_tiles(const hy_op_call *call) {
    return hy_ceil_div(hy_tensor_count(&call->t[HY_SORT_EXPERTS_CHOICE]), SORT_TILE);
}

size_t hy_cuda_sort_experts_workspace(const hy_cuda *, const hy_op_call *call) {
    int64_t E = hy_tensor_count(&call->t[HY_SORT_EXPERTS_OFFSETS]) - 1;
    return (size_t)(sort_tiles(call) * E * 4 + 255) / 256 * 256;
}

hy_status hy_cuda_sort_experts(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    sorting s = {};
    s.choice = (const int32_t *)t[HY_SORT_EXPERTS_CHOICE].data;
    s.order = (int32_t *)t[HY_SORT_EXPERTS_ORDER].data;
    s.place = (int32_t *)t[HY_SORT_EXPERTS_PLACE].data;
    s.offsets = (int32_t *)t[HY_SORT_EXPERTS_OFFSETS].data;
    s.counts = (int *)run->call->workspace.data;
    s.rows = (int)hy_tensor_count(&t[HY_SORT_EXPERTS_CHOICE]);
    s.E = (int)hy_tensor_count(&t[HY_SORT_EXPERTS_OFFSETS]) - 1;
    s.tiles = (int)sort_tiles(run->call);
    sort_count_kernel<<<(unsigned)s.tiles, SORT_THREADS, 0, run->stream>>>(s);
    sort_scan_kernel<<<1, SCAN_THREADS, 0, run->stream>>>(s);
    sort_place_kernel<<<(unsigned)s.tiles, SORT_THREADS, 0, run->stream>>>(s);
    return hy_cuda_launched(run);
}
