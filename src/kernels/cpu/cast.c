/* cast.c: conversions between fp32 and the two 16-bit types, and the ops that need nothing else.
 *
 * Rounding is to nearest, ties to even, as half.h defines it; the loops here are its functions over
 * arrays, written so that the compiler vectorises them. */
#include <string.h>

#include "kernels/cpu/rows.h"

HY_CLONES static void widen_bf16(const uint16_t *restrict src, float *restrict dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = hy_bf16_to_f32(src[i]);
}

HY_CLONES static void narrow_bf16(const float *restrict src, uint16_t *restrict dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = hy_f32_to_bf16(src[i]);
}

HY_CLONES static void widen_f16(const uint16_t *restrict src, float *restrict dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = hy_f16_to_f32(src[i]);
}

HY_CLONES static void narrow_f16(const float *restrict src, uint16_t *restrict dst, int64_t n) {
    for (int64_t i = 0; i < n; i++) dst[i] = hy_f32_to_f16(src[i]);
}

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

/* ---- ops ------------------------------------------------------------------------------------- */

#define ELEMENTS_PER_TASK (64 * 1024)

static void cast_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *src = &run->call->t[HY_CAST_SRC], *dst = &run->call->t[HY_CAST_DST];
    int64_t begin = task * ELEMENTS_PER_TASK;
    int64_t end = hy_min64(begin + ELEMENTS_PER_TASK, hy_tensor_count(src));
    float buffer[HY_CPU_RUN];
    if (src->dtype == dst->dtype) {
        memmove(hy_element(dst, begin), hy_element(src, begin),
                (size_t)(end - begin) * hy_dtype_size(src->dtype));
        return;
    }
    for (int64_t at = begin; at < end; at += HY_CPU_RUN) {
        int64_t n = hy_min64(HY_CPU_RUN, end - at);
        const float *values = hy_read(src, at, n, buffer);
        hy_cpu_narrow(dst->dtype, values, hy_element(dst, at), n);
    }
}

hy_status hy_cpu_cast(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_CAST_SRC]);
    hy_cpu_for_each(run, hy_ceil_div(count, ELEMENTS_PER_TASK), cast_task);
    return HY_OK;
}

/* The value's bytes, in every type that can be filled. */
static void fill_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_tensor *dst = &run->call->t[HY_FILL_DST];
    float value = run->call->attr.fill.value;
    int64_t begin = task * ELEMENTS_PER_TASK;
    int64_t end = hy_min64(begin + ELEMENTS_PER_TASK, hy_tensor_count(dst));
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
    hy_cpu_for_each(run, hy_ceil_div(count, ELEMENTS_PER_TASK), fill_task);
    return HY_OK;
}
