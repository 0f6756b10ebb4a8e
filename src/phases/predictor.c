/* predictor.c: the formulas of each predictor. See predictor.h. */
#include "phases/predictor.h"

#include <assert.h>
#include <math.h>

#include "kernels/grid.h"

#define THETA (-1)
#define PHI 0
#define VELOCITY 1

int hy_predictor_buffers(hy_predictor_kind kind) {
    static const int buffers[HY_PREDICTOR_COUNT] = {
        [HY_PREDICTOR_OUTER] = 2, [HY_PREDICTOR_LINE] = 1};
    return buffers[kind];
}

/* A step of AdamW moves a weight by lr if its gradients agree. After a long time with zero
 * gradients, a single gradient moves it by more: by lr (1 - beta1) / sqrt(1 - beta2) at once, and
 * by lr / sqrt(1 - beta2) in total while its mean decays. A quarter is reserved for weight decay,
 * rounding and combinations of these. */
int32_t hy_predictor_exponent(double lr, double beta1, double beta2, int64_t window) {
    double steps = (double)window;
    double spike = fmin(1, steps * (1 - beta1)) / sqrt(1 - beta2);
    double step = 1.25 * lr * fmax(steps, spike) / HY_GRID_LINEAR;
    int exponent;
    if (!(step > 0)) return -HY_GRID_EXPONENT_MAX; /* nothing moves: all of bf16 is kept */
    if (frexp(step, &exponent) == 0.5) exponent--; /* step itself is a power of two */
    return exponent < -HY_GRID_EXPONENT_MAX  ? -HY_GRID_EXPONENT_MAX
           : exponent > HY_GRID_EXPONENT_MAX ? HY_GRID_EXPONENT_MAX
                                             : exponent;
}

static void add(hy_formulas *f, hy_formula formula) {
    assert(f->count < HY_FORMULAS_MAX);
    f->list[f->count++] = formula;
}

static hy_formula copy_theta(int target) { return (hy_formula){.target = target, .theta = 1}; }

hy_formulas hy_predictor_begin(const hy_predictor *p) {
    hy_formulas f = {.count = 0};
    if (p->kind == HY_PREDICTOR_NONE) return f;
    add(&f, copy_theta(PHI));
    if (hy_predictor_buffers(p->kind) > VELOCITY) add(&f, (hy_formula){.target = VELOCITY}); /* 0 */
    return f;
}

hy_formula hy_predictor_candidate(const hy_predictor *p, int64_t window) {
    double push = p->eta * (1 + p->mu);
    switch (p->kind) {
    case HY_PREDICTOR_OUTER:
        return (hy_formula){
            .target = THETA, .theta = push, .buffer = {1 - push, p->eta * p->mu * p->mu}};
    case HY_PREDICTOR_LINE: {
        double length = (double)p->max_steps / (double)window;
        return (hy_formula){.target = THETA, .theta = 1 + length, .buffer = {-length, 0}};
    }
    default: return copy_theta(THETA);
    }
}

double hy_predicted_steps(double dot, double square, int64_t window) {
    return square > 0 ? dot / square * (double)window : 0;
}

double hy_predictor_cap(const hy_predictor *p, double predicted_steps) {
    double most = (double)p->max_steps;
    return predicted_steps > most ? most / predicted_steps : 1;
}

hy_formula hy_formula_scaled(hy_formula candidate, double scale) {
    candidate.theta = 1 - scale + scale * candidate.theta;
    for (int i = 0; i < HY_PREDICTOR_BUFFERS; i++) candidate.buffer[i] *= scale;
    return candidate;
}

hy_formulas hy_predictor_accept(const hy_predictor *p, int64_t window, double scale) {
    hy_formulas f = {.count = 0};
    switch (p->kind) {
    case HY_PREDICTOR_OUTER: {
        add(&f, (hy_formula){.target = VELOCITY, .theta = 1, .buffer = {-1, p->mu}});
        /* the candidate again, in terms of the new velocity */
        hy_formula move = {
            .target = THETA, .theta = p->eta, .buffer = {1 - p->eta, p->eta * p->mu}};
        add(&f, hy_formula_scaled(move, scale));
        add(&f, copy_theta(PHI));
        break;
    }
    case HY_PREDICTOR_LINE:
        add(&f, hy_formula_scaled(hy_predictor_candidate(p, window), scale));
        add(&f, copy_theta(PHI));
        break;
    default: break;
    }
    return f;
}
