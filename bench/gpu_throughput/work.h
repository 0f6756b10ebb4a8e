/* work.h: a run to be timed: a preset on tokens made up for it, nothing written, nothing
 * predicted. */
#ifndef BENCH_GPU_THROUGHPUT_WORK_H
#define BENCH_GPU_THROUGHPUT_WORK_H

#include "trainer/trainer.h"

#define GT_STEPS_MAX 256

typedef struct gt_options {
    const char *device, *model, *precision, *recompute, *tune, *tune_cache, *attention,
        *loss_chunks;           /* recompute NULL: as settings say */
    const char *settings[2];    /* "key=value key=value", may be NULL */
    int64_t batch, seq, tokens; /* tokens: of an optimizer step; batch 0: chosen by the planner */
    int warmup, steps;
    bool
        /* initial weights drawn as a run does it, on the host: slow for large models */
        has_host_init;
} gt_options;

/* Median, least and most of some seconds. */
typedef struct gt_seconds {
    double median, least, most;
} gt_seconds;

gt_seconds gt_describe(double *seconds, int count); /* sorts them */

typedef struct gt_work {
    gt_options options;
    char folder[64]; /* of the token file */
    hy_trainer *trainer;
    hy_summary summary;     /* as it was at the beginning */
    double seconds_to_open; /* data, device, tuning, memory, weights */
    /* Of one timed step, the last: */
    double seconds, waited;
    uint64_t bytes_moved;
} gt_work;

hy_status gt_work_open(gt_work *work, const gt_options *options);
void gt_work_close(gt_work *work);

/* Optimizer steps, after those that warm up. */
hy_status gt_time_steps(gt_work *work, gt_seconds *out);
/* Forward-only passes over as many tokens as a step has, as Predict makes them. */
hy_status gt_time_forward(gt_work *work, gt_seconds *out);

/* Bytes in use on the card by everybody, as the driver says; 0 when it does not say. */
uint64_t gt_card_bytes(void);

#endif
