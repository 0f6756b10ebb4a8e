/* confidence.h: the probability that prediction pays in this run.
 *
 * The gain of one jump is far below the noise of one loss, so single jumps show nothing. Confidence
 * begins with a prior by regime and optimizer, measured on other runs (from scratch with AdamW: it
 * pays; with Muon, or in fine-tuning: probably not). Paired tests (forks) update it: the same
 * windows of data with and without jumps, compared on unseen training sequences. */
#pragma once

#include "hybrid_types.h"

typedef enum hy_regime { HY_FROM_SCRATCH = 0, HY_FINE_TUNING = 1 } hy_regime;

typedef struct hy_confidence {
    double log_odds;
    int64_t forks;
    double gain_sum; /* nats, without minus with jumps, summed over forks */
} hy_confidence;

/* from_scratch: the prior of such runs with their optimizer (hy_optimizer_kind). */
hy_confidence hy_confidence_prior(hy_regime regime, double from_scratch);
double hy_confidence_value(const hy_confidence *confidence); /* 0 to 1 */

/* Adds the result of a fork: mean gain in nats on unseen training sequences, and its standard
 * error. A gain that is not finite: the arm with jumps diverged. */
void hy_confidence_fork(hy_confidence *confidence, double gain, double error);
