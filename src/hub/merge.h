/* merge.h: adds adapters to their base matrices while these are read.
 *
 * It wraps a reader of weights: it returns each piece of a matrix with its share of scale B A
 * added, in fp32, so only the adapter of one matrix is in memory as a whole. */
#pragma once

#include "hub/hf_export.h"

typedef struct hy_merge {
    const hy_shape *shape;
    const hy_params *params;
    hy_weight_reader read; /* of weights and adapters */
    void *context;
    int32_t held; /* the matrix with its adapter in memory; -1: none */
    float *a, *b;
} hy_merge;

hy_merge hy_merge_begin(const hy_shape *shape, const hy_params *params, hy_weight_reader read,
                        void *context);
hy_status hy_merge_read(void *merge, int32_t param, int64_t first, int64_t count, float *out);
void hy_merge_end(hy_merge *merge);
