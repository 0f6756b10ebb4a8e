/* metrics.h: the lines of metrics.jsonl, with each key described once.
 *
 * The file has one line per step or jump, and a line with the key "event" for other events.
 * Writers, readers, TensorBoard files and the charts of a report all use the rows of metrics.c: a
 * metric is a row there, a field in hy_step_info and, if readers use it, a field in
 * hy_run_point. */
#pragma once

#include "formats/fields.h"
#include "hybrid.h"
#include "hybrid_report.h"
#include "report/rank_figures.h"

/* When a line of a step contains a key. */
#define HY_IF_JUMP (HY_IF_TABLE << 0)      /* the line is a jump in Predict */
#define HY_IF_GPU (HY_IF_TABLE << 1)       /* the driver reports figures of the card */
#define HY_IF_MONITORED (HY_IF_TABLE << 2) /* memory.monitor is on */
#define HY_IF_OWN (HY_IF_TABLE << 3)       /* for a custom model */

/* The source of the line of a step or a jump. */
typedef struct hy_step_line {
    hy_step_info step;
    double val_loss; /* NaN: none */
    hy_row_scores rows;
    /* custom models: the guard's losses before and after a jump */
    double guard_before, guard_after;
    double loss_scale; /* custom models; NaN: none */
    hy_layer_values fp8_largest, fp8_zeros, fp8_grad_largest, fp8_grad_zeros;
    /* Per rank, if there are several: seconds of the step, waiting time in it, time of the link in
     * use, bytes sent, peak memory on its device. */
    hy_layer_values rank_seconds, rank_waited, rank_exchanged, rank_bytes, rank_memory;
    /* Peak memory of each class since the step began, in bytes. */
    uint64_t device[HY_CLASS_COUNT], pinned[HY_CLASS_COUNT];
} hy_step_line;

/* What a line is read into; the public part comes first. */
typedef struct hy_point_line {
    hy_run_point point;
    hy_values of_ranks[HY_RANK_FIGURES];
} hy_point_line;

/* What is known when a session starts; NULL and 0 are left out. */
typedef struct hy_start_line {
    double time; /* unix seconds */
    const char *version, *command, *model, *device, *data, *predictor, *resumed;
    int64_t parameters, steps_total, tokens_per_step, seq_len, batch_size, grad_accum;
    uint64_t vram_budget_bytes, host_budget_bytes;
    int64_t ranks, zero_stage; /* several ranks; else zero_stage is -1 */
    const char *transport;     /* between ranks */
    double thresholds[4];      /* target, warning, critical, emergency */
} hy_start_line;

extern const hy_field hy_step_fields[]; /* from hy_step_line to hy_point_line */
extern const size_t hy_step_field_count;
#define HY_SCORE_FIELDS 12
extern const hy_field hy_score_fields[HY_SCORE_FIELDS]; /* those of hy_step_line.rows */
extern const hy_field hy_start_fields[];                /* from hy_start_line to hy_run_facts */
extern const size_t hy_start_field_count;

/* The conditions above that hold, except HY_IF_MONITORED and HY_IF_OWN. */
unsigned hy_step_conditions(const hy_step_info *step);
/* The row of a key in a step's line; NULL: none. */
const hy_field *hy_step_field(const char *key);
