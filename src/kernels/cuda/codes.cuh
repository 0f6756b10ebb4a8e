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

/* ---- as the optimizer encodes ---------------------------------------------------------------- */

/* The same with the hardware's roots: about one code in ten thousand, where a root lies in the
 * middle between two, is the neighbour. */
__device__ __forceinline__ float hy_fast_sqrt(float x) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

/* Adding 1.5 * 2^23 leaves the nearest whole number in the low bits of the sum. */
#define HY_ROUNDER 12582912.0f

__device__ __forceinline__ uint32_t hy_encode_signed_fast(float share) {
    float root = exp2f(__log2f(fabsf(share)) * (1.0f / 3));
    float steps = copysignf(fminf(root, 1.0f), share) * HY_SIGNED_STEPS;
    return (__float_as_uint(steps + HY_ROUNDER) + 128) & 0xffu;
}

__device__ __forceinline__ uint32_t hy_encode_unsigned_fast(float share) {
    float steps = fminf(hy_fast_sqrt(hy_fast_sqrt(share)), 1.0f) * HY_UNSIGNED_STEPS;
    if (share > 0) steps = fmaxf(steps, 1.0f);
    return __float_as_uint(steps + HY_ROUNDER) & 0xffu;
}

#endif
