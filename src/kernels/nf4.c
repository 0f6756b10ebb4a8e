/* nf4.c: quantises and dequantises. See nf4.h.
 *
 * Compiled like the rest of the library, without contraction of products and sums: every operation
 * is rounded separately, except the explicit fma. */
#include "kernels/nf4.h"

#include <math.h>

static const float levels[16] = {HY_NF4_LEVELS};
static const float upper_map[127] = {HY_NF4_MAP};

/* ---- elements -------------------------------------------------------------------------------- */

float hy_nf4_encode(const float *x, uint8_t codes[HY_NF4_BLOCK / 2]) {
    float largest = 0, scaled[HY_NF4_BLOCK];
    int32_t code[HY_NF4_BLOCK] = {0}; /* how many borders between two levels are below */
    for (int i = 0; i < HY_NF4_BLOCK; i++) largest = fmaxf(largest, fabsf(x[i]));
    float inverse = 1 / fmaxf(largest, HY_NF4_LEAST);
    for (int i = 0; i < HY_NF4_BLOCK; i++) scaled[i] = x[i] * inverse;
    for (int k = 0; k < 15; k++) {
        float border = (levels[k] + levels[k + 1]) / 2;
        for (int i = 0; i < HY_NF4_BLOCK; i++) code[i] += !(border >= scaled[i]);
    }
    for (int i = 0; i < HY_NF4_BLOCK; i += 2) codes[i / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
    return largest;
}

float hy_nf4_nearest(float x, uint8_t *code) {
    *code = 0;
    for (int k = 0; k < 15; k++) *code += !((levels[k] + levels[k + 1]) / 2 >= x);
    return levels[*code];
}

void hy_nf4_decode(const uint8_t *codes, int64_t first, int64_t n, const float *scales,
                   float *out) {
    for (int64_t i = 0; i < n;) {
        float values[16], scale = scales[(first + i) / HY_NF4_BLOCK - first / HY_NF4_BLOCK];
        int64_t end = i + HY_NF4_BLOCK - (first + i) % HY_NF4_BLOCK;
        if (end > n) end = n;
        for (int k = 0; k < 16; k++) values[k] = levels[k] * scale;
        for (; i + 1 < end; i += 2) {
            uint8_t two = codes[i / 2];
            out[i] = values[two >> 4];
            out[i + 1] = values[two & 15];
        }
        if (i < end) out[i] = values[codes[i / 2] >> 4], i++;
    }
}

/* ---- scales ---------------------------------------------------------------------------------- */

float hy_nf4_map(uint8_t code) {
    if (code == 127) return 0;
    if (code == 255) return 1;
    return code > 127 ? upper_map[code - 128] : -upper_map[126 - code];
}

/* The code of the map's number nearest to x: counts the midpoints between neighbours below x, which
 * is first rounded to a grid. */
static uint8_t nearest_in_map(float x) {
    float clamped = x < -1 ? -1 : x > 1 ? 1 : x;
    float place = fmaf(clamped + 1, HY_NF4_STEPS / 2, 0.5f);
    float step = isnan(place) ? 0 : floorf(place); /* 0 times infinity, for the smallest scales */
    float on_grid = (step + step) / HY_NF4_STEPS - 1;
    int code = 0;
    for (int half = 128; half > 0; half /= 2) {
        float border =
            (hy_nf4_map((uint8_t)(code + half - 1)) + hy_nf4_map((uint8_t)(code + half))) * 0.5f;
        if (border < on_grid) code += half;
    }
    return (uint8_t)code;
}

float hy_nf4_offset(const float *scales, int64_t blocks) {
    double sum = 0;
    for (int64_t i = 0; i < blocks; i++) sum += (double)scales[i];
    return (float)(sum / (double)blocks);
}

/* Quantises one nested block of scales and returns its scale. If all are equal to the offset, any
 * value is correct. */
static float put_nested(const float *scales, int64_t n, float offset, uint8_t *codes) {
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(scales[i] - offset));
    float inverse = 1 / largest;
    for (int64_t i = 0; i < n; i++) {
        codes[i] = largest == 0 ? 0 : nearest_in_map((scales[i] - offset) * inverse);
    }
    return largest;
}

void hy_nf4_put_scales(const float *scales, int64_t blocks, float offset, int32_t group,
                       float *pairs, uint8_t *codes) {
    for (int64_t at = 0; at < blocks; at += HY_NF4_NESTED) {
        int64_t n = blocks - at < HY_NF4_NESTED ? blocks - at : HY_NF4_NESTED;
        float scale = put_nested(scales + at, n, offset, codes + at);
        for (int64_t g = at / group; g < (at + n) / group; g++) {
            pairs[2 * g] = scale;
            pairs[2 * g + 1] = offset;
        }
    }
}

float hy_nf4_scale(const float pair[2], uint8_t code) {
    float above = hy_nf4_map(code) * pair[0]; /* a separate statement: rounded separately */
    return above + pair[1];
}
