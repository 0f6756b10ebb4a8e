/* coded.h: the types that frozen weights may be stored in besides real numbers.
 *
 * A coded tensor is codes and, behind them, an fp32 scale for each block of elements along a row; a number
 * is its scale times its code. What a type's codes are stands in a header of its own (int8.h); this one
 * says which types there are, and who stores, reads or converts weights knows no more than these
 * functions. (Optimizer state of 8 bits, HY_U8, is another matter: cpu/codes.h.) */
#pragma once

#include <stdbool.h>

#include "kernels/int8.h"
#include "kernels/tensor.h"

static inline bool hy_is_coded(hy_dtype dtype) { return dtype == HY_I8; }

/* Elements that share a scale in rows of `width`; 0: such rows cannot be stored so. */
static inline int32_t hy_coded_block(hy_dtype dtype, int64_t width) {
    return dtype == HY_I8 ? (int32_t)width : 0;
}

/* The scale of a block, by its largest magnitude. */
static inline float hy_coded_scale(hy_dtype dtype, float largest) {
    (void)dtype;
    return hy_int8_scale(largest);
}

/* Codes of n elements of one block. */
static inline void hy_coded_put(hy_dtype dtype, const float *x, int64_t n, float scale,
                                void *codes) {
    (void)dtype;
    hy_int8_encode(x, n, scale, (int8_t *)codes);
}

/* Codes and scales of `count` elements, whole blocks. Scales may take the place of the numbers. */
static inline void hy_coded_encode(hy_dtype dtype, const float *x, int64_t count, int32_t block,
                                   void *codes, float *scales) {
    for (int64_t at = 0; at < count; at += block) {
        float scale = hy_coded_scale(dtype, hy_int8_largest(x + at, block));
        hy_coded_put(dtype, x + at, block, scale, (char *)codes + hy_dtype_bytes(dtype, at));
        scales[at / block] = scale;
    }
}

/* Elements [first, first + n); codes begin with those of `first`, scales with that of its block. */
static inline void hy_coded_decode(hy_dtype dtype, const void *codes, int64_t first, int64_t n,
                                   int32_t block, const float *scales, float *out) {
    (void)dtype;
    hy_int8_decode((const int8_t *)codes, first, n, block, scales, out);
}
