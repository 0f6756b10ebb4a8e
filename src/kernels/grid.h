/* grid.h: stores a bf16 number in one byte, relative to another bf16 number near it.
 *
 * Numbers are on a grid: multiples of step = 2^exponent up to 128 steps, and beyond that the bf16
 * numbers themselves, which are one step apart at first. Grid points are counted from zero,
 * negative below zero. The stored byte is the low byte of the count of the nearest point. Given a
 * number fewer than 128 points away, the whole count is recovered: it is the only one nearby with
 * this low byte.
 *
 * So a number of 128 steps or more is recovered exactly as long as the other number is within a
 * factor of two; a smaller one is recovered rounded to a step. If the numbers are farther apart,
 * the result is another point, but never farther from the given number than the larger of 129 steps
 * and its own size. No operation is rounded by the machine, so all backends get the same bits. */
#pragma once

#include "kernels/half.h"

#define HY_GRID_EXPONENT_MAX 100 /* of either sign: no step is subnormal, none overflows */
#define HY_GRID_LINEAR 128       /* points from zero to where bf16 numbers are one step apart */
#define HY_BF16_LARGEST 0x7f7f   /* bits of the largest finite number */

/* The bits of 128 steps: the exponent field of 128 is 134. */
HY_BOTH int32_t hy_grid_border(int32_t exponent) { return (134 + exponent) * 128; }

/* The point nearest to a number, ties to even. */
HY_BOTH int32_t hy_grid_point(uint16_t bits, int32_t exponent) {
    int32_t size = bits & 0x7fff, border = hy_grid_border(exponent);
    int32_t right =
        border / 128 - size / 128; /* how many binary places the significand must be shifted */
    int32_t significand = 128 | (size & 127);
    if (right > 9) right = 9; /* below half a step, as for subnormal numbers */
    if (right < 1) right = 1;
    int32_t whole = significand >> right;
    int32_t rounded = (significand + (1 << (right - 1)) - 1 + (whole & 1)) >> right;
    int32_t point = size >= border ? size - border + HY_GRID_LINEAR : rounded;
    return bits & 0x8000 ? -point : point;
}

/* The bits of the number at a point. */
HY_BOTH uint16_t hy_grid_number(int32_t point, int32_t exponent) {
    int32_t n = point < 0 ? -point : point, size = 0;
    if (n >= HY_GRID_LINEAR) {
        size = hy_grid_border(exponent) + n - HY_GRID_LINEAR;
        /* the byte was read relative to a number too far away */
        if (size > HY_BF16_LARGEST) size = HY_BF16_LARGEST;
    } else if (n > 0) {
        size =
            (int32_t)(hy_float_bits((float)n) >> 16) + exponent * 128; /* 7 bits: exact in bf16 */
    }
    return (uint16_t)(point < 0 ? size | 0x8000 : size);
}

HY_BOTH uint8_t hy_grid_wrap(uint16_t bits, int32_t exponent) {
    return (uint8_t)hy_grid_point(bits, exponent);
}

HY_BOTH uint16_t hy_grid_unwrap(uint8_t code, uint16_t near, int32_t exponent) {
    int32_t here = hy_grid_point(near, exponent);
    int32_t apart = (int32_t)((code - (uint32_t)here) & 255);
    return hy_grid_number(here + (apart < 128 ? apart : apart - 256), exponent);
}
