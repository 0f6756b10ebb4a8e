/* divergence.c: slow averages of loss and gradient norm. See divergence.h. */
#include "phases/divergence.h"

#include <math.h>
#include <stdbool.h>

#define MEMORY 50.0             /* time constant of the averages, in steps */
#define LEARNING_STEPS 20       /* before this many steps, only values that are not finite count */
#define SMALLEST_DEVIATION 0.01 /* share of the mean: allows small changes of a very smooth loss */

#define EARLY_STEPS 8
#define BOUND_NATS 2 /* a loss near zero may double without harm */

static const char *const texts[HY_HEALTH_COUNT] = {
    [HY_HEALTHY] = "",
    [HY_NOT_FINITE] = "the loss or the gradient is not finite",
    [HY_LOSS_TOO_HIGH] = "the loss is far above its recent average",
    [HY_GRAD_EXPLODED] = "the gradient exploded",
    [HY_GRAD_VANISHED] = "the gradient vanished",
};

const char *hy_health_text(hy_health health) { return texts[health]; }

static hy_health judge(const hy_divergence *d, const hy_divergence_limits *limits, double loss,
                       double log_norm) {
    if (d->count < LEARNING_STEPS) return HY_HEALTHY;
    double deviation = fmax(sqrt(d->loss_variance), SMALLEST_DEVIATION * fabs(d->loss_mean));
    if (loss > d->loss_mean + limits->loss_sigma * deviation) return HY_LOSS_TOO_HIGH;
    if (log_norm > d->grad_level + log(limits->grad_explosion)) return HY_GRAD_EXPLODED;
    if (log_norm < d->grad_level + log(limits->grad_vanishing)) return HY_GRAD_VANISHED;
    return HY_HEALTHY;
}

hy_health hy_divergence_observe(hy_divergence *d, const hy_divergence_limits *limits, double loss,
                                double grad_norm) {
    if (!isfinite(loss) || !isfinite(grad_norm)) return HY_NOT_FINITE;
    double log_norm = log(fmax(grad_norm, 1e-300));
    hy_health health = judge(d, limits, loss, log_norm);
    if (health != HY_HEALTHY) return health;
    d->count++;
    double share = 1 / fmin((double)d->count, MEMORY);
    double off = loss - d->loss_mean;
    d->loss_mean += share * off;
    d->loss_variance = (1 - share) * (d->loss_variance + share * off * off);
    d->grad_level += share * (log_norm - d->grad_level);
    return HY_HEALTHY;
}

double hy_loss_limit(const hy_loss_bound *b, double factor, double uniform) {
    if (b->seen == 0 || factor <= 0) return INFINITY;
    double start = fmax(b->first, fmin(b->early, uniform + 1));
    return fmax(factor * start, start + BOUND_NATS);
}

void hy_loss_bound_observe(hy_loss_bound *b, double factor, double uniform, double loss) {
    bool is_well = isfinite(loss) && loss <= hy_loss_limit(b, factor, uniform);
    b->above = is_well ? 0 : b->above + 1;
    if (!isfinite(loss) || b->seen >= EARLY_STEPS) return;
    if (b->seen == 0) b->first = loss;
    b->early += (loss - b->early) / (double)++b->seen;
}
