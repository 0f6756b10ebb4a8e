/* choose.h: chooses the next token from its logits.
 *
 * Temperature, then top_k, then top_p. The choice is a pure function of logits, options, seed
 * and position, so text can be reproduced. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_choice {
    double temperature; /* 0 or less: always the likeliest */
    int32_t top_k;      /* sample from the k likeliest tokens; 0: all */
    double top_p;       /* sample from the likeliest tokens with this total share; 0 or 1: all */
    uint64_t seed;
} hy_choice;

/* `order` has room for `vocab` ids. Of equal logits, the lower id is ranked first. */
int32_t hy_choose_token(const hy_choice *choice, const float *logits, int32_t vocab,
                        uint64_t position, int32_t *order);
