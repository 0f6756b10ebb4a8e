/* divergence.h: is the run still healthy?
 *
 * Follows the loss and the gradient norm with slow averages and calls a step diverged when the loss is
 * not finite or lies loss_sigma deviations above its own recent course, or when the gradient explodes
 * or vanishes against its own level. A few numbers; a checkpoint keeps them. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_divergence_limits {
    double loss_sigma;     /* deviations above the mean */
    double grad_explosion; /* times the usual norm */
    double grad_vanishing; /* share of the usual norm */
} hy_divergence_limits;

typedef struct hy_divergence {
    int64_t count; /* healthy steps seen */
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

/* When a run is given up: its loss stays above a bound that follows from how it began. The first loss was
 * measured before anything was learned; where that step was a lucky one, the mean of the first eight
 * counts, up to a nat above that of guessing (`uniform`, the logarithm of the vocabulary), so that a run that
 * blows up at once does not set its own bound. */
#define HY_DIVERGED_STEPS 32 /* above it, in a row */
typedef struct hy_loss_bound {
    int64_t seen;        /* losses that count for the beginning, at most eight */
    double first, early; /* the first one; the mean of them */
    int64_t above;       /* steps in a row that were above the bound, or not finite */
} hy_loss_bound;
/* INFINITY: there is none yet, or factor is 0. */
double hy_loss_limit(const hy_loss_bound *bound, double factor, double uniform);
void hy_loss_bound_observe(hy_loss_bound *bound, double factor, double uniform, double loss);

/* Judges a step and, when it is healthy, learns from it. */
hy_health hy_divergence_observe(hy_divergence *d, const hy_divergence_limits *limits, double loss,
                                double grad_norm);
const char *hy_health_text(hy_health health);
