/* rng.h: random numbers as a pure function of (seed, stream, index).
 *
 * There is no generator state: a number is addressed by its position, so any step can be replayed,
 * and the result does not depend on threads, devices or the order of calls. The function is
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). */
#pragma once

#include <stdint.h>

/* Streams separate uses: with one seed, two uses never get the same numbers. */
typedef enum hy_rng_stream {
    HY_RNG_INIT = 1,     /* initial weights */
    HY_RNG_SHUFFLE = 2,  /* order of training windows */
    HY_RNG_GRAMMAR = 3,  /* text of the built-in source */
    HY_RNG_SAMPLE = 4,   /* sampled text */
    HY_RNG_ROUNDING = 5, /* stochastic rounding */
    HY_RNG_PREDICT = 6,  /* noise that HY_OP_COMBINE adds */
    HY_RNG_TEST = 7,
    HY_RNG_DROPOUT = 8,
    HY_RNG_ROLLOUT = 9 /* seeds of generated answers */
} hy_rng_stream;

/* Four 32-bit words for one counter. The key is the seed, the high counter words are the stream. */
void hy_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]);

uint64_t hy_rng_u64(uint64_t seed, uint64_t stream, uint64_t index);
double hy_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* in [0, 1) */
double hy_rng_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* mean 0, deviation 1 */
uint64_t hy_rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n); /* in [0, n) */

/* The image of `index` under a pseudo-random permutation of [0, n): a shuffled order without a
 * table (Feistel network with cycle walking). n must be at least 1 and index below n. */
uint64_t hy_rng_permute(uint64_t seed, uint64_t stream, uint64_t n, uint64_t index);
