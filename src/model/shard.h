/* shard.h: which elements of each parameter belong to which rank.
 *
 * The trained parameters of a unit, one after the other, are divided into one range per rank, of
 * about the same size. A cut is between two parameters, or inside one at a multiple of
 * HY_QUANT_BLOCK elements: so codes stay with their scales, and if tensors of one type are
 * contiguous, a range is one piece of memory, in the whole and in the shard. A parameter that
 * its optimizer needs whole is not divided. The assignment of ranges to ranks rotates with the
 * unit, so that no rank always gets the remainder. */
#pragma once

#include "model/param_layout.h"

/* Elements of a parameter; count 0: none of it. */
typedef struct hy_slice {
    int64_t begin, count;
} hy_slice;

typedef struct hy_shard {
    int32_t rank, count;
    int32_t params;
    hy_slice *slices; /* (params, count) */
} hy_shard;

/* is_whole, for each parameter: it must not be divided. */
hy_status hy_shard_init(hy_shard *shard, const hy_params *params, const bool *is_whole,
                        int32_t rank, int32_t count);
void hy_shard_fini(hy_shard *shard);

/* The part of a parameter that a rank has. */
static inline hy_slice hy_shard_of(const hy_shard *shard, int32_t param, int32_t rank) {
    return shard->slices[(int64_t)param * shard->count + rank];
}
/* The part of a parameter that this rank has; without a shard, all of it. */
static inline hy_slice hy_shard_own(const hy_shard *shard, const hy_params *params, int32_t param) {
    if (!shard) return (hy_slice){.count = params->list[param].count};
    return hy_shard_of(shard, param, shard->rank);
}

/* This rank's part of a class: tensors shaped like their parameters are divided, others are
 * present or absent with their parameter. Frozen parameters belong to no rank. */
hy_status hy_shard_layout(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                          hy_layout *out);

/* A rank's part of a unit in a layout of whole tensors: offset from the unit's start, and bytes.
 * Not for codes. */
void hy_shard_span(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                   int32_t unit, int32_t rank, uint64_t *begin, uint64_t *bytes);
/* The bytes of the largest part of a unit that this rank has in such a layout. */
uint64_t hy_shard_largest(const hy_shard *shard, const hy_params *params, const hy_layout *whole);
