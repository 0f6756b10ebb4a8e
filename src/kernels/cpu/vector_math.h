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

/* The sign of y with the magnitude of x, which is not negative. */
static inline float hy_with_sign(float x, float y) {
    return hy_bits_float(hy_float_bits(x) | (hy_float_bits(y) & 0x80000000u));
}

/* tanh within 4e-7 of it, relatively: a polynomial near 0, where the quotient loses digits. */
static inline float hy_tanh(float x) {
    float size = hy_bits_float(hy_float_bits(x) & 0x7fffffffu), x2 = size * size;
    float e = hy_exp(-2.0f * size), large = (1.0f - e) / (1.0f + e);
    float q = -8.8632355e-3f * x2 + 2.1869489e-2f;
    q = q * x2 - 5.3968254e-2f;
    q = q * x2 + 1.3333333e-1f;
    q = q * x2 - 3.3333333e-1f;
    float small = size + size * (x2 * q);
    uint32_t is_small = hy_float_bits(size) < 0x3eb33333u; /* 0.35 */
    return hy_with_sign(
        hy_bits_float(hy_pick(is_small, hy_float_bits(small), hy_float_bits(large))), x);
}

/* The distribution function of standard normal numbers, (1 + erf(x / sqrt(2))) / 2, within 2e-7. */
static inline float hy_normal_cdf(float x) {
    float a = x * 0.70710678f, t = hy_bits_float(hy_float_bits(a) & 0x7fffffffu), s = a * a;
    /* erfc(t) = exp(r(t)) from 0.93 on; erf(a) = a + a q(a^2) below; both minimax */
    float r = (-1.72853470e-5f * t + 3.83197126e-4f) * s + (-3.88396438e-3f * t + 2.42546219e-2f);
    r = r * t - 1.06777877e-1f;
    r = r * t - 6.34846687e-1f;
    r = r * t - 1.28717512e-1f;
    r = r * t - t;
    float tail = 0.5f * hy_exp(r), q = -5.96761703e-4f;
    q = q * s + 4.99119423e-3f;
    q = q * s - 2.67681349e-2f;
    q = q * s + 1.12819925e-1f;
    q = q * s - 3.76125336e-1f;
    q = q * s + 1.28379166e-1f;
    float small = 0.5f + 0.5f * (a + a * q);
    uint32_t is_large = hy_float_bits(t) > 0x3f6d8000u, is_above = ~hy_float_bits(x) >> 31;
    float large = hy_bits_float(hy_pick(is_above, hy_float_bits(1.0f - tail), hy_float_bits(tail)));
    return hy_bits_float(hy_pick(is_large, hy_float_bits(large), hy_float_bits(small)));
}
