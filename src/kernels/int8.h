/* int8.h: int8 rows with one scale each, a storage type of frozen weights.
 *
 * scale = largest magnitude of the row / 127; value = x / scale, rounded to nearest, ties to even;
 * x becomes scale times value. A row of zeros has scale 0. All backends round in the same way: the
 * same bits. */
#pragma once

#include <math.h>
#include <stdint.h>

#define HY_INT8_LARGEST 127.0f

static inline float hy_int8_largest(const float *x, int64_t n) {
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    return largest;
}

static inline float hy_int8_scale(float largest) { return largest / HY_INT8_LARGEST; }

static inline void hy_int8_encode(const float *x, int64_t n, float scale, int8_t *codes) {
    float divisor = scale > 0 ? scale : 1; /* divide, because the inverse could overflow */
    for (int64_t i = 0; i < n; i++) {
        float code = rintf(x[i] / divisor);
        codes[i] = (int8_t)(code > HY_INT8_LARGEST     ? HY_INT8_LARGEST
                            : code >= -HY_INT8_LARGEST ? code
                                                       : -HY_INT8_LARGEST);
    }
}

/* Dequantises elements [first, first + n) of rows of `width`; scales begin at the first element's
 * row. */
static inline void hy_int8_decode(const int8_t *codes, int64_t first, int64_t n, int64_t width,
                                  const float *scales, float *out) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = scales[(first + i) / width - first / width] * (float)codes[i];
    }
}
