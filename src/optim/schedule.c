/* schedule.c: learning-rate schedules. See schedule.h. */
#include "optim/schedule.h"

#include <math.h>

/* Share of the decay that is left at `progress` in [0, 1]: from 1 down to 0. */
static double remaining(const hy_schedule *s, double progress) {
    switch (s->kind) {
    case HY_SCHEDULE_LINEAR: return 1 - progress;
    case HY_SCHEDULE_COSINE: return 0.5 * (1 + cos(M_PI * progress));
    case HY_SCHEDULE_WSD: {
        if (s->cooldown <= 0) return 1;
        double into = (progress - (1 - s->cooldown)) / s->cooldown;
        return into <= 0 ? 1 : 1 - sqrt(into);
    }
    case HY_SCHEDULE_CONSTANT: break;
    }
    return 1;
}

double hy_schedule_rate(const hy_schedule *s, int64_t step) {
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    int64_t span = s->total - s->warmup;
    double progress = span > 0 ? (double)(step - s->warmup) / (double)span : 1;
    if (progress > 1) progress = 1;
    return s->lr * (s->min_ratio + (1 - s->min_ratio) * remaining(s, progress));
}
