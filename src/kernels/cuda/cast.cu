/* cast.cu: conversions between fp32, bf16 and fp16, and filling with a number.
 *
 * Elementwise, in quads (quad.cuh). Rounding is to nearest, ties to even; between equal
 * types bits are copied as they are. */
#include "kernels/cuda/quad.cuh"

#define THREADS 256

/* ---- cast ------------------------------------------------------------------------------------ */

__global__ void __launch_bounds__(THREADS) cast_kernel(hy_view src, hy_view dst, int64_t count) {
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    hy_quad_bits bits[HY_QUADS];
#pragma unroll
    for (int k = 0; k < HY_QUADS; k++) {
        int64_t at = hy_quad_at(thread, k);
        bits[k] = hy_fetch(src, at, hy_quad_length(at, count));
    }
#pragma unroll
    for (int k = 0; k < HY_QUADS; k++) {
        int64_t at = hy_quad_at(thread, k);
        if (src.dtype != dst.dtype) {
            float x[HY_QUAD];
            hy_widen(bits[k], src.dtype, x);
            bits[k] = hy_narrow(x, dst.dtype);
        }
        hy_store(dst, at, hy_quad_length(at, count), bits[k]);
    }
}

hy_status hy_cuda_cast(const hy_cuda_run *run) {
    const hy_tensor *src = &run->call->t[HY_CAST_SRC], *dst = &run->call->t[HY_CAST_DST];
    int64_t count = hy_tensor_count(src);
    unsigned blocks = hy_quad_blocks(count, THREADS);
    cast_kernel<<<blocks, THREADS, 0, run->stream>>>(hy_view_of(src), hy_view_of(dst), count);
    return hy_cuda_launched(run);
}

/* ---- fill ------------------------------------------------------------------------------------ */

/* 8 bytes that repeat: the element's bytes as often as they fit. */
typedef struct fill_pattern {
    uint64_t bytes;
    int size; /* of an element */
} fill_pattern;

static fill_pattern pattern_of(hy_dtype dtype, float value) {
    union {
        float f32[2];
        double f64;
        int32_t i32[2];
        uint16_t u16[4];
        uint64_t bytes;
    } p;
    if (dtype == HY_F32) {
        p.f32[0] = p.f32[1] = value;
        return fill_pattern{p.bytes, 4};
    }
    if (dtype == HY_F64) {
        p.f64 = (double)value;
        return fill_pattern{p.bytes, 8};
    }
    if (dtype == HY_I32) {
        p.i32[0] = p.i32[1] = (int32_t)value;
        return fill_pattern{p.bytes, 4};
    }
    uint16_t half = dtype == HY_BF16 ? __nv_bfloat16_raw(__float2bfloat16_rn(value)).x
                                     : __half_raw(__float2half_rn(value)).x;
    for (int i = 0; i < 4; i++) p.u16[i] = half;
    return fill_pattern{p.bytes, 2};
}

/* 16 bytes a thread; what is left of the last 16, or all of an unaligned tensor, by elements. */
__global__ void __launch_bounds__(THREADS)
    fill_kernel(char *data, int64_t bytes, uint64_t pattern, int size, bool is_packed) {
    int64_t at = 16 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (is_packed && at + 16 <= bytes) {
        *(ulonglong2 *)(data + at) = make_ulonglong2(pattern, pattern);
        return;
    }
    for (int64_t i = at; i < min(at + 16, bytes); i += size) {
        if (size == 2)
            *(uint16_t *)(data + i) = (uint16_t)pattern;
        else if (size == 4)
            *(uint32_t *)(data + i) = (uint32_t)pattern;
        else
            *(uint64_t *)(data + i) = pattern;
    }
}

hy_status hy_cuda_fill(const hy_cuda_run *run) {
    const hy_tensor *dst = &run->call->t[HY_FILL_DST];
    fill_pattern pattern = pattern_of(dst->dtype, run->call->attr.fill.value);
    int64_t bytes = hy_tensor_count(dst) * pattern.size;
    unsigned blocks = (unsigned)hy_ceil_div(bytes, 16 * THREADS);
    fill_kernel<<<blocks, THREADS, 0, run->stream>>>((char *)dst->data, bytes, pattern.bytes,
                                                     pattern.size, (uintptr_t)dst->data % 16 == 0);
    return hy_cuda_launched(run);
}
