/* ngram.h: a baseline that a model must beat: an n-gram model of bytes, counted on the training
 * text.
 *
 * Interpolated Witten-Bell smoothing down to uniform. The loss is mean nats per byte over the
 * held-out text. Orders 1 to 6 (a 5-gram predicts a byte from the four before it). */
#pragma once

#include "hybrid_types.h"

hy_status hy_ngram_loss(const uint8_t *train, uint64_t train_size, const uint8_t *held_out,
                        uint64_t held_out_size, int order, double *nats_per_byte);
