/* batch_decode_parts.h: the parts of a batched decoder; only inside the model module.
 *
 * batch_decode_plan.c: sizes, memory and calls; creates and destroys. batch_decode_state.c: states
 * of linear attention. batch_decode.c: memory, slots, inputs, results and passes. */
#pragma once

#include "model/batch_decode.h"
#include "model/bind.h"

#define HY_DECODER_RESULTS (HY_STEPS_AHEAD + 1)
#define HY_DECODER_INPUTS (2 * HY_DECODER_RESULTS)
#define HY_DECODER_GRAPHS 16 /* one for each power of two */

/* The head's list begins with its norm and the logits matmul; the loss is omitted. */
enum { HY_HEAD_OPS = 2 };

/* The blocks of its device memory, in this order. */
typedef enum hy_decoder_part {
    HY_DECODER_CACHE,                                            /* one for each kind */
    HY_DECODER_TABLES = HY_DECODER_CACHE + HY_CACHE_KINDS,       /* likewise: (streams, W) i32 */
    HY_DECODER_CONV_STATES = HY_DECODER_TABLES + HY_CACHE_KINDS, /* (states, layers, J-1, C) */
    HY_DECODER_DELTA_STATES, /* (states, layers, H, Dk, Dv) fp32 */
    HY_DECODER_STATE_SLOTS,  /* (layers, streams) i32: where the state of a layer is */
    HY_DECODER_ROPE,         /* hy_shape_rope_tables for the context */
    HY_DECODER_FIRST,        /* (streams) i32 */
    HY_DECODER_SAMPLING,     /* (streams) hy_sampling */
    HY_DECODER_PROMPT,       /* (chunk) i32 */
    HY_DECODER_NEXT,         /* (streams) i32: the token that a slot takes next */
    HY_DECODER_SCORED,       /* (streams) i32: tokens of hy_batch_decoder_score */
    HY_DECODER_LOGPROBS,     /* (streams) fp32 */
    HY_DECODER_TOP_TOKENS,   /* (streams, top) i32 */
    HY_DECODER_TOP_LOGPROBS, /* (streams, top) fp32 */
    HY_DECODER_SEEN,         /* (streams, M) i32 */
    HY_DECODER_ACTIVATIONS,  /* of both plans */
    HY_DECODER_PLAN_WORKSPACE,
    HY_DECODER_WORKSPACE, /* of ops with a cache or states, and of sampling */
    HY_DECODER_PARTS
} hy_decoder_part;

typedef struct hy_decoder_input {
    int32_t *first;        /* (streams) */
    hy_sampling *sampling; /* (streams) */
    int32_t *prompt;       /* (chunk) */
    hy_event *is_copied;
} hy_decoder_input;

typedef struct hy_decoder_result {
    int32_t *tokens, *top_tokens;
    float *logprobs, *top_logprobs;
    hy_event *is_there;
} hy_decoder_result;

struct hy_batch_decoder {
    hy_model *model;
    hy_backend *backend;
    hy_batch_decoder_options options;
    hy_batch_plan *chunk, *step;
    hy_cache_kind kinds[HY_CACHE_KINDS];
    int32_t kind_count;
    int8_t *kind_of;     /* (L) -1: the layer has a state */
    int32_t *index_of;   /* (L) number of a layer among those of its kind, or with a state */
    int32_t table_width; /* W: blocks of a whole context */
    hy_states states;
    hy_tensor conv_state, delta_state; /* of one layer: a row of all states; without data */
    int32_t *state_at;                 /* (states.count) the position of each state */
    uint64_t workspace_bytes, bytes, part_bytes[HY_DECODER_PARTS];

    /* Placed: */
    hy_stream *stream;
    hy_store *weights, *frozen;
    char *parts[HY_DECODER_PARTS];
    void *pinned; /* inputs, results and the tables of the host */
    uint64_t pinned_bytes;
    int32_t *tables[HY_CACHE_KINDS]; /* (streams, W) pinned */
    int32_t *seen;                   /* (streams, M) pinned */
    hy_event **is_given;             /* (streams) table and seen tokens of a slot; NULL: never */
    hy_decoder_input inputs[HY_DECODER_INPUTS];
    hy_decoder_result results[HY_DECODER_RESULTS];
    uint64_t given, enqueued, read; /* inputs and results so far */
    int32_t chunk_rows;             /* whose residuals are there; 0: none */
    bool has_logits;                /* of the last row of that chunk */
    hy_graph *graphs[HY_DECODER_GRAPHS];
    bool was_run[HY_DECODER_GRAPHS];
    /* The pass that is being enqueued: */
    int32_t slot; /* of a chunk */
    bool is_step;
};

/* ---- batch_decode_plan.c --------------------------------------------------------------------- */

/* Elements of a position in the cache of a layer: keys and values. */
int64_t hy_decoder_cache_width(const hy_batch_decoder *decoder);
/* Words of a bit per token of the vocabulary, whose rows are padded. */
int64_t hy_decoder_seen_words(const hy_batch_decoder *decoder);
/* Sets the step's plan to this many sequences, and the chunk's to this many tokens. */
void hy_decoder_set_sequences(hy_batch_plan *step, int32_t rows);
void hy_decoder_set_tokens(hy_batch_plan *chunk, int32_t rows);
/* Makes a call fit the new tokens (hy_frame.adjust; the context is the decoder). */
void hy_decoder_adjust(const hy_frame *frame, hy_op_call *call);
/* Chooses tokens for slots [slot, slot + rows) from rows of logits, and writes them to `tokens`. */
hy_op_call hy_decoder_sample_call(const hy_batch_decoder *decoder, int32_t slot, int32_t rows,
                                  hy_decoder_part tokens);
void hy_decoder_forget_graphs(hy_batch_decoder *decoder);

/* ---- batch_decode_state.c -------------------------------------------------------------------- */

/* Does the forward list of a layer have such an op? */
bool hy_decoder_layer_has(const hy_batch_decoder *decoder, int32_t layer, hy_op_kind kind);
/* Counts states, and numbers the layers that have one. */
hy_status hy_decoder_make_states(hy_batch_decoder *decoder);
/* What HY_DECODER_STATE_SLOTS holds. */
void hy_decoder_list_states(const hy_batch_decoder *decoder, int32_t *slots);
/* Replace an op of a layer by the one that continues states; first: positions of its sequences. */
void hy_decoder_use_conv_state(const hy_batch_decoder *decoder, int32_t layer,
                               const hy_tensor *first, hy_op_call *call);
void hy_decoder_use_delta_state(const hy_batch_decoder *decoder, int32_t layer,
                                const hy_tensor *first, hy_op_call *call);
/* A slot takes `count` tokens from position `first` on. HY_ERR_INTERNAL: its state is another's. */
hy_status hy_decoder_advance(hy_batch_decoder *decoder, int32_t slot, int32_t first, int32_t count);
