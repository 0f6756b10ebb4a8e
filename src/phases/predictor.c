/* predictor.c: the formulas of each predictor. See predictor.h. */
#include "phases/predictor.h"

#include <assert.h>
#include <math.h>

#define THETA (-1)
#define PHI 0
#define VELOCITY 1
#define SUM 0      /* lsq: sum of theta over the window's steps */
#define TIME_SUM 1 /* lsq: sum of t theta */

static const struct {
    int slots;
    bool watches_steps;
} kinds[HY_PREDICTOR_COUNT] = {
    [HY_PREDICTOR_OUTER] = {2, false}, [HY_PREDICTOR_LINE] = {1, false},
    [HY_PREDICTOR_LSQ] = {2, true},    [HY_PREDICTOR_RANDOM] = {2, false},
    [HY_PREDICTOR_PAID] = {2, false},
};

int hy_predictor_slots(hy_predictor_kind kind) { return kinds[kind].slots; }
bool hy_predictor_watches_steps(hy_predictor_kind kind) { return kinds[kind].watches_steps; }

static void add(hy_formulas *f, hy_formula formula) {
    assert(f->count < HY_FORMULAS_MAX);
    f->list[f->count++] = formula;
}

static hy_formula copy_theta(int target) { return (hy_formula){.target = target, .theta = 1}; }
static hy_formula clear(int target) { return (hy_formula){.target = target}; }

hy_formulas hy_predictor_begin(const hy_predictor *p) {
    hy_formulas f = {.count = 0};
    switch (p->kind) {
    case HY_PREDICTOR_OUTER:
    case HY_PREDICTOR_RANDOM:
    case HY_PREDICTOR_PAID:
        add(&f, copy_theta(PHI));
        add(&f, clear(VELOCITY));
        break;
    case HY_PREDICTOR_LINE: add(&f, copy_theta(PHI)); break;
    case HY_PREDICTOR_LSQ:
        add(&f, clear(SUM));
        add(&f, clear(TIME_SUM));
        break;
    default: break;
    }
    return f;
}

hy_formulas hy_predictor_observe(const hy_predictor *p, int64_t step) {
    hy_formulas f = {.count = 0};
    if (p->kind != HY_PREDICTOR_LSQ) return f;
    add(&f, (hy_formula){.target = SUM, .theta = 1, .slot = {1, 0}});
    add(&f, (hy_formula){.target = TIME_SUM, .theta = (double)step, .slot = {0, 1}});
    return f;
}

/* The least-squares line through (t, theta_t), t = 1 .. n, read at n + ahead. */
static hy_formula least_squares(int64_t window, double ahead) {
    double n = (double)window, mean = 0.5 * (n + 1);
    double spread = n * (n * n - 1) / 12; /* sum of (t - mean)^2 */
    double reach = (n + ahead - mean) / spread;
    return (hy_formula){.target = THETA, .slot = {1 / n - reach * mean, reach}};
}

hy_formula hy_predictor_candidate(const hy_predictor *p, int64_t window) {
    double push = p->eta * (1 + p->mu);
    switch (p->kind) {
    case HY_PREDICTOR_OUTER:
    case HY_PREDICTOR_PAID:
    case HY_PREDICTOR_RANDOM: /* its length is the outer move's */
        return (hy_formula){
            .target = THETA, .theta = push, .slot = {1 - push, p->eta * p->mu * p->mu}};
    case HY_PREDICTOR_LINE: {
        double length = (double)p->max_steps / (double)window;
        return (hy_formula){.target = THETA, .theta = 1 + length, .slot = {-length, 0}};
    }
    case HY_PREDICTOR_LSQ: return least_squares(window, (double)p->max_steps);
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

/* theta + scale (candidate - theta) */
static hy_formula scaled(hy_formula candidate, double scale) {
    candidate.theta = 1 - scale + scale * candidate.theta;
    for (int i = 0; i < HY_PREDICTOR_SLOTS; i++) candidate.slot[i] *= scale;
    return candidate;
}

hy_formulas hy_predictor_accept(const hy_predictor *p, int64_t window, double scale, double noise) {
    hy_formulas f = {.count = 0};
    switch (p->kind) {
    case HY_PREDICTOR_OUTER: {
        add(&f, (hy_formula){.target = VELOCITY, .theta = 1, .slot = {-1, p->mu}});
        /* the candidate again, now in terms of the new velocity */
        hy_formula move = {.target = THETA, .theta = p->eta, .slot = {1 - p->eta, p->eta * p->mu}};
        add(&f, scaled(move, scale));
        add(&f, copy_theta(PHI));
        break;
    }
    case HY_PREDICTOR_RANDOM:
        add(&f, (hy_formula){.target = VELOCITY, .theta = 1, .slot = {-1, p->mu}});
        add(&f, (hy_formula){.target = THETA, .theta = 1, .noise = noise});
        add(&f, copy_theta(PHI));
        break;
    case HY_PREDICTOR_PAID:
        add(&f, (hy_formula){.target = VELOCITY, .theta = 1, .slot = {-1, p->mu}});
        add(&f, copy_theta(PHI));
        break;
    case HY_PREDICTOR_LINE:
        add(&f, scaled(hy_predictor_candidate(p, window), scale));
        add(&f, copy_theta(PHI));
        break;
    case HY_PREDICTOR_LSQ:
        add(&f, scaled(hy_predictor_candidate(p, window), scale));
        add(&f, clear(SUM));
        add(&f, clear(TIME_SUM));
        break;
    default: break;
    }
    return f;
}

hy_formulas hy_predictor_reject(const hy_predictor *p) { return hy_predictor_begin(p); }
