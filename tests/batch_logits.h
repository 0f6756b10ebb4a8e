/* batch_logits.h: the logits of some rows of a micro-batch.
 *
 * Training and evaluation compute logits only chunk by chunk, on the way to losses. Tests compare
 * logits with other programs and with the decoder, so this runs a forward pass that ends with
 * them. */
#pragma once

#include <math.h>

#include "base/error.h"
#include "model/batch_memory.h"
#include "model/visit.h"

/* The logit behind scale and cap. */
static inline float shaped_logit(const hy_shape *s, float logit) {
    double cap = s->more.logit_softcap, divisor = s->more.logit_divisor;
    if (divisor > 0) logit = (float)(logit / divisor);
    return cap > 0 ? (float)(cap * tanh(logit / cap)) : logit;
}

/* The logits of rows [first, first + rows) stay in the plan's logits memory, (rows, V) in the
 * plan's type. At most one chunk of rows. */
static inline hy_status batch_logits(hy_batch_plan *plan, const hy_batch_input *input,
                                     int64_t first, int64_t rows) {
    hy_frame f = {.plan = plan, .input = input, .pass = HY_PASS_EVAL};
    hy_op_call norm, matmul;
    HY_FAIL_IF(rows > plan->size.tile_rows[HY_RANGE_LOSS], HY_ERR_STATE,
               "%lld rows; a chunk has %d", (long long)rows, plan->size.tile_rows[HY_RANGE_LOSS]);
    HY_TRY(hy_run_stack(&f));
    f.unit_index = plan->model->params.units - 1;
    f.unit = hy_batch_unit(plan, f.unit_index);
    HY_TRY(hy_visit_enter(&f, +1));
    hy_frame_bind(&f, 0, 0, &norm); /* the head's list begins with its norm and the logits matmul */
    hy_frame_bind(&f, 1, 0, &matmul);
    matmul.t[HY_MATMUL_A] = hy_tensor_rows(&norm.t[HY_NORM_Y], first, rows);
    matmul.t[HY_MATMUL_D] = hy_tensor_rows(&matmul.t[HY_MATMUL_D], 0, rows);
    if (rows != plan->size.tile_rows[HY_RANGE_LOSS])
        matmul.plan = NULL; /* prepared for a whole chunk */
    HY_TRY(plan->backend->enqueue(input->stream, &norm));
    HY_TRY(plan->backend->enqueue(input->stream, &matmul));
    return hy_visit_leave(&f);
}
