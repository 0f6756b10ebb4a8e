/* loop_adamw.c: AdamW over the caller's arrays. See loop.h.
 *
 * The same formula and order as the op in kernels/cpu/adamw.c: decay first, then the step, in fp32.
 * Plain loops on one thread: the result depends on nothing but the numbers. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-math-errno") /* or sqrtf is a call and the loop stays scalar */
#endif

#include <math.h>

#include "own/loop.h"

#define RUN 1024 /* elements whose squares are summed apart, so that large arrays lose no digits */

static double square_sum(const float *x, int64_t count) {
    double sum = 0;
    for (int64_t at = 0; at < count; at += RUN) {
        int64_t end = count - at < RUN ? count : at + RUN;
        double part = 0;
        for (int64_t i = at; i < end; i++) part += (double)x[i] * (double)x[i];
        sum += part;
    }
    return sum;
}

double hy_loop_grad_norm(const hy_loop *loop, double grad_scale) {
    double sum = 0;
    for (int32_t i = 0; i < loop->count; i++) {
        sum += square_sum(loop->parameters[i].grads, loop->parameters[i].count);
    }
    return sqrt(sum) * fabs(grad_scale);
}

typedef struct factors {
    float grad; /* on the gradient: scaling and clipping */
    float beta1, beta2;
    float keep; /* 1 - lr weight_decay */
    float step; /* lr / correction1 */
    float root; /* 1 / sqrt(correction2) */
    float eps;
} factors;

static void step_run(float *restrict p, const float *restrict grad, float *restrict m,
                     float *restrict v, factors f, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad;
        m[i] = f.beta1 * m[i] + (1.0f - f.beta1) * g;
        v[i] = f.beta2 * v[i] + (1.0f - f.beta2) * g * g;
        p[i] = p[i] * f.keep - f.step * m[i] / (sqrtf(v[i]) * f.root + f.eps);
    }
}

void hy_loop_adamw_step(hy_loop *loop, double grad_scale, double norm) {
    const hy_loop_adamw *a = &loop->adamw;
    double t = (double)(loop->updates + 1);
    bool is_clipped = a->max_norm > 0 && norm > a->max_norm;
    factors f = {.grad = (float)(is_clipped ? grad_scale * (a->max_norm / norm) : grad_scale),
                 .beta1 = (float)a->beta1,
                 .beta2 = (float)a->beta2,
                 .step = (float)(loop->lr / (1 - pow(a->beta1, t))),
                 .root = (float)(1 / sqrt(1 - pow(a->beta2, t))),
                 .eps = (float)a->eps};
    int64_t first = 0;
    for (int32_t i = 0; i < loop->count; i++) {
        const hy_parameter *p = &loop->parameters[i];
        f.keep = (float)(1 - (p->has_decay ? loop->lr * a->weight_decay : 0));
        step_run(p->weights, p->grads, loop->m + first, loop->v + first, f, p->count);
        first += p->count;
    }
    loop->updates++;
}
