/* coding.h: a matrix becomes codes, some rows at a time.
 *
 * Codes of a row are made of that row alone, but scales of two levels (kernels/nf4.h) need all scales of a
 * matrix before the first of them is stored. So the codes leave as they are made, in any order, and the
 * scales are kept in fp32, for nf4 a sixteenth of a byte per element, until all are there. Where a matrix has
 * one scale (fp8), its rows are looked at once before the first is coded. What initial weights, a model's files
 * and a checkpoint of another type have in common. */
#pragma once

#include <stdatomic.h>

#include "kernels/coded.h"
#include "model/param_layout.h"

typedef struct hy_coding {
    const hy_param *param;
    hy_layout_item item;
    float *scales;       /* of all blocks; of rows that are not given they are 0: padding */
    void *stored;        /* the same as the store has them */
    atomic_uint largest; /* bits of the largest magnitude, where there is one scale for all */
    bool is_kept[HY_PARAM_PIECES]; /* pieces whose scales there are as they came */
} hy_coding;

/* Scales of two levels that somebody else has made of a matrix. */
typedef struct hy_kept_scales {
    const uint8_t *codes; /* of each `repeat` blocks, */
    const float *nested;  /* by the scale of each HY_NF4_NESTED of them, */
    float offset;         /* and what all have in common */
    int32_t repeat;
} hy_kept_scales;

/* Before the first rows. hy_coding_end frees, also where this fails, and does nothing to {0}. */
hy_status hy_coding_begin(hy_coding *coding, const hy_param *param, const hy_layout_item *item);
void hy_coding_end(hy_coding *coding);

/* Where it says so, all rows pass through hy_coding_look before the first goes to hy_coding_rows. Threads may
 * call it at the same time. */
static inline bool hy_coding_looks_first(const hy_coding *coding) {
    return hy_coded_as_one(coding->item.dtype);
}
void hy_coding_look(hy_coding *coding, const float *x, int64_t count);

/* Codes of elements [first, first + count), whole rows. Threads may call it for different rows. */
void hy_coding_rows(hy_coding *coding, const float *x, int64_t first, int64_t count, void *codes);

/* Blocks [first, first + count), which are pieces of the parameter, have these scales; their codes are stored by the
 * caller. Threads may call it for different pieces. */
void hy_coding_keep(hy_coding *coding, int64_t first, int64_t count, const hy_kept_scales *scales);

/* After the last rows: the scales, hy_layout_scale_bytes(item), which go behind all codes. */
const void *hy_coding_scales(hy_coding *coding);
