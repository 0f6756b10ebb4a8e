/* model.h: a transformer, and how a micro-batch passes through it.
 *
 * hy_model holds what does not depend on a batch: shape, parameters, kinds of unit.
 * hy_batch_plan is for one size of micro-batch: it reports the bytes that it needs, gets their
 * addresses, and enqueues passes on a stream. It does not know the phase: it gets a precision
 * and what to keep. Weights and gradients are accessed through stores, unit by unit, so they may
 * be anywhere. */
#pragma once

#include "memory/store.h"
#include "model/param_list.h"
#include "model/param_names.h"
#include "model/unit_plan.h"

typedef struct hy_model {
    hy_shape shape;
    hy_params params;
    hy_unit *kinds; /* (kind_count) in the order of first use; NULL: a custom model, no passes */
    int32_t kind_count;
    int32_t *kind_of;       /* (params.units) the kind of each unit */
    int32_t lowest_trained; /* unit; backward ends there */
    hy_loss loss;           /* that the head computes */
} hy_model;

/* Completes and checks a copy of the shape. */
hy_status hy_model_create(const hy_shape *shape, hy_model **out);
/* A model from a list of parameters, without passes: a custom model. */
hy_status hy_model_create_custom(const hy_param_spec *list, int32_t count, const int32_t *unit_of,
                                 hy_model **out);
static inline bool hy_model_has_passes(const hy_model *model) { return model->kinds; }
/* Trains only these parameters (hy_params_select) and freezes the others; their matrices are
 * stored as frozen_codes if that is a quantised type. A new model trains all. Call it before the
 * first batch plan is made. */
hy_status hy_model_select(hy_model *model, const char *names, hy_dtype frozen_codes);
/* Sets the loss that the head computes; a new model has the next-token loss. Call it before the
 * first batch plan is made. */
void hy_model_set_loss(hy_model *model, const hy_loss *loss);
/* Call it after parameters were frozen one by one, before the first batch plan is made. */
void hy_model_settle(hy_model *model);

/* Floating-point operations per training token at sequence length `seq`: for a weight of a block
 * or the head 2 in forward, 2 for the gradient of its input (if needed) and 2 for its own
 * gradient (if trained); and causal attention. Recomputation is not counted. 0: not known (a
 * custom model). */
double hy_model_flops_per_token(const hy_model *model, int32_t seq);
void hy_model_destroy(hy_model *model);

#define HY_OFFLOAD_DEPTH 3 /* one layer is written back, one is read, one is written */

typedef struct hy_batch_options {
    int32_t batch, seq;
    /* Evaluation: batches of this size that pass through each unit one after another, while its
     * weights are held; 0: one. The losses do not depend on the number of slices. */
    int32_t slices;
    /* Tiles of rows (hy_batch_divide): of the loss, 0: chosen automatically; and of the mlps, 0 or
     * 1: none, and never with their matmuls in fp8. */
    int32_t chunks, mlp_chunks;
    hy_dtype dtype; /* of activations and matmul operands; a weight's type is in its layout */
    hy_dtype grad_dtype;
    hy_dtype frozen_dtype; /* of frozen weights that are not coded */
    int recompute;         /* hy_keep_group bits not kept */
    /* Number of layers that recompute, spread evenly; the others keep everything; 0: all. */
    int32_t recompute_layers;
    bool offloads;       /* kept activations move through a ring: hy_batch_plan_offload */
    int32_t ring_depth;  /* of that ring; 0: HY_OFFLOAD_DEPTH */
    bool is_training;    /* false: only evaluation and logits */
    bool has_doc_starts; /* document masks will be given; a loss of pairs needs them */
    bool is_sizing;      /* only for bytes and op lists: nothing is prepared, it cannot run */
    bool has_any_rows;   /* passes may have fewer rows, so no op is used that needs a full batch;
                            the loss is that of the next token */
    uint64_t budget;     /* device bytes available, which decide the chunks; 0: all */
    hy_fp8_use fp8;      /* training: fp8 matmuls in the blocks; dtype is then bf16 */
} hy_batch_options;

/* Bytes that a plan needs, by class. Several plans may use the same block at different times. */
typedef struct hy_batch_bytes {
    uint64_t activations; /* residual and kept activations on the device, ring included */
    uint64_t ring;        /* of these, the ring of the offload store */
    uint64_t host;        /* offloaded activations in host memory */
    uint64_t workspace;   /* scratch inside a unit, including logits, and the ops' workspace */
} hy_batch_bytes;

/* Called while a pass walks over the units; each may be NULL. So a unit can be updated when the
 * next pass reaches it, a norm can be computed while gradients are available, and candidate
 * weights or weights from other ranks can be provided. */
typedef struct hy_unit_hook {
    void *context;
    /* Before anything of the unit is used first in this micro-batch, and before its weights are
     * held: embedding and blocks in forward, the head in backward; in evaluation every unit, and
     * unit 0 once more before a head that is tied to it. Here the weights' store may be got,
     * changed and released; the pass gets the unit after that. */
    hy_status (*before)(void *context, hy_stream *stream, int32_t unit);
    /* The unit that `before` will be called for next is one unit ahead: what `before` needs may be
     * prefetched. */
    hy_status (*ahead)(void *context, int32_t unit);
    /* This micro-batch has completed its part of the unit's gradients, which are still held. With a
     * tied head it is called once for unit 0, at the embedding, where its sum ends. The lowest unit
     * that has trained parameters is the last: backward ends there. */
    hy_status (*after)(void *context, hy_stream *stream, int32_t unit);
    /* In every pass. fetch: the unit's weights will be needed soon. await: they are needed now; it
     * is called before the pass holds them. */
    hy_status (*fetch)(void *context, hy_stream *stream, int32_t unit);
    hy_status (*await)(void *context, hy_stream *stream, int32_t unit);
} hy_unit_hook;

/* Called in evaluation after an op was enqueued. Its tensors are in device memory that the next op
 * may overwrite: what is enqueued on the stream now still reads them. */
typedef struct hy_watch {
    void *context;
    /* Every matmul with a matrix of a block; `input` is (N, columns of the matrix). Or NULL. */
    hy_status (*see)(void *context, hy_stream *stream, int32_t param, const hy_tensor *input);
    /* Every tile of the loss; its logits are still there. Or NULL. */
    hy_status (*see_loss)(void *context, hy_stream *stream, const hy_op_call *loss);
} hy_watch;

/* What one pass works on. All pointers are device memory and live until the stream has passed. */
typedef struct hy_batch_input {
    hy_stream *stream;
    hy_store *weights;     /* of trained parameters, or of all; NULL: all are in `frozen` */
    hy_store *frozen;      /* of those that `weights` does not hold, or NULL */
    hy_store *fp8;         /* a copy of the blocks' trained ones (hy_params_fp8_layout), or NULL */
    hy_store *grads;       /* training only; of trained parameters */
    const int32_t *tokens; /* (B,T), of all slices */
    const int32_t *targets;
    const int32_t *doc_starts; /* or NULL */
    const float *rope;         /* hy_shape_rope_tables, NULL without rope */
    int32_t rope_rows;         /* the length that the tables were made for; 0: T */
    float *losses; /* (B,T): each token's loss; of answers, see HY_OP_PREFERENCE and HY_OP_POLICY */
    float *token_losses;           /* (B,T): of answers: minus each token's log-probability */
    const float *reference;        /* (B,T): of answers: the same by the reference; or NULL */
    const hy_policy_token *policy; /* (B,T): of answers with rewards */
    double *loss_stats;            /* (hy_loss_stats): of answers: what is added to */
    float *largest;                /* (units, HY_LINEARS): for passes in fp8 */
    const int32_t *dropout_seed;   /* (2), one per micro-batch; NULL without dropout */
    double *seen;             /* (units, HY_SEEN): adds statistics of fp8 conversions; or NULL */
    float loss_scale;         /* gradients are of loss_scale * sum of losses */
    bool accumulate;          /* add to the gradients; otherwise they are overwritten unread */
    bool skips_adapters;      /* forward passes are those of the base model */
    const hy_unit_hook *hook; /* or NULL */
    const hy_watch *watch;    /* evaluation only; or NULL */
} hy_batch_input;

#define HY_GRAPHS 4

/* The input of a pass, and its graph once the same input has been repeated often enough. */
typedef struct hy_captured_pass {
    hy_batch_input input;
    hy_graph *graph;
    int32_t seen;
} hy_captured_pass;

typedef struct hy_batch_plan {
    hy_model *model;
    hy_backend *backend;
    hy_batch_options options;
    hy_batch_size size;
    hy_unit *kinds; /* (kind_count) the model's kinds, or the same kinds with matmuls in fp8 */
    hy_unit_plan *checkpointed; /* (kind_count) each kind, for units that recompute */
    hy_unit_plan *stored; /* (kind_count) each kind, for blocks that keep all that backward reads */
    hy_batch_bytes bytes;
    uint64_t residual_bytes, op_workspace_bytes;
    uint64_t scratch_bytes; /* of a plan for evaluation only; the ops' workspace follows it */
    char *activations, *workspace; /* the plan's memory */
    char *logits;                  /* of the last evaluated tile, inside the workspace */
    hy_store *offload;             /* NULL unless it offloads */
    hy_captured_pass captured[HY_GRAPHS];
    int32_t captured_next; /* the entry that a new input replaces */
    bool is_uncapturable;  /* capturing has failed, or inputs keep changing */
} hy_batch_plan;

/* Sequences that one pass takes. */
static inline int32_t hy_batch_sequences(const hy_batch_plan *plan) {
    return plan->size.batch * (plan->options.slices > 1 ? plan->options.slices : 1);
}

#define HY_MLP_ROWS 2048 /* of a chunk of the mlps, if the number of chunks is not given */

/* How many chunks `wanted` of them become: the next divisor of `rows`, if it is at most twice as
 * many; otherwise at most as many as wanted, of a multiple of 8 rows, and the last chunk is shorter.
 * The result, divided again, stays as it is. */
int32_t hy_batch_divide(int64_t rows, int64_t wanted);
/* How many chunks of the loss a plan with these options has. */
int32_t hy_batch_chunks(const hy_model *model, const hy_backend *backend,
                        const hy_batch_options *options);

/* Plans and prepares every op; HY_ERR_INPUT when the backend lacks one. */
hy_status hy_batch_plan_create(hy_model *model, hy_backend *backend,
                               const hy_batch_options *options, hy_batch_plan **out);
void hy_batch_plan_destroy(hy_batch_plan *plan); /* before its backend */
/* If `unit` is the first of the units that share its unit plan: their number (all take the same
 * time and keep the same bytes). Otherwise 0. */
int32_t hy_batch_alike(const hy_batch_plan *plan, int32_t unit);
/* Sets the plan's memory: activations (without the ring) and workspace. */
void hy_batch_plan_place(hy_batch_plan *plan, void *activations, void *workspace);

/* A plan that offloads needs a streamed store of class HY_ACTIVATIONS, with a unit per layer:
 * the residual that enters it and its kept slots. The caller frees the layout; the store must
 * live as long as the plan runs. Plans that run at different times may share a store with large
 * enough units. */
hy_status hy_batch_offload_layout(const hy_batch_plan *plan, hy_layout *out);
void hy_batch_plan_offload(hy_batch_plan *plan, hy_store *store);

/* Forward and backward. */
hy_status hy_batch_train(hy_batch_plan *plan, const hy_batch_input *input);
/* Forward only; computes losses. Not with a plan that offloads: it has no room for it. */
hy_status hy_batch_evaluate(hy_batch_plan *plan, const hy_batch_input *input);
/* The part of an evaluation that is one unit. Units follow one another from 0; between two calls
 * residuals stay in the plan's memory, so nothing else may use it. */
hy_status hy_batch_evaluate_unit(hy_batch_plan *plan, const hy_batch_input *input, int32_t unit);
/* A dry run of one pass: visits its units with all calls to hook and stores, but runs no op. The
 * planner counts with it. */
hy_status hy_model_walk(const hy_model *model, const hy_batch_input *input, hy_pass pass);
/* The forward pass up to the losses of tokens, without adapters: the reference of pairs. Writes
 * token_losses: the bits that a pass of the plan (training or evaluation) computes with adapters
 * whose product is zero. No update may be pending; of the hook, only fetch and await are called. */
hy_status hy_batch_reference(hy_batch_plan *plan, const hy_batch_input *input);
