/* own_rig.h: shared by the tests of custom loops and models: logistic regression on samples drawn
 * by number from a known model. */
#ifndef HY_TESTS_OWN_RIG_H
#define HY_TESTS_OWN_RIG_H

#include "own_config.h"

#include <math.h>

#include "base/rng.h"
#include "hybrid.h"

#define FEATURES 12
#define HELD_OUT_FIRST 1000000
#define HELD_OUT_COUNT 4000

typedef struct logistic {
    float weights[FEATURES], bias[1];
} logistic;

static logistic learned, gradient;
static const logistic truth = {{3, -2, 1.5f, -1, 0.5f, 2, -3, 1, 0, 0.7f, -0.3f, 1.2f}, {0.4f}};
static const logistic nothing;
/* The weights are a matrix of one row, so that they decay. */
static hy_parameter parameters[] = {
    {.name = "weights",
     .weights = learned.weights,
     .grads = gradient.weights,
     .ndim = 2,
     .shape = {1, FEATURES}},
    {.name = "bias", .weights = learned.bias, .grads = gradient.bias, .ndim = 1, .shape = {1}},
};

static double probability(const logistic *m, const double *x) {
    double logit = m->bias[0];
    for (int j = 0; j < FEATURES; j++) logit += m->weights[j] * x[j];
    return 1 / (1 + exp(-logit));
}

/* Sum of losses of samples [first, first + count); adds scale times its gradient to `into`. */
static double loss_sum(const logistic *m, int64_t first, int64_t count, double scale,
                       logistic *into) {
    double loss = 0, x[FEATURES];
    for (int64_t i = first; i < first + count; i++) {
        uint64_t at = (uint64_t)i * (FEATURES + 1);
        for (int j = 0; j < FEATURES; j++) {
            x[j] = 2 * hy_rng_uniform(1, HY_RNG_TEST, at + (uint64_t)j) - 1;
        }
        bool label = hy_rng_uniform(1, HY_RNG_TEST, at + FEATURES) < probability(&truth, x);
        double p = probability(m, x), error = scale * (p - label);
        loss -= log(label ? p : 1 - p);
        if (!into) continue;
        for (int j = 0; j < FEATURES; j++) into->weights[j] += (float)(error * x[j]);
        into->bias[0] += (float)error;
    }
    return loss;
}

static double held_out_loss(const logistic *m) {
    return loss_sum(m, HELD_OUT_FIRST, HELD_OUT_COUNT, 1, NULL) / HELD_OUT_COUNT;
}

#endif
