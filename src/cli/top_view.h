/* top_view.h: what a page shows of one run, worked out from its lines.
 *
 * Pure: a run and the time of day go in, figures come out; no clock and no terminal. Text of the run
 * is safe to show. A view points into its run and lives until the run is refreshed or closed. */
#ifndef HY_CLI_TOP_VIEW_H
#define HY_CLI_TOP_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "hybrid_report.h"

typedef enum hy_top_state {
    HY_TOP_WAITING,  /* no step yet */
    HY_TOP_RUNNING,  /* lines come as fast as its steps take */
    HY_TOP_LATE,     /* the next line is overdue, but a validation or a checkpoint may be why */
    HY_TOP_STALLED,  /* far longer than that */
    HY_TOP_STOPPED,  /* ended in order before its last step */
    HY_TOP_FINISHED, /* ended after its last step */
    HY_TOP_STATES
} hy_top_state;

#define HY_TOP_TEXT 160

typedef struct hy_top_view {
    const hy_run *run; /* NULL: there are no metrics yet */
    const hy_run_facts *facts;
    const hy_run_point *last; /* NULL: no step yet */
    char name[HY_TOP_TEXT], model[HY_TOP_TEXT], device[HY_TOP_TEXT], data[HY_TOP_TEXT];
    char predictor[HY_TOP_TEXT], folder[HY_TOP_TEXT];

    hy_top_state state;
    double age;          /* seconds since the newest line; NaN: not known */
    double step_seconds; /* what a step takes, lately; NaN: not known */

    int64_t steps;                    /* expected in all; 0: not known */
    double share, elapsed, remaining; /* share done 0 to 1; seconds; NaN: not known */
    int64_t kept, rejected, undone;   /* moves; undone: of those kept, given up later */
    int64_t skipped;                  /* steps without an update */
    double predicted_steps;           /* that the kept moves stand for */
    double loss;                      /* smoothed as hybrid-train shows it */
    double held_out, best_held_out;   /* the latest and the lowest; NaN: none */
    int64_t held_out_step;            /* of the latest */
    double wait_share;                /* of the time, lately, spent waiting for copies */
} hy_top_view;

/* `now`: unix seconds. */
void hy_top_look(const hy_run *run, double now, bool is_utf8, hy_top_view *out);

/* A folder that has no metrics yet: a view of a run that waits for its first step. */
void hy_top_look_at_nothing(const char *folder, bool is_utf8, hy_top_view *out);

/* The state in words: "running, last line 0.8 s ago"; into `text`. */
void hy_top_state_text(const hy_top_view *view, char *text, size_t size);

#endif
