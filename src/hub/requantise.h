/* requantise.h: weights as training had them.
 *
 * A reader of weights between the one that has a model's weights and the one that merges or writes
 * them. A matrix that training kept quantised is quantised again, whole, and comes out as the
 * numbers that its codes mean: the same ones as in training. It holds codes and scales of one
 * matrix at a time. */
#pragma once

#include "hub/hf_export.h"

typedef struct hy_requantise {
    const hy_params *params; /* say which are frozen, and as which codes */
    hy_weight_reader read;
    void *context;
    int32_t held;  /* the codes of this matrix are in memory; -1: none */
    char *codes;   /* with the scales behind them, as a store has them */
    float *scales; /* of each block, in fp32 */
} hy_requantise;

hy_requantise hy_requantise_begin(const hy_params *params, hy_weight_reader read, void *context);
/* A hy_weight_reader, which is asked for even numbers of elements. */
hy_status hy_requantise_read(void *requantise, int32_t param, int64_t first, int64_t count,
                             float *out);
void hy_requantise_end(hy_requantise *requantise);
