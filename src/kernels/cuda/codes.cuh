/* codes.cuh: numbers in 8 bits: the code maps of HY_OP_QUANTIZE, for one element.
 *
 * A code stands for (k / steps)^p of its block's largest number: signed with p 3 and 127 steps
 * around code 128, unsigned with p 4 and 255 steps. Decoding gives the CPU's bits. So does encoding
 * unsigned numbers; a signed code may be the neighbour where a root lies in the middle between two,
 * because cube roots of the two libraries differ in the last place. `share` is a number over the
 * largest of its block. */
#ifndef HY_KERNELS_CUDA_CODES_CUH
#define HY_KERNELS_CUDA_CODES_CUH

#include "kernels/cuda/cuda.cuh"

#define HY_SIGNED_STEPS 127
#define HY_UNSIGNED_STEPS 255

/* k / steps correctly rounded, without a division: the quotient by the inverse, corrected once. */
template <int steps> __device__ __forceinline__ float hy_share_of_steps(float k) {
    constexpr float inverse = 1.0f / steps;
    float quotient = k * inverse;
    return __fmaf_rn(__fmaf_rn(-(float)steps, quotient, k), inverse, quotient);
}

__device__ __forceinline__ float hy_decode_signed(uint32_t code) {
    float root = hy_share_of_steps<HY_SIGNED_STEPS>((float)((int)code - 128));
    return root * root * root;
}

__device__ __forceinline__ float hy_decode_unsigned(uint32_t code) {
    float root = hy_share_of_steps<HY_UNSIGNED_STEPS>((float)code);
    return root * root * root * root;
}

__device__ __forceinline__ uint32_t hy_encode_signed(float share) {
    return (uint32_t)(__float2int_rn(cbrtf(share) * HY_SIGNED_STEPS) + 128);
}

__device__ __forceinline__ uint32_t hy_encode_unsigned(float share) {
    if (!(share > 0)) return 0; /* only what is zero: the optimizer divides by the others */
    int code = __float2int_rn(sqrtf(sqrtf(share)) * HY_UNSIGNED_STEPS);
    return (uint32_t)min(max(code, 1), HY_UNSIGNED_STEPS);
}

#endif
