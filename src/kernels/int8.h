/* int8.h: rows of int8 with one scale each, the form in which frozen weights may be stored.
 *
 * scale = largest magnitude of the row / 127; code = x / scale, to nearest, ties to even; x is then
 * scale times code. A row of zeros has scale 0. Backends compute with the same roundings: the same bits. */
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
    float divisor = scale > 0 ? scale : 1; /* its inverse could overflow: divide */
    for (int64_t i = 0; i < n; i++) {
        float code = rintf(x[i] / divisor);
        codes[i] = (int8_t)(code > HY_INT8_LARGEST     ? HY_INT8_LARGEST
                            : code >= -HY_INT8_LARGEST ? code
                                                       : -HY_INT8_LARGEST);
    }
}

/* Elements [first, first + n) of rows of `width`; scales begin with that of the first element's row. */
static inline void hy_int8_decode(const int8_t *codes, int64_t first, int64_t n, int64_t width,
                                  const float *scales, float *out) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = scales[(first + i) / width - first / width] * (float)codes[i];
    }
}
