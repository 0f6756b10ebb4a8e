/* sampling.h: how a token is chosen from logits (HY_OP_SAMPLE), for the host and for kernels.
 *
 * With x the logits (scaled and capped) and y = x, or for a token that was seen and a penalty r:
 * x / r if x > 0, x r otherwise:
 *   - `forced` at least 0: that token.
 *   - temperature 0: the token with the largest y; of equal ones the lowest id.
 *   - otherwise each token has a mass, an integer, so that sums are exact in any order:
 *         w = expf((y - largest y) / temperature)   mass = w * 2^32, rounded down
 *     Tokens are candidates in the order of y, the largest first, of equal y the lowest id first:
 *     the first top_k of them (0: all); of these the fewest whose masses reach hy_sample_share of
 *     the sum of these top_k (top_p 0 or 1: all); of these the ones with w >= min_p. With S the sum
 *     of the candidates' masses, the chosen token is the first candidate in ascending order of ids
 *     at which the running sum exceeds hy_sample_point. */
#pragma once

#include <stdint.h>

#include "kernels/half.h" /* HY_BOTH */

typedef struct hy_sampling {
    float temperature;
    float top_p, min_p;
    float penalty;           /* repetition penalty, as in transformers; 0 or 1: none */
    int32_t top_k;           /* 0: all */
    int32_t forced;          /* -1: none */
    uint64_t seed, position; /* hy_rng_u64(seed, HY_RNG_SAMPLE, position) */
} hy_sampling;

#define HY_SAMPLE_MASS_BITS 32
#define HY_SAMPLE_TOP_MOST 20 /* E */

/* The mass that candidates must reach together: top_p of `sum`. */
HY_BOTH uint64_t hy_sample_share(float top_p, uint64_t sum) {
    return (uint64_t)((double)top_p * (double)sum);
}

/* floor(r S / 2^64) with a random r in [0, 2^64) (hy_rng_u64): the point in [0, S). */
HY_BOTH uint64_t hy_sample_point(uint64_t r, uint64_t S) {
    uint64_t r0 = (uint32_t)r, r1 = r >> 32, s0 = (uint32_t)S, s1 = S >> 32;
    uint64_t middle = r1 * s0 + (r0 * s0 >> 32), other = r0 * s1 + (uint32_t)middle;
    return r1 * s1 + (middle >> 32) + (other >> 32);
}
