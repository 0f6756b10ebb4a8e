/* shard.h: which elements of each parameter belong to which rank.
 *
 * The trained parameters of a unit, one after the other, are cut into as many ranges as there are
 * ranks, of about the same size. A cut lies between two parameters, or inside one at a multiple of
 * HY_QUANT_BLOCK elements: so codes and their scales are never torn apart, and where tensors of one
 * type lie one after the other on round addresses, a range is one piece of memory in the whole as
 * in the shard. A parameter that its optimizer wants whole is not cut. Which rank has which range
 * turns with the unit, so that no rank gets what is left over every time. */
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

/* is_whole, for each parameter: it is not to be cut. */
hy_status hy_shard_init(hy_shard *shard, const hy_params *params, const bool *is_whole,
                        int32_t rank, int32_t count);
void hy_shard_fini(hy_shard *shard);

/* What a rank has of a parameter. */
static inline hy_slice hy_shard_of(const hy_shard *shard, int32_t param, int32_t rank) {
    return shard->slices[(int64_t)param * shard->count + rank];
}
/* What this rank has; without a shard all of it. */
static inline hy_slice hy_shard_own(const hy_shard *shard, const hy_params *params, int32_t param) {
    if (!shard) return (hy_slice){.count = params->list[param].count};
    return hy_shard_of(shard, param, shard->rank);
}

/* This rank's part of a class: the tensors of parameters that are like them are cut, others are
 * there or not with their parameter. Frozen parameters belong to nobody. */
hy_status hy_shard_layout(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                          hy_layout *out);

/* Where a rank's part of a unit lies in a layout of whole tensors: begin and bytes from the unit's
 * start. Not for codes. */
void hy_shard_span(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                   int32_t unit, int32_t rank, uint64_t *begin, uint64_t *bytes);
/* The largest part that this rank has of a unit there. */
uint64_t hy_shard_largest(const hy_shard *shard, const hy_params *params, const hy_layout *whole);
