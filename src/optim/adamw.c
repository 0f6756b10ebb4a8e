/* adamw.c: AdamW (Loshchilov and Hutter): decay decoupled from the gradient, with Adam's bias
 * correction. */
#include <math.h>

#include "optim/optimizer.h"

static hy_status update(const hy_param_update *u, hy_backend *backend, hy_stream *stream) {
    const hy_optimizer *o = u->optimizer;
    /* m and v are means with these weights: as float, 1 - beta2 differs from 1 - 0.999 by 1e-5. */
    float beta1 = (float)o->beta1, beta2 = (float)o->beta2;
    double t = (double)(u->count + 1);
    hy_op_call call = hy_optimizer_call(u, HY_OP_ADAMW);
    call.attr.adamw = (hy_adamw_attr){.lr = u->lr,
                                      .beta1 = beta1,
                                      .beta2 = beta2,
                                      .eps = (float)o->eps,
                                      .weight_decay = u->weight_decay,
                                      .correction1 = (float)(1 - pow((double)beta1, t)),
                                      .correction2 = (float)(1 - pow((double)beta2, t))};
    return backend->enqueue(stream, &call);
}

const hy_optimizer_kind hy_optimizer_adamw = {
    .name = "adamw",
    .prior = 0.80,
    .arrays = {"m", "v"},
    .update = update,
};
