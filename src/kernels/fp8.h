/* fp8.h: 8-bit floating point for matmuls, with one scale for a whole tensor.
 *
 * E4M3: 4 exponent bits, 3 mantissa bits, no infinity, maximum 448. E5M2: 5 and 2 bits, maximum
 * 57344. A number is its fp8 value times the tensor's scale. The scale is the smallest power of two
 * with which the largest magnitude (amax) fits. Multiplying by it is exact, so a value is rounded
 * once (to nearest, ties to even). Another scale would change only values so small that they lose
 * bits at the lower end. There is no history: the scale is that of the current numbers.
 *
 * A tensor that contains a number that is not finite has the scale NaN: every result is NaN, and
 * the step is skipped as in 16 bits. All backends compute the same bits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "hybrid_types.h"
#include "kernels/half.h"

HY_BOTH bool hy_is_fp8(hy_dtype dtype) { return dtype == HY_E4M3 || dtype == HY_E5M2; }

/* The exponent of a tensor's scale: the exponent of amax (finite and above 0) minus that of the
 * largest fp8 value, plus one if amax does not fit then. It is clamped so that the scale and its
 * inverse are normal fp32 numbers. */
HY_BOTH int hy_fp8_exponent(hy_dtype dtype, float largest) {
    uint32_t bits = hy_float_bits(largest);
    int exponent = (int)(bits >> 23) - 127; /* numbers below 2^-126 count as 2^-126 */
    int top = dtype == HY_E4M3 ? 8 : 15;
    bool is_over = (bits & 0x7fffff) > 0x600000; /* both maxima are 1.75 times a power of two */
    int scale = exponent - top + is_over;
    return scale < -120 ? -120 : scale > 120 ? 120 : scale;
}

/* 2^exponent, or 2^-exponent, of the scale; 1 if all numbers are zero, NaN if amax is not
 * finite. */
HY_BOTH float hy_fp8_power(hy_dtype dtype, float largest, int sign) {
    if (largest == 0) return 1;
    if (!((hy_float_bits(largest) & 0x7fffffff) < 0x7f800000)) return hy_bits_float(0x7fc00000);
    return hy_bits_float((uint32_t)(127 + sign * hy_fp8_exponent(dtype, largest)) << 23);
}

/* The factor of fp8 values, and the factor of numbers before they are rounded to fp8. */
HY_BOTH float hy_fp8_scale(hy_dtype dtype, float largest) {
    return hy_fp8_power(dtype, largest, 1);
}
HY_BOTH float hy_fp8_inverse(hy_dtype dtype, float largest) {
    return hy_fp8_power(dtype, largest, -1);
}

/* The nearest fp8 value, ties to even; too large numbers become the maximum, NaN stays NaN. */
HY_BOTH uint8_t hy_fp8_encode(hy_dtype dtype, float x) {
    bool is_e4m3 = dtype == HY_E4M3;
    int mantissa = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15, shift = 23 - mantissa;
    uint32_t bits = hy_float_bits(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    uint32_t largest = is_e4m3 ? 0x7e : 0x7b;
    /* the sign of a NaN has no meaning and differs between machines */
    if (size > 0x7f800000) return 0x7f;
    int exponent = (int)(size >> 23) - 127;
    uint32_t code;
    if (exponent >= 1 - bias) {
        uint32_t rounded = size + ((1u << (shift - 1)) - 1) + (size >> shift & 1);
        uint32_t moved = rounded - ((uint32_t)(127 - bias) << 23);
        code = moved >> shift;
        if (size >= 0x7f800000 || code > largest) code = largest;
    } else { /* subnormal: adding a power of two rounds to its steps */
        float step = hy_bits_float((uint32_t)(127 + 24 - bias - mantissa) << 23);
        code = hy_float_bits(hy_bits_float(size) + step) - hy_float_bits(step);
    }
    return (uint8_t)(sign | code);
}

HY_BOTH float hy_fp8_decode(hy_dtype dtype, uint8_t code) {
    bool is_e4m3 = dtype == HY_E4M3;
    int mantissa = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
    uint32_t sign = (uint32_t)(code & 0x80) << 24, size = code & 0x7f;
    bool is_none = is_e4m3 ? size == 0x7f : size > 0x7c;
    if (is_none) return hy_bits_float(sign | 0x7fc00000);
    if (!is_e4m3 && size == 0x7c) return hy_bits_float(sign | 0x7f800000);
    if (size >> mantissa == 0) { /* subnormal */
        float step = hy_bits_float((uint32_t)(127 + 1 - bias - mantissa) << 23);
        float x = (float)size * step;
        return hy_bits_float(sign | hy_float_bits(x));
    }
    return hy_bits_float(sign | ((size << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23)));
}
