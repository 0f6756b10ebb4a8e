/* top_view.h: the figures that a page shows of one run, computed from its lines.
 *
 * Pure functions: a run and the time go in, figures come out; no clock and no terminal. Text of the
 * run is safe to print. A view points into its run and is valid until the run is refreshed or
 * closed. */
#pragma once

#include "hybrid_report.h"

typedef enum hy_top_state {
    HY_TOP_WAITING,  /* no step yet */
    HY_TOP_RUNNING,  /* lines arrive as fast as steps take */
    HY_TOP_LATE,     /* the next line is overdue; a validation or a checkpoint may be the reason */
    HY_TOP_STALLED,  /* overdue for much longer */
    HY_TOP_STOPPED,  /* ended normally before its last step */
    HY_TOP_FINISHED, /* ended after its last step */
    HY_TOP_STATES
} hy_top_state;

#define HY_TOP_TEXT 160

typedef struct hy_top_view {
    hy_run *run;
    const hy_run_facts *facts;
    const hy_run_point *last; /* NULL: no step yet */
    char name[HY_TOP_TEXT], model[HY_TOP_TEXT], device[HY_TOP_TEXT], data[HY_TOP_TEXT];
    char predictor[HY_TOP_TEXT], folder[HY_TOP_TEXT], transport[HY_TOP_TEXT];

    hy_top_state state;
    double age;          /* seconds since the newest line; NaN: not known */
    double step_seconds; /* recent time per step; NaN: not known */

    int64_t steps;                    /* expected total; 0: not known */
    double share, elapsed, remaining; /* share done from 0 to 1; seconds left; NaN: not known */
    int64_t kept, rejected, undone;   /* jumps; undone: accepted, but undone later */
    int64_t skipped;                  /* steps without an update */
    double predicted_steps;           /* predicted steps of the accepted jumps */
    double loss;                      /* of the latest step that has one */
    double held_out, best_held_out;   /* the latest and the lowest; NaN: none */
    int64_t held_out_step;            /* step of the latest */
    double wait_share;                /* share of recent time spent waiting for copies */
} hy_top_view;

/* Describes the state in words, in `text`: "running, last line 0.8 s ago". */
void hy_top_state_text(const hy_top_view *view, char *text, size_t size);

/* Losses of the whole run in `columns` columns: the mean of the steps in each, NaN if there are
 * none; fewer columns if there are fewer steps. Returns their number. *low and *high: a range for
 * everything after the first, steep tenth; NaN: no loss is known. */
int hy_top_losses(const hy_top_view *view, double *values, int columns, double *low, double *high);

/* Recent tokens per second; steps per second if tokens are not reported. NaN: not known. */
double hy_top_speed(const hy_top_view *view);
/* The speeds of the latest steps. Returns their number; *high: the largest. */
int hy_top_speeds(const hy_top_view *view, double *values, int columns, double *high);

/* A rank in its latest steps. */
typedef struct hy_top_rank {
    int32_t rank;
    const char *what;         /* "slowest", "median", "waits most"; "" */
    hy_rank_cost info;        /* memory and bytes: -1 if not known */
    double waited, exchanged; /* shares of its step time; exchanged is NaN if it was not timed */
} hy_top_rank;

/* The ranks of a run: all of them if there are at most `most`; else the slowest, the median and the
 * one that waits most, up to `most`. Sorted by the time they work in a step, without waiting.
 * Returns their number; *slowest: the slowest rank; memory: least and most. */
#define HY_TOP_RANKS_ALL 8 /* up to this many ranks are shown one by one, more as extremes */
int hy_top_ranks(const hy_top_view *view, hy_top_rank *out, int most, hy_top_rank *slowest,
                 double memory[2]);
/* The number of ranks; 0: there is only one, or none are reported. */
int hy_top_rank_count(const hy_top_view *view);

/* The phases of the latest lines: each cell is the most notable of its lines. Up to eight lines
 * share a cell if this shows a second jump. Returns the number of cells; *lines: the number of
 * lines in them. */
int hy_top_phases(const hy_top_view *view, const hy_run_point **cells, int columns, int64_t *lines);

/* An event of the run. */
typedef struct hy_top_event {
    /* name of an event, or "rejected", "undone", "skipped"; the run's text or ours */
    const char *kind;
    char text[HY_TOP_TEXT];
    int64_t step;
} hy_top_event;

/* The latest `most` events, newest first. Returns their number. */
int hy_top_events(const hy_top_view *view, bool is_utf8, hy_top_event *out, int most);

typedef struct hy_top_runs {
    int count;
    hy_top_view *views; /* one view per run, from the latest refresh */
    bool is_utf8;
    char problem[256]; /* why the latest refresh of a run failed; "": it succeeded */
} hy_top_runs;

/* Opens the named runs, or the newest run in runs/ if count is 0. Returns HY_EXIT_DONE, or the exit
 * code of a failure, which was printed. Call hy_top_runs_close in both cases. */
int hy_top_runs_open(hy_top_runs *runs, const char *const *folders, int count, bool is_utf8);
void hy_top_runs_close(hy_top_runs *runs);

/* Reads the new lines of each run and updates its view. `now`: unix seconds. */
void hy_top_runs_refresh(hy_top_runs *runs, double now);
