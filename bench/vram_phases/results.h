/* results.h: the runs of vram_phases, models x profiles x types x ways, and their output.
 *
 * A run is shown as its placement table, planned and measured: a row per class, a column per phase.
 * The device bytes of a phase are those of its classes and, in Predict with lookahead, the
 * returning optimizer state, which is planned as backed by the host. */
#ifndef VP_RESULTS_H
#define VP_RESULTS_H

#include "phase_run.h"

#define VP_RUNS_MAX 48

typedef struct vp_run {
    char model[BENCH_WORD_MAX], profile[BENCH_WORD_MAX];
    char types[BENCH_WORD_MAX]; /* the requested precision level; "chosen": by the planner */
    char way[BENCH_WORD_MAX];   /* what is trained: "full", "lora" or "qlora" */
    phase_run run;
} vp_run;

typedef struct vp_results {
    vp_run runs[VP_RUNS_MAX]; /* model by model */
    int count;
} vp_results;

/* Device bytes of a phase in addition to those of its classes. */
int64_t vp_returning_planned(const hy_phase_summary *phase);
int64_t vp_returning_measured(const hy_phase_summary *phase);

/* The error of the plan: for a phase, and for the run. */
plan_error vp_device_error(const hy_phase_summary *phase);
plan_error vp_place_error(const hy_phase_summary *phase, hy_place place); /* pinned, host, disk */
plan_error vp_pinned_error(const phase_run *run);
plan_error vp_card_error(const phase_run *run); /* reported by the driver; nothing on a CPU */

/* Nothing is planned or measured in any phase: the row is empty. */
bool vp_is_class_used(const phase_run *run, hy_class cls);
bool vp_is_place_used(const phase_run *run, hy_place place);

/* Prints what is wrong in a vp_results: phases that did not occur, plans beyond the bar. Returns
 * their number. */
int vp_check(const void *results);

/* ---- types.c ---- */

#define VP_TYPES_CHOSEN "chosen" /* leaves types to the planner */

/* The settings of a precision level by its name: "key=value ...", "" for the planner's choice;
 * NULL: unknown name. */
const char *vp_types_settings(const char *name);
/* All precision levels, comma-separated, for a list that says "all". */
const char *vp_types_all(void);

#define VP_WAY_FULL "full" /* all parameters are trained */

/* The settings of a way of training by its name, as above; and all ways. */
const char *vp_way_settings(const char *name);
const char *vp_ways_all(void);

/* ---- table.c, results_json.c, svg.c ---- */

/* One line for each run: types, planned and measured. */
void vp_lines_print(const vp_results *results);

/* If several ways were run: the device bytes of every phase, side by side. */
void vp_ways_print(const vp_results *results);

void vp_table_print(const vp_run *run);
hy_status vp_json_write(const vp_results *results, const char *path);
hy_status vp_svg_write(const vp_results *results, const char *path);

#endif
