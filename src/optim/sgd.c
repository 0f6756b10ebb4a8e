/* sgd.c: SGD with momentum, by PyTorch's formula (HY_OP_SGD in kernels.h). Decay is part of the
 * gradient. Without momentum it keeps no state. */
#include "optim/optimizer.h"

static hy_param_extent extent(const hy_optimizer *optimizer, const hy_param *param, int array) {
    (void)array;
    return (hy_param_extent){.count = optimizer->momentum > 0 ? param->count : 0};
}

static hy_status update(const hy_param_update *u, hy_backend *backend, hy_stream *stream) {
    hy_op_call call = hy_optimizer_call(u, HY_OP_SGD);
    call.attr.sgd = (hy_sgd_attr){.lr = u->lr,
                                  .momentum = (float)u->optimizer->momentum,
                                  .weight_decay = u->weight_decay,
                                  .is_nesterov = u->optimizer->is_nesterov};
    return backend->enqueue(stream, &call);
}

const hy_optimizer_kind hy_optimizer_sgd = {
    .name = "sgd",
    .prior = 0.50,
    .lr = "0.1",
    .weight_decay = "0.0001",
    .arrays = {"momentum"},
    .extent = extent,
    .update = update,
};
