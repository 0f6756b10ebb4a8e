/* work.h: a run to time: a preset on random tokens, without files and prediction. */
#ifndef BENCH_GPU_THROUGHPUT_WORK_H
#define BENCH_GPU_THROUGHPUT_WORK_H

#include "trainer/trainer.h"

#define GT_STEPS_MAX 256

typedef struct gt_options {
    const char *device, *model, *precision, *recompute, *tune, *tune_cache, *attention,
        *loss_chunks;           /* recompute NULL: from the settings */
    const char *settings[2];    /* "key=value key=value", may be NULL */
    int64_t batch, seq, tokens; /* tokens: per optimizer step; batch 0: chosen by the planner */
    int warmup, steps;
    bool
        /* the host initialises the weights, as in a normal run: slow for large models */
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
    hy_summary summary;     /* as at the start */
    double seconds_to_open; /* data, device, tuning, memory, weights */
    /* Of the last timed step: */
    double seconds, waited;
    uint64_t bytes_moved;
} gt_work;

hy_status gt_work_open(gt_work *work, const gt_options *options);
void gt_work_close(gt_work *work);

/* Times optimizer steps after the warm-up. */
hy_status gt_time_steps(gt_work *work, gt_seconds *out);
/* Times forward-only passes over as many tokens as a step has, as in Predict. */
hy_status gt_time_forward(gt_work *work, gt_seconds *out);

/* Bytes in use on the card by all programs, reported by the driver; 0 if unknown. */
uint64_t gt_card_bytes(void);

#endif
