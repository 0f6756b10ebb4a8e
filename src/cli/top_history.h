/* top_history.h: a run's past as series that fit a page: losses, speeds, phases, what happened.
 *
 * Like the view it is made from, pure and safe to show. */
#ifndef HY_CLI_TOP_HISTORY_H
#define HY_CLI_TOP_HISTORY_H

#include "cli/top_view.h"

/* Losses of the whole run over `columns` columns, the mean of each one's steps, NaN where there is
 * none; fewer columns where there are fewer steps. Returns how many. *low and *high: a range that
 * shows what came after the first steep tenth; NaN: no loss is known. */
int hy_top_losses(const hy_top_view *view, double *values, int columns, double *low, double *high);

/* Tokens per second of the latest steps, one each. Returns how many; *high: the most. */
int hy_top_speeds(const hy_top_view *view, double *values, int columns, double *high);

/* One cell of a strip of phases: the most notable of the lines it stands for. */
typedef struct hy_top_phase_cell {
    hy_phase phase;
    bool was_rejected;
} hy_top_phase_cell;

/* Phases of the latest lines. Up to eight lines share a cell where that brings a second move into
 * view. Returns how many cells; *lines: how many lines they stand for. */
int hy_top_phases(const hy_top_view *view, hy_top_phase_cell *cells, int columns, int64_t *lines);

/* A thing that happened. */
typedef struct hy_top_happening {
    const char *kind; /* of an event, or "rejected", "undone", "skipped"; the run's or ours */
    char text[HY_TOP_TEXT];
    int64_t step;
    double elapsed; /* of the run's own time, seconds */
} hy_top_happening;

/* The latest `most`, newest first. Returns how many. */
int hy_top_happenings(const hy_top_view *view, bool is_utf8, hy_top_happening *out, int most);

#endif
