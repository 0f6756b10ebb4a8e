/* solo.h: a batched decoder with one sequence: the text of a chat, or a sample of a run. */
#pragma once

#include "hybrid.h"
#include "model/batch_decode.h"

typedef struct hy_solo {
    hy_batch_decoder *decoder;
    int32_t length; /* tokens in the cache; the owner may lower it if options.goes_back, or to 0 */
    int32_t next;   /* the token that the device chose last */
    float logprob;  /* of that token; NaN or infinite if a logit is */
} hy_solo;

/* Creates the decoder, with options->context halved until it needs at most `limit` bytes, or until
 * the context is `shortest` or less. options->streams becomes 1. */
hy_status hy_solo_create(hy_model *model, hy_backend *backend, hy_batch_decoder_options *options,
                         uint64_t limit, int32_t shortest, hy_batch_decoder **out);
/* Sets memory and stores as hy_batch_decoder_place does; the cache is empty afterwards. Necessary
 * also after a failure. */
hy_status hy_solo_place(hy_solo *solo, hy_stream *stream, void *memory, hy_store *weights,
                        hy_store *frozen);

/* How the token at a position is chosen. */
hy_sampling hy_solo_sampling(const hy_generate_options *options, uint64_t position);
/* Enqueues `count` tokens (at least one; no more than the context has room for) behind those in the
 * cache, and the choice of the next. */
hy_status hy_solo_take(hy_solo *solo, const int32_t *tokens, int32_t count,
                       const hy_sampling *sampling);
hy_status hy_solo_read(hy_solo *solo); /* waits for the choice: sets next and logprob */
