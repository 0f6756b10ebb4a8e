/* codes.h: the 8-bit format of HY_OP_QUANTIZE, for one element and for a block.
 *
 * A quantised value k represents (k / steps)^p of the largest number of its block: signed with p 3
 * and 127 steps around 128, unsigned with p 4 and 255 steps. Spacing by a power keeps the relative
 * precision of small values: the smallest step is 1/127^3 or 1/255^4 of the largest. `share` is a
 * number divided by the largest of its block. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define HY_SIGNED_STEPS 127
#define HY_UNSIGNED_STEPS 255

static inline float hy_decode_signed(uint8_t code) {
    float root = (float)((int)code - 128) / HY_SIGNED_STEPS;
    return root * root * root;
}

static inline float hy_decode_unsigned(uint8_t code) {
    float root = (float)code / HY_UNSIGNED_STEPS;
    return root * root * root * root;
}

static inline uint8_t hy_encode_signed(float share) {
    int code = (int)lrintf(cbrtf(share) * HY_SIGNED_STEPS);
    return (uint8_t)(code + 128);
}

static inline uint8_t hy_encode_unsigned(float share) {
    /* only zero becomes 0, because the optimizer divides by the others */
    if (!(share > 0)) return 0;
    int code = (int)lrintf(sqrtf(sqrtf(share)) * HY_UNSIGNED_STEPS);
    return (uint8_t)(code < 1 ? 1 : code > HY_UNSIGNED_STEPS ? HY_UNSIGNED_STEPS : code);
}

/* Quantises a block; returns its largest magnitude, which is its scale. */
static inline float hy_encode_block(const float *x, int64_t n, bool is_signed, uint8_t *codes) {
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    float divisor = largest > 0 ? largest : 1; /* divide, because the inverse could overflow */
    for (int64_t i = 0; i < n; i++) {
        float share = x[i] / divisor;
        codes[i] = is_signed ? hy_encode_signed(share) : hy_encode_unsigned(share);
    }
    return largest;
}

static inline void hy_decode_block(const uint8_t *codes, int64_t n, bool is_signed, float scale,
                                   float *x) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = scale * (is_signed ? hy_decode_signed(codes[i]) : hy_decode_unsigned(codes[i]));
    }
}
