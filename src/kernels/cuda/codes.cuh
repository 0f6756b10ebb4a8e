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
    float root = hy_share_of_steps<HY_SIGNED_STEPS>((float)code - 128);
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

/* ---- four at a time, as the optimizer does --------------------------------------------------- */

/* The same maps with the hardware's roots: about one code in ten thousand, where a root lies in the
 * middle between two, is the neighbour. */
__device__ __forceinline__ float hy_fast_sqrt(float x) {
    float root;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

__device__ __forceinline__ float hy_fast_cbrt(float x) {
    float power, root;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(power * (1.0f / 3)));
    return root;
}

/* Four numbers of steps, not yet whole, as codes in a word. Adding 1.5 * 2^23 leaves the nearest
 * whole number in the low bits of the sum, above constant bits; all four constants, and `zero`, the
 * code of 0, are settled in one number modulo 2^32. */
__device__ __forceinline__ uint32_t hy_pack_steps(const float steps[4], uint32_t zero) {
    uint32_t word = (zero - 0x4b400000u) * 0x01010101u;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        word += __float_as_uint(steps[i] + 12582912.0f) * (1u << 8 * i);
    }
    return word;
}

/* Where the largest is so small that its inverse would overflow, both sides are lifted first. */
__device__ __forceinline__ uint32_t hy_encode_four_signed(const float x[4], float largest) {
    float lift = largest < 0x1p-60f ? 0x1p60f : 1.0f, steps[4];
    float inverse = largest > 0 ? __fdividef(1.0f, largest * lift) : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float root = hy_fast_cbrt(fabsf(x[i]) * lift * inverse);
        steps[i] = copysignf(root * HY_SIGNED_STEPS, x[i]);
    }
    return hy_pack_steps(steps, 128);
}

/* From the square roots of four numbers and of their block's largest: the optimizer has the former
 * anyway. What is not zero saturates to 1 and never gets the code of zero. */
__device__ __forceinline__ uint32_t hy_encode_four_roots(const float root[4], float largest) {
    float inverse = largest > 0 ? __fdividef(1.0f, largest) : 0.0f, steps[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float share = root[i] * inverse;
        float smallest = __saturatef(share * 0x1p120f);
        steps[i] = fmaxf(hy_fast_sqrt(share) * HY_UNSIGNED_STEPS, smallest);
    }
    return hy_pack_steps(steps, 0);
}

#endif
