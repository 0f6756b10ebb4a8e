/* confidence.c: log-odds, updated by paired tests (forks). See confidence.h. */
#include "phases/confidence.h"

#include <math.h>

/* With any optimizer. One strong fork raises confidence from here to 0.87, above the default
 * threshold. */
#define PRIOR_FINE_TUNING 0.25
#define MOST_PER_FORK 3.0 /* so that later forks can reverse the result of one */
#define MOST_LOG_ODDS 4.0

static double log_odds_of(double p) { return log(p / (1 - p)); }

hy_confidence hy_confidence_prior(hy_regime regime, double from_scratch) {
    double prior = regime == HY_FROM_SCRATCH ? from_scratch : PRIOR_FINE_TUNING;
    return (hy_confidence){.log_odds = log_odds_of(prior)};
}

double hy_confidence_value(const hy_confidence *c) { return 1 / (1 + exp(-c->log_odds)); }

void hy_confidence_fork(hy_confidence *c, double gain, double error) {
    c->forks++;
    if (!isfinite(gain) || !(error > 0)) {
        c->log_odds = -MOST_LOG_ODDS; /* the arm with jumps diverged */
        return;
    }
    /* Two hypotheses, a gain of +error and of -error: the log likelihood ratio is 2 gain /
     * error. */
    c->gain_sum += gain;
    c->log_odds += fmax(-MOST_PER_FORK, fmin(MOST_PER_FORK, 2 * gain / error));
    c->log_odds = fmax(-MOST_LOG_ODDS, fmin(MOST_LOG_ODDS, c->log_odds));
}
