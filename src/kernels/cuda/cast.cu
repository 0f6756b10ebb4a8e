/* cast.cu: conversions between fp32, bf16, fp16 and rows of int8, from nf4 and fp8, and filling
 * with a number.
 *
 * Elementwise, in quads (quad.cuh). Rounding is to nearest, ties to even; between equal types bits
 * are copied unchanged. */
#include <string.h>

#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/nf4.cuh"
#include "kernels/cuda/quad.cuh"
#include "kernels/fp8.h"
#include "kernels/int8.h"

#define THREADS 256

/* ---- cast ------------------------------------------------------------------------------------ */

__global__ void __launch_bounds__(THREADS) cast_kernel(hy_view src, hy_view dst, int64_t count) {
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    hy_quad_bits bits[HY_QUADS];
    HY_EACH(k, HY_QUADS) {
        int64_t at = hy_quad_at(thread, k);
        bits[k] = hy_fetch(src, at, hy_quad_length(at, count));
    }
    HY_EACH(k, HY_QUADS) {
        int64_t at = hy_quad_at(thread, k);
        if (src.dtype != dst.dtype) {
            float x[HY_QUAD];
            hy_widen(bits[k], src.dtype, x);
            bits[k] = hy_narrow(x, dst.dtype);
        }
        hy_store(dst, at, hy_quad_length(at, count), bits[k]);
    }
}

/* ---- values of one byte ---------------------------------------------------------------------- */

#define CODES 16 /* values per thread: 16 bytes */

/* int8 with a scale per row. */
struct int8_codes {
    const uint8_t *codes;
    const float *scales;
    int64_t width;

    __device__ __forceinline__ float scale_at(int64_t i) const { return scales[i / width]; }
    __device__ __forceinline__ float number(uint8_t code, float scale) const {
        return scale * (float)(int8_t)code;
    }
};

/* fp8 with one scale. */
struct fp8_codes {
    const uint8_t *codes;
    const float *scale;

    __device__ __forceinline__ float scale_at(int64_t) const { return __ldg(scale); }
    __device__ __forceinline__ float number(uint8_t code, float by) const {
        return hy_fp8_decode(HY_E4M3, code) * by;
    }
};

/* Packed: addresses are aligned, and the values of a thread have one scale. */
template <typename T, typename Codes>
__global__ void __launch_bounds__(THREADS)
    decode_kernel(Codes c, T *out, int64_t count, bool is_packed, hy_cast_filter filter) {
    int64_t at = CODES * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (at >= count || (is_packed && !hy_is_needed(filter, at))) return;
    if (!is_packed || at + CODES > count) {
        for (int64_t i = at; i < min(at + CODES, count); i++) {
            out[i] = hy_from_float<T>(c.number(c.codes[i], c.scale_at(i)));
        }
        return;
    }
    float scale = c.scale_at(at);
    hy_pack<uint8_t> in = hy_load_pack(c.codes + at);
#pragma unroll
    for (int first = 0; first < CODES; first += hy_pack<T>::count) {
        hy_pack<T> made;
        HY_EACH(i, hy_pack<T>::count) {
            made.v[i] = hy_from_float<T>(c.number(in.v[first + i], scale));
        }
        hy_store_pack(out + at + first, made);
    }
}

template <typename Codes>
static void decode(Codes c, const hy_tensor *dst, bool may_pack, hy_cast_filter filter,
                   cudaStream_t stream) {
    int64_t count = hy_tensor_count(dst);
    bool is_packed = may_pack && (uintptr_t)c.codes % 16 == 0 && (uintptr_t)dst->data % 16 == 0;
    unsigned blocks = (unsigned)hy_ceil_div(count, CODES * THREADS);
    if (filter.each % CODES != 0) filter.offsets = NULL; /* a thread's values are in two experts */
    hy_by_type(dst->dtype, [&](auto zero) {
        using T = decltype(zero);
        decode_kernel<T>
            <<<blocks, THREADS, 0, stream>>>(c, (T *)dst->data, count, is_packed, filter);
    });
}

/* ---- to int8 --------------------------------------------------------------------------------- */

/* One block per row: one pass for the largest magnitude, one for the values. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    encode_kernel(const T *x, int8_t *codes, float *scales, int64_t width) {
    __shared__ float of_warp[THREADS / 32];
    int64_t begin = (int64_t)blockIdx.x * width;
    float largest = 0;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        largest = fmaxf(largest, fabsf(hy_to_float(x[begin + i])));
    }
    largest = hy_warp_max(largest);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = of_warp[0];
    for (int i = 1; i < THREADS / 32; i++) largest = fmaxf(largest, of_warp[i]);
    float scale = largest / HY_INT8_LARGEST;
    float divisor = scale > 0 ? scale : 1;
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        float code = rintf(hy_to_float(x[begin + i]) / divisor);
        codes[begin + i] = (int8_t)(code > HY_INT8_LARGEST     ? HY_INT8_LARGEST
                                    : code >= -HY_INT8_LARGEST ? code
                                                               : -HY_INT8_LARGEST);
    }
}

static void encode_int8(const hy_tensor *x, const hy_tensor *dst, cudaStream_t stream) {
    int64_t width = dst->quant.block;
    unsigned rows = (unsigned)(hy_tensor_count(dst) / width);
    hy_by_type(x->dtype, [&](auto zero) {
        using T = decltype(zero);
        encode_kernel<T><<<rows, THREADS, 0, stream>>>((const T *)x->data, (int8_t *)dst->data,
                                                       dst->quant.scale, width);
    });
}

/* ---- from nf4 -------------------------------------------------------------------------------- */

#define WORD 8  /* values in a word, which a thread converts at a time: 16 bytes of a 16-bit type */
#define WORDS 4 /* words per thread; those of a block of threads are adjacent, four times */

/* `words` words, from word `begin` of the tensor on. The levels are looked up in shared memory: 16
 * words in 16 banks, so lanes never conflict. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    decode_nf4_kernel(hy_nf4_codes c, T *out, int64_t begin, int64_t words, hy_cast_filter filter) {
    __shared__ float levels[16];
    if (threadIdx.x < 16) levels[threadIdx.x] = hy_nf4_level_table[threadIdx.x];
    int64_t first = (int64_t)blockIdx.x * THREADS * WORDS + threadIdx.x;
    /* the words of a block, which are adjacent, are in one or two experts */
    int64_t last = min(first - threadIdx.x + THREADS * WORDS, words) - 1;
    if (!hy_is_needed(filter, (first - threadIdx.x) * WORD) && !hy_is_needed(filter, last * WORD))
        return;
    uint32_t word[WORDS];
    float scale[WORDS];
    HY_EACH(k, WORDS) {
        int64_t at = first + k * THREADS;
        if (at < words) word[k] = __ldg((const uint32_t *)c.codes + begin + at);
    }
    HY_EACH(k, WORDS) {
        int64_t at = first + k * THREADS;
        if (at < words) scale[k] = hy_nf4_scale_at(c, (begin + at) / (HY_NF4_BLOCK / WORD));
    }
    __syncthreads();
    HY_EACH(k, WORDS) {
        int64_t at = first + k * THREADS;
        float x[WORD];
        if (at >= words) return;
        HY_EACH(i, WORD) { /* bytes ascend, and the high half of a byte comes first */
            x[i] = __fmul_rn(levels[word[k] >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15], scale[k]);
        }
#pragma unroll
        for (int pack = 0; pack < WORD; pack += hy_pack<T>::count) {
            hy_pack<T> made;
            HY_EACH(i, hy_pack<T>::count) made.v[i] = hy_from_float<T>(x[pack + i]);
            hy_store_pack(out + at * WORD + pack, made);
        }
    }
}

/* For addresses that are not aligned. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    decode_nf4_slowly(hy_nf4_codes c, T *out, int64_t begin, int64_t count) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) out[i] = hy_from_float<T>(hy_nf4_at(c, begin + i));
}

static void cast_nf4(const hy_tensor *src, int64_t first, const hy_tensor *dst,
                     hy_cast_filter filter, cudaStream_t stream) {
    int64_t count = hy_tensor_count(dst);
    bool is_packed = (uintptr_t)src->data % 4 == 0 && (uintptr_t)dst->data % 16 == 0;
    hy_nf4_codes codes = hy_nf4_codes_of(src);
    if (filter.each < WORD * WORDS * THREADS) filter.offsets = NULL; /* a block's words in three */
    hy_by_type(dst->dtype, [&](auto zero) {
        using T = decltype(zero);
        if (is_packed) {
            unsigned blocks = (unsigned)hy_ceil_div(count, WORD * WORDS * THREADS);
            decode_nf4_kernel<T><<<blocks, THREADS, 0, stream>>>(
                codes, (T *)dst->data, first / WORD, count / WORD, filter);
        } else {
            unsigned blocks = (unsigned)hy_ceil_div(count, THREADS);
            decode_nf4_slowly<T>
                <<<blocks, THREADS, 0, stream>>>(codes, (T *)dst->data, first, count);
        }
    });
}

hy_status hy_cuda_cast_part(const hy_cuda_run *run, const hy_tensor *src, int64_t first,
                            const hy_tensor *dst, hy_cast_filter filter) {
    const uint8_t *codes = (const uint8_t *)src->data;
    int64_t width = src->quant.block, count = hy_tensor_count(dst);
    if (src->dtype == HY_NF4) {
        cast_nf4(src, first, dst, filter, run->stream);
    } else if (src->dtype == HY_E4M3) {
        decode(fp8_codes{codes + first, src->quant.scale}, dst, true, filter, run->stream);
    } else if (src->dtype == HY_I8) {
        int8_codes rows = {codes + first, src->quant.scale + first / width, width};
        decode(rows, dst, width % CODES == 0, filter, run->stream);
    } else {
        hy_tensor part = *src;
        part.data = (char *)src->data + hy_dtype_bytes(src->dtype, first);
        unsigned blocks = hy_quad_blocks(count, THREADS);
        cast_kernel<<<blocks, THREADS, 0, run->stream>>>(hy_view_of(&part), hy_view_of(dst), count);
    }
    return hy_cuda_launched(run);
}

hy_status hy_cuda_cast(const hy_cuda_run *run) {
    const hy_tensor *src = &run->call->t[HY_CAST_SRC], *dst = &run->call->t[HY_CAST_DST];
    if (dst->dtype != HY_I8) return hy_cuda_cast_part(run, src, 0, dst, hy_cast_filter{});
    encode_int8(src, dst, run->stream);
    return hy_cuda_launched(run);
}

/* ---- fill ------------------------------------------------------------------------------------ */

/* 8 bytes: the bytes of the element, repeated. */
static uint64_t pattern_of(hy_dtype dtype, float value) {
    uint64_t pattern;
    if (dtype == HY_F64) {
        double wide = (double)value;
        memcpy(&pattern, &wide, sizeof pattern);
        return pattern;
    }
    if (dtype == HY_F32 || dtype == HY_I32) {
        int32_t word = dtype == HY_I32 ? (int32_t)value : 0;
        if (dtype == HY_F32) memcpy(&word, &value, sizeof word);
        return (uint32_t)word * 0x0000000100000001ull;
    }
    uint16_t half = dtype == HY_BF16 ? __nv_bfloat16_raw(__float2bfloat16_rn(value)).x
                                     : __half_raw(__float2half_rn(value)).x;
    return half * 0x0001000100010001ull;
}

/* 16 bytes per thread; the rest, or all of an unaligned tensor, by elements. */
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
    int64_t bytes = (int64_t)hy_tensor_bytes(dst);
    unsigned blocks = (unsigned)hy_ceil_div(bytes, 16 * THREADS);
    fill_kernel<<<blocks, THREADS, 0, run->stream>>>(
        (char *)dst->data, bytes, pattern_of(dst->dtype, run->call->attr.fill.value),
        (int)hy_dtype_size(dst->dtype), (uintptr_t)dst->data % 16 == 0);
    return hy_cuda_launched(run);
}
