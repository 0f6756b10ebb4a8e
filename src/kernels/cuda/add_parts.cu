/* add_parts.cu: the sum of numbers over ranks, from rank 0 on, in whatever order they arrived.
 *
 * Elementwise, in fp32 with one rounding at the end: the same bits as on the CPU. A block has a
 * range of elements. If the tensors are aligned and the range is complete, a thread takes 16 bytes
 * of each rank and loads those of several ranks at once; otherwise neighbouring threads take
 * neighbouring elements. */
#include "kernels/cuda/cuda.cuh"

#define THREADS 256
#define BATCH 4 /* ranks that are loaded before the first is added */

typedef struct parts_args {
    const void *own, *parts;
    void *out;
    int64_t count, stride; /* elements, and the stride between the parts of ranks */
    int ranks, rank;
    bool accumulate, is_packed;
} parts_args;

/* The elements of a rank from `at` on. */
template <typename T>
__device__ __forceinline__ const T *elements_of(const parts_args &a, int rank, int64_t at) {
    int64_t part = rank < a.rank ? rank : rank - 1;
    return (rank == a.rank ? (const T *)a.own : (const T *)a.parts + part * a.stride) + at;
}

template <typename T, typename O>
__device__ __forceinline__ void add_pack(const parts_args &a, int64_t at) {
    constexpr int WIDTH = hy_pack<T>::count, OUT_WIDTH = hy_pack<O>::count;
    hy_pack<T> x[BATCH];
    hy_pack<O> out[WIDTH / OUT_WIDTH];
    float sum[WIDTH] = {};
    if (a.accumulate) {
        HY_EACH(k, WIDTH / OUT_WIDTH) out[k] = hy_load_pack((const O *)a.out + at + k * OUT_WIDTH);
    }
    for (int first = 0; first < a.ranks; first += BATCH) {
        HY_EACH(k, BATCH) {
            if (first + k < a.ranks) x[k] = hy_load_pack(elements_of<T>(a, first + k, at));
        }
        HY_EACH(k, BATCH) {
            if (first + k >= a.ranks) continue;
            HY_EACH(i, WIDTH) {
                float next = hy_to_float(x[k].v[i]);
                sum[i] = first + k == 0 ? next : sum[i] + next;
            }
        }
    }
    HY_EACH(k, WIDTH / OUT_WIDTH) {
        HY_EACH(i, OUT_WIDTH) {
            float total = sum[k * OUT_WIDTH + i];
            if (a.accumulate) total = hy_to_float(out[k].v[i]) + total;
            out[k].v[i] = hy_from_float<O>(total);
        }
        hy_store_pack((O *)a.out + at + k * OUT_WIDTH, out[k]);
    }
}

template <typename T, typename O>
__device__ __forceinline__ void add_element(const parts_args &a, int64_t at) {
    float sum = hy_to_float(*elements_of<T>(a, 0, at));
#pragma unroll 4
    for (int rank = 1; rank < a.ranks; rank++) sum += hy_to_float(*elements_of<T>(a, rank, at));
    O *out = (O *)a.out + at;
    *out = hy_from_float<O>(a.accumulate ? hy_to_float(*out) + sum : sum);
}

template <typename T, typename O>
__global__ void __launch_bounds__(THREADS) add_parts_kernel(const __grid_constant__ parts_args a) {
    constexpr int WIDTH = hy_pack<T>::count;
    int64_t begin = (int64_t)blockIdx.x * (THREADS * WIDTH);
    if (a.is_packed && begin + THREADS * WIDTH <= a.count) {
        add_pack<T, O>(a, begin + threadIdx.x * WIDTH);
        return;
    }
    for (int k = 0; k < WIDTH; k++) {
        int64_t at = begin + k * THREADS + threadIdx.x;
        if (at < a.count) add_element<T, O>(a, at);
    }
}

static bool is_aligned(const void *data) { return (uintptr_t)data % 16 == 0; }

static parts_args parts_args_of(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    parts_args a = {};
    a.own = t[HY_ADD_PARTS_OWN].data, a.parts = t[HY_ADD_PARTS_PARTS].data;
    a.out = t[HY_ADD_PARTS_OUT].data;
    a.count = hy_tensor_count(&t[HY_ADD_PARTS_OWN]);
    a.stride = call->attr.add_parts.stride;
    a.ranks = call->attr.add_parts.count, a.rank = call->attr.add_parts.rank;
    a.accumulate = call->attr.accumulate;
    int64_t step = a.stride * (int64_t)hy_dtype_size(t[HY_ADD_PARTS_OWN].dtype);
    bool are_parts_aligned = is_aligned(a.parts) && (a.ranks <= 2 || step % 16 == 0);
    a.is_packed = is_aligned(a.own) && is_aligned(a.out) && (a.ranks == 1 || are_parts_aligned);
    return a;
}

hy_status hy_cuda_add_parts(const hy_cuda_run *run) {
    parts_args a = parts_args_of(run->call);
    hy_dtype own = run->call->t[HY_ADD_PARTS_OWN].dtype, out = run->call->t[HY_ADD_PARTS_OUT].dtype;
    hy_by_type(own, [&](auto zero) {
        using T = decltype(zero);
        unsigned blocks = (unsigned)hy_ceil_div(a.count, (int64_t)THREADS * hy_pack<T>::count);
        if (out == own)
            add_parts_kernel<T, T><<<blocks, THREADS, 0, run->stream>>>(a);
        else
            add_parts_kernel<T, float><<<blocks, THREADS, 0, run->stream>>>(a);
    });
    return hy_cuda_launched(run);
}
