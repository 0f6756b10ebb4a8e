/* ops.h: properties of ops that do not depend on the backend: names of tensors, which of them are
 * read and written, and a check.
 *
 * The check compares kind, shapes, types and attributes of a call with the op table of kernels.h
 * and says what is wrong. Backends call it first and then check their own limits. Leading
 * dimensions of a tensor may be split: (B,T,C) is accepted for (N,C). */
#pragma once

#include "kernels/kernels.h"

/* The name of tensor `position` of an op ("dgate_up"); "" if the op has no such position. */
const char *hy_op_tensor_name(hy_op_kind kind, int position);

/* How op `kind` uses the tensor at `position`. The model derives liveness, recomputation and memory
 * from it. */
enum { HY_ACCESS_NONE = 0, HY_ACCESS_READ = 1, HY_ACCESS_WRITE = 2, HY_ACCESS_BOTH = 3 };
int hy_op_access(hy_op_kind kind, int position);

/* The position where an op stores the largest magnitude of one of its results; *of: the position of
 * that result. -1: it stores none. */
int hy_op_largest(hy_op_kind kind, int *of);

/* HY_OK, or HY_ERR_INPUT with a message that names the op, the tensor, its value and what was
 * expected. */
hy_status hy_op_check(const hy_op_call *call);
/* As above, for a matmul with fp8 inputs on a GPU: the limits of the hardware. Other calls pass. */
hy_status hy_op_check_fp8(const hy_op_call *call, const char *card, int capability);

/* Length of the last dimension, and number of such rows. */
static inline int64_t hy_tensor_width(const hy_tensor *t) {
    return t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
}
static inline int64_t hy_tensor_height(const hy_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i + 1 < t->ndim; i++) n *= t->shape[i];
    return n;
}

/* Query-key pairs of attention in one sequence of `seq` tokens and one head, without document
 * masks. */
int64_t hy_attention_pairs(const hy_heads_attr *a, int64_t seq);
