/* hybrid_report.h: what runs wrote, read back: for reports, live views and tools of your own.
 *
 * A run is read from its folder (metrics.jsonl, plan.json, summary.json, config.cfg), finished or still
 * going on, without disturbing it. hy_run_refresh reads what was added since; a run that was resumed and
 * dropped lines is read anew. Lines that nobody understands are counted, never fatal.
 *
 *     hy_run *run;
 *     if (hy_run_open("runs/mine", &run) != HY_OK) ...
 *     for (size_t i = 0; i < hy_run_points(run); i++) use(hy_run_point_at(run, i)->loss);
 *     hy_report_write((const hy_run *const[]){run}, 1, "report.html");
 *     hy_run_close(run);
 *
 * Pointers live until the next refresh or close. */
#ifndef HYBRID_REPORT_H
#define HYBRID_REPORT_H

#include <stdbool.h>

#include "hybrid_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hy_run hy_run;

/* A line of a step. NaN, and -1 for counts, where the line does not say. */
typedef struct hy_run_point {
    int64_t step, tokens;
    hy_phase phase;
    double loss, val_loss, lr, grad_norm;
    double tokens_per_second, seconds, elapsed, spent, wait_seconds;
    double confidence, predicted_steps, residual_cosine, mfu;
    bool was_rejected, was_rolled_back, was_skipped;
    int64_t batch_size, grad_accum, bytes_moved;
    int64_t vram_bytes, vram_peak_bytes, vram_reserved_bytes, vram_free_bytes, vram_planned_bytes;
    int64_t host_pinned_bytes, host_resident_bytes;
    int64_t device[HY_CLASS_COUNT], pinned[HY_CLASS_COUNT]; /* live bytes by class; 0: none */
    int memory_status;  /* 0 normal, 1 warning, 2 critical, 3 emergency; -1: not told */
    const char *reason; /* why this phase began here; "" where it only went on */
    double gpu_power_watts, gpu_temperature_c, gpu_utilization;
} hy_run_point;

/* A line of anything else. */
typedef struct hy_run_event {
    const char *kind; /* "start", "batch", "memory", "recovery", "plan"; later ones may follow */
    const char *text; /* one sentence; of a start: its command */
    int64_t step;
    double elapsed;
    size_t points_before; /* how many steps' lines stand above it */
} hy_run_event;

/* What is known of the run as a whole; "" and NaN, -1 or 0 where it is not. */
typedef struct hy_run_facts {
    const char *folder, *name; /* name: the folder's last part */
    const char *model, *device, *data, *predictor, *command, *config, *version;
    int64_t parameters, steps_total, tokens_per_step, seq_len;
    bool is_own; /* a model or loop of the caller's own: its steps are counted in micro-batches */
    bool has_tokens;      /* false: own, and nobody said what its losses are means of */
    double thresholds[4]; /* target, warning, critical, emergency */
    int64_t vram_budget_bytes, host_budget_bytes;
    double began;              /* unix seconds of the first start */
    double changed;            /* unix seconds of the newest line */
    bool is_finished;          /* nobody works on it: summary.json tells of the newest line */
    bool is_complete;          /* finished, and not stopped before its last step */
    size_t lines_unreadable;   /* skipped */
    int64_t ranks, zero_stage; /* of several ranks, now; -1: there is one */
    const char *transport;     /* between them: "sockets", "MPI", "NCCL" */
} hy_run_facts;

/* `folder` is a run's folder or its metrics.jsonl; HY_ERR_INPUT where that does not exist. A folder without
 * metrics is a run that has not begun: it has no points, and a refresh finds them. */
hy_status hy_run_open(const char *folder, hy_run **out);
void hy_run_close(hy_run *run); /* may be NULL */
/* Reads what was added. *has_changed (may be NULL): anything is new. After a failure the run is as far
 * as it came, and may be refreshed again. */
hy_status hy_run_refresh(hy_run *run, bool *has_changed);

const hy_run_facts *hy_run_describe(const hy_run *run); /* of NULL: nothing is known */
size_t hy_run_points(const hy_run *run);
const hy_run_point *hy_run_point_at(const hy_run *run, size_t i);
size_t hy_run_events(const hy_run *run);
const hy_run_event *hy_run_event_at(const hy_run *run, size_t i);

/* What steps cost a rank, where there are several: in all steps since there are as many ranks, or in the latest.
 * False: there is none of that number. */
bool hy_run_rank(const hy_run *run, int32_t rank, bool is_latest, hy_rank_cost *out);

/* Planned bytes of a class at a place in a phase, from plan.json or else summary.json; 0: none is planned
 * there; -1: no plan is known. */
int64_t hy_run_planned_bytes(const hy_run *run, hy_phase phase, hy_place place, hy_class cls);

/* One self-contained page about one run, or several laid over each other. Whole or not written. */
hy_status hy_report_write(const hy_run *const *runs, int count, const char *path);

#ifdef __cplusplus
}
#endif
#endif
