/* codes.cuh: the 8-bit format of HY_OP_QUANTIZE, for one element.
 *
 * A quantised value k represents (k / steps)^p of the largest number of its block: signed with p 3
 * and 127 steps around 128, unsigned with p 4 and 255 steps. Dequantising gives the same bits as on
 * the CPU, and so does quantising unsigned numbers. A signed value may be the neighbour if a root
 * is halfway between two, because the cube roots of the two libraries differ in the last place.
 * `share` is a number divided by the largest of its block. */
#pragma once

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
    /* only zero becomes 0, because the optimizer divides by the others */
    if (!(share > 0)) return 0;
    int code = __float2int_rn(sqrtf(sqrtf(share)) * HY_UNSIGNED_STEPS);
    return (uint32_t)min(max(code, 1), HY_UNSIGNED_STEPS);
}

/* ---- four at a time, as the optimizer does --------------------------------------------------- */

/* As above with the hardware's roots and inverse: about one value in ten thousand, for which a root
 * is halfway between two, is the neighbour. */
__device__ __forceinline__ float hy_fast_sqrt(float x) {
    float root;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
    return root;
}

__device__ __forceinline__ float hy_fast_cbrt(float x) {
    float power, root;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(power * (1.0f / 3)));
    return root;
}

/* The signed or unsigned steps of a share, before rounding. */
template <bool is_signed> __device__ __forceinline__ float hy_steps_of(float share) {
    if (is_signed) {
        float steps = hy_fast_cbrt(fabsf(share)) * HY_SIGNED_STEPS;
        return copysignf(fminf(steps, HY_SIGNED_STEPS), share);
    }
    float steps = hy_fast_sqrt(hy_fast_sqrt(share)) * HY_UNSIGNED_STEPS;
    return share > 0 ? fminf(fmaxf(steps, 1), HY_UNSIGNED_STEPS) : 0;
}

/* Four quantised values in a word. Adding 1.5 * 2^23 to a number of steps leaves the nearest
 * integer in the low bits of the sum, above constant bits; one subtraction modulo 2^32 removes all
 * four constants, and the 128 of signed values. If the largest is so small that its inverse would
 * overflow, both sides are scaled up first. */
template <bool is_signed>
__device__ __forceinline__ uint32_t hy_encode_four(const float x[4], float largest) {
    const float rounder = 12582912.0f;
    const uint32_t constant = 0x4b400000u - (is_signed ? 128 : 0);
    float lift = largest < 0x1p-60f ? 0x1p60f : 1.0f;
    float inverse = largest > 0 ? __fdividef(1.0f, largest * lift) : 0.0f;
    uint32_t word = 0u - constant * 0x01010101u;
    HY_EACH(i, 4) {
        float steps = hy_steps_of<is_signed>(x[i] * lift * inverse);
        word += __float_as_uint(steps + rounder) * (1u << 8 * i);
    }
    return word;
}
