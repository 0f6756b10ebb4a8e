/* quantize.c: 8 bits per element with a scale per block. See HY_OP_QUANTIZE in kernels.h.
 *
 * codes.h has the conversions; this file has the loops over blocks. */
#include "kernels/cpu/codes.h"
#include "kernels/cpu/rows.h"

#define BLOCKS_PER_TASK 64

static const hy_tensor *values_of(const hy_op_call *call) {
    return &call->t[call->kind == HY_OP_QUANTIZE ? HY_QUANTIZE_X : HY_DEQUANTIZE_X];
}

static void quantize_blocks(const hy_op_call *call, int64_t first, int64_t blocks) {
    bool is_forward = call->kind == HY_OP_QUANTIZE, is_signed = call->attr.quantize.is_signed;
    int64_t block = call->attr.quantize.block, count = hy_tensor_count(values_of(call));
    float *x = values_of(call)->data;
    uint8_t *codes = call->t[is_forward ? HY_QUANTIZE_CODES : HY_DEQUANTIZE_CODES].data;
    float *scales = call->t[is_forward ? HY_QUANTIZE_SCALES : HY_DEQUANTIZE_SCALES].data;
    for (int64_t b = first; b < first + blocks; b++) {
        int64_t at = b * block, n = hy_min64(block, count - at);
        if (is_forward) {
            scales[b] = hy_encode_block(x + at, n, is_signed, codes + at);
        } else {
            hy_decode_block(codes + at, n, is_signed, scales[b], x + at);
        }
    }
}

hy_status hy_cpu_quantize(const hy_cpu_run *run) {
    int64_t block = run->call->attr.quantize.block;
    int64_t blocks = hy_ceil_div(hy_tensor_count(values_of(run->call)), block);
    return hy_cpu_for_rows(run, blocks, BLOCKS_PER_TASK, quantize_blocks);
}
