/* vector_math.h: exp and related functions as straight-line code that compilers vectorise.
 *
 * There are no tables, library calls or branches: unwanted values are masked out, because a
 * compiler that respects floating-point traps would otherwise branch. hy_exp is within 2 units in
 * the last place from -87.3 to 88.3; below, it returns 0; above, it grows to infinity a little less
 * precisely. NaN gives NaN. */
#pragma once

#include "kernels/half.h"

static inline float hy_exp(float x) {
    const float round = 0x1.8p23f;          /* adding it leaves an integer in the low bits */
    const uint32_t too_small = 0xc2ae999au; /* -87.3 */
    uint32_t bits = hy_float_bits(x);
    /* 88, only for the exponent: the remainder r then grows with x, up to infinity */
    uint32_t bounded = (int32_t)bits > 0x42b00000 ? 0x42b00000u : bits;
    float shifted = hy_bits_float(bounded) * 0x1.715476p0f + round; /* log2(e) */
    float n = shifted - round;
    float r = x - n * 0x1.62e4p-1f; /* ln 2 in two parts: n times the first is exact */
    r = r - n * 0x1.7f7d1cp-20f;
    /* exp(r) = 1 + r + r^2 q(r); q is minimax for |r| <= ln(2)/2, relative error 3e-9; its terms
     * are paired for instruction-level parallelism */
    float r2 = r * r;
    float low = 0x1.fffffcp-2f + r * 0x1.555492p-3f;
    float high = 0x1.5558f2p-5f + r * 0x1.123a2p-7f + r2 * 0x1.6a23dp-10f;
    float e = (1.0f + r) + r2 * (low + r2 * high);
    uint32_t power = (hy_float_bits(shifted) - 0x4b400000u + 127u) << 23;
    uint32_t value = hy_float_bits(e * hy_bits_float(power));
    /* from -87.3 down to minus infinity, but not the NaNs beyond */
    uint32_t is_large = bits - too_small > 0xff800000u - too_small;
    return hy_bits_float(value & (0u - is_large));
}

/* The square root of a number that is not negative, within 1 unit in the last place (less precise
 * below 1e-37). The library's sqrtf may set errno, which prevents vectorisation. */
static inline float hy_sqrt(float x) {
    uint32_t bits = hy_float_bits(x);
    float r =
        hy_bits_float(0x5f375a86u - (bits >> 1)); /* 1 / sqrt(x) to 3 %, by halving the exponent */
    float half = 0.5f * x;
    r = r * (1.5f - half * r * r);
    r = r * (1.5f - half * r * r);
    float s = x * r;
    s = s + 0.5f * r * (x - s * s);
    return hy_bits_float(hy_pick(bits == 0x7f800000u, bits, hy_float_bits(s)));
}

/* 1 / (1 + exp(-x)) */
static inline float hy_sigmoid(float x) { return 1.0f / (1.0f + hy_exp(-x)); }
