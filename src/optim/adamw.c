/* adamw.c: AdamW (Loshchilov and Hutter): decay decoupled from the gradient, with Adam's bias
 * correction. */
#include <math.h>

#include "optim/optimizer.h"

enum { M, V };

static hy_param_extent extent(const hy_optimizer *optimizer, const hy_param *param, int array) {
    (void)optimizer, (void)array;
    return (hy_param_extent){.count = param->count};
}

static hy_status update(const hy_param_update *u, hy_backend *backend, hy_stream *stream) {
    const hy_optimizer *o = u->optimizer;
    double t = (double)(u->count + 1);
    hy_op_call call = {.kind = HY_OP_ADAMW,
                       .attr.adamw = {.lr = u->lr,
                                      .beta1 = (float)o->beta1,
                                      .beta2 = (float)o->beta2,
                                      .eps = (float)o->eps,
                                      .weight_decay = u->weight_decay,
                                      .correction1 = (float)(1 - pow(o->beta1, t)),
                                      .correction2 = (float)(1 - pow(o->beta2, t)),
                                      .seed = u->seed,
                                      .first = (uint64_t)u->first},
                       .t = {[HY_ADAMW_PARAM] = u->weight,
                             [HY_ADAMW_GRAD] = u->grad,
                             [HY_ADAMW_M] = u->arrays[M],
                             [HY_ADAMW_V] = u->arrays[V],
                             [HY_ADAMW_CLIP] = u->clip,
                             [HY_ADAMW_MASTER] = u->master}};
    return backend->enqueue(stream, &call);
}

const hy_optimizer_kind hy_optimizer_adamw = {
    .name = "adamw",
    .prior = 0.80,
    .arrays = {[M] = "m", [V] = "v"},
    .extent = extent,
    .update = update,
};
