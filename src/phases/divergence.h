/* divergence.h: detects divergence.
 *
 * Tracks the loss and the gradient norm with slow averages. A step has diverged if the loss is not
 * finite or is loss_sigma deviations above its recent mean, or if the gradient norm explodes or
 * vanishes relative to its usual level. The state is a few numbers, which checkpoints store. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_divergence_limits {
    double loss_sigma;     /* deviations above the mean */
    double grad_explosion; /* factor of the usual norm */
    double grad_vanishing; /* share of the usual norm */
} hy_divergence_limits;

typedef struct hy_divergence {
    int64_t count; /* number of healthy steps so far */
    double loss_mean, loss_variance;
    double grad_level; /* mean of log(norm) */
} hy_divergence;

typedef enum hy_health {
    HY_HEALTHY = 0,
    HY_NOT_FINITE,
    HY_LOSS_TOO_HIGH,
    HY_GRAD_EXPLODED,
    HY_GRAD_VANISHED,
    HY_HEALTH_COUNT
} hy_health;

/* A run is stopped when its loss stays above a bound. The bound starts from the first loss, or from
 * the mean of the first eight if that is higher; that mean counts only up to `uniform` + 1 nat, so
 * that a run that diverges at once does not set its own bound. uniform: the logarithm of the
 * vocabulary size, the loss of guessing. */
#define HY_DIVERGED_STEPS 32 /* steps in a row above it */
typedef struct hy_loss_bound {
    int64_t seen;        /* losses that count for the beginning, at most eight */
    double first, early; /* the first loss; the mean of these losses */
    int64_t above;       /* steps in a row above the bound, or not finite */
} hy_loss_bound;
/* INFINITY: there is no bound yet, or factor is 0. */
double hy_loss_limit(const hy_loss_bound *bound, double factor, double uniform);
void hy_loss_bound_observe(hy_loss_bound *bound, double factor, double uniform, double loss);

/* Judges a step and, if it is healthy, updates the averages. */
hy_health hy_divergence_observe(hy_divergence *d, const hy_divergence_limits *limits, double loss,
                                double grad_norm);
const char *hy_health_text(hy_health health);
