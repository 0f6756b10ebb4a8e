/* loss.cu: softmax cross-entropy of rows of logits, and its gradient in their place.
 *
 * A block per row. Copies of as much of the row as shared memory holds are set under way at once;
 * the first pass takes maximum and sum of exponentials together, rescaling the sum when the maximum
 * grows, over the rest and then over what has arrived. The second pass turns logits into gradients,
 * reading the rest from the L2 cache, last read first: memory itself is read once and written once.
 * A target that is not below the vocabulary cannot be refused here, where nobody waits for the
 * answer: its loss and its gradients are NaN, and an update with such a norm is left out. */
#include <math.h>

#include "kernels/cuda/tile.cuh"

#define MAX_THREADS 1024
#define UNROLL 4 /* packs of 16 bytes a thread has under way in registers */
#define STAGES 8 /* copies are waited for in this many parts */

typedef struct loss_args {
    void *logits;
    const int32_t *targets;
    float *losses;
    int64_t width; /* V */
    int vocab;
    float scale;
    bool wants_grad;
    int room; /* packs that shared memory holds */
} loss_args;

/* A row cut where 16-byte accesses may begin and end: head elements, packs, tail elements. */
template <typename T> struct row_cut {
    T *row;
    int head, packs, tail; /* of the vocabulary's columns */

    __device__ __forceinline__ row_cut(T *start, int vocab) {
        constexpr int pack = hy_pack<T>::count;
        row = start;
        int misaligned = (int)((uintptr_t)start % 16 / sizeof(T));
        head = min(vocab, (pack - misaligned) % pack);
        packs = (vocab - head) / pack;
        tail = (vocab - head) % pack;
    }
    __device__ __forceinline__ uint4 *body() const { return (uint4 *)(row + head); }
    /* Element i of those outside packs, i < head + tail. */
    __device__ __forceinline__ T *loose(int i) const {
        return i < head ? row + i : row + (i + packs * hy_pack<T>::count);
    }
};

template <typename T>
__device__ __forceinline__ void widen_pack(uint4 bits, float x[hy_pack<T>::count]) {
    const T *v = (const T *)&bits;
#pragma unroll
    for (int i = 0; i < hy_pack<T>::count; i++) x[i] = hy_to_float(v[i]);
}

/* exp; below the smallest normal number it is 0. */
__device__ __forceinline__ float exp_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}

/* ---- what is kept ---------------------------------------------------------------------------- */

/* The first packs of a row, in shared memory. Each thread copies, waits for and reads its own, so
 * that no barrier is needed; they come in STAGES groups of `rounds` packs a thread. */
struct kept_packs {
    uint4 *at;
    int count, rounds;

    __device__ __forceinline__ kept_packs(uint4 *shared, int count_kept) {
        at = shared;
        count = count_kept;
        int all = (count + (int)blockDim.x - 1) / (int)blockDim.x;
        rounds = (all + STAGES - 1) / STAGES;
    }
    __device__ __forceinline__ int index(int stage, int round) const {
        return (stage * rounds + round) * (int)blockDim.x + (int)threadIdx.x;
    }
    __device__ __forceinline__ void copy(const uint4 *body) const {
        for (int stage = 0; stage < STAGES; stage++) {
            for (int round = 0; round < rounds; round++) {
                int i = index(stage, round);
                if (i < count) copy_pack(at + i, body + i);
            }
#if HY_HAS_TILES
            hy_copy_commit();
#endif
        }
    }
    static __device__ __forceinline__ void copy_pack(uint4 *to, const uint4 *from) {
#if HY_HAS_TILES
        hy_copy_async(hy_shared_address(to), from, true);
#else
        *to = __ldcg(from);
#endif
    }
    /* Until this thread's packs of a stage are there, `behind` stages having been begun after
     * it. */
    template <int behind> static __device__ __forceinline__ void wait() {
#if HY_HAS_TILES
        hy_copy_wait<behind>();
#endif
    }
};

/* ---- first pass ------------------------------------------------------------------------------ */

/* Sum of exp(x - max) over what was seen; a row of minus infinities keeps sum 0. */
typedef struct running {
    float max, sum;
} running;

template <int n> __device__ __forceinline__ float sum_of(const float x[n]) {
    if constexpr (n == 1)
        return x[0];
    else
        return sum_of<n / 2>(x) + sum_of<n / 2>(x + n / 2);
}

template <int n> __device__ __forceinline__ void take(running *r, const float x[n]) {
    float largest = x[0], e[n];
#pragma unroll
    for (int i = 1; i < n; i++) largest = fmaxf(largest, x[i]);
    if (largest > r->max) {
        r->sum *= exp_of(r->max - largest);
        r->max = largest;
    }
    float shift = r->max == -INFINITY ? 0 : r->max;
#pragma unroll
    for (int i = 0; i < n; i++) e[i] = exp_of(x[i] - shift);
    r->sum += sum_of<n>(e);
}

template <typename T> __device__ __forceinline__ void take_pack(running *r, uint4 bits) {
    float x[hy_pack<T>::count];
    widen_pack<T>(bits, x);
    take<hy_pack<T>::count>(r, x);
}

/* The packs of stages `stage` and on, as they arrive. */
template <typename T, int stage>
__device__ __forceinline__ void take_kept(running *r, const kept_packs &kept) {
    if constexpr (stage < STAGES) {
        kept.wait<STAGES - 1 - stage>();
        for (int round = 0; round < kept.rounds; round++) {
            int i = kept.index(stage, round);
            if (i < kept.count) take_pack<T>(r, kept.at[i]);
        }
        take_kept<T, stage + 1>(r, kept);
    }
}

/* The packs that shared memory has no room for. */
template <typename T>
__device__ __forceinline__ void take_rest(running *r, const row_cut<T> &cut, int kept) {
    const uint4 *body = cut.body();
    for (int first = kept + threadIdx.x; first < cut.packs; first += UNROLL * blockDim.x) {
        uint4 bits[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = first + u * blockDim.x;
            if (i < cut.packs) bits[u] = __ldcg(body + i);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (first + u * (int)blockDim.x < cut.packs) take_pack<T>(r, bits[u]);
        }
    }
}

/* The running sums of all threads joined; every thread gets the result. */
__device__ __forceinline__ running join(running mine) {
    __shared__ float maxima[32], sums[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    float warp_max = hy_warp_max(mine.max);
    float shift = warp_max == -INFINITY ? 0 : warp_max;
    float warp_sum = hy_warp_sum(mine.sum * exp_of(mine.max - shift));
    if (lane == 0) maxima[warp] = warp_max, sums[warp] = warp_sum;
    __syncthreads();
    float max = lane < warps ? maxima[lane] : -INFINITY;
    float largest = hy_warp_max(max);
    shift = largest == -INFINITY ? 0 : largest;
    float sum = lane < warps ? sums[lane] * exp_of(max - shift) : 0;
    return running{shift, hy_warp_sum(sum)};
}

template <typename T>
__device__ __forceinline__ running read_row(const row_cut<T> &cut, const kept_packs &kept) {
    running r = {-INFINITY, 0};
    kept.copy(cut.body());
    take_rest<T>(&r, cut, kept.count);
    for (int i = threadIdx.x; i < cut.head + cut.tail; i += blockDim.x) {
        float x = hy_to_float(*cut.loose(i));
        take<1>(&r, &x);
    }
    take_kept<T, 0>(&r, kept);
    return join(r);
}

/* ---- second pass ----------------------------------------------------------------------------- */

/* factor * exp(x - shift) */
typedef struct softmax {
    float shift, factor;
} softmax;

template <typename T> __device__ __forceinline__ uint4 softmax_pack(uint4 bits, softmax s) {
    float x[hy_pack<T>::count];
    hy_pack<T> out;
    widen_pack<T>(bits, x);
#pragma unroll
    for (int i = 0; i < hy_pack<T>::count; i++) {
        out.v[i] = hy_from_float<T>(exp_of(x[i] - s.shift) * s.factor);
    }
    return *(const uint4 *)&out;
}

template <typename T>
__device__ __forceinline__ void write_rest(const row_cut<T> &cut, int kept, softmax s) {
    uint4 *body = cut.body() + kept;
    int packs = cut.packs - kept, rounds = (packs + (int)blockDim.x - 1) / (int)blockDim.x;
    for (int round = rounds - 1; round >= 0; round -= UNROLL) {
        uint4 bits[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = (round - u) * (int)blockDim.x + (int)threadIdx.x;
            if (i >= 0 && i < packs) bits[u] = __ldcg(body + i);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int i = (round - u) * (int)blockDim.x + (int)threadIdx.x;
            if (i >= 0 && i < packs) __stcs(body + i, softmax_pack<T>(bits[u], s));
        }
    }
}

template <typename T>
__device__ __forceinline__ void write_row(const row_cut<T> &cut, const kept_packs &kept,
                                          softmax s) {
    write_rest<T>(cut, kept.count, s);
    for (int i = threadIdx.x; i < kept.count; i += blockDim.x) {
        __stcs(cut.body() + i, softmax_pack<T>(kept.at[i], s));
    }
    for (int i = threadIdx.x; i < cut.head + cut.tail; i += blockDim.x) {
        T *element = cut.loose(i);
        *element = hy_from_float<T>(exp_of(hy_to_float(*element) - s.shift) * s.factor);
    }
}

template <typename T>
__device__ __forceinline__ void fill_columns(T *row, int64_t begin, int64_t end, float value) {
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        row[i] = hy_from_float<T>(value);
    }
}

/* ---- the row --------------------------------------------------------------------------------- */

/* A row without a loss of its own: ignored (0) or impossible (NaN). */
template <typename T>
__device__ __forceinline__ void give_row(const loss_args &a, T *row, float value) {
    if (threadIdx.x == 0) a.losses[blockIdx.x] = value;
    if (a.wants_grad) fill_columns(row, 0, a.width, value);
}

template <typename T> __global__ void __launch_bounds__(MAX_THREADS) loss_kernel(loss_args a) {
    extern __shared__ uint4 shared[];
    T *row = (T *)a.logits + (int64_t)blockIdx.x * a.width;
    int target = a.targets[blockIdx.x];
    if (target < 0) return give_row(a, row, 0.0f);
    if (target >= a.vocab) return give_row(a, row, NAN);
    row_cut<T> cut(row, a.vocab);
    float logit = hy_to_float(row[target]);
    kept_packs kept(shared, min(a.room, cut.packs));
    running r = read_row<T>(cut, kept);
    float log_probability = logit - r.max - logf(r.sum);
    if (threadIdx.x == 0) a.losses[blockIdx.x] = -log_probability;
    if (!a.wants_grad) return;
    write_row<T>(cut, kept, softmax{r.max, a.scale / r.sum});
    fill_columns(row, a.vocab, a.width, 0.0f);
    __syncthreads();
    /* The target's own gradient, p - 1, from the logit itself: exact also where p is almost 1. */
    if (threadIdx.x == 0) row[target] = hy_from_float<T>(a.scale * expm1f(log_probability));
}

/* ---- the op ---------------------------------------------------------------------------------- */

/* Two blocks share a multiprocessor, so that one reads while the other writes: each may keep half
 * of the shared memory, and no more than a block may have on every card. */
static size_t shared_room(const hy_cuda_card *card) {
    size_t half = (card->shared_bytes - 2048) / 2, most = 98 * 1024;
    return (half < most ? half : most) / 1024 * 1024;
}

template <typename T> static hy_status launch(const hy_cuda_run *run, loss_args a, unsigned rows) {
    size_t row = (size_t)a.vocab * sizeof(T), room = shared_room(&run->cuda->card);
    size_t bytes = row < room ? row / 16 * 16 : room;
    unsigned threads = row >= 16 * 1024 ? 512 : 128;
    a.room = (int)(bytes / 16);
    HY_CUDA_TRY(
        hy_cuda_check(run->cuda,
                      cudaFuncSetAttribute(loss_kernel<T>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                      "shared memory for cross-entropy"));
    loss_kernel<T><<<rows, threads, bytes, run->stream>>>(a);
    return hy_cuda_launched(run);
}

hy_status hy_cuda_cross_entropy(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    loss_args a = {};
    a.logits = call->t[0].data;
    a.targets = (const int32_t *)call->t[1].data;
    a.losses = (float *)call->t[2].data;
    a.width = hy_width(&call->t[0]);
    a.vocab = call->attr.loss.vocab;
    a.scale = call->attr.loss.scale;
    a.wants_grad = call->attr.loss.wants_grad;
    hy_status status = HY_OK;
    unsigned rows = (unsigned)hy_height(&call->t[0]);
    hy_by_type(call->t[0].dtype, [&](auto zero) { status = launch<decltype(zero)>(run, a, rows); });
    return status;
}
