/* sgd.c: one step of SGD with momentum on a run of parameters, as HY_OP_SGD in kernels.h defines it:
 * PyTorch's formula, in fp32 and in its order. Types, noise and 8-bit codes are update.c's. */
#include "kernels/cpu/update.h"

typedef struct factors {
    float grad; /* on the gradient: clipping and loss scaling */
    float lr, momentum, decay;
} factors;

HY_CLONES static void sgd_run(float *p, const float *grad, factors f, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) p[i] -= f.lr * (grad[i] * f.grad + f.decay * p[i]);
}

HY_CLONES static void momentum_run(float *p, const float *grad, float *momentum, factors f,
                                   int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad + f.decay * p[i];
        float b = f.momentum * momentum[i] + g;
        momentum[i] = b;
        p[i] -= f.lr * b;
    }
}

HY_CLONES static void nesterov_run(float *p, const float *grad, float *momentum, factors f,
                                   int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad + f.decay * p[i];
        float b = f.momentum * momentum[i] + g;
        momentum[i] = b;
        p[i] -= f.lr * (g + f.momentum * b);
    }
}

static void sgd_step(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                     float *const state[HY_CPU_UPDATE_STATES], int64_t n) {
    factors f = {.grad = grad_scale,
                 .lr = call->attr.sgd.lr,
                 .momentum = call->attr.sgd.momentum,
                 .decay = call->attr.sgd.weight_decay};
    if (!state[0]) {
        sgd_run(p, grad, f, n);
    } else if (call->attr.sgd.is_nesterov) {
        nesterov_run(p, grad, state[0], f, n);
    } else {
        momentum_run(p, grad, state[0], f, n);
    }
}

static hy_cpu_update update_of(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    return (hy_cpu_update){.param = &t[HY_SGD_PARAM],
                           .grad = &t[HY_SGD_GRAD],
                           .state = {&t[HY_SGD_MOMENTUM]},
                           .states = hy_tensor_is_given(&t[HY_SGD_MOMENTUM]),
                           .is_signed = {true},
                           .clip = &t[HY_SGD_CLIP],
                           .master = &t[HY_SGD_MASTER],
                           .seed = call->attr.sgd.seed,
                           .first = call->attr.sgd.first,
                           .step = sgd_step};
}

static void sgd_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    hy_cpu_update update = update_of(run->call);
    hy_cpu_update_task(run->call, &update, task);
}

hy_status hy_cpu_sgd(const hy_cpu_run *run) {
    hy_cpu_update update = update_of(run->call);
    return hy_cpu_update_run(run, &update, sgd_task);
}
