/* tensor.h: a view of numbers in memory.
 *
 * A tensor owns nothing: it has a pointer, shape and type, and for quantised types the address of
 * the scales. Rows are contiguous and the last dimension is the fastest. One-letter dimensions
 * everywhere:
 *     B sequences in a micro-batch   T tokens in a sequence   N = B*T rows
 * C width   H query heads   K key/value heads   D head size   F mlp width   V vocabulary   L
 * blocks */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_MAX_DIMS 4

/* Scales of a quantised tensor: one per `block` elements of a row (coded.h); with block 0, one for
 * all of it (fp8.h). Scales of blocks are fp32. With a group they have two levels: for each `group`
 * blocks a pair of fp32, scale and offset, all pairs first, then a byte per block (nf4.h). */
typedef struct hy_quant {
    float *scale;
    int32_t block;
    int32_t group;
} hy_quant;

typedef struct hy_tensor {
    void *data; /* NULL: the tensor is absent (an optional argument) */
    int64_t shape[HY_MAX_DIMS];
    int32_t ndim;
    hy_dtype dtype;
    hy_quant quant;
} hy_tensor;

static inline int64_t hy_tensor_count(const hy_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

/* The bytes of `count` elements, which is the offset of the next one. */
static inline uint64_t hy_dtype_bytes(hy_dtype dtype, int64_t count) {
    if (dtype == HY_NF4) return ((uint64_t)count + 1) / 2;
    return (uint64_t)count * hy_dtype_size(dtype);
}

/* The bytes of the scales of `blocks` blocks. group 0: one fp32 scale per block; otherwise one byte
 * per block and two floats per group. */
static inline uint64_t hy_scale_bytes(int64_t blocks, int32_t group) {
    if (group == 0) return (uint64_t)blocks * sizeof(float);
    return (uint64_t)(blocks / group) * 2 * sizeof(float) + (uint64_t)blocks;
}

static inline size_t hy_tensor_bytes(const hy_tensor *t) {
    return hy_dtype_bytes(t->dtype, hy_tensor_count(t));
}

static inline size_t hy_tensor_scale_bytes(const hy_tensor *t) {
    int64_t block = t->quant.block;
    if (block == 0) return sizeof(float);
    return hy_scale_bytes((hy_tensor_count(t) + block - 1) / block, t->quant.group);
}

static inline bool hy_tensor_is_given(const hy_tensor *t) { return t->data != NULL; }

static inline hy_tensor hy_tensor_1d(void *data, hy_dtype dtype, int64_t n) {
    return (hy_tensor){.data = data, .shape = {n}, .ndim = 1, .dtype = dtype};
}

static inline hy_tensor hy_tensor_2d(void *data, hy_dtype dtype, int64_t rows, int64_t cols) {
    return (hy_tensor){.data = data, .shape = {rows, cols}, .ndim = 2, .dtype = dtype};
}

/* Rows [first, first + count) of a tensor; of a 1-d tensor, its elements. The position of two-level
 * scales depends on the size of the whole tensor, so a view has none, and no op accepts it. */
static inline hy_tensor hy_tensor_rows(const hy_tensor *t, int64_t first, int64_t count) {
    hy_tensor view = *t;
    int64_t row = t->ndim > 1 ? hy_tensor_count(t) / t->shape[0] : 1;
    view.data = t->data ? (char *)t->data + hy_dtype_bytes(t->dtype, first * row) : NULL;
    if (t->quant.scale && t->quant.block > 0) {
        view.quant.scale = t->quant.group ? NULL : t->quant.scale + first * row / t->quant.block;
    }
    view.shape[0] = count;
    return view;
}
