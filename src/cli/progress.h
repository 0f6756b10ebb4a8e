/* progress.h: shows the progress of a run.
 *
 * On a terminal, one line is redrawn at most about ten times per second; otherwise a few plain
 * lines are printed. Only the library's observer callbacks drive it. With --quiet the observer is
 * empty. */
#pragma once

#include "cli/terminal.h"
#include "hybrid.h"

hy_cli_colour hy_cli_phase_colour(hy_phase phase);

#define HY_CLI_SHOWN_MAX 16

typedef struct hy_cli_progress {
    const hy_cli_terminal *terminal;
    uint64_t checkpoint_bytes; /* for the expected disk traffic; 0: nothing is written */
    int64_t save_every;
    double save_minutes;
    bool saves_best; /* also at a new lowest held-out loss */

    int drawn_columns; /* width of the line on the screen; 0: none */
    double drawn_at;   /* clock, seconds */

    bool has_step;
    hy_step_info step;  /* the latest step; its reason is not kept */
    int64_t first_step; /* of this session */
    bool has_shown_time;
    const char *shown[HY_CLI_SHOWN_MAX]; /* reasons for phases that were already shown */
    int shown_count;

    int64_t printed_step; /* plain lines: the step of the newest line */
    double printed_at;

    char work[64]; /* other work in progress; "": none */
    double work_shown_at;
} hy_cli_progress;

/* The terminal must outlive the progress; the progress must outlive the trainer that calls it. */
void hy_cli_progress_init(hy_cli_progress *progress, const hy_cli_terminal *terminal);
hy_observer hy_cli_progress_observer(hy_cli_progress *progress);

/* Draws the line of other long work: bar, per cent, description. */
void hy_cli_draw_work(hy_cli_progress *progress, const char *what, double fraction);

/* After the last step: keeps the last state on the screen and ends its line. */
void hy_cli_progress_finish(hy_cli_progress *progress);
