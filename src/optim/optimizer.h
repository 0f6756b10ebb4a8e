/* optimizer.h: optimizers behind one interface, and a step over all parameters with any of them.
 *
 * An optimizer is one file (adamw.c, sgd.c, lion.c) and one row in the table of optimizer.c. It says which
 * arrays of state a parameter has and how large they are, what workspace an update needs, and enqueues the
 * ops that update one parameter while all of its tensors are on the device, whole: element by element or as
 * a matrix, whatever it likes. What can be done for several parameters together, before the first of them
 * changes, it may do ahead: parameters that follow each other are a window (HY_WINDOW_ELEMENTS). It may
 * leave a parameter to another (Muon leaves norms to AdamW), and a group of parameters may have one of its
 * own (hy_param.own_optimizer). Everybody else (memory, checkpoints, forks, Predict) knows arrays and their
 * names, not what they mean.
 *
 * A step is global norm, clipping and the updates, enqueued on a stream; the host is not waited for: the
 * clip factor stays on the device, and is 0 when the norm is not finite, which leaves weights and state
 * as they were. */
#pragma once

#include "memory/store.h"
#include "model/shard.h"

/* ---- an optimizer ------------------------------------------------------------------------------ */

typedef enum hy_optimizer_id {
    HY_ADAMW,
    HY_SGD,
    HY_MUON,
    HY_LION,
    HY_ADAFACTOR,
    HY_OPTIMIZER_COUNT
} hy_optimizer_id;

#define HY_OPTIM_ARRAYS_MAX 2

/* Array 0 of every optimizer holds numbers of either sign, array 1 none below zero: which codes their 8 bits
 * are (HY_OP_QUANTIZE). All begin as zero. */
static inline bool hy_optim_array_is_signed(int array) { return array == 0; }

typedef struct hy_optimizer hy_optimizer;
typedef struct hy_param_update hy_param_update;
typedef struct hy_optimizer_kind hy_optimizer_kind;

/* A row of the table. */
struct hy_optimizer_kind {
    const char *name;
    const char *lr, *weight_decay; /* instead of a preset's, which are AdamW's; NULL: those */
    double lr_factor;              /* or its rate is so many times a preset's; 0: it is not */
    const char *beta1, *beta2;     /* likewise */
    double prior;  /* that prediction pays over it from scratch (docs/prediction.md) */
    bool is_exact; /* its state is fp32 and nothing smaller */
    bool is_whole; /* it updates a parameter whole: no rank has a part of one */
    const char *arrays[HY_OPTIM_ARRAYS_MAX]; /* names in checkpoints: "m"; NULL: it has none */
    /* Elements of an array that this parameter has. */
    hy_param_extent (*extent)(const hy_optimizer *optimizer, const hy_param *param, int array);
    /* Who updates this parameter; NULL: always itself. */
    const hy_optimizer_kind *(*delegate)(const hy_optimizer *optimizer, const hy_param *param);
    /* Bytes of workspace for an update of these parameters, of a window where it works ahead and else of
     * one alone; NULL: none. */
    uint64_t (*workspace)(const hy_optimizer *optimizer, const hy_param *const *params, int count,
                          hy_backend *backend);
    /* Lets the backend choose how these updates are made; NULL: there is no choice. */
    hy_status (*prepare)(const hy_optimizer *optimizer, const hy_param *const *params, int count,
                         hy_backend *backend);
    /* Operations of the matmuls of an update; NULL: it makes none. */
    double (*flops)(const hy_optimizer *optimizer, const hy_param *param);
    /* For a window, before its updates: leaves what it made in the workspace, and where, in made_ahead.
     * Whatever the window, a parameter has the same bits. NULL: there is nothing to do. */
    hy_status (*work_ahead)(hy_param_update *updates, int count, hy_backend *backend,
                            hy_stream *stream);
    hy_status (*update)(const hy_param_update *update, hy_backend *backend, hy_stream *stream);
};

/* A window is so many elements at most, or a single parameter; and so many parameters. Elements bound the
 * workspace; matrices that fill a card alone gain nothing from company. */
#define HY_WINDOW_ELEMENTS ((int64_t)32 << 20)
#define HY_WINDOW_PARAMS 64

/* The optimizer of a run: which one, and its numbers; each kind reads those that it knows. */
struct hy_optimizer {
    const hy_optimizer_kind *kind;
    double max_norm; /* clipping; 0: none */
    double weight_decay;
    double beta1, beta2, eps; /* adamw; lion has no eps */
    double momentum;          /* sgd; 0: keeps no state */
    bool is_nesterov;
    bool is_relative; /* adafactor: steps as shares of a parameter's own size */
    double muon_momentum;
    int64_t muon_momentum_warmup; /* updates in which it rises to that; 0: none */
    bool is_muon_nesterov;
    int32_t muon_steps;    /* of Newton and Schulz */
    hy_dtype matrix_dtype; /* in which it multiplies: bf16 or fp32 */
    bool is_cautious;      /* muon: decays only what its step makes smaller too */
    double
        delegated_lr; /* share of the learning rate for what it leaves to another; 0: all of it */
};

/* What an update of one parameter works on. All tensors are on the device. */
struct hy_param_update {
    const hy_optimizer *optimizer;
    const hy_param *param;
    hy_tensor weight, master; /* master: absent where the weight is its own */
    hy_tensor grad;
    hy_tensor arrays[HY_OPTIM_ARRAYS_MAX];
    hy_tensor clip;         /* (2) fp32: {norm, factor} */
    hy_tensor workspace;    /* bytes: at least what the kind asked for */
    hy_tensor made_ahead;   /* in it, what was made ahead of the update */
    float lr, weight_decay; /* of this parameter */
    int64_t count;          /* updates made before, 0 at first */
    uint64_t seed;          /* keys stochastic rounding, */
    int64_t first;          /* with the number of its first element among all parameters */
};

const hy_optimizer_kind *hy_optimizer_kind_of(hy_optimizer_id id);

/* Who updates a parameter. */
const hy_optimizer_kind *hy_optimizer_kind_for(const hy_optimizer *optimizer,
                                               const hy_param *param);
/* How many arrays these parameters have, and the name and layout of each. */
int hy_optimizer_arrays(const hy_optimizer *optimizer, const hy_params *params);
const char *hy_optimizer_array_name(const hy_optimizer *optimizer, int array);
hy_status hy_optimizer_layout(const hy_optimizer *optimizer, const hy_params *params, int array,
                              hy_dtype dtype, hy_layout *out);

/* Parameters that are updated whole, for hy_shard_init: `is_whole` has room for all of them. */
void hy_optimizer_mark_whole(const hy_optimizer *optimizer, const hy_params *params,
                             bool *is_whole);

/* Operations of an update's matmuls, and what share of a step's passes over so many tokens that is, which
 * are counted as 6 for each trained parameter and token. */
double hy_optimizer_flops(const hy_optimizer *optimizer, const hy_params *params);
double hy_optimizer_share(const hy_optimizer *optimizer, const hy_params *params, int64_t tokens);
/* The share up to which Muon brings these parameters more than it costs. */
double hy_muon_share_most(const hy_params *params);

/* ---- a step ------------------------------------------------------------------------------------ */

/* What a step works on; all on the device. */
typedef struct hy_optimizer_state {
    const hy_optimizer *optimizer;
    const hy_params *params;
    const hy_shard *
        shard; /* what is summed and updated here, NULL: everything. A store has it whole or as this shard */
    hy_backend *backend;
    hy_store *weights, *grads;
    bool weights_go_on; /* other ranks' parts come into the unit before it leaves */
    hy_store *master;   /* NULL when weights are their own */
    hy_store *arrays[HY_OPTIM_ARRAYS_MAX]; /* as many as the optimizer needs, then NULL */
    double *square_sum;                    /* (1) f64: the gradients' sum of squares */
    float *clip;                           /* (2) fp32: {norm, factor} */
    hy_tensor workspace;                   /* at least hy_optimizer_workspace() bytes */
} hy_optimizer_state;

/* Bytes of workspace that the ops of a step need, gradients being of type `grad_dtype`. */
uint64_t hy_optimizer_workspace(const hy_optimizer *optimizer, const hy_params *params,
                                hy_backend *backend, hy_dtype grad_dtype);

/* Before the first step, and after a checkpoint has said what was chosen. */
hy_status hy_optimizer_prepare(const hy_optimizer *optimizer, const hy_params *params,
                               hy_backend *backend);

/* The global norm is summed unit by unit, from the last to the first, as backward leaves them: begin,
 * add each unit while its gradients are on the device, end. Summing later, over gradients that passes
 * have left behind, goes through the units in the same order and gives the same bits. */
hy_status hy_optimizer_norm_begin(const hy_optimizer_state *state, hy_stream *stream);
hy_status hy_optimizer_norm_add(const hy_optimizer_state *state, hy_stream *stream, int32_t unit);
/* Norm and clip factor; gradients are multiplied by grad_scale first. */
hy_status hy_optimizer_norm_end(const hy_optimizer_state *state, hy_stream *stream,
                                double grad_scale);
/* All of it at once. */
hy_status hy_optimizer_clip(const hy_optimizer_state *state, hy_stream *stream, double grad_scale);

/* One update. */
typedef struct hy_optimizer_step {
    double lr;
    int64_t count; /* updates made before, 0 at first */
    uint64_t seed; /* keys stochastic rounding */
} hy_optimizer_step;

/* Brings what the update of a unit needs, ahead of it. */
hy_status hy_optimizer_gather(const hy_optimizer_state *state, int32_t unit);
/* The same long before, by and by: a large unit comes a chunk with each call. */
hy_status hy_optimizer_gather_chunk(const hy_optimizer_state *state, int32_t unit);

/* How far an update has come: what lies before is updated. Begins as zero. */
typedef struct hy_optimizer_cursor {
    int32_t unit, param;
} hy_optimizer_cursor;

/* Enqueues the update of the unit at the cursor. One that fails half-way can be gone on with: the cursor
 * stands where it came to, and what it changed is kept. */
hy_status hy_optimizer_update_unit(const hy_optimizer_state *state, hy_stream *stream,
                                   const hy_optimizer_step *step, hy_optimizer_cursor *at);
/* The same for all units from the cursor up to `end`, windows across them, where all that they have stays
 * on the device (hy_optimizer_is_resident). */
hy_status hy_optimizer_update_units(const hy_optimizer_state *state, hy_stream *stream,
                                    const hy_optimizer_step *step, hy_optimizer_cursor *at,
                                    int32_t end);
bool hy_optimizer_is_resident(const hy_optimizer_state *state);
