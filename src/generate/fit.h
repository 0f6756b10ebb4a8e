/* fit.h: how many streams and tokens of cache a generator has memory for. */
#pragma once

#include "hybrid_generate.h"
#include "infer/inference.h"
#include "model/batch_decode.h"

/* Creates the decoder of an opened model whose weights are not loaded yet. Weights come first: they
 * are on the device if the smallest decoder fits beside them. The cache then gets what is left, up
 * to a full context for each stream; on a CPU half of what is left. Without room for one context,
 * the context is halved, then the streams, unless the options fix them; the streams first if their
 * states are the reason. */
hy_status hy_generator_fit(hy_used_model *model, const hy_generator_options *options,
                           hy_batch_decoder **out);
/* Creates a decoder as wanted, but with a smaller pool or fewer streams if it would need more than
 * `room` bytes (0: no limit). *out is NULL if not even one stream fits. */
hy_status hy_decoder_fit(hy_model *model, hy_backend *backend,
                         const hy_batch_decoder_options *wanted, uint64_t room,
                         hy_batch_decoder **out);
