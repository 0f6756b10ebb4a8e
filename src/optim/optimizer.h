/* optimizer.h: optimizers with a common interface, and a step over all parameters with any of them.
 *
 * An optimizer is one file (adamw.c, sgd.c, lion.c) and one row in the table of optimizer.c. It
 * says which arrays of state a parameter has, their sizes, and the workspace of an update. It
 * enqueues the ops that update one parameter; at that time all tensors of the parameter are on the
 * device, complete. It may work on several parameters together before the first of them changes:
 * consecutive parameters form a window (HY_WINDOW_ELEMENTS). It may delegate a parameter to another
 * optimizer (Muon delegates norms to AdamW), and a group of parameters may have its own
 * (hy_param.own_optimizer). Other modules (memory, checkpoints, forks, Predict) know only the
 * arrays and their names.
 *
 * A step consists of the global norm, clipping and the updates, enqueued on a stream without
 * waiting on the host. The clip factor stays on the device; it is 0 if the norm is not finite, and
 * then weights and state do not change. */
#pragma once

#include "memory/store.h"
#include "model/shard.h"

/* ---- an optimizer ---------------------------------------------------------------------------- */

typedef enum hy_optimizer_id {
    HY_ADAMW,
    HY_SGD,
    HY_MUON,
    HY_LION,
    HY_ADAFACTOR,
    HY_OPTIMIZER_COUNT
} hy_optimizer_id;

#define HY_OPTIM_ARRAYS_MAX 2

/* Array 0 of every optimizer holds numbers of either sign, array 1 none below zero; this selects
 * their 8-bit format (HY_OP_QUANTIZE). All begin as zero. */
static inline bool hy_optim_array_is_signed(int array) { return array == 0; }

typedef struct hy_optimizer hy_optimizer;
typedef struct hy_param_update hy_param_update;
typedef struct hy_optimizer_kind hy_optimizer_kind;

/* A row of the table. */
struct hy_optimizer_kind {
    const char *name;
    /* replace the values of presets, which are for AdamW; NULL: keep them */
    const char *lr, *weight_decay;
    double lr_factor;          /* factor for the rate of a preset; 0: none */
    const char *beta1, *beta2; /* as above */
    double prior;  /* prior probability that prediction pays from scratch (docs/prediction.md) */
    bool is_exact; /* its state is always fp32 */
    bool is_whole; /* it updates whole parameters: no rank has a part of one */
    const char *arrays[HY_OPTIM_ARRAYS_MAX]; /* names in checkpoints: "m"; NULL: no such array */
    /* The elements of an array for this parameter; NULL: one per element of the
     * parameter. */
    hy_param_extent (*extent)(const hy_optimizer *optimizer, const hy_param *param, int array);
    /* The optimizer that updates this parameter; NULL: always this one. */
    const hy_optimizer_kind *(*delegate)(const hy_optimizer *optimizer, const hy_param *param);
    /* Bytes of workspace for an update of these parameters: of a window if it works ahead,
     * otherwise of one parameter; NULL: none. */
    uint64_t (*workspace)(const hy_optimizer *optimizer, const hy_param *const *params, int count,
                          hy_backend *backend);
    /* Makes the backend choose algorithms for these updates; NULL: there is no choice. */
    hy_status (*prepare)(const hy_optimizer *optimizer, const hy_param *const *params, int count,
                         hy_backend *backend);
    /* Operations of the matmuls of an update; NULL: it has no matmuls. */
    double (*flops)(const hy_optimizer *optimizer, const hy_param *param);
    /* Called for a window before its updates: leaves its results in the workspace and their
     * addresses in made_ahead. A parameter gets the same bits in any window. NULL: nothing to
     * do. */
    hy_status (*work_ahead)(hy_param_update *updates, int count, hy_backend *backend,
                            hy_stream *stream);
    hy_status (*update)(const hy_param_update *update, hy_backend *backend, hy_stream *stream);
};

/* The limits of a window: this many elements, or a single parameter; and this many parameters. The
 * elements limit the workspace; matrices that fill a card gain nothing from a batch. */
#define HY_WINDOW_ELEMENTS ((int64_t)32 << 20)
#define HY_WINDOW_PARAMS 64

/* The optimizer of a run and its settings; each kind reads those that it uses. */
struct hy_optimizer {
    const hy_optimizer_kind *kind;
    double max_norm; /* for clipping; 0: none */
    double weight_decay;
    double beta1, beta2, eps; /* adamw; lion has no eps */
    double momentum;          /* sgd; 0: keeps no state */
    bool is_nesterov;
    bool is_relative; /* adafactor: steps relative to the size of a parameter */
    double muon_momentum;
    int64_t muon_momentum_warmup; /* updates in which it rises to that; 0: none */
    bool is_muon_nesterov;
    int32_t muon_steps;    /* Newton-Schulz steps */
    hy_dtype matrix_dtype; /* type of its matmuls: bf16 or fp32 */
    bool is_cautious;      /* muon: decays only weights that its step also makes smaller */
    double delegated_lr;   /* factor of the learning rate for delegated parameters; 0: 1 */
};

/* The tensors for the update of one parameter, all on the device. */
struct hy_param_update {
    const hy_optimizer *optimizer;
    const hy_param *param;
    hy_tensor weight, master; /* master: absent if the weight itself is the master */
    hy_tensor grad;
    hy_tensor arrays[HY_OPTIM_ARRAYS_MAX];
    hy_tensor clip;         /* (2) fp32: {norm, factor} */
    hy_tensor workspace;    /* in bytes: at least what the kind requires */
    hy_tensor made_ahead;   /* part of it with the results of work_ahead */
    float lr, weight_decay; /* of this parameter */
    int64_t count;          /* updates before this one */
    uint64_t seed;          /* key of stochastic rounding, */
    int64_t first;          /* together with the number of its first element among all parameters */
};

/* The op of an update with its tensors and the noise of its rounding; the kind adds its numbers. */
hy_op_call hy_optimizer_call(const hy_param_update *update, hy_op_kind kind);

const hy_optimizer_kind *hy_optimizer_kind_of(hy_optimizer_id id);

/* The optimizer that updates a parameter. */
const hy_optimizer_kind *hy_optimizer_kind_for(const hy_optimizer *optimizer,
                                               const hy_param *param);
/* How many arrays these parameters have, and the name and layout of each. */
int hy_optimizer_arrays(const hy_optimizer *optimizer, const hy_params *params);
const char *hy_optimizer_array_name(const hy_optimizer *optimizer, int array);
hy_status hy_optimizer_layout(const hy_optimizer *optimizer, const hy_params *params, int array,
                              hy_dtype dtype, hy_layout *out);

/* Marks parameters that are updated whole, for hy_shard_init: `is_whole` has room for all of
 * them. */
void hy_optimizer_mark_whole(const hy_optimizer *optimizer, const hy_params *params,
                             bool *is_whole);

/* Operations of an update's matmuls, and their share of the passes of a step over `tokens` tokens,
 * counted as 6 operations per trained parameter and token. */
double hy_optimizer_flops(const hy_optimizer *optimizer, const hy_params *params);
double hy_optimizer_share(const hy_optimizer *optimizer, const hy_params *params, int64_t tokens);
/* The largest share at which Muon gains more than it costs for these parameters. */
double hy_muon_share_most(const hy_params *params);

/* ---- a step ---------------------------------------------------------------------------------- */

/* The data of a step; all of it is on the device. */
typedef struct hy_optimizer_state {
    const hy_optimizer *optimizer;
    const hy_params *params;
    /* the part that this rank sums and updates; NULL: everything. A store has the whole parameter
     * or this shard */
    const hy_shard *shard;
    hy_backend *backend;
    hy_store *weights, *grads;
    bool weights_go_on; /* parts of other ranks are added to the unit before it leaves */
    hy_store *master;   /* NULL if the weights themselves are the master */
    hy_store *arrays[HY_OPTIM_ARRAYS_MAX]; /* as many as the optimizer needs, then NULL */
    double *square_sum;                    /* (1) f64: sum of squares of the gradients */
    float *clip;                           /* (2) fp32: {norm, factor} */
    hy_tensor workspace;                   /* at least hy_optimizer_workspace() bytes */
} hy_optimizer_state;

/* Bytes of workspace for the ops of a step, with gradients of type `grad_dtype`. */
uint64_t hy_optimizer_workspace(const hy_optimizer *optimizer, const hy_params *params,
                                hy_backend *backend, hy_dtype grad_dtype);

/* Call it before the first step, after a checkpoint has restored earlier choices. */
hy_status hy_optimizer_prepare(const hy_optimizer *optimizer, const hy_params *params,
                               hy_backend *backend);

/* The global norm is summed unit by unit, from the last to the first, in the order of backward:
 * begin, add each unit while its gradients are on the device, end. Summing later, over stored
 * gradients, uses the same order and gives the same bits. */
hy_status hy_optimizer_norm_begin(const hy_optimizer_state *state, hy_stream *stream);
hy_status hy_optimizer_norm_add(const hy_optimizer_state *state, hy_stream *stream, int32_t unit);
/* Computes the norm and the clip factor; gradients are multiplied by grad_scale first. */
hy_status hy_optimizer_norm_end(const hy_optimizer_state *state, hy_stream *stream,
                                double grad_scale);
/* All of the above at once. */
hy_status hy_optimizer_clip(const hy_optimizer_state *state, hy_stream *stream, double grad_scale);

/* One update. */
typedef struct hy_optimizer_step {
    double lr;
    int64_t count; /* updates before this one */
    uint64_t seed; /* key of stochastic rounding */
} hy_optimizer_step;

/* Copies the data for the update of a unit to the device, ahead of need. */
hy_status hy_optimizer_prefetch(const hy_optimizer_state *state, int32_t unit);
/* As above, long before: each call copies one chunk of a large unit. */
hy_status hy_optimizer_prefetch_chunk(const hy_optimizer_state *state, int32_t unit);

/* The progress of an update: everything before the cursor is updated. Begins as zero. */
typedef struct hy_optimizer_cursor {
    int32_t unit, param;
} hy_optimizer_cursor;

/* Enqueues the update of the unit at the cursor. After a failure it can be continued: the cursor
 * marks the progress, and finished changes are kept. */
hy_status hy_optimizer_update_unit(const hy_optimizer_state *state, hy_stream *stream,
                                   const hy_optimizer_step *step, hy_optimizer_cursor *at);
/* As above for all units from the cursor up to `end`, with windows across units, if all their data
 * stays on the device (hy_optimizer_is_resident). */
hy_status hy_optimizer_update_units(const hy_optimizer_state *state, hy_stream *stream,
                                    const hy_optimizer_step *step, hy_optimizer_cursor *at,
                                    int32_t end);
bool hy_optimizer_is_resident(const hy_optimizer_state *state);
