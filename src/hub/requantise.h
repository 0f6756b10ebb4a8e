/* requantise.h: weights as training had them.
 *
 * Stands between whoever has a model's weights and whoever merges or writes them: a matrix that training kept as codes
 * is coded again, whole, and comes out as the numbers that its codes stand for. Nothing is held but the codes and
 * scales of one matrix. Codes are made as hf_load.c makes them, of the same numbers and pieces, and so are the same. */
#pragma once

#include "hub/hf_export.h"

typedef struct hy_requantise {
    const hy_shape *shape;
    const hy_params *params; /* say which are frozen, and as which codes */
    hy_weight_reader read;
    void *context;
    int32_t held; /* the matrix whose codes are at hand; -1: none */
    void *codes;
    float *scales; /* of each block */
} hy_requantise;

hy_requantise hy_requantise_begin(const hy_shape *shape, const hy_params *params,
                                  hy_weight_reader read, void *context);
/* A hy_weight_reader, which is asked for even numbers of elements. */
hy_status hy_requantise_read(void *requantise, int32_t param, int64_t first, int64_t count,
                             float *out);
void hy_requantise_end(hy_requantise *requantise);
