/* grammar.h: the built-in text, with its true entropy.
 *
 * A seeded probabilistic grammar over bytes with memory: names and numbers that must agree with
 * ones said before, brackets that must close in order. Every text has one derivation, so the
 * entropy of the text is the entropy of the choices and is computed exactly, not estimated. */
#pragma once

#include "hybrid_types.h"

/* Entropy of the source, nats per byte: expected nats of a document over its expected length. */
double hy_grammar_entropy(void);

/* Writes exactly `size` bytes: documents one after another, the last one cut. nats (may be NULL)
 * receives, per byte, the -log probability that the true source gives it: where a choice spans
 * several bytes its cost is spread by the exact conditional probabilities. */
void hy_grammar_generate(uint64_t seed, uint8_t *text, float *nats, uint64_t size);
