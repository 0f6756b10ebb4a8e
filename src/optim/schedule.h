/* schedule.h: the learning rate as a pure function of the step.
 *
 * Warm-up rises in equal steps from lr/warmup to lr. Then: constant, linear, cosine, wsd (warm-up,
 * stable, decay: constant until the last `cooldown` of the run, then 1 - sqrt or linear), or
 * inverse_sqrt (lr * sqrt(warmup / step), independent of the length of the run). A schedule that
 * ends with the run ends near lr * min_ratio; inverse_sqrt does not fall below that. */
#pragma once

#include "hybrid_types.h"

typedef enum hy_schedule_kind {
    HY_SCHEDULE_CONSTANT,
    HY_SCHEDULE_LINEAR,
    HY_SCHEDULE_COSINE,
    HY_SCHEDULE_WSD,
    HY_SCHEDULE_INVERSE_SQRT
} hy_schedule_kind;

/* The shape of wsd's decay: fast at first, or linear. */
typedef enum hy_cooldown_shape { HY_COOLDOWN_SQRT, HY_COOLDOWN_LINEAR } hy_cooldown_shape;

typedef struct hy_schedule {
    hy_schedule_kind kind;
    double lr, min_ratio, cooldown;
    hy_cooldown_shape cooldown_shape;
    int64_t warmup, total; /* in steps */
} hy_schedule;

/* The rate of step `step`, counted from 0; later steps keep the last rate. */
double hy_schedule_rate(const hy_schedule *schedule, int64_t step);
