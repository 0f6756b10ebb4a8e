/* schedule.c: learning-rate schedules. See schedule.h. */
#include "optim/schedule.h"

#include <math.h>

/* The fraction of the way from `begin` to the end that is done at a step. */
static double part_of(const hy_schedule *s, double begin, int64_t step) {
    double span = (double)s->total - begin;
    double part = span > 0 ? ((double)step - begin) / span : 1;
    return part < 0 ? 0 : part > 1 ? 1 : part;
}

static double cooldown_left(const hy_schedule *s, int64_t step) {
    double begin = fmax((double)s->warmup, (double)s->total * (1 - s->cooldown));
    double part = part_of(s, begin, step);
    return 1 - (s->cooldown_shape == HY_COOLDOWN_LINEAR ? part : sqrt(part));
}

/* Without a warm-up as a time scale, a tenth of the run is flat; otherwise the curve would lose
 * nine tenths of the rate within a hundred steps. */
static double inverse_sqrt(const hy_schedule *s, int64_t step) {
    double scale = s->warmup > 0 ? (double)s->warmup : 0.1 * (double)s->total;
    double at = (double)(step < s->total ? step : s->total);
    return at > scale ? sqrt(scale / at) : 1;
}

/* The share of the decay that is left, from 1 to 0. */
static double remaining(const hy_schedule *s, int64_t step) {
    double warmup = (double)s->warmup;
    switch (s->kind) {
    case HY_SCHEDULE_LINEAR: return 1 - part_of(s, warmup, step);
    case HY_SCHEDULE_COSINE: return 0.5 * (1 + cos(M_PI * part_of(s, warmup, step)));
    case HY_SCHEDULE_WSD: return s->cooldown > 0 ? cooldown_left(s, step) : 1;
    case HY_SCHEDULE_INVERSE_SQRT:
    case HY_SCHEDULE_CONSTANT: break;
    }
    return 1;
}

double hy_schedule_rate(const hy_schedule *s, int64_t step) {
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    if (s->kind == HY_SCHEDULE_INVERSE_SQRT)
        return s->lr * fmax(s->min_ratio, inverse_sqrt(s, step));
    return s->lr * (s->min_ratio + (1 - s->min_ratio) * remaining(s, step));
}
