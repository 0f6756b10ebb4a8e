/* merge.h: adapters added to the matrices they stand beside, as these are read.
 *
 * Stands between whoever has weights and whoever writes them: a piece of a matrix comes out with
 * its share of scale B A added, in fp32, so that nothing is held whole but the adapter of one
 * matrix. */
#pragma once

#include "hub/hf_export.h"

typedef struct hy_merge {
    const hy_shape *shape;
    const hy_params *params;
    hy_weight_reader read; /* of weights and adapters */
    void *context;
    int32_t held; /* the adapter of this matrix is in memory; -1: none */
    float *a, *b;
} hy_merge;

hy_merge hy_merge_begin(const hy_shape *shape, const hy_params *params, hy_weight_reader read,
                        void *context);
hy_status hy_merge_read(void *merge, int32_t param, int64_t first, int64_t count, float *out);
void hy_merge_end(hy_merge *merge);
