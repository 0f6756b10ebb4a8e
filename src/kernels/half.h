/* half.h: the bits of fp32; and rounding to bf16 and fp16 as a GPU does it: to nearest, ties to
 * even, subnormals kept, NaN stays NaN. */
#pragma once

#include <stdint.h>
#include <string.h>

/* A function of a header that kernels call, too. */
#ifdef __CUDACC__
#define HY_BOTH static __host__ __device__ __forceinline__
#else
#define HY_BOTH static inline
#endif

HY_BOTH uint32_t hy_float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

HY_BOTH float hy_bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float hy_bf16_to_f32(uint16_t h) { return hy_bits_float((uint32_t)h << 16); }

static inline uint16_t hy_f32_to_bf16(float x) {
    uint32_t u = hy_float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* All cases of a conversion are computed and one is selected with masks, because a branch around
 * floating-point code prevents the compiler from vectorising loops. */
static inline uint32_t hy_pick(uint32_t condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0u - condition; /* condition is 0 or 1 */
    return (yes & mask) | (no & ~mask);
}

static inline float hy_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    /* Shift exponent and mantissa into place and rescale by 2^112: also correct for subnormals. */
    uint32_t finite = hy_float_bits(hy_bits_float(magnitude << 13) * 0x1p112f);
    uint32_t special = 0x7f800000u | (magnitude & 0x3ffu) << 13;
    return hy_bits_float(sign | hy_pick(magnitude >= 0x7c00u, special, finite));
}

static inline uint16_t hy_f32_to_f16(float x) {
    uint32_t u = hy_float_bits(x);
    uint32_t sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    uint32_t normal = (u - 0x38000000u + 0xfffu + (u >> 13 & 1u)) >> 13;
    /* Subnormal: the addition rounds at 2^-24, the unit in the last place of 0.5. */
    uint32_t subnormal = hy_float_bits(hy_bits_float(u) + 0.5f) - 0x3f000000u;
    uint32_t h = hy_pick(u < 0x38800000u, subnormal, normal);
    h = hy_pick(u >= 0x477ff000u, 0x7c00u, h); /* rounds to 65536 or more: infinity */
    h = hy_pick(u > 0x7f800000u, 0x7e00u, h);
    return (uint16_t)(sign | h);
}
