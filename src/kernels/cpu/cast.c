/* cast.c: conversions between fp32 and the two 16-bit types, a sum of two rows, and the ops that
 * need only these and the readers of quantised types (decode.c).
 *
 * Rounding is to nearest, ties to even, as half.h defines it; the loops apply its functions to
 * arrays and are written for vectorisation. */
#include <string.h>

#include "kernels/cpu/rows.h"

#define DEFINE_CONVERSION(NAME, FROM, TO, CONVERT)                                                 \
    HY_CLONES static void NAME(const FROM *restrict src, TO *restrict dst, int64_t n) {            \
        for (int64_t i = 0; i < n; i++) dst[i] = CONVERT(src[i]);                                  \
    }
DEFINE_CONVERSION(widen_bf16, uint16_t, float, hy_bf16_to_f32)
DEFINE_CONVERSION(narrow_bf16, float, uint16_t, hy_f32_to_bf16)
DEFINE_CONVERSION(widen_f16, uint16_t, float, hy_f16_to_f32)
DEFINE_CONVERSION(narrow_f16, float, uint16_t, hy_f32_to_f16)

void hy_cpu_widen(hy_dtype dtype, const void *src, float *dst, int64_t n) {
    if (dtype == HY_BF16) {
        widen_bf16(src, dst, n);
    } else if (dtype == HY_F16) {
        widen_f16(src, dst, n);
    } else {
        memcpy(dst, src, (size_t)n * sizeof(float));
    }
}

void hy_cpu_narrow(hy_dtype dtype, const float *src, void *dst, int64_t n) {
    if (dtype == HY_BF16) {
        narrow_bf16(src, dst, n);
    } else if (dtype == HY_F16) {
        narrow_f16(src, dst, n);
    } else {
        memcpy(dst, src, (size_t)n * sizeof(float));
    }
}

HY_CLONES float hy_cpu_square_sum(const float *x, int64_t n) {
    float sum = 0;
    HY_SIMD_SUM(sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

HY_CLONES void hy_cpu_add(const float *a, const float *b, float *out, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

/* ---- ops ------------------------------------------------------------------------------------- */

#define ELEMENTS_PER_TASK (64 * 1024)

static void cast_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *src = &call->t[HY_CAST_SRC], *dst = &call->t[HY_CAST_DST];
    float buffer[HY_CPU_RUN];
    const float *x = buffer;
    if (src->dtype == dst->dtype) {
        memmove(hy_element(dst, at), hy_element(src, at), hy_dtype_bytes(src->dtype, n));
        return;
    }
    if (hy_is_coded(src->dtype)) {
        hy_cpu_read_coded(src, at, n, HY_F32, buffer);
    } else {
        x = hy_read(src, at, n, buffer);
    }
    hy_cpu_narrow(dst->dtype, x, hy_element(dst, at), n);
}

/* Quantises blocks: one pass over each for its scale, one for the values. */
static void encode_blocks(const hy_op_call *call, int64_t first, int64_t blocks) {
    const hy_tensor *src = &call->t[HY_CAST_SRC], *dst = &call->t[HY_CAST_DST];
    int64_t width = dst->quant.block;
    float buffer[HY_CPU_RUN];
    for (int64_t block = first; block < first + blocks; block++) {
        float largest = 0, *scale = &dst->quant.scale[block];
        int64_t end = (block + 1) * width;
        for (int64_t at = block * width, n; at < end; at += n) {
            n = hy_min64(HY_CPU_RUN, end - at);
            largest = fmaxf(largest, hy_int8_largest(hy_read(src, at, n, buffer), n));
        }
        *scale = hy_coded_scale(dst->dtype, largest);
        for (int64_t at = block * width, n; at < end; at += n) {
            n = hy_min64(HY_CPU_RUN, end - at);
            hy_coded_put(dst->dtype, hy_read(src, at, n, buffer), n, *scale,
                         (char *)dst->data + hy_dtype_bytes(dst->dtype, at));
        }
    }
}

hy_status hy_cpu_cast(const hy_cpu_run *run) {
    const hy_tensor *dst = &run->call->t[HY_CAST_DST];
    int64_t count = hy_tensor_count(dst), block = dst->quant.block;
    if (!hy_is_coded(dst->dtype)) {
        return hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, cast_elements);
    }
    return hy_cpu_for_rows(run, count / block, hy_max64(1, ELEMENTS_PER_TASK / block),
                           encode_blocks);
}

/* The bytes of the value, in every type that can be filled. */
static void fill_elements(const hy_op_call *call, int64_t begin, int64_t n) {
    const hy_tensor *dst = &call->t[HY_FILL_DST];
    float value = call->attr.fill.value;
    int64_t end = begin + n;
    if (dst->dtype == HY_F32) {
        for (int64_t i = begin; i < end; i++) ((float *)dst->data)[i] = value;
    } else if (dst->dtype == HY_F64) {
        for (int64_t i = begin; i < end; i++) ((double *)dst->data)[i] = (double)value;
    } else if (dst->dtype == HY_I32) {
        for (int64_t i = begin; i < end; i++) ((int32_t *)dst->data)[i] = (int32_t)value;
    } else {
        uint16_t half = dst->dtype == HY_BF16 ? hy_f32_to_bf16(value) : hy_f32_to_f16(value);
        for (int64_t i = begin; i < end; i++) ((uint16_t *)dst->data)[i] = half;
    }
}

hy_status hy_cpu_fill(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_FILL_DST]);
    return hy_cpu_for_elements(run, count, ELEMENTS_PER_TASK, fill_elements);
}
