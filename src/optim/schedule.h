/* schedule.h: the learning rate as a pure function of the step.
 *
 * Warm-up rises in equal steps from lr/warmup to lr; then constant, linear, cosine, or wsd (warm-up,
 * stable, decay: constant until the last `cooldown` of the run, then 1 - sqrt). The last step of a
 * decaying schedule ends near lr * min_ratio. */
#pragma once

#include "hybrid_types.h"

typedef enum hy_schedule_kind {
    HY_SCHEDULE_CONSTANT,
    HY_SCHEDULE_LINEAR,
    HY_SCHEDULE_COSINE,
    HY_SCHEDULE_WSD
} hy_schedule_kind;

typedef struct hy_schedule {
    hy_schedule_kind kind;
    double lr, min_ratio, cooldown;
    int64_t warmup, total; /* steps */
} hy_schedule;

/* The rate of step `step`, counted from 0; steps past the end keep the last rate. */
double hy_schedule_rate(const hy_schedule *schedule, int64_t step);
