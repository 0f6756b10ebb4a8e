/* batch_decode.h: continues many sequences at once, token by token.
 *
 * A batched decoder runs the units' forward lists on new tokens only: a *chunk* of one sequence's
 * prompt, or a *step*, one token of each of many sequences. Each sequence has a slot, 0 to streams
 * - 1. Its keys and values lie in blocks of a pool that is taken before the start; the owner
 * (generate/) says which blocks. Tokens are chosen on the device (HY_OP_SAMPLE) and stay there for
 * the next step, so the host reads a step's results while the next one runs.
 *
 * A sequence's tokens and log-probabilities have the same bits alone and among others: a chunk has
 * rows of one sequence only, and where chunks begin depends on the position only (hy_chunk_length);
 * in a step all matmuls are batch-invariant and attention sums keys in fixed ranges.
 *
 * A layer of linear attention has no keys and values, but a *state* of fixed size for each slot.
 * Every token changes it, so a sequence cannot go back, unless the state was copied there before:
 * to a *snapshot*.
 *
 * Like a batch plan, it reports how many bytes it needs, and the caller provides them. */
#pragma once

#include "kernels/sampling.h"
#include "model/model.h"

#define HY_DECODE_BLOCK 16       /* positions of a block of the cache */
#define HY_DECODE_CHUNK 256      /* tokens of a prompt's first chunk; on a CPU also of the others */
#define HY_DECODE_CHUNK_GPU 2048 /* tokens of its longest on a GPU, by default; at most a window */
#define HY_CACHE_KINDS 2         /* most: a shape has one length of window */
#define HY_STEPS_AHEAD 2         /* results that may wait to be read while another is enqueued */
#define HY_STREAMS_MOST 1024
#define HY_SNAPSHOT_SHARE 8 /* slots for each snapshot, by default */

typedef struct hy_batch_decoder_options {
    int32_t streams; /* slots */
    int32_t context; /* most tokens of a sequence; at most the model's context */
    int32_t chunk;   /* the longest; 0: default; multiple of HY_KEY_RANGE, or at least context */
    int32_t top;     /* log-probabilities of so many likeliest tokens are given; 0 to 20 */
    int64_t tokens;  /* positions in the pool, of all sequences; 0: streams x context */
    /* States beside those of the slots, if layers have states; 0: by HY_SNAPSHOT_SHARE and one
     * more; below 0: none. */
    int32_t snapshots;
    int32_t vocab; /* tokens below this id are chosen; 0: all of the model */
    /* Sequences may go back to any earlier position: chunks begin anywhere, and layers with a
     * window keep all positions. What follows then has the bits of other chunks. With states the
     * owner has to copy that of the position to the slot first. */
    bool goes_back;
    bool has_seen;            /* repetition penalties are possible */
    hy_dtype dtype;           /* activations, weights and cache */
    bool is_unprepared;       /* nothing is timed: no device memory is allocated for that */
    uint64_t budget;          /* device bytes at hand; 0: all */
    const hy_unit_hook *hook; /* the owner's: weights from other ranks; NULL: none */
} hy_batch_decoder_options;

/* Tokens of the chunk that begins at a position; `most`: options.chunk. Chunks begin at 0, 256,
 * 512, 1024 and so on, until they are as long as allowed. The last of a prompt may be shorter. */
static inline int32_t hy_chunk_length(int32_t first, int32_t most) {
    int32_t length = first > HY_DECODE_CHUNK ? first : HY_DECODE_CHUNK;
    return length < most ? length : most;
}

/* Layers with the same window share block tables: a sequence has the same blocks in each of them.
 * A sequence never needs more than `most` blocks; in layers with a window it uses them in turn. */
typedef struct hy_cache_kind {
    int32_t window; /* 0: all earlier positions are seen */
    int32_t layers;
    int32_t most;   /* blocks of a sequence of options.context tokens */
    int32_t blocks; /* in the pool */
    uint64_t bytes; /* of the pool, all layers */
} hy_cache_kind;

/* The states of all layers that have one. State i belongs to slot i; after those of the slots come
 * the snapshots. */
typedef struct hy_states {
    int32_t layers;           /* that have a state; 0: there are none */
    int32_t count, snapshots; /* states; the last `snapshots` of them belong to no slot */
    uint64_t each, bytes;     /* of one, all layers; of all */
} hy_states;

/* The results of a chunk or step for slots [0, rows); of a chunk only for its slot's. They stay
 * until the next chunk, choice, score or step is enqueued. */
typedef struct hy_step_tokens {
    const int32_t *tokens;     /* (rows) chosen */
    const float *logprobs;     /* (rows) of the chosen token */
    const int32_t *top_tokens; /* (rows, top) */
    const float *top_logprobs; /* (rows, top) */
} hy_step_tokens;

typedef struct hy_batch_decoder hy_batch_decoder;

/* Plans and prepares every op; HY_ERR_INPUT: the backend does not support one. */
hy_status hy_batch_decoder_create(hy_model *model, hy_backend *backend,
                                  const hy_batch_decoder_options *options, hy_batch_decoder **out);
void hy_batch_decoder_destroy(hy_batch_decoder *decoder);               /* before its backend */
uint64_t hy_batch_decoder_bytes(const hy_batch_decoder *decoder);       /* of device memory */
uint64_t hy_batch_decoder_cache_bytes(const hy_batch_decoder *decoder); /* of the pool */
const hy_states *hy_batch_decoder_states(const hy_batch_decoder *decoder);
const hy_batch_decoder_options *hy_batch_decoder_facts(const hy_batch_decoder *decoder);
int32_t hy_batch_decoder_kinds(const hy_batch_decoder *decoder, const hy_cache_kind **kinds);

/* Sets its memory, aligned to 256 bytes, and the stores as in hy_batch_input. All slots are empty
 * afterwards. */
hy_status hy_batch_decoder_place(hy_batch_decoder *decoder, hy_stream *stream, void *memory,
                                 hy_store *weights, hy_store *frozen);

/* What the host gives to a slot is copied before the call returns, and reaches the device after the
 * passes that were enqueued before: a slot may be given to another sequence while they run. */

/* Gives a slot its blocks: of each kind, blocks[kind][i] holds positions [i * HY_DECODE_BLOCK, ..)
 * of the sequence, for i in [0, counts[kind]); a kind with a window uses its blocks in turn. */
hy_status hy_batch_decoder_seat(hy_batch_decoder *decoder, int32_t slot,
                                const int32_t *const *blocks, const int32_t *counts);
/* Marks these tokens as seen by a slot's repetition penalty, and no others. Not before the last
 * chunk: steps may mark a token of an idle slot. */
hy_status hy_batch_decoder_see(hy_batch_decoder *decoder, int32_t slot, const int32_t *tokens,
                               int32_t count);
/* Copies one position block of all layers of a kind, for sequences that share a prompt. */
hy_status hy_batch_decoder_copy_block(hy_batch_decoder *decoder, int32_t kind, int32_t from,
                                      int32_t to);

/* Copies a state: to take a snapshot, to return to one, or for a sequence with the same prompt.
 * Without states nothing happens. */
hy_status hy_batch_decoder_copy_state(hy_batch_decoder *decoder, int32_t from, int32_t to);

/* Enqueues prompt tokens of a slot, at positions [first, first + count): a chunk begins at first,
 * and count is at most its length. With sampling, the next token is chosen from the logits of the
 * last, and stays on the device as the slot's next token; NULL: not. With goes_back `first` is any
 * position and count at most options.chunk. A slot's state must be that of position `first`, here
 * and in a step; at position 0 it begins anew. */
hy_status hy_batch_decoder_chunk(hy_batch_decoder *decoder, int32_t slot, const int32_t *tokens,
                                 int32_t first, int32_t count, const hy_sampling *sampling);
/* After a chunk, and scores of it: chooses from the logits of its last token, for its slot or
 * another whose sequence has the same prompt. Its result is read like a chunk's. */
hy_status hy_batch_decoder_choose(hy_batch_decoder *decoder, int32_t slot,
                                  const hy_sampling *sampling);
/* After a chunk: enqueues the log-probabilities of `count` (at most options.streams) given tokens
 * after rows [row, row + count) of it: result row i has the token after row + i, which is
 * tokens[i]. */
hy_status hy_batch_decoder_score(hy_batch_decoder *decoder, int32_t row, const int32_t *tokens,
                                 int32_t count);
/* Another next token for a slot than the one that was chosen. */
hy_status hy_batch_decoder_give(hy_batch_decoder *decoder, int32_t slot, int32_t token);
/* Enqueues a step: slots [0, rows) take their next token, at position first[slot], and choose
 * another by sampling[slot]; first -1: the slot is idle. */
hy_status hy_batch_decoder_step(hy_batch_decoder *decoder, int32_t rows, const int32_t *first,
                                const hy_sampling *sampling);
/* Waits for the results of the oldest chunk with sampling, score or step that was not read. */
hy_status hy_batch_decoder_read(hy_batch_decoder *decoder, hy_step_tokens *out);
