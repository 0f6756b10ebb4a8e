/* grouped.h: sizes that all backends derive from a grouped matmul or its gradient. */
#pragma once

#include "kernels/kernels.h"

/* Decoded experts in the workspace: enough that a card is busy with them, and little beside what a
 * step stores. A single larger expert is decoded whole. */
#define HY_GROUPED_DECODED_BYTES ((int64_t)96 << 20)

/* R, the number of sorted positions. */
static inline int64_t hy_grouped_rows(const hy_op_call *call) {
    const hy_tensor *t = call->t, *a = &t[HY_GROUPED_GRAD_A];
    if (call->kind == HY_OP_GROUPED_MATMUL) {
        const hy_tensor *d = &t[HY_GROUPED_MATMUL_D];
        return hy_tensor_count(d) / d->shape[d->ndim - 1];
    }
    if (t[HY_GROUPED_GRAD_ROWS_A].data) return hy_tensor_count(&t[HY_GROUPED_GRAD_ROWS_A]);
    if (t[HY_GROUPED_GRAD_ROWS_B].data) return hy_tensor_count(&t[HY_GROUPED_GRAD_ROWS_B]);
    return hy_tensor_count(a) / a->shape[a->ndim - 1];
}

/* How many positions share a row of an operand: R / X if it is read through `rows`. */
static inline int64_t hy_grouped_share(const hy_op_call *call, int operand, int rows) {
    const hy_tensor *t = &call->t[operand];
    if (!call->t[rows].data) return 1;
    return hy_grouped_rows(call) * t->shape[t->ndim - 1] / hy_tensor_count(t);
}

/* The experts of a grouped matmul that are decoded to a's type before they are multiplied: some at
 * a time. */
typedef struct hy_grouped_decode {
    int64_t experts; /* 0: b has a's type */
    size_t bytes;    /* of the workspace */
} hy_grouped_decode;

static inline hy_grouped_decode hy_grouped_decode_of(const hy_op_call *call) {
    const hy_tensor *b = &call->t[HY_GROUPED_MATMUL_B];
    hy_dtype in = call->t[HY_GROUPED_MATMUL_A].dtype;
    if (call->kind != HY_OP_GROUPED_MATMUL || b->dtype == in) return (hy_grouped_decode){0, 0};
    int64_t each = b->shape[1] * b->shape[2] * (int64_t)hy_dtype_size(in);
    int64_t experts = HY_GROUPED_DECODED_BYTES / each;
    if (experts < 1) experts = 1;
    if (experts > b->shape[0]) experts = b->shape[0];
    return (hy_grouped_decode){experts, (size_t)(experts * each + 255) / 256 * 256};
}
