/* metrics.h: the lines of metrics.jsonl, each key described once.
 *
 * The file has a line for each step or jump, and a line with the key "event" for what happens between
 * them. Whoever writes them, whoever reads them back, TensorBoard's files and the charts of a report follow
 * the rows of metrics.c: a metric is a row there, its field in hy_step_info and, where readers use it, its
 * field in hy_run_point. */
#pragma once

#include "formats/fields.h"
#include "hybrid.h"
#include "hybrid_report.h"
#include "report/rank_figures.h"

/* When a key of a step's line applies. */
#define HY_IF_JUMP (HY_IF_TABLE << 0)      /* the line is of a jump in Predict */
#define HY_IF_GPU (HY_IF_TABLE << 1)       /* the driver says how the card does */
#define HY_IF_MONITORED (HY_IF_TABLE << 2) /* memory.monitor is on */
#define HY_IF_OWN (HY_IF_TABLE << 3)       /* the model is the caller's */

/* What the line of a step or a jump is made of. */
typedef struct hy_step_line {
    hy_step_info step;
    double val_loss;                  /* NaN: none */
    double guard_before, guard_after; /* own models: the guard's losses around a jump */
    double loss_scale;                /* own models; NaN: none */
    hy_layer_values fp8_largest, fp8_zeros, fp8_grad_largest, fp8_grad_zeros;
    /* Of each rank, where there are several: seconds of the step, waiting among them, the link in use, bytes sent, the
     * most that was live on its device. */
    hy_layer_values rank_seconds, rank_waited, rank_exchanged, rank_bytes, rank_memory;
    /* The most that was live of each class since the step began, bytes. */
    uint64_t device[HY_CLASS_COUNT], pinned[HY_CLASS_COUNT];
} hy_step_line;

/* What it is read into: what others see of it comes first. */
typedef struct hy_point_line {
    hy_run_point point;
    hy_values of_ranks[HY_RANK_FIGURES];
} hy_point_line;

/* What is known when a session begins; what is NULL or 0 is left out. */
typedef struct hy_start_line {
    double time; /* unix seconds */
    const char *version, *command, *model, *device, *data, *predictor, *resumed;
    int64_t parameters, steps_total, tokens_per_step, seq_len, batch_size, grad_accum;
    uint64_t vram_budget_bytes, host_budget_bytes;
    int64_t ranks, zero_stage; /* of several; else zero_stage is -1 */
    const char *transport;     /* between them */
    double thresholds[4];      /* target, warning, critical, emergency */
} hy_start_line;

extern const hy_field hy_step_fields[]; /* from hy_step_line into hy_point_line */
extern const size_t hy_step_field_count;
extern const hy_field hy_start_fields[]; /* from hy_start_line into hy_run_facts */
extern const size_t hy_start_field_count;

/* Which of the conditions above hold, but for HY_IF_MONITORED and HY_IF_OWN. */
unsigned hy_step_conditions(const hy_step_info *step);
/* The row of a step's key; NULL: there is none. */
const hy_field *hy_step_field(const char *key);
