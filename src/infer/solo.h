/* solo.h: a batched decoder with one sequence: the text of a chat, or a sample of a run.
 *
 * With options.goes_back the sequence may go back to any earlier position. Keys and values of later
 * positions are then simply unused; a state (linear attention) cannot be turned back, so some of its
 * earlier values are kept, and the sequence goes back to the nearest of them. */
#pragma once

#include "hybrid.h"
#include "model/batch_decode.h"

#define HY_SOLO_SNAPSHOTS 4

typedef struct hy_snapshot {
    int32_t position, state;
} hy_snapshot;

typedef struct hy_solo {
    hy_batch_decoder *decoder;
    int32_t length; /* tokens in the cache */
    int32_t next;   /* the token that the device chose last */
    float logprob;  /* of that token; NaN or infinite if a logit is */
    /* kept_count in the order of their positions, then free ones */
    hy_snapshot kept[HY_SOLO_SNAPSHOTS];
    int32_t kept_count;
} hy_solo;

/* Creates the decoder, with options->context halved until it needs at most `limit` bytes, or until
 * the context is `shortest` or less. options->streams becomes 1, and snapshots as many as needed. */
hy_status hy_solo_create(hy_model *model, hy_backend *backend, hy_batch_decoder_options *options,
                         uint64_t limit, int32_t shortest, hy_batch_decoder **out);
/* Sets memory and stores as hy_batch_decoder_place does; the cache is empty afterwards. Necessary
 * also after a failure. */
hy_status hy_solo_place(hy_solo *solo, hy_stream *stream, void *memory, hy_store *weights,
                        hy_store *frozen);

/* Lowers `length` to at most this, which is 0 or the decoder goes back: with states, to the nearest
 * earlier position whose state is kept, or to 0. The owner gives the tokens after it again. */
hy_status hy_solo_go_back(hy_solo *solo, int32_t length);

/* How the token at a position is chosen. */
hy_sampling hy_solo_sampling(const hy_generate_options *options, uint64_t position);
/* Enqueues `count` tokens (at least one; no more than the context has room for) behind those in the
 * cache, and the choice of the next. */
hy_status hy_solo_take(hy_solo *solo, const int32_t *tokens, int32_t count,
                       const hy_sampling *sampling);
hy_status hy_solo_read(hy_solo *solo); /* waits for the choice: sets next and logprob */
