/* loop_arrays.c: what a loop does with all elements: norms, AdamW, a predictor's formulas. See loop.h.
 *
 * AdamW has the formula and the order of the op in kernels/cpu/adamw.c: decay first, then the step, in
 * fp32. Formulas are summed in double and rounded once; a coefficient of zero reads nothing, so clearing a
 * buffer clears it whatever the weights hold. Plain loops on one thread: the result depends on nothing but
 * the numbers. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-math-errno") /* or sqrtf is a call and the loop stays scalar */
#endif

#include <math.h>
#include <string.h>

#include "own/loop.h"

void hy_loop_gather(const hy_loop *loop, float *flat) {
    for (int32_t i = 0; i < loop->count; i++) {
        const hy_parameter *p = &loop->parameters[i];
        memcpy(flat, p->weights, (size_t)p->count * sizeof *flat);
        flat += p->count;
    }
}

void hy_loop_scatter(const hy_loop *loop, const float *flat) {
    for (int32_t i = 0; i < loop->count; i++) {
        const hy_parameter *p = &loop->parameters[i];
        memcpy(p->weights, flat, (size_t)p->count * sizeof *flat);
        flat += p->count;
    }
}

/* ---- the update ------------------------------------------------------------------------------ */

/* Elements whose squares are summed apart, so that large arrays lose no digits. */
#define SQUARES 1024

double hy_loop_grad_norm(const hy_loop *loop, double grad_scale) {
    double sum = 0;
    for (int32_t i = 0; i < loop->count; i++) {
        const hy_parameter *p = &loop->parameters[i];
        double of_parameter = 0;
        for (int64_t at = 0; at < p->count; at += SQUARES) {
            int64_t end = p->count - at < SQUARES ? p->count : at + SQUARES;
            double part = 0;
            for (int64_t j = at; j < end; j++) part += (double)p->grads[j] * (double)p->grads[j];
            of_parameter += part;
        }
        sum += of_parameter;
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
    const hy_optimizer *a = &loop->adamw;
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

/* ---- formulas -------------------------------------------------------------------------------- */

#define RUN 256 /* elements in one go: buffers of doubles stay in the first cache */

static void add_term(double *out, double by, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] += by * (double)from[i];
}

/* out = the formula's sum for n elements, `at` in the parameter and `flat` in the buffers. */
static void evaluate(const hy_loop *loop, const hy_formula *f, const hy_parameter *p, int64_t at,
                     int64_t flat, int64_t n, double out[RUN]) {
    memset(out, 0, RUN * sizeof *out);
    if (f->theta != 0) add_term(out, f->theta, p->weights + at, n);
    for (int s = 0; s < HY_PREDICTOR_BUFFERS; s++) {
        if (f->buffer[s] != 0) add_term(out, f->buffer[s], loop->buffer[s] + flat, n);
    }
}

static int64_t run_length(const hy_parameter *p, int64_t at) {
    return p->count - at < RUN ? p->count - at : RUN;
}

void hy_loop_run(hy_loop *loop, const hy_formulas *formulas) {
    int64_t first = 0;
    double sum[RUN];
    for (int32_t i = 0; i < loop->count; i++) {
        const hy_parameter *p = &loop->parameters[i];
        for (int k = 0; k < formulas->count; k++) {
            const hy_formula *f = &formulas->list[k];
            float *target = f->target < 0 ? p->weights : loop->buffer[f->target] + first;
            for (int64_t at = 0; at < p->count; at += RUN) {
                int64_t n = run_length(p, at);
                evaluate(loop, f, p, at, first + at, n, sum);
                for (int64_t j = 0; j < n; j++) target[at + j] = (float)sum[j];
            }
        }
        first += p->count;
    }
}

void hy_loop_measure(const hy_loop *loop, const hy_formula *move, double *dot, double *square) {
    const hy_formula displacement = {.target = -1, .theta = 1, .buffer = {-1, 0}}; /* theta - phi */
    int64_t first = 0;
    *dot = *square = 0;
    for (int32_t i = 0; i < loop->count; i++) {
        const hy_parameter *p = &loop->parameters[i];
        for (int64_t at = 0; at < p->count; at += RUN) {
            double moved[RUN], displaced[RUN], run_dot = 0, run_square = 0;
            int64_t n = run_length(p, at);
            evaluate(loop, move, p, at, first + at, n, moved);
            evaluate(loop, &displacement, p, at, first + at, n, displaced);
            for (int64_t j = 0; j < n; j++) {
                run_dot += moved[j] * displaced[j];
                run_square += displaced[j] * displaced[j];
            }
            *dot += run_dot;
            *square += run_square;
        }
        first += p->count;
    }
}

/* The first buffer holds the weights right after the jump, the snapshot those before it. */
void hy_loop_measure_residual(const hy_loop *loop, double *cosine, double *length) {
    double moved = 0, gone = 0, dot = 0;
    int64_t first = 0;
    *cosine = *length = NAN;
    for (int32_t i = 0; i < loop->count; i++) {
        const hy_parameter *p = &loop->parameters[i];
        const float *before = loop->snapshot + first, *after = loop->buffer[0] + first;
        for (int64_t j = 0; j < p->count; j++) {
            double jump = (double)after[j] - (double)before[j];
            double way = (double)p->weights[j] - (double)after[j];
            moved += jump * jump;
            gone += way * way;
            dot += jump * way;
        }
        first += p->count;
    }
    if (!(moved > 0)) return;
    *length = sqrt(gone / moved);
    if (gone > 0) *cosine = dot / sqrt(moved * gone);
}
