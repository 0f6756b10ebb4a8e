/* schedule.c: learning-rate schedules. See schedule.h. */
#include "optim/schedule.h"

#include <math.h>

/* How far a step is from `begin` to the end, in [0, 1]. */
static double part_of(const hy_schedule *s, double begin, int64_t step) {
    double span = (double)s->total - begin;
    double part = span > 0 ? ((double)step - begin) / span : 1;
    return part < 0 ? 0 : part > 1 ? 1 : part;
}

/* Share of the decay that is left: from 1 down to 0. */
static double remaining(const hy_schedule *s, int64_t step) {
    double warmup = (double)s->warmup, total = (double)s->total;
    switch (s->kind) {
    case HY_SCHEDULE_LINEAR: return 1 - part_of(s, warmup, step);
    case HY_SCHEDULE_COSINE: return 0.5 * (1 + cos(M_PI * part_of(s, warmup, step)));
    case HY_SCHEDULE_WSD:
        if (s->cooldown <= 0) return 1;
        return 1 - sqrt(part_of(s, fmax(warmup, total * (1 - s->cooldown)), step));
    case HY_SCHEDULE_CONSTANT: break;
    }
    return 1;
}

double hy_schedule_rate(const hy_schedule *s, int64_t step) {
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    return s->lr * (s->min_ratio + (1 - s->min_ratio) * remaining(s, step));
}
