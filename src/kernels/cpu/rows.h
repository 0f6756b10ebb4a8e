/* rows.h: elements of a tensor as fp32, whatever their type.
 *
 * Ops compute in fp32 on short runs of elements. For fp32 tensors these functions return the
 * tensor's own memory and copy nothing; for bf16 and fp16 they convert to and from a buffer of the
 * caller, rounding once, on storing. Pointers from hy_read and hy_target of one tensor are equal or
 * disjoint, never shifted, so in-place ops are correct. */
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/half.h"

/* Elements that elementwise ops convert at a time: a few buffers of this size fit into the L1
 * cache. */
#define HY_CPU_RUN 1024

/* Conversions (cast.c). */
void hy_cpu_widen(hy_dtype dtype, const void *src, float *dst, int64_t n);
void hy_cpu_narrow(hy_dtype dtype, const float *src, void *dst, int64_t n);

/* Elements [at, at + n) of a quantised tensor as numbers of `dtype` (decode.c); if two share a
 * byte, `at` is even. */
void hy_cpu_read_coded(const hy_tensor *t, int64_t at, int64_t n, hy_dtype dtype, float *out);

/* Elements [at, at + n) of an fp8 tensor. */
void hy_cpu_read_fp8(const hy_tensor *t, int64_t at, int64_t n, float *out);

/* out = a + b; out may be one of them. */
void hy_cpu_add(const float *a, const float *b, float *out, int64_t n);
float hy_cpu_square_sum(const float *x, int64_t n);

static inline void *hy_element(const hy_tensor *t, int64_t at) {
    return (char *)t->data + (size_t)at * (t->dtype == HY_F32 ? 4 : 2);
}

/* Elements [at, at + n) for reading; `buffer` has room for n floats and is used only for narrow
 * types. */
static inline const float *hy_read(const hy_tensor *t, int64_t at, int64_t n, float *buffer) {
    if (t->dtype == HY_F32) return hy_element(t, at);
    hy_cpu_widen(t->dtype, hy_element(t, at), buffer, n);
    return buffer;
}

/* Where to write elements from `at` on; call hy_write when they are complete. */
static inline float *hy_target(const hy_tensor *t, int64_t at, float *buffer) {
    return t->dtype == HY_F32 ? hy_element(t, at) : buffer;
}

static inline void hy_write(const hy_tensor *t, int64_t at, int64_t n, const float *values) {
    if (t->dtype != HY_F32) hy_cpu_narrow(t->dtype, values, hy_element(t, at), n);
}

/* Rows [row, row + rows) and columns [col, col + cols) of a tensor as fp32: in place, or converted
 * into `buffer` of rows * cols floats. *ld is the row stride. */
static inline const float *hy_read_block(const hy_tensor *t, int64_t row, int64_t rows, int64_t col,
                                         int64_t cols, float *buffer, int64_t *ld) {
    int64_t width = hy_tensor_width(t);
    if (t->dtype == HY_F32) {
        *ld = width;
        return hy_element(t, row * width + col);
    }
    for (int64_t r = 0; r < rows; r++) {
        if (hy_is_fp8(t->dtype)) {
            hy_cpu_read_fp8(t, (row + r) * width + col, cols, buffer + r * cols);
            continue;
        }
        hy_cpu_widen(t->dtype, hy_element(t, (row + r) * width + col), buffer + r * cols, cols);
    }
    *ld = cols;
    return buffer;
}

/* The buffer size for n elements of t, in bytes. */
static inline size_t hy_buffer_bytes(const hy_tensor *t, int64_t n) {
    return t->data && t->dtype != HY_F32 ? (size_t)n * sizeof(float) : 0;
}
