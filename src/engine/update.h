/* update.h: an optimizer step: gradients, norm, update, and the copies of weights that passes read.
 *
 * An update may stay pending: the next step then applies it to each unit just before it uses the
 * unit. All other code that reads weights, gradients or optimizer state finishes the update first
 * (hy_update_finish). step.c and update.c implement this header. */
#pragma once

#include "data/loader.h"
#include "model/model.h"
#include "optim/optimizer.h"

typedef struct hy_engine hy_engine;

/* The update of the last step, while some units do not have it yet. */
typedef struct hy_pending_update {
    bool is_pending;
    bool is_new; /* the gradients of a step are complete; hy_update_enqueue starts the update */
    hy_optimizer_step step;
    hy_dtype pending_dtype; /* compute type of the step that it belongs to */
    hy_optimizer_cursor at; /* the next parameter to update */
    int32_t units_done; /* units before this one are updated, with their fp8 copy if there is one */
    hy_dtype dtype;     /* compute type of the current step */
    double grad_scale;  /* gradients of the current step are multiplied by it */
    hy_unit_hook hook;
} hy_pending_update;

/* Dynamic loss scaling, for fp16. */
typedef struct hy_loss_scale {
    double scale;       /* 1 without fp16 */
    int64_t good_steps; /* good steps in a row at this scale */
} hy_loss_scale;

/* What a checkpoint saves of the engine, in addition to the rows. */
typedef struct hy_engine_progress {
    int64_t updates; /* applied since the optimizer's state was zero: the optimizer's step count */
    int64_t skipped, skipped_in_a_row;
    int64_t backward_passes;
    int64_t average_samples; /* how often weights were added to the average */
    bool has_snapshot;       /* the snapshot row holds the weights before the last jump */
    int32_t slow_exponent;   /* 8-bit slow weights: exponent of the grid's step (kernels/grid.h) */
    hy_loss_scale loss_scale;
} hy_engine_progress;

/* ---- weights that passes read ---------------------------------------------------------------- */

/* Casts all of the master to the working copy, or a custom model's working copy to the master. */
hy_status hy_row_cast(hy_engine *e, int from_row, int to_row);
/* The store that a pass of this type reads weights from. Finishes the pending update and makes a
 * stale working copy again. */
hy_status hy_engine_weights(hy_engine *e, hy_dtype dtype, hy_store **out);
/* As above, but an update may stay pending: for the pass that applies it. */
hy_status hy_engine_weights_pending(hy_engine *e, hy_dtype dtype, hy_store **out);
/* Call it after that, for a step in fp8: the store of the blocks' fp8 copy; NULL for other
 * steps. */
hy_status hy_engine_fp8_pending(hy_engine *e, hy_dtype dtype, hy_store **out);

/* ---- a step ---------------------------------------------------------------------------------- */

/* Forward and backward over the step's micro-batches, up to complete gradients. divisor: the
 * counted targets of the step, of all ranks, which losses are divided by; 0: those of each
 * micro-batch. dropout_seed: the run's. May be repeated after the caller has restored
 * progress.backward_passes. Nothing else has changed, except for a pending update, which knows its
 * progress. */
hy_status hy_engine_gradients(hy_engine *e, hy_loader *loader, hy_dtype dtype, int64_t divisor,
                              uint64_t dropout_seed);
/* The micro-batches of a step that a loader does not have. All ranks have the same number. */
typedef struct hy_given_batches {
    const hy_batch *batches; /* (count), of the plan's size; in memory until the step has ended */
    int32_t count;           /* at least 1; any, whatever the plan's accumulation is */
    float *losses; /* (count,B,T) result: of answers: minus each token's log-probability, when the
                    * step has ended; or NULL */
} hy_given_batches;
/* As above, over these. */
hy_status hy_engine_gradients_of(hy_engine *e, const hy_given_batches *given, hy_dtype dtype,
                                 int64_t divisor, uint64_t dropout_seed);
/* After the gradients: starts the update, copies the results to the host and waits for them. After
 * a failure it can be called again and continues. seed: for stochastic rounding. */
hy_status hy_engine_end_step(hy_engine *e, double lr, uint64_t seed);
/* The result of a step. */
typedef struct hy_step_outcome {
    double loss_sum, grad_norm;
    double pair_stats[HY_PAIRS_STATS]; /* of the step's pairs of answers; zeros: there are none */
    /* Of its answers with rewards, likewise. HY_POLICY_APART_MOST is of this rank alone. */
    double policy_stats[HY_POLICY_STATS];
    bool was_skipped; /* the gradient was not finite, so no weight changed */
} hy_step_outcome;
/* The fp8 statistics of a layer in the step, of inputs or of gradients: {largest magnitude,
 * share that became zero}. False: the step did not use fp8. */
bool hy_engine_fp8_stats(const hy_engine *e, int32_t layer, bool is_gradients, double out[2]);
/* Reads the result and counts the step. HY_ERR_NUMERIC: the gradient was not finite in too many
 * steps in a row. */
hy_status hy_engine_count_step(hy_engine *e, int64_t step, hy_step_outcome *out);
/* Halves the scale when gradients overflowed, doubles it after many good steps; at least 1. */
void hy_loss_scale_adapt(hy_loss_scale *scale, bool was_skipped);

/* ---- the update ------------------------------------------------------------------------------ */

/* Begins a step in this type. A pending update stays pending only if this step can apply it. */
hy_status hy_update_begin(hy_engine *e, hy_dtype dtype);
/* The hooks of a micro-batch's passes (hy_unit_hook in model/model.h says when each is called):
 * `ahead` and `before` apply a pending update in the first forward pass, `after` adds to the norm
 * in the last backward pass or reduces gradients, `fetch` and `await` gather weights of other
 * ranks. NULL: none is needed. */
const hy_unit_hook *hy_update_hook(hy_engine *e, bool is_last);
/* Adds the norm of a unit's gradients, in the order from the last unit to the first; the last begins
 * anew. `engine` is a hy_engine, because it is a hook, too. */
hy_status hy_update_add_norm(void *engine, hy_stream *stream, int32_t unit);
/* After the passes: computes norm and clip factor of the gradients times grad_scale. */
hy_status hy_update_clip(hy_engine *e, double grad_scale);
hy_status hy_update_prefetch(hy_engine *e); /* copies the first units of the next update ahead */
/* Applies the pending update to all units up to this one, and copies what the next ones need. */
hy_status hy_update_upto(hy_engine *e, int32_t unit);
/* Starts the update of a step: applies it now, or leaves it pending if the plan says so. */
hy_status hy_update_enqueue(hy_engine *e, double lr, uint64_t seed);
/* Applies the pending update to all units and waits for all-gathers of other ranks. Call it before
 * anything but a training pass reads weights, gradients or optimizer state. */
hy_status hy_update_finish(hy_engine *e);
