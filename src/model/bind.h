/* bind.h: binds an op of a unit's list to its tensors; only inside the model module.
 *
 * A frame is one unit in one pass: the addresses of its residual, its kept activations and its
 * scratch, and its parameters. Binding op i of the pass gives a call that can be enqueued. */
#pragma once

#include "model/model.h"

typedef struct hy_frame {
    const hy_batch_plan *plan;
    const hy_unit_plan *unit;
    hy_pass pass;
    int32_t unit_index; /* the unit of the model: it has the parameters */
    const hy_batch_input *input;
    void *residual_in, *residual_out, *residual_grad;
    void *kept, *scratch;
    int32_t op_limit; /* only the first ops of the unit run; 0: all */
    /* Changes a call before it is enqueued; NULL: no change. */
    void (*adjust)(const struct hy_frame *frame, hy_op_call *call);
    const void *context; /* for `adjust` */
} hy_frame;

/* The store that holds a parameter's weights. */
static inline hy_store *hy_batch_weights_of(const hy_batch_input *input, int32_t param) {
    if (input->fp8 && hy_store_item_of(input->fp8, param) >= 0) return input->fp8;
    bool is_there = input->weights && hy_store_item_of(input->weights, param) >= 0;
    return is_there ? input->weights : input->frozen;
}

/* A frame of a unit, for planning: pointers only show whether a tensor exists. */
hy_frame hy_frame_for_planning(const hy_batch_plan *plan, int32_t unit, hy_pass pass);

/* Binds op `index` of the frame's pass; an op that runs in tiles gets the rows of one. */
void hy_frame_bind(const hy_frame *frame, int32_t index, int32_t tile, hy_op_call *call);
