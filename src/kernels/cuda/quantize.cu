/* quantize.cu: 8 bits per element with a scale per block, and back. See HY_OP_QUANTIZE in
 * kernels.h.
 *
 * Quantising uses one warp per block, of any length: one pass for the largest magnitude, one for
 * the values. */
#include "kernels/cuda/codes.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

template <bool is_signed>
__global__ void __launch_bounds__(THREADS)
    quantize_kernel(const float *x, uint8_t *codes, float *scales, int64_t count, int64_t block) {
    int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t begin = b * block, end = min(begin + block, count);
    if (begin >= count) return;
    float largest = 0;
#pragma unroll 8
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32)
        largest = fmaxf(largest, fabsf(x[i]));
    largest = hy_warp_max(largest);
    if (threadIdx.x % 32 == 0) scales[b] = largest;
    float divisor = largest > 0 ? largest : 1; /* divide, because the inverse could overflow */
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) {
        float share = x[i] / divisor;
        codes[i] = (uint8_t)(is_signed ? hy_encode_signed(share) : hy_encode_unsigned(share));
    }
}

/* Four elements per thread: their values are one word if the addresses allow it and blocks do not
 * split it. */
template <bool is_signed>
__global__ void __launch_bounds__(THREADS)
    dequantize_kernel(const uint8_t *codes, const float *scales, float *x, int64_t count,
                      int64_t block, bool is_packed) {
    int64_t at = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    auto decode = [](uint32_t code) {
        return is_signed ? hy_decode_signed(code) : hy_decode_unsigned(code);
    };
    if (!is_packed || at + 4 > count) {
        for (int64_t i = at; i < min(at + 4, count); i++) {
            x[i] = scales[i / block] * decode(codes[i]);
        }
        return;
    }
    uchar4 four = *(const uchar4 *)(codes + at);
    float scale = scales[at / block];
    *(float4 *)(x + at) = make_float4(scale * decode(four.x), scale * decode(four.y),
                                      scale * decode(four.z), scale * decode(four.w));
}

hy_status hy_cuda_quantize(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    int64_t count = hy_tensor_count(&call->t[HY_QUANTIZE_X]), block = call->attr.quantize.block;
    unsigned blocks = (unsigned)hy_ceil_div(hy_ceil_div(count, block), WARPS);
    auto kernel = call->attr.quantize.is_signed ? quantize_kernel<true> : quantize_kernel<false>;
    kernel<<<blocks, THREADS, 0, run->stream>>>(
        (const float *)call->t[HY_QUANTIZE_X].data, (uint8_t *)call->t[HY_QUANTIZE_CODES].data,
        (float *)call->t[HY_QUANTIZE_SCALES].data, count, block);
    return hy_cuda_launched(run);
}

hy_status hy_cuda_dequantize(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    int64_t count = hy_tensor_count(&call->t[HY_DEQUANTIZE_CODES]),
            block = call->attr.quantize.block;
    bool is_packed = block % 4 == 0 && (uintptr_t)call->t[HY_DEQUANTIZE_CODES].data % 4 == 0 &&
                     (uintptr_t)call->t[HY_DEQUANTIZE_X].data % 16 == 0;
    unsigned blocks = (unsigned)hy_ceil_div(count, 4 * THREADS);
    auto kernel =
        call->attr.quantize.is_signed ? dequantize_kernel<true> : dequantize_kernel<false>;
    kernel<<<blocks, THREADS, 0, run->stream>>>((const uint8_t *)call->t[HY_DEQUANTIZE_CODES].data,
                                                (const float *)call->t[HY_DEQUANTIZE_SCALES].data,
                                                (float *)call->t[HY_DEQUANTIZE_X].data, count,
                                                block, is_packed);
    return hy_cuda_launched(run);
}
