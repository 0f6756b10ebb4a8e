/* update.h: an optimizer step: gradients, norm, the update, and copies of weights derived from it.
 *
 * An update may stay pending: it is applied to each unit when the next step gathers it. All
 * other code that reads weights, gradients or optimizer state finishes it first
 * (hy_update_finish). */
#pragma once

#include "data/loader.h"
#include "model/model.h"
#include "optim/optimizer.h"

typedef struct hy_engine hy_engine;

/* An update that is not applied to all units yet: kept until the next step comes to them. */
typedef struct hy_pending_update {
    bool is_pending;
    bool is_new; /* the gradients of a step are whole, and it was not begun yet */
    hy_optimizer_step step;
    hy_dtype pending_dtype; /* what the step computed with */
    hy_optimizer_cursor at; /* how far it has come */
    int32_t encoded;        /* steps in fp8: units before this have their codes */
    hy_dtype dtype;         /* what the present step computes with */
    double grad_scale;      /* its gradients are multiplied by it first */
    hy_unit_hook hook;
} hy_pending_update;

/* Dynamic loss scaling, for fp16. */
typedef struct hy_loss_scale {
    double scale;       /* 1 without fp16 */
    int64_t good_steps; /* since it last changed */
} hy_loss_scale;

/* What a checkpoint must know of the engine, beside the rows. */
typedef struct hy_engine_progress {
    int64_t updates; /* not skipped since the optimizer's state began: its own clock */
    int64_t skipped, skipped_in_a_row;
    int64_t backward_passes;
    int64_t average_samples; /* weights summed into the average */
    bool has_snapshot;       /* the snapshot row holds the weights before the last jump */
    int32_t slow_exponent;   /* slow weights in 8 bits: of their grid's step */
    hy_loss_scale loss_scale;
} hy_engine_progress;

/* ---- weights that passes read ---------------------------------------------------------------- */

/* All of the master into the working copy, or a custom model's working copy into the master:
 * both agree then. */
hy_status hy_row_cast(hy_engine *e, int from_row, int to_row);
/* The weights that a pass of this type uses; a rounded copy is made current first. */
hy_status hy_engine_weights(hy_engine *e, hy_dtype dtype, hy_store **out);
/* The same while an update may be pending: for the pass that applies it. */
hy_status hy_engine_weights_raw(hy_engine *e, hy_dtype dtype, hy_store **out);
/* For a step in fp8, after these: the blocks' codes; NULL for another step. */
hy_status hy_engine_fp8_raw(hy_engine *e, hy_dtype dtype, hy_store **out);

/* ---- a step ---------------------------------------------------------------------------------- */

/* Forward and backward over the step's micro-batches, up to complete gradients. divisor: the
 * counted targets of the step, of all ranks, which losses are divided by; 0: those of each
 * micro-batch. dropout_seed: the run's. May be repeated: no state has changed, except for a pending
 * update, which knows its progress. */
hy_status hy_engine_gradients(hy_engine *e, hy_loader *loader, hy_dtype dtype, int64_t divisor,
                              uint64_t dropout_seed);
/* Then: starts the update and fetches the results; waits. After a failure it can be called again
 * and continues. */
hy_status hy_engine_end_step(hy_engine *e, double lr, uint64_t seed); /* keys rounding */
/* The result. HY_ERR_NUMERIC: gradients were not finite too often in a row. */
typedef struct hy_step_outcome {
    double loss_sum, grad_norm;
    bool was_skipped; /* gradients were not finite: nothing changed */
} hy_step_outcome;
/* The fp8 statistics of a layer in the step, of inputs or of gradients: {largest magnitude,
 * share that became zero}. False: the step did not use fp8. */
bool hy_engine_seen(const hy_engine *e, int32_t layer, bool is_gradients, double out[2]);
hy_status hy_engine_count_step(hy_engine *e, int64_t step, hy_step_outcome *out);
/* Halved when gradients overflowed, doubled after many good steps; never below 1. */
void hy_loss_scale_adapt(hy_loss_scale *scale, bool was_skipped);

hy_status hy_update_begin(hy_engine *e, hy_dtype dtype);
const hy_unit_hook *hy_update_hook(hy_engine *e, int32_t micro_batch); /* or NULL */
/* After the passes: norm and clip factor, of gradients times grad_scale. */
hy_status hy_update_sum_gradients(hy_engine *e, double grad_scale);
hy_status hy_update_gather(hy_engine *e); /* ahead: what the first units of the next update need */
/* Applies what is pending up to a unit, and brings what the next ones need. */
hy_status hy_update_upto(hy_engine *e, int32_t unit);
hy_status hy_update_enqueue(hy_engine *e, double lr, uint64_t seed);
/* Applies what is pending: before anyone but a training pass looks at weights, state or
 * gradients. */
hy_status hy_update_finish(hy_engine *e);
