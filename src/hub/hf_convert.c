/* hf_convert.c: numbers in another type, rounded to nearest, or another order. See hf_load.h.
 *
 * Types by way of fp32, a batch at a time: each loop is one that compilers vectorise. Equal types are copied
 * bit for bit. */
#include <string.h>

#include "hub/hf_load.h"
#include "kernels/half.h"

#define BATCH 1024
#define TILE 16 /* rows that are transposed together: a cache line of fp32 */

static void widen(const char *from, hy_dtype type, int64_t count, float *out) {
    uint16_t halves[BATCH];
    size_t bytes = (size_t)count * hy_dtype_size(type);
    if (type == HY_F32) {
        memcpy(out, from, bytes);
    } else {
        memcpy(halves, from, bytes);
        for (int64_t i = 0; type == HY_BF16 && i < count; i++) out[i] = hy_bf16_to_f32(halves[i]);
        for (int64_t i = 0; type == HY_F16 && i < count; i++) out[i] = hy_f16_to_f32(halves[i]);
    }
}

static void narrow(const float *from, int64_t count, hy_dtype type, char *out) {
    uint16_t halves[BATCH];
    if (type == HY_F32) {
        memcpy(out, from, (size_t)count * sizeof *from);
        return;
    }
    for (int64_t i = 0; type == HY_BF16 && i < count; i++) halves[i] = hy_f32_to_bf16(from[i]);
    for (int64_t i = 0; type == HY_F16 && i < count; i++) halves[i] = hy_f32_to_f16(from[i]);
    memcpy(out, halves, (size_t)count * sizeof *halves);
}

void hy_convert(const void *from, hy_dtype from_type, int64_t count, void *to, hy_dtype to_type) {
    float batch[BATCH];
    size_t from_size = hy_dtype_size(from_type), to_size = hy_dtype_size(to_type);
    if (from_type == to_type) {
        memcpy(to, from, (size_t)count * from_size);
        return;
    }
    for (int64_t at = 0; at < count; at += BATCH) {
        int64_t some = count - at < BATCH ? count - at : BATCH;
        widen((const char *)from + (size_t)at * from_size, from_type, some, batch);
        narrow(batch, some, to_type, (char *)to + (size_t)at * to_size);
    }
}

void hy_transpose(const void *from, int64_t rows, int64_t cols, size_t size, void *to) {
    for (int64_t first = 0; first < rows; first += TILE) {
        int64_t end = first + TILE < rows ? first + TILE : rows;
        for (int64_t c = 0; c < cols; c++) {
            for (int64_t r = first; r < end; r++) {
                memcpy((char *)to + (size_t)(r * cols + c) * size,
                       (const char *)from + (size_t)(c * rows + r) * size, size);
            }
        }
    }
}
