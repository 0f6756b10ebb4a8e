/* columns.h: sums over the rows of a matrix, one per column, in a fixed order.
 *
 * Rows are divided into blocks by the number of rows alone. A task sums its block in double
 * precision into the block's partial sums; afterwards the blocks are added in order (reduce.c). */
#pragma once

#include "kernels/cpu/cpu.h"

/* At most 64 blocks, so partial sums stay small; at least 8 rows each, so adding them is cheap. */
static inline int64_t hy_block_rows(int64_t rows) { return hy_max64(8, hy_ceil_div(rows, 64)); }
static inline int64_t hy_block_count(int64_t rows) {
    return hy_ceil_div(rows, hy_block_rows(rows));
}

/* sums += x */
void hy_cpu_add_to_sums(double *sums, const float *x, int64_t n);

/* out (+)= sum over blocks of partial[block * stride + column]. */
void hy_cpu_fold_columns(const double *partial, int64_t blocks, int64_t stride,
                         const hy_tensor *out, bool accumulate);
