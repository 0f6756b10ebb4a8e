/* largest.cuh: the largest magnitude (amax) of what a kernel stores, for `largest` of ops
 * (kernels.h).
 *
 * Magnitudes are compared as the bits of fp32, where NaN is larger than all numbers. Each thread
 * keeps its own, and a block updates the result by an integer maximum, which does not depend on the
 * order. Rounding to the stored type keeps the order of numbers, so the largest before rounding,
 * rounded, is the largest after it. */
#pragma once

#include "kernels/cuda/cuda.cuh"

__device__ __forceinline__ uint32_t hy_magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}

template <int count>
__device__ __forceinline__ uint32_t hy_largest_of(uint32_t largest, const float *v) {
    HY_EACH(j, count) largest = max(largest, hy_magnitude(v[j]));
    return largest;
}

/* The largest of a block, in its thread 0. All threads of the block must call it, once. */
__device__ __forceinline__ uint32_t hy_block_largest(uint32_t bits) {
    __shared__ uint32_t of_warp[32];
    for (int d = 16; d > 0; d >>= 1) bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, d));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = bits;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < (int)blockDim.x / 32; w++) bits = max(bits, of_warp[w]);
    }
    return bits;
}

/* Updates the result with the largest of a block, as it is stored. All threads must call it, once.
 * A: how the tensor is stored (chunks.cuh). */
template <typename A>
__device__ __forceinline__ void hy_keep_largest(const A &stored, uint32_t bits, uint32_t *out) {
    bits = hy_block_largest(bits);
    if (threadIdx.x != 0 || bits == 0) return;
    atomicMax(out, hy_magnitude(stored.rounded(__uint_as_float(bits))));
}

/* The address of the op's `largest`, set to zero; NULL: not requested. */
static inline hy_status hy_begin_largest(const hy_cuda_run *run, int position, uint32_t **out) {
    *out = (uint32_t *)run->call->t[position].data;
    if (!*out) return HY_OK;
    return hy_cuda_check(run->cuda, cudaMemsetAsync(*out, 0, sizeof **out, run->stream),
                         "setting the largest magnitude to zero");
}
