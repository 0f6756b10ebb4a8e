/* top_view.h: what a page shows of one run, worked out from its lines.
 *
 * Pure: a run and the time of day go in, figures come out; no clock and no terminal. Text of the run
 * is safe to show. A view points into its run and lives until the run is refreshed or closed. */
#pragma once

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
    hy_run *run;
    const hy_run_facts *facts;
    const hy_run_point *last; /* NULL: no step yet */
    char name[HY_TOP_TEXT], model[HY_TOP_TEXT], device[HY_TOP_TEXT], data[HY_TOP_TEXT];
    char predictor[HY_TOP_TEXT], folder[HY_TOP_TEXT], transport[HY_TOP_TEXT];

    hy_top_state state;
    double age;          /* seconds since the newest line; NaN: not known */
    double step_seconds; /* what a step takes, lately; NaN: not known */

    int64_t steps;                    /* expected in all; 0: not known */
    double share, elapsed, remaining; /* share done 0 to 1; seconds; NaN: not known */
    int64_t kept, rejected, undone;   /* moves; undone: of those kept, given up later */
    int64_t skipped;                  /* steps without an update */
    double predicted_steps;           /* that the kept jumps stand for */
    double loss;                      /* smoothed as hybrid-train shows it */
    double held_out, best_held_out;   /* the latest and the lowest; NaN: none */
    int64_t held_out_step;            /* of the latest */
    double wait_share;                /* of the time, lately, spent waiting for copies */
} hy_top_view;

/* The state in words: "running, last line 0.8 s ago"; into `text`. */
void hy_top_state_text(const hy_top_view *view, char *text, size_t size);

/* Losses of the whole run over `columns` columns, the mean of each one's steps, NaN where there is
 * none; fewer columns where there are fewer steps. Returns how many. *low and *high: a range that
 * shows what came after the first steep tenth; NaN: no loss is known. */
int hy_top_losses(const hy_top_view *view, double *values, int columns, double *low, double *high);

/* Tokens per second, lately; steps where nobody tells tokens. NaN: not known. */
double hy_top_speed(const hy_top_view *view);
/* The same of the latest steps, one each. Returns how many; *high: the most. */
int hy_top_speeds(const hy_top_view *view, double *values, int columns, double *high);

/* A rank, as its latest steps went. */
typedef struct hy_top_rank {
    int32_t rank;
    const char *what;         /* "slowest", "median", "waits most"; "" */
    hy_rank_cost info;        /* memory and bytes: -1 where they are not known */
    double waited, exchanged; /* shares of its steps; exchanged is NAN where nobody timed it */
} hy_top_rank;

/* The ranks of a run, where there are several: all of them where `most` is enough, else the slowest, the median and the
 * one that waits most, as many of them as it is. By how long they work in a step, without waiting. Returns how many;
 * *slowest (may be NULL): that one; memory (may be NULL): the least and the most. */
#define HY_TOP_RANKS_ALL 8 /* that are shown one by one, and not their extremes */
int hy_top_ranks(const hy_top_view *view, hy_top_rank *out, int most, hy_top_rank *slowest,
                 double memory[2]);
/* How many there are; 0: the run is alone, or nothing was told of them. */
int hy_top_rank_count(const hy_top_view *view);

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
} hy_top_happening;

/* The latest `most`, newest first. Returns how many. */
int hy_top_happenings(const hy_top_view *view, bool is_utf8, hy_top_happening *out, int most);

typedef struct hy_top_runs {
    int count;
    hy_top_view *views; /* one of each, of the latest look */
    bool is_utf8;
    char problem[256]; /* why the latest look at a run failed; "": it did not */
} hy_top_runs;

/* Opens the named runs, or the newest below runs/ where count is 0. False: it has said what is wrong;
 * *is_input: and the named thing is wrong, not the machine. Either way hy_top_runs_close must follow. */
bool hy_top_runs_open(hy_top_runs *runs, const char *const *folders, int count, bool is_utf8,
                      bool *is_input);
void hy_top_runs_close(hy_top_runs *runs);

/* Reads what was added to each, and looks. `now`: unix seconds. */
void hy_top_runs_look(hy_top_runs *runs, double now);
