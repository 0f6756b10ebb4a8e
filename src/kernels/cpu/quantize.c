/* quantize.c: 8 bits an element with a scale per block. See HY_OP_QUANTIZE in kernels.h.
 *
 * Codes are spaced by a power, so that small values keep their relative size: with p = 3 the smallest
 * signed step is 1/127^3 of the block's largest, with p = 4 the smallest unsigned one 1/255^4. */
#include <math.h>

#include "kernels/cpu/rows.h"

#define BLOCKS_PER_TASK 64
#define SIGNED_STEPS 127
#define UNSIGNED_STEPS 255

static uint8_t encode_signed(float share) {
    int code = (int)lrintf(cbrtf(share) * SIGNED_STEPS);
    return (uint8_t)(code + 128);
}

static uint8_t encode_unsigned(float share) {
    if (!(share > 0)) return 0;
    int code = (int)lrintf(sqrtf(sqrtf(share)) * UNSIGNED_STEPS);
    return (uint8_t)(code < 1 ? 1 : code > UNSIGNED_STEPS ? UNSIGNED_STEPS : code);
}

static float decode_signed(uint8_t code) {
    float root = (float)((int)code - 128) / SIGNED_STEPS;
    return root * root * root;
}

static float decode_unsigned(uint8_t code) {
    float root = (float)code / UNSIGNED_STEPS;
    return root * root * root * root;
}

static void quantize_block(const float *x, int64_t n, bool is_signed, uint8_t *codes,
                           float *scale) {
    float largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    *scale = largest;
    float divisor = largest > 0 ? largest : 1; /* its inverse could overflow: divide */
    for (int64_t i = 0; i < n; i++) {
        codes[i] = is_signed ? encode_signed(x[i] / divisor) : encode_unsigned(x[i] / divisor);
    }
}

static void quantize_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_op_call *call = run->call;
    int64_t block = call->attr.quantize.block, count = hy_tensor_count(&call->t[0]);
    int64_t end = hy_min64((task + 1) * BLOCKS_PER_TASK, hy_ceil_div(count, block));
    bool is_forward = call->kind == HY_OP_QUANTIZE, is_signed = call->attr.quantize.is_signed;
    float *x = call->t[is_forward ? 0 : 2].data;
    uint8_t *codes = call->t[is_forward ? 1 : 0].data;
    float *scales = call->t[is_forward ? 2 : 1].data;
    for (int64_t b = task * BLOCKS_PER_TASK; b < end; b++) {
        int64_t at = b * block, n = hy_min64(block, count - at);
        if (is_forward) {
            quantize_block(x + at, n, is_signed, codes + at, scales + b);
            continue;
        }
        for (int64_t i = at; i < at + n; i++) {
            x[i] = scales[b] * (is_signed ? decode_signed(codes[i]) : decode_unsigned(codes[i]));
        }
    }
}

static hy_status quantize(const hy_cpu_run *run) {
    int64_t block = run->call->attr.quantize.block;
    if (block < 1)
        return hy_fail(HY_ERR_INPUT, "a quantisation block of %lld elements is none",
                       (long long)block);
    int64_t blocks = hy_ceil_div(hy_tensor_count(&run->call->t[0]), block);
    hy_cpu_for_each(run, hy_ceil_div(blocks, BLOCKS_PER_TASK), quantize_task);
    return HY_OK;
}

hy_status hy_cpu_quantize(const hy_cpu_run *run) { return quantize(run); }
hy_status hy_cpu_dequantize(const hy_cpu_run *run) { return quantize(run); }
