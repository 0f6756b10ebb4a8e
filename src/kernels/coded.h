/* coded.h: the quantised types of frozen weights.
 *
 * A quantised tensor has values of 4 or 8 bits and, after them, a scale for each block of elements,
 * in fp32 or in two levels (hy_quant). A block is a part of a row, a row, or for fp8 the whole
 * matrix. Each type has its own header (int8.h, nf4.h, fp8.h). This header lists the types; code
 * that stores, reads or converts weights uses only these functions. Values are quantised block by
 * block with fp32 scales. Two-level scales are computed from those when the whole matrix is known,
 * and a single scale for a matrix before its first value (model/coding.h). Optimizer state in 8
 * bits, HY_U8, is separate: cpu/codes.h. */
#pragma once

#include <stdbool.h>
#include <string.h>

#include "kernels/fp8.h"
#include "kernels/int8.h"
#include "kernels/nf4.h"
#include "kernels/tensor.h"

static inline bool hy_is_coded(hy_dtype dtype) {
    return dtype == HY_I8 || dtype == HY_NF4 || dtype == HY_E4M3;
}

/* Whether a matrix has a single scale, which must be known before its first value. */
static inline bool hy_coded_as_one(hy_dtype dtype) { return dtype == HY_E4M3; }

/* Elements of a matrix that share a scale; 0: the matrix cannot be stored in this type. */
static inline int32_t hy_coded_block(hy_dtype dtype, int64_t rows, int64_t width) {
    if (dtype == HY_NF4) return width % HY_NF4_BLOCK == 0 ? HY_NF4_BLOCK : 0;
    if (hy_coded_as_one(dtype)) return rows * width <= INT32_MAX ? (int32_t)(rows * width) : 0;
    return dtype == HY_I8 ? (int32_t)width : 0;
}

/* If scales can have two levels: the most blocks in a group (hy_quant); 0: scales are fp32. */
static inline int32_t hy_coded_most(hy_dtype dtype) { return dtype == HY_NF4 ? HY_NF4_NESTED : 0; }

/* Whether a matrix with this many blocks can have this group size. Every type supports 0, fp32
 * scales. */
static inline bool hy_coded_group_fits(hy_dtype dtype, int64_t blocks, int32_t group) {
    if (group == 0) return true;
    int32_t most = hy_coded_most(dtype);
    return group > 0 && group <= most && (group & (group - 1)) == 0 && blocks % group == 0;
}

/* The byte that represents zeros. */
static inline int hy_coded_zero(hy_dtype dtype) { return dtype == HY_NF4 ? HY_NF4_ZERO : 0; }

/* The scale of a block from its largest magnitude, and the quantised values of n elements of a
 * block: for types with fp32 scales. */
static inline float hy_coded_scale(hy_dtype dtype, float largest) {
    return dtype == HY_E4M3 ? hy_fp8_scale(dtype, largest) : hy_int8_scale(largest);
}
static inline void hy_coded_put(hy_dtype dtype, const float *x, int64_t n, float scale,
                                void *codes) {
    if (dtype == HY_I8) {
        hy_int8_encode(x, n, scale, (int8_t *)codes);
        return;
    }
    float inverse = 1 / scale; /* of a power of two: exact */
    for (int64_t i = 0; i < n; i++) ((uint8_t *)codes)[i] = hy_fp8_encode(dtype, x[i] * inverse);
}

/* Quantised values and fp32 scales of `count` elements, whole blocks. Scales may overwrite the
 * numbers. */
static inline void hy_coded_encode(hy_dtype dtype, const float *x, int64_t count, int32_t block,
                                   void *codes, float *scales) {
    for (int64_t at = 0; at < count; at += block) {
        char *to = (char *)codes + hy_dtype_bytes(dtype, at);
        float scale;
        if (dtype == HY_NF4) {
            scale = hy_nf4_encode(x + at, (uint8_t *)to);
        } else {
            scale = hy_coded_scale(dtype, hy_int8_largest(x + at, block));
            hy_coded_put(dtype, x + at, block, scale, to);
        }
        scales[at / block] = scale;
    }
}

/* Dequantises elements [first, first + n); `codes` begins at `first`, the fp32 scales at its block.
 * If two values share a byte, `first` is even. */
static inline void hy_coded_decode(hy_dtype dtype, const void *codes, int64_t first, int64_t n,
                                   int32_t block, const float *scales, float *out) {
    if (dtype == HY_NF4) {
        hy_nf4_decode((const uint8_t *)codes, first, n, scales, out);
    } else if (dtype == HY_E4M3) {
        const uint8_t *code = (const uint8_t *)codes;
        for (int64_t i = 0; i < n; i++) out[i] = hy_fp8_decode(dtype, code[i]) * scales[0];
    } else {
        hy_int8_decode((const int8_t *)codes, first, n, block, scales, out);
    }
}

/* Where the scales of some blocks of a matrix are among all its scales, in bytes: their pairs, then
 * their bytes; without pairs, the rest is fp32. */
typedef struct hy_scale_span {
    uint64_t pairs_at, pairs_bytes;
    uint64_t rest_at, rest_bytes;
} hy_scale_span;

/* The span of blocks [first, first + count) of `blocks`. */
static inline hy_scale_span hy_coded_span(int64_t blocks, int32_t group, int64_t first,
                                          int64_t count) {
    uint64_t from = (uint64_t)first, some = (uint64_t)count, pair = 2 * sizeof(float);
    if (group == 0) {
        return (hy_scale_span){.rest_at = from * sizeof(float), .rest_bytes = some * sizeof(float)};
    }
    uint64_t g = (uint64_t)group, begin = from / g, end = (from + some + g - 1) / g;
    return (hy_scale_span){.pairs_at = begin * pair,
                           .pairs_bytes = (end - begin) * pair,
                           .rest_at = (uint64_t)blocks / g * pair + from,
                           .rest_bytes = some};
}

/* Computes the fp32 scales of these blocks from the content of their span, pairs first. */
static inline void hy_coded_open_scales(int32_t group, int64_t first, int64_t count,
                                        const void *held, float *out) {
    if (group == 0) {
        memmove(out, held, (size_t)count * sizeof *out);
        return;
    }
    hy_scale_span span = hy_coded_span(0, group, first, count);
    const uint8_t *codes = (const uint8_t *)held + span.pairs_bytes;
    for (int64_t i = 0; i < count; i++) {
        int64_t pair = (first + i) / group - first / group;
        out[i] = hy_nf4_scale((const float *)held + 2 * pair, codes[i]);
    }
}

/* The fp32 scale of block `at` of a tensor. */
static inline float hy_coded_scale_at(const hy_tensor *t, int64_t at) {
    int32_t group = t->quant.group;
    if (group == 0) return t->quant.scale[at];
    int64_t pairs = hy_tensor_count(t) / t->quant.block / group;
    const uint8_t *codes = (const uint8_t *)(t->quant.scale + 2 * pairs);
    return hy_nf4_scale(t->quant.scale + 2 * (at / group), codes[at]);
}
