/* hybrid_report.h: reads the files of runs, for reports, live views and your own tools.
 *
 * The functions read the folder of a run (metrics.jsonl, plan.json, summary.json, config.cfg). The
 * run may be finished or still running; it is not disturbed. hy_run_refresh reads the lines that
 * were added since. Lines that cannot be parsed are counted and skipped.
 *
 *     hy_run *run;
 *     if (hy_run_open("runs/mine", &run) != HY_OK) ...
 *     for (size_t i = 0; i < hy_run_points(run); i++) use(hy_run_point_at(run, i)->loss);
 *     hy_report_write((const hy_run *const[]){run}, 1, "report.html");
 *     hy_run_close(run);
 *
 * Pointers that these functions return belong to the run and are valid until the next refresh or
 * close. `size` in structs: see hybrid_types.h. */
#ifndef HYBRID_REPORT_H
#define HYBRID_REPORT_H

#include <stdbool.h>

#include "hybrid_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hy_run hy_run;

/* A step or a jump: one line of metrics.jsonl. NaN, and -1 for integers, where the line has no
 * value. */
typedef struct hy_run_point {
    size_t size;
    int64_t step, tokens;
    hy_phase phase;
    double loss, val_loss, lr, grad_norm;
    double tokens_per_second, seconds, elapsed, spent, wait_seconds;
    double confidence, predicted_steps, residual_cosine, mfu;
    bool was_rejected, was_rolled_back, was_skipped;
    int64_t batch_size, grad_accum, bytes_moved;
    int64_t vram_bytes, vram_peak_bytes, vram_reserved_bytes, vram_free_bytes, vram_planned_bytes;
    int64_t host_pinned_bytes, host_resident_bytes;
    int64_t device[HY_CLASS_SLOTS], pinned[HY_CLASS_SLOTS]; /* live bytes by class */
    int memory_status;  /* 0 normal, 1 warning, 2 critical, 3 emergency; -1: not known */
    const char *reason; /* why this phase began here; "": the phase has not changed */
    double gpu_power_watts, gpu_temperature_c, gpu_utilization;
    /* shares of the rows of eval.eval_rows with their standard errors, see hy_row_scores */
    double accuracy, accuracy_error, accuracy_norm, accuracy_norm_error;
    double greedy_accuracy, greedy_accuracy_error, answer_loss;
    /* pairs of answers: see hy_step_info, hy_row_scores */
    double train_pair_accuracy, train_reward_chosen, train_reward_rejected;
    double pair_accuracy, pair_accuracy_error, reward_margin;
    /* answers with rewards: see hy_step_info, hy_row_scores */
    hy_reward_figures rewards;
    double val_reward, val_reward_error;
} hy_run_point;

/* Any other line of metrics.jsonl. */
typedef struct hy_run_event {
    size_t size;
    const char *kind; /* "start", "batch", "memory", "recovery", "plan"; others may be added */
    const char *text; /* one sentence; for a start: its command */
    int64_t step;
    double elapsed;
    size_t points_before; /* number of points before this event */
} hy_run_event;

/* The run as a whole. Unknown values are "", NaN, -1 or 0. */
typedef struct hy_run_facts {
    size_t size;
    const char *folder, *name; /* name: the last part of the folder's path */
    const char *model, *device, *data, *predictor, *command, *config, *version;
    int64_t parameters, steps_total, tokens_per_step, seq_len;
    bool is_custom;       /* a custom model or loop: its steps are counted in micro-batches */
    bool has_tokens;      /* false: custom, and the program never reported token counts */
    double thresholds[4]; /* of memory use: target, warning, critical, emergency */
    int64_t vram_budget_bytes, host_budget_bytes;
    double began;              /* unix seconds of the first start */
    double changed;            /* unix seconds of the newest line */
    bool is_finished;          /* the run has ended: summary.json includes the newest line */
    bool is_complete;          /* finished, and not stopped before its last step */
    size_t lines_unreadable;   /* lines that were skipped */
    int64_t ranks, zero_stage; /* -1: a single rank */
    const char *transport;     /* between ranks: "sockets", "MPI", "NCCL" */
    bool is_own;               /* old name of is_custom, until version 0.3 */
    const char *row_format;    /* as in hy_summary; "": no rows */
    const char *row_losses;
} hy_run_facts;

/* `folder` is the folder of a run, or its metrics.jsonl; HY_ERR_INPUT when that does not exist. A
 * folder without metrics is a run that has not begun: it has no points yet. */
hy_status hy_run_open(const char *folder, hy_run **out);
void hy_run_close(hy_run *run); /* NULL is allowed */
/* The newest run in the folder `runs` ("runs" for all programs): the one with the latest line in
 * metrics.jsonl; a run that has not begun counts by its config.cfg. HY_ERR_INPUT: there is none. */
hy_status hy_run_newest(const char *runs, char *path, size_t size);
/* Reads the lines that were added since the last call. *has_changed (may be NULL): there were any.
 * After a failure the handle keeps what it has read, and may be refreshed again. */
hy_status hy_run_refresh(hy_run *run, bool *has_changed);

const hy_run_facts *hy_run_describe(const hy_run *run); /* for NULL: all values unknown */
size_t hy_run_points(const hy_run *run);
const hy_run_point *hy_run_point_at(const hy_run *run, size_t i);
size_t hy_run_events(const hy_run *run);
const hy_run_event *hy_run_event_at(const hy_run *run, size_t i);

/* Cost of steps on a rank: over all steps with the current number of ranks, or only over the latest
 * steps (is_latest). False: there is no such rank. */
static inline bool hy_run_rank(const hy_run *run, int32_t rank, bool is_latest, hy_rank_cost *out);

/* Planned bytes of a class at a place in a phase, from plan.json or else summary.json. 0: none
 * planned there; -1: no plan is known. */
int64_t hy_run_planned_bytes(const hy_run *run, hy_phase phase, hy_place place, hy_class cls);

/* Writes one self-contained HTML page about one run, or about several runs in the same charts. An
 * incomplete file is never left at `path`. */
hy_status hy_report_write(const hy_run *const *runs, int count, const char *path);

/* ---- calls that pass the size of your struct: see hybrid_types.h ----------------------------- */

bool hy_run_rank_sized(const hy_run *run, int32_t rank, bool is_latest, hy_rank_cost *out,
                       size_t size);
static inline bool hy_run_rank(const hy_run *run, int32_t rank, bool is_latest, hy_rank_cost *out) {
    return hy_run_rank_sized(run, rank, is_latest, out, sizeof *out);
}

#ifdef __cplusplus
}
#endif
#endif
