/* requantise.h: reads frozen weights as training used them: each matrix that was quantised in
 * training is quantised and decoded again, which gives the same numbers.
 *
 * It wraps another reader of weights, for merging or writing, and keeps codes and scales of one
 * matrix at a time. */
#pragma once

#include "hub/hf_export.h"

typedef struct hy_requantise {
    const hy_params *params; /* says which parameters are frozen, and their code type */
    hy_weight_reader read;
    void *context;
    int32_t held;  /* the matrix with its codes in memory; -1: none */
    char *codes;   /* followed by the scales, as in a store */
    float *scales; /* of each block, in fp32 */
} hy_requantise;

hy_requantise hy_requantise_begin(const hy_params *params, hy_weight_reader read, void *context);
/* A hy_weight_reader; callers request even numbers of elements. */
hy_status hy_requantise_read(void *requantise, int32_t param, int64_t first, int64_t count,
                             float *out);
void hy_requantise_end(hy_requantise *requantise);
