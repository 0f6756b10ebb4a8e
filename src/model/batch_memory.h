/* batch_memory.h: the memory layout of a micro-batch's activations; only inside the model module.
 *
 * Training uses the block of activations for: the residual entering each layer, its gradient,
 * then what each layer and the head keep. The residual entering the head is needed only from the
 * last layer's forward to the head: it is at the end of scratch memory, which is largest in the
 * layers' backward. Layers without a backward, because nothing in them or below is trained, keep
 * nothing: their residuals alternate between two buffers. A plan that offloads has only these
 * two and the gradient in the block; the residual and the kept slots of each other layer are a unit
 * of a store. Evaluation
 * has two residuals for each slice, before and after the current layer. */
#pragma once

#include "model/model.h"

/* Does this layer recompute? Layers that do are spread evenly. */
bool hy_batch_recomputes(const hy_batch_plan *plan, int32_t layer);
/* The plan of a unit of the model; several units share one. */
hy_unit_plan *hy_batch_unit(const hy_batch_plan *plan, int32_t unit);

/* The lowest layer that backward reaches; the number of layers if it ends at the head. */
int32_t hy_batch_first_backward(const hy_batch_plan *plan);

/* Computes the bytes and related values; the units are already planned. */
hy_status hy_batch_count_bytes(hy_batch_plan *plan);

/* Training: the residual entering a layer (L: the head), its gradient, and a layer's kept slots. */
char *hy_batch_residual(const hy_batch_plan *plan, int32_t layer);
char *hy_batch_residual_grad(const hy_batch_plan *plan);
char *hy_batch_kept(const hy_batch_plan *plan, int32_t layer);
/* Evaluation: the residual of a slice, index 0 or 1. */
char *hy_batch_eval_residual(const hy_batch_plan *plan, int32_t index, int32_t slice);

char *hy_batch_scratch(const hy_batch_plan *plan, hy_pass pass);
/* The workspace of the ops of a unit's pass. */
hy_tensor hy_batch_op_workspace(const hy_batch_plan *plan, const hy_pass_plan *list, hy_pass pass);
