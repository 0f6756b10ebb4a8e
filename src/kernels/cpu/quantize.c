/* quantize.c: 8 bits an element with a scale per block. See HY_OP_QUANTIZE in kernels.h.
 *
 * The maps from numbers to codes are in codes.h; here are the loops over blocks. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/rows.h"

#define BLOCKS_PER_TASK 64

static void quantize_block(const float *x, int64_t n, bool is_signed, uint8_t *codes,
                           float *scale) {
    float largest = hy_largest(x, n);
    *scale = largest;
    float divisor = largest > 0 ? largest : 1; /* its inverse could overflow: divide */
    for (int64_t i = 0; i < n; i++) {
        float share = x[i] / divisor;
        codes[i] = is_signed ? hy_encode_signed(share) : hy_encode_unsigned(share);
    }
}

static void quantize_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_op_call *call = run->call;
    int64_t block = call->attr.quantize.block;
    bool is_forward = call->kind == HY_OP_QUANTIZE, is_signed = call->attr.quantize.is_signed;
    const hy_tensor *values = &call->t[is_forward ? HY_QUANTIZE_X : HY_DEQUANTIZE_X];
    float *x = values->data;
    uint8_t *codes = call->t[is_forward ? HY_QUANTIZE_CODES : HY_DEQUANTIZE_CODES].data;
    float *scales = call->t[is_forward ? HY_QUANTIZE_SCALES : HY_DEQUANTIZE_SCALES].data;
    int64_t count = hy_tensor_count(values);
    int64_t end = hy_min64((task + 1) * BLOCKS_PER_TASK, hy_ceil_div(count, block));
    for (int64_t b = task * BLOCKS_PER_TASK; b < end; b++) {
        int64_t at = b * block, n = hy_min64(block, count - at);
        if (is_forward) {
            quantize_block(x + at, n, is_signed, codes + at, scales + b);
            continue;
        }
        for (int64_t i = at; i < at + n; i++) {
            float share = is_signed ? hy_decode_signed(codes[i]) : hy_decode_unsigned(codes[i]);
            x[i] = scales[b] * share;
        }
    }
}

static hy_status quantize(const hy_cpu_run *run, int64_t count) {
    int64_t block = run->call->attr.quantize.block;
    if (block < 1)
        return hy_fail(HY_ERR_INPUT,
                       "the quantisation block has %lld elements, expected at least 1",
                       (long long)block);
    int64_t blocks = hy_ceil_div(count, block);
    hy_cpu_for_each(run, hy_ceil_div(blocks, BLOCKS_PER_TASK), quantize_task);
    return HY_OK;
}

hy_status hy_cpu_quantize(const hy_cpu_run *run) {
    return quantize(run, hy_tensor_count(&run->call->t[HY_QUANTIZE_X]));
}
hy_status hy_cpu_dequantize(const hy_cpu_run *run) {
    return quantize(run, hy_tensor_count(&run->call->t[HY_DEQUANTIZE_X]));
}
