/* batch_memory.h: where the activations of a micro-batch lie: inside the model module only.
 *
 * Training, in the block of activations: the residual entering each layer, its gradient, then what
 * each layer and the head keep. The residual entering the head is needed from the last layer's
 * forward to the head alone: it lies at the end of scratch memory, which is widest in the layers'
 * backward. Layers that have no backward, because nothing in them or below is trained, keep
 * nothing: their residuals take turns in two buffers. A plan that offloads has of all this only
 * these and the gradient; residual and kept slots of a layer are a unit of a store. Evaluation has
 * two residuals, before and after the layer at work. */
#pragma once

#include "model/model.h"

/* Does this layer make again what it did not keep? Those that do are spread evenly. */
bool hy_batch_recomputes(const hy_batch_plan *plan, int32_t layer);
/* The plan of a unit of the model; several units share one. */
hy_unit_plan *hy_batch_unit(const hy_batch_plan *plan, int32_t unit);

/* The lowest layer that backward comes to, as many as there are when it ends at the head. */
int32_t hy_batch_first_backward(const hy_batch_plan *plan);

/* Fills bytes and what they follow from; the units are planned. */
hy_status hy_batch_count_bytes(hy_batch_plan *plan);

/* Training: the residual entering a layer (L: the head), its gradient, and what a layer keeps. */
char *hy_batch_residual(const hy_batch_plan *plan, int32_t layer);
char *hy_batch_residual_grad(const hy_batch_plan *plan);
char *hy_batch_kept(const hy_batch_plan *plan, int32_t layer);
/* Evaluation: the residual, index 0 or 1. */
char *hy_batch_eval_residual(const hy_batch_plan *plan, int32_t index);

char *hy_batch_scratch(const hy_batch_plan *plan, hy_pass pass);
/* What the ops of a unit's pass have for themselves. */
hy_tensor hy_batch_op_workspace(const hy_batch_plan *plan, const hy_pass_plan *list, hy_pass pass);
