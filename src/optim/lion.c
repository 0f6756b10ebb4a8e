/* lion.c: Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): every weight
 * moves by the learning rate, in the direction of a mean of gradients; one array of state.
 *
 * A step is longer than that of AdamW with the same rate, because AdamW mostly moves weights by
 * less. The paper uses a rate 3 to 10 times smaller and a decay larger by the same factor, because
 * their product decays: 1e-4 and 1 correspond to the 1e-3 and 0.1 of AdamW in the presets. */
#include "optim/optimizer.h"

static hy_status update(const hy_param_update *u, hy_backend *backend, hy_stream *stream) {
    hy_op_call call = hy_optimizer_call(u, HY_OP_LION);
    call.attr.lion = (hy_lion_attr){.lr = u->lr,
                                    .beta1 = (float)u->optimizer->beta1,
                                    .beta2 = (float)u->optimizer->beta2,
                                    .weight_decay = u->weight_decay};
    return backend->enqueue(stream, &call);
}

const hy_optimizer_kind hy_optimizer_lion = {
    .name = "lion",
    .prior = 0.50,
    .lr_factor = 0.1,
    .weight_decay = "1",
    .beta1 = "0.9",
    .beta2 = "0.99",
    .arrays = {"m"},
    .update = update,
};
