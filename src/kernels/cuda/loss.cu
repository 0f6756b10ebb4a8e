/* loss.cu: softmax cross-entropy of rows of logits, and its gradient in place.
 *
 * One block per row. The first pass streams the row through a ring in shared memory; it computes
 * maximum and sum of exponentials together and rescales the sum when the maximum grows. The second
 * pass converts logits to gradients from the end on: first those still in the ring, often the whole
 * row, then the rest from the L2 cache. So memory is read once and written once. A kernel cannot
 * return an error for a target outside the vocabulary: its loss and gradients are NaN, and an
 * update with such a norm is skipped. Scaled and capped logits have their own kernels (IS_SHAPED):
 * they see each logit through a function, and the gradient has its derivative. */
#include <math.h>

#include "kernels/cuda/tile.cuh"

#define UNROLL 4 /* packs a thread loads at once when it reads the rest again */

typedef struct loss_args {
    void *logits;
    const int32_t *targets;
    float *losses;
    const float *weights; /* or NULL */
    int64_t width;        /* V */
    int vocab;
    float scale;
    bool wants_grad, reads_prompts;
    float factor, inner,
        cap; /* shaped: a logit becomes inner x, or with a cap: cap tanh(inner x) */
} loss_args;

/* A logit as the softmax sees it. */
template <bool IS_SHAPED> __device__ __forceinline__ float logit_of(const loss_args &a, float x) {
    if (!IS_SHAPED) return x;
    return a.cap > 0 ? a.cap * hy_tanh(a.inner * x) : a.inner * x;
}
/* The derivative at a logit that has become z. */
__device__ __forceinline__ float slope_of(const loss_args &a, float z) {
    float t = a.cap > 0 ? __fdividef(z, a.cap) : 0.0f;
    return a.factor * (1.0f - t * t);
}

/* A row divided for 16-byte accesses: head elements, packs, tail elements. */
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
    HY_EACH(i, hy_pack<T>::count) x[i] = hy_to_float(v[i]);
}

/* exp; below the smallest normal number it is 0. */
__device__ __forceinline__ float exp_of(float x) { return hy_exp2(x * HY_LOG2E); }

/* ---- the ring -------------------------------------------------------------------------------- */

/* A thread has the packs `thread + r * threads` of a row and its own places in the ring, so it
 * waits only for its own copies and needs no barrier: round r is in place r mod `depth`. */
template <int depth> struct pack_ring {
    uint4 *places;
    const uint4 *body;
    int packs, rounds; /* packs of the row; rounds in which this thread has packs */

    __device__ __forceinline__ pack_ring(uint4 *shared, const uint4 *row_body, int count) {
        places = shared + threadIdx.x;
        body = row_body + threadIdx.x;
        packs = count;
        rounds = (packs - (int)threadIdx.x + (int)blockDim.x - 1) / (int)blockDim.x;
    }
    __device__ __forceinline__ uint4 *place(int round) const {
        return places + round % depth * (int)blockDim.x;
    }
    /* Starts the copy of a round. A round after the end counts as a copy, too, so the number of
     * copies in flight is always the same. */
    __device__ __forceinline__ void copy(int round) const {
        const uint4 *from = body + (int64_t)round * blockDim.x;
#if HY_HAS_TILES
        if (round < rounds) hy_copy_async(hy_shared_address(place(round)), from, true);
        hy_copy_commit();
#else
        if (round < rounds) *place(round) = __ldcg(from);
#endif
    }
    __device__ __forceinline__ void begin() const {
        for (int round = 0; round < depth; round++) copy(round);
    }
    /* The content of a round's place. Volatile, as copies are: the compiler does not see the writes
     * of copies and so keeps the order. */
    __device__ __forceinline__ uint4 read(int round) const {
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(hy_shared_address(place(round)))
                     : "memory");
        return v;
    }
    /* Waits for the oldest copy: that of `round`. */
    __device__ __forceinline__ uint4 take(int round) const {
#if HY_HAS_TILES
        hy_copy_wait<depth - 1>();
#endif
        return read(round);
    }
    __device__ __forceinline__ int first_held() const { return max(0, rounds - depth); }
};

/* ---- first pass ------------------------------------------------------------------------------ */

/* The sum of exp(x - max) so far; a row of minus infinities keeps sum 0. */
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
    HY_EACH(i, n) e[i] = exp_of(x[i] - shift);
    r->sum += sum_of<n>(e);
}

template <typename T, bool IS_SHAPED>
__device__ __forceinline__ void take_pack(const loss_args &a, running *r, uint4 bits) {
    float x[hy_pack<T>::count];
    widen_pack<T>(bits, x);
    HY_EACH(i, hy_pack<T>::count) x[i] = logit_of<IS_SHAPED>(a, x[i]);
    take<hy_pack<T>::count>(r, x);
}

/* Combines the running sums of all threads; every thread gets the result. */
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

template <typename T, int depth, bool IS_SHAPED>
__device__ __forceinline__ running read_row(const loss_args &a, const row_cut<T> &cut,
                                            const pack_ring<depth> &ring) {
    running r = {-INFINITY, 0};
    ring.begin();
    for (int i = threadIdx.x; i < cut.head + cut.tail; i += blockDim.x) {
        float x = logit_of<IS_SHAPED>(a, hy_to_float(*cut.loose(i)));
        take<1>(&r, &x);
    }
    for (int round = 0; round < ring.rounds; round++) {
        take_pack<T, IS_SHAPED>(a, &r, ring.take(round));
        ring.copy(round + depth);
    }
    return join(r);
}

/* ---- second pass ----------------------------------------------------------------------------- */

/* factor * exp(x - shift) */
typedef struct softmax {
    float shift, factor;
} softmax;

/* The gradient of a logit. */
template <bool IS_SHAPED>
__device__ __forceinline__ float gradient_of(const loss_args &a, float x, softmax s) {
    float z = logit_of<IS_SHAPED>(a, x), p = exp_of(z - s.shift) * s.factor;
    return IS_SHAPED ? p * slope_of(a, z) : p;
}

template <typename T, bool IS_SHAPED>
__device__ __forceinline__ uint4 softmax_pack(const loss_args &a, uint4 bits, softmax s) {
    float x[hy_pack<T>::count];
    hy_pack<T> out;
    widen_pack<T>(bits, x);
    HY_EACH(i, hy_pack<T>::count) {
        out.v[i] = hy_from_float<T>(gradient_of<IS_SHAPED>(a, x[i], s));
    }
    return *(const uint4 *)&out;
}

/* Rounds below `end`, which are no longer in the ring: the last read first. */
template <typename T, bool IS_SHAPED>
__device__ __forceinline__ void write_rest(const loss_args &a, uint4 *body, int end, softmax s) {
    for (int round = end - 1; round >= 0; round -= UNROLL) {
        uint4 bits[UNROLL];
        HY_EACH(u, UNROLL) {
            if (round >= u) bits[u] = __ldcg(body + (int64_t)(round - u) * blockDim.x);
        }
        HY_EACH(u, UNROLL) {
            if (round < u) continue;
            __stcs(body + (int64_t)(round - u) * blockDim.x,
                   softmax_pack<T, IS_SHAPED>(a, bits[u], s));
        }
    }
}

template <typename T, int depth, bool IS_SHAPED>
__device__ __forceinline__ void write_row(const loss_args &a, const row_cut<T> &cut,
                                          const pack_ring<depth> &ring, softmax s) {
    uint4 *body = cut.body() + threadIdx.x;
    for (int round = ring.rounds - 1; round >= ring.first_held(); round--) {
        __stcs(body + (int64_t)round * blockDim.x,
               softmax_pack<T, IS_SHAPED>(a, ring.read(round), s));
    }
    write_rest<T, IS_SHAPED>(a, body, ring.first_held(), s);
    for (int i = threadIdx.x; i < cut.head + cut.tail; i += blockDim.x) {
        T *element = cut.loose(i);
        *element = hy_from_float<T>(gradient_of<IS_SHAPED>(a, hy_to_float(*element), s));
    }
}

template <typename T>
__device__ __forceinline__ void fill_columns(T *row, int64_t begin, int64_t end, float value) {
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
        row[i] = hy_from_float<T>(value);
    }
}

/* ---- the row --------------------------------------------------------------------------------- */

/* A row without a loss: ignored (0) or invalid (NaN). */
template <typename T>
__device__ __forceinline__ void give_row(const loss_args &a, T *row, float value) {
    if (threadIdx.x == 0) a.losses[blockIdx.x] = value;
    if (a.wants_grad) fill_columns(row, 0, a.width, value);
}

template <typename T, int depth, int threads, bool IS_SHAPED>
__global__ void __launch_bounds__(threads, 1024 / threads) loss_kernel(loss_args a) {
    extern __shared__ uint4 shared[];
    T *row = (T *)a.logits + (int64_t)blockIdx.x * a.width;
    int target = hy_target_of(a.targets[blockIdx.x], a.reads_prompts);
    float scale = a.weights ? a.scale * a.weights[blockIdx.x] : a.scale;
    if (target < 0) return give_row(a, row, 0.0f);
    if (target >= a.vocab) return give_row(a, row, NAN);
    row_cut<T> cut(row, a.vocab);
    float logit = logit_of<IS_SHAPED>(a, hy_to_float(row[target]));
    pack_ring<depth> ring(shared, cut.body(), cut.packs);
    running r = read_row<T, depth, IS_SHAPED>(a, cut, ring);
    float log_probability = logit - r.max - logf(r.sum);
    if (threadIdx.x == 0) a.losses[blockIdx.x] = -log_probability;
    if (!a.wants_grad) return;
    write_row<T, depth, IS_SHAPED>(a, cut, ring, softmax{r.max, scale / r.sum});
    fill_columns(row, a.vocab, a.width, 0.0f);
    __syncthreads();
    /* The gradient of the target, p - 1, computed from the logit: exact even if p is almost 1. */
    float factor = IS_SHAPED ? scale * slope_of(a, logit) : scale;
    if (threadIdx.x == 0) row[target] = hy_from_float<T>(factor * expm1f(log_probability));
}

/* ---- the op ---------------------------------------------------------------------------------- */

template <typename T, int depth, int threads>
static hy_status launch(const hy_cuda_run *run, const loss_args &a, unsigned rows) {
    bool is_shaped = a.factor != 1 || a.cap > 0;
    auto kernel =
        is_shaped ? loss_kernel<T, depth, threads, true> : loss_kernel<T, depth, threads, false>;
    return hy_launch_with_shared(run, kernel, rows, threads, depth * threads * (int)sizeof(uint4),
                                 a);
}

/* Blocks and rings by the bytes of a row and the features of the card. Two blocks of 512 threads
 * share a multiprocessor, so that one reads while the other writes: 104 KB each hold a row of 53
 * thousand 16-bit logits, 48 KB fit on every card. For much longer rows, the rest would not fit
 * into the L2 cache: there one block has 192 KB. Short rows use small blocks. */
template <typename T>
static hy_status launch_row(const hy_cuda_run *run, const loss_args &a, unsigned rows) {
    size_t row = (size_t)a.vocab * sizeof(T), room = run->cuda->card.shared_bytes;
    if (row < 8 * 1024) return launch<T, 6, 64>(run, a, rows);
    if (row < 32 * 1024) return launch<T, 6, 128>(run, a, rows);
    if (room < 208 * 1024) return launch<T, 6, 512>(run, a, rows);
    if (row < 192 * 1024) return launch<T, 13, 512>(run, a, rows);
    return launch<T, 12, 1024>(run, a, rows);
}

hy_status hy_cuda_cross_entropy(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    loss_args a = {};
    a.logits = call->t[HY_CROSS_ENTROPY_LOGITS].data;
    a.targets = (const int32_t *)call->t[HY_CROSS_ENTROPY_TARGETS].data;
    a.losses = (float *)call->t[HY_CROSS_ENTROPY_LOSSES].data;
    a.weights = (const float *)call->t[HY_CROSS_ENTROPY_WEIGHTS].data;
    a.width = hy_width(&call->t[HY_CROSS_ENTROPY_LOGITS]);
    a.vocab = call->attr.loss.vocab;
    a.scale = call->attr.loss.scale;
    a.wants_grad = call->attr.loss.wants_grad;
    a.reads_prompts = call->attr.loss.reads_prompts;
    a.cap = call->attr.loss.softcap;
    a.factor = call->attr.loss.factor != 0 ? call->attr.loss.factor : 1.0f;
    a.inner = a.cap > 0 ? a.factor / a.cap : a.factor;
    unsigned rows = (unsigned)hy_height(&call->t[HY_CROSS_ENTROPY_LOGITS]);
    hy_status status = HY_OK;
    hy_by_type(call->t[HY_CROSS_ENTROPY_LOGITS].dtype,
               [&](auto zero) { status = launch_row<decltype(zero)>(run, a, rows); });
    return status;
}
