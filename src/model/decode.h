/* decode.h: continues a sequence token by token, with a cache of keys and values.
 *
 * A decoder uses a model and its weights, wherever their backing store is. It runs the same op
 * lists as evaluation, but only on new tokens: each layer's attention reads a cache of keys and
 * values instead of the whole sequence. So a token costs one pass over the weights, however long
 * the text is, and the logits equal those of a pass over the whole text. Like a batch plan, it
 * reports how many bytes it needs, and the caller provides them. */
#pragma once

#include "model/model.h"

#define HY_DECODE_ROWS 256 /* prompt tokens per pass, by default */

typedef struct hy_decoder_options {
    int32_t context;    /* tokens in the cache; at most the model's context */
    int32_t rows;       /* prompt tokens per pass; 0: HY_DECODE_ROWS */
    hy_dtype dtype;     /* activations, weights and cache */
    bool is_unprepared; /* matmuls are not timed: no device memory is allocated for that */
    uint64_t budget;    /* device bytes at hand; 0: all */
} hy_decoder_options;

#define HY_DECODER_PARTS 6

typedef struct hy_decoder {
    hy_model *model;
    hy_backend *backend;
    hy_decoder_options options;
    hy_batch_plan *many, *one; /* many: made for options.rows, used for 2 .. options.rows */
    uint64_t bytes;            /* device memory that it needs */
    int32_t length;            /* tokens in the cache */
    /* Its memory: */
    char *cache; /* (L, context, 2K D) */
    float *rope; /* (context, D/2, 2), NULL without rope */
    int32_t *tokens;
    char *workspace;                       /* of cached attention */
    uint64_t layer_bytes, workspace_bytes; /* one layer's cache; workspace of cached attention */
    uint64_t part_bytes[HY_DECODER_PARTS]; /* of each block of its memory; decode.c has the list */
    char *logits;                          /* (V) of the last token, in options.dtype */
    void *staged;                          /* (V) on the host */
    const hy_unit_hook *hook;              /* the owner's: weights from other ranks; NULL: none */
} hy_decoder;

/* Plans and prepares every op; HY_ERR_INPUT: the backend does not support one. */
hy_status hy_decoder_create(hy_model *model, hy_backend *backend, const hy_decoder_options *options,
                            hy_decoder **out);
/* As above, with options->context halved until the decoder needs at most `limit` bytes, or until
 * it is `shortest` or less. */
hy_status hy_decoder_create_within(hy_model *model, hy_backend *backend,
                                   hy_decoder_options *options, uint64_t limit, int32_t shortest,
                                   hy_decoder **out);
void hy_decoder_destroy(hy_decoder *decoder); /* before its backend */

/* Sets its memory: `bytes` of device memory, aligned to 256 bytes. The cache is empty
 * afterwards. */
hy_status hy_decoder_place(hy_decoder *decoder, hy_stream *stream, void *memory);

/* `weights` and `frozen` are as in hy_batch_input. Appends `count` tokens (at least one) from
 * host memory and returns the logits of the last one (V floats on the host). Waits for them.
 * HY_ERR_INPUT: too many tokens for the rest of the context, or an id outside the vocabulary;
 * the decoder is then unchanged. */
hy_status hy_decoder_take(hy_decoder *decoder, hy_stream *stream, hy_store *weights,
                          hy_store *frozen, const int32_t *tokens, int32_t count, float *logits);

/* Forgets all tokens from position `length` on; 0: everything. */
void hy_decoder_rewind(hy_decoder *decoder, int32_t length);
