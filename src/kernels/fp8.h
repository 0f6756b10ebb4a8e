/* fp8.h: numbers of 8 bits for matmuls, with one scale for a whole tensor.
 *
 * E4M3: 4 bits of exponent, 3 of mantissa, no infinity, 448 at most. E5M2: 5 and 2, 57344 at most. A number is
 * its code times the tensor's scale, which is the smallest power of two with which the largest magnitude fits:
 * a product with it is exact, so a code is one rounding of the number (to nearest, ties to even), and another
 * scale changes no code but those of numbers so small that they lose bits at the lower end. There is no
 * history: the scale is that of the numbers at hand.
 *
 * A tensor with something in it that is not finite has scale NaN: all that is computed with it is NaN, and the
 * step is skipped as it would be in 16 bits. Backends compute the same bits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "hybrid_types.h"

#ifdef __CUDACC__
#include <string.h>

#define HY_FP8_CALL static __host__ __device__ __forceinline__
HY_FP8_CALL uint32_t hy_float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
HY_FP8_CALL float hy_bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#else
#include "kernels/half.h"
#define HY_FP8_CALL static inline
#endif

HY_FP8_CALL bool hy_is_fp8(hy_dtype dtype) { return dtype == HY_E4M3 || dtype == HY_E5M2; }

/* The exponent of a tensor's scale: that of its largest magnitude, finite and above 0, less that of the largest
 * code, and one more if it does not fit then. Kept so far from both ends of fp32 that the scale and its
 * inverse are normal numbers. */
HY_FP8_CALL int hy_fp8_exponent(hy_dtype dtype, float largest) {
    uint32_t bits = hy_float_bits(largest);
    int exponent = (int)(bits >> 23) - 127; /* numbers below 2^-126 count as that */
    int top = dtype == HY_E4M3 ? 8 : 15;
    bool is_over = (bits & 0x7fffff) > 0x600000; /* both end at 1.75 times a power of two */
    int scale = exponent - top + is_over;
    return scale < -120 ? -120 : scale > 120 ? 120 : scale;
}

/* What codes are multiplied by; 1 for zeros alone, NaN for what is not finite. */
HY_FP8_CALL float hy_fp8_scale(hy_dtype dtype, float largest) {
    if (largest == 0) return 1;
    if (!((hy_float_bits(largest) & 0x7fffffff) < 0x7f800000)) return hy_bits_float(0x7fc00000);
    return hy_bits_float((uint32_t)(hy_fp8_exponent(dtype, largest) + 127) << 23);
}

/* What numbers are multiplied by before they are rounded to codes. */
HY_FP8_CALL float hy_fp8_inverse(hy_dtype dtype, float largest) {
    if (largest == 0) return 1;
    if (!((hy_float_bits(largest) & 0x7fffffff) < 0x7f800000)) return hy_bits_float(0x7fc00000);
    return hy_bits_float((uint32_t)(127 - hy_fp8_exponent(dtype, largest)) << 23);
}

/* The nearest code, ties to even; what is too large becomes the largest, what is not a number stays none. */
HY_FP8_CALL uint8_t hy_fp8_encode(hy_dtype dtype, float x) {
    bool is_e4m3 = dtype == HY_E4M3;
    int mantissa = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15, shift = 23 - mantissa;
    uint32_t bits = hy_float_bits(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    uint32_t largest = is_e4m3 ? 0x7e : 0x7b;
    if (size > 0x7f800000) return 0x7f; /* its sign says nothing, and differs between machines */
    int exponent = (int)(size >> 23) - 127;
    uint32_t code;
    if (exponent >= 1 - bias) {
        uint32_t rounded = size + ((1u << (shift - 1)) - 1) + (size >> shift & 1);
        uint32_t moved = rounded - ((uint32_t)(127 - bias) << 23);
        code = moved >> shift;
        if (size >= 0x7f800000 || code > largest) code = largest;
    } else { /* steps of the smallest number: a sum with a power of two rounds to them */
        float step = hy_bits_float((uint32_t)(127 + 24 - bias - mantissa) << 23);
        code = hy_float_bits(hy_bits_float(size) + step) - hy_float_bits(step);
    }
    return (uint8_t)(sign | code);
}

HY_FP8_CALL float hy_fp8_decode(hy_dtype dtype, uint8_t code) {
    bool is_e4m3 = dtype == HY_E4M3;
    int mantissa = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
    uint32_t sign = (uint32_t)(code & 0x80) << 24, size = code & 0x7f;
    bool is_none = is_e4m3 ? size == 0x7f : size > 0x7c;
    if (is_none) return hy_bits_float(sign | 0x7fc00000);
    if (!is_e4m3 && size == 0x7c) return hy_bits_float(sign | 0x7f800000);
    if (size >> mantissa == 0) { /* steps of the smallest number */
        float step = hy_bits_float((uint32_t)(127 + 1 - bias - mantissa) << 23);
        float x = (float)size * step;
        return hy_bits_float(sign | hy_float_bits(x));
    }
    return hy_bits_float(sign | ((size << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23)));
}
