/* adamw.c: one step of AdamW on a run of parameters, in fp32 and in PyTorch's order: decay first,
 * then the step. Types, noise and 8-bit codes are update.c's. */
#include <math.h>

#include "kernels/cpu/update.h"
#include "kernels/cpu/vector_math.h"

typedef struct factors {
    float grad; /* on the gradient: clipping and loss scaling */
    float beta1, beta2;
    float keep; /* 1 - lr weight_decay */
    float step; /* lr / correction1 */
    float root; /* 1 / sqrt(correction2) */
    float eps;
} factors;

HY_CLONES static void adamw_run(float *p, const float *grad, float *m, float *v, factors f,
                                int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad;
        float first = f.beta1 * m[i] + (1.0f - f.beta1) * g;
        float second = f.beta2 * v[i] + (1.0f - f.beta2) * g * g;
        m[i] = first;
        v[i] = second;
        p[i] = p[i] * f.keep - f.step * first / (hy_sqrt(second) * f.root + f.eps);
    }
}

static void adamw_step(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                       float *const state[HY_CPU_UPDATE_STATES], int64_t n) {
    float lr = call->attr.adamw.lr;
    factors f = {
        .grad = grad_scale,
        .beta1 = call->attr.adamw.beta1,
        .beta2 = call->attr.adamw.beta2,
        .keep = 1.0f - lr * call->attr.adamw.weight_decay,
        .step = lr / call->attr.adamw.correction1,
        .root = 1.0f / sqrtf(call->attr.adamw.correction2),
        .eps = call->attr.adamw.eps,
    };
    adamw_run(p, grad, state[0], state[1], f, n);
}

static hy_cpu_update update_of(const hy_op_call *call) {
    const hy_tensor *t = call->t;
    return (hy_cpu_update){.param = &t[HY_ADAMW_PARAM],
                           .grad = &t[HY_ADAMW_GRAD],
                           .state = {&t[HY_ADAMW_M], &t[HY_ADAMW_V]},
                           .states = 2,
                           .is_signed = {true, false},
                           .clip = &t[HY_ADAMW_CLIP],
                           .master = &t[HY_ADAMW_MASTER],
                           .seed = call->attr.adamw.seed,
                           .first = call->attr.adamw.first,
                           .step = adamw_step};
}

static void adamw_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    hy_cpu_update update = update_of(run->call);
    hy_cpu_update_task(run->call, &update, task);
}

hy_status hy_cpu_adamw(const hy_cpu_run *run) {
    hy_cpu_update update = update_of(run->call);
    return hy_cpu_update_run(run, &update, adamw_task);
}
