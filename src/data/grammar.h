/* grammar.h: the built-in text and its true entropy.
 *
 * A seeded probabilistic grammar over bytes, with memory: names and numbers must agree with earlier
 * ones, and brackets must close in order. Every text has exactly one derivation. So the entropy of
 * the text is the entropy of the choices, and it is computed exactly, not estimated. */
#pragma once

#include "hybrid_types.h"

/* The entropy of the source in nats per byte: expected nats of a document over its expected
 * length. */
double hy_grammar_entropy(void);

/* Writes exactly `size` bytes: documents one after another, the last one cut. nats (may be NULL)
 * receives for each byte the -log probability under the true source. If a choice spans several
 * bytes, its cost is spread over them by the exact conditional probabilities. */
void hy_grammar_generate(uint64_t seed, uint8_t *text, float *nats, uint64_t size);
