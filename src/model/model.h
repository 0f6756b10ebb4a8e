/* model.h: a transformer, and how a micro-batch passes through it.
 *
 * hy_model holds what does not depend on a batch: shape, parameters, unit lists. hy_batch_plan is that
 * for one size of micro-batch: it says how many bytes it needs, is told where they lie, and enqueues
 * passes on a stream. It never asks which phase it is in: it is told a precision and what to keep.
 * Weights and gradients are reached through stores, unit by unit, so they may live elsewhere. */
#ifndef HY_MODEL_MODEL_H
#define HY_MODEL_MODEL_H

#include "memory/store.h"
#include "model/unit_plan.h"

typedef struct hy_model {
    hy_shape shape;
    hy_params params;
    hy_unit embedding, block, head;
} hy_model;

hy_status hy_model_create(const hy_shape *shape,
                          hy_model **out); /* shape is completed and checked */
void hy_model_destroy(hy_model *model);

typedef struct hy_batch_options {
    int32_t batch, seq;
    int32_t chunks; /* pieces of the loss; 0: chosen; rounded up to a divisor of B T */
    hy_dtype dtype; /* activations and weights */
    hy_dtype grad_dtype;
    int recompute;    /* hy_keep_group bits not kept */
    bool is_training; /* false: only evaluation and logits */
    bool has_docs;    /* document masks will be given */
} hy_batch_options;

/* Bytes a plan needs, by class. The same block may serve several plans in turn. */
typedef struct hy_batch_bytes {
    uint64_t activations; /* stream and kept activations */
    uint64_t workspace;   /* scratch inside a unit, and the ops' own */
    uint64_t logits;
} hy_batch_bytes;

/* What one pass works on. All pointers are device memory and live until the stream has passed. */
typedef struct hy_batch_input {
    hy_stream *stream;
    hy_store *weights;
    hy_store *grads;       /* training only */
    const int32_t *tokens; /* (B,T) */
    const int32_t *targets;
    const int32_t *docs; /* or NULL */
    const float *rope;   /* (T, D/2, 2), NULL without rope */
    float *losses;       /* (B,T): each token's loss */
    float loss_scale;    /* gradients are of loss_scale * sum of losses */
    bool accumulate;     /* add to the gradients instead of overwriting them */
} hy_batch_input;

#define HY_RECORDINGS 4

/* A pass that came before with the same input, and its recording once it came often enough. */
typedef struct hy_recorded_pass {
    hy_batch_input input;
    hy_recording *recording;
    int32_t seen;
} hy_recorded_pass;

typedef struct hy_batch_plan {
    hy_model *model;
    hy_backend *backend;
    hy_batch_options options;
    hy_batch_size size;
    int32_t chunk_count;
    hy_unit_plan embedding, block, head;
    hy_batch_bytes bytes;
    uint64_t stream_bytes, scratch_bytes, op_workspace_bytes;
    char *activations, *workspace, *logits; /* where the bytes lie */
    hy_recorded_pass recorded[HY_RECORDINGS];
    int32_t recorded_next; /* which is given up for a new one */
    bool is_unrecordable;  /* it was tried and failed, or inputs keep changing */
} hy_batch_plan;

/* Plans and prepares every op; HY_ERR_INPUT when the backend lacks one. */
hy_status hy_batch_plan_create(hy_model *model, hy_backend *backend,
                               const hy_batch_options *options, hy_batch_plan **out);
void hy_batch_plan_destroy(hy_batch_plan *plan); /* before its backend */
void hy_batch_plan_place(hy_batch_plan *plan, void *activations, void *workspace, void *logits);

/* Forward and backward. */
hy_status hy_batch_train(hy_batch_plan *plan, const hy_batch_input *input);
/* Forward only; losses. */
hy_status hy_batch_evaluate(hy_batch_plan *plan, const hy_batch_input *input);
/* Forward only; the logits of rows [first, first + rows) stay in the plan's logits memory, (rows, V) in
 * the plan's type; rows at most a chunk's. */
hy_status hy_batch_logits(hy_batch_plan *plan, const hy_batch_input *input, int64_t first,
                          int64_t rows);

#endif
