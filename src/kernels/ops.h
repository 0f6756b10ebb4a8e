/* ops.h: what is true of every op whatever backend runs it: names of its tensors, which of them it reads
 * and writes, and a check.
 *
 * The check compares kind, shapes, types and attributes of a call with the op table of kernels.h
 * and says in words what is wrong. Backends call it first and add what only they cannot do. Leading
 * dimensions of a tensor may be split: (B,T,C) serves where (N,C) is asked for. */
#pragma once

#include "kernels/kernels.h"

/* Name of tensor `position` of an op ("dgate_up"); "" when the op has no such position. */
const char *hy_op_tensor_name(hy_op_kind kind, int position);

/* How op `kind` uses the tensor at `position`. The model derives liveness, recomputation and memory from
 * its op lists with this. */
enum { HY_ACCESS_NONE = 0, HY_ACCESS_READ = 1, HY_ACCESS_WRITE = 2, HY_ACCESS_BOTH = 3 };
int hy_op_access(hy_op_kind kind, int position);

/* Where an op puts the largest magnitude of a result of its own, and of which tensor; -1: it has no such
 * place. */
int hy_op_largest(hy_op_kind kind, int *of);

/* HY_OK, or HY_ERR_INPUT with a message naming op, tensor, what it is and what was expected. */
hy_status hy_op_check(const hy_op_call *call);

/* Length of the last dimension, and how many such rows there are. */
static inline int64_t hy_tensor_width(const hy_tensor *t) {
    return t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
}
static inline int64_t hy_tensor_height(const hy_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i + 1 < t->ndim; i++) n *= t->shape[i];
    return n;
}

/* Query-key pairs that attention looks at in one sequence and one head, document masks not
 * counted. */
int64_t hy_attention_pairs(int64_t seq, int64_t window);
