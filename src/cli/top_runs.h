/* top_runs.h: the runs that are watched, opened as soon as they can be and read on. */
#ifndef HY_CLI_TOP_RUNS_H
#define HY_CLI_TOP_RUNS_H

#include "cli/top_view.h"

#define HY_TOP_PATH_MAX 4096

typedef struct hy_top_runs {
    int count;
    const char **folders;
    hy_run **runs;      /* NULL where there are no metrics yet */
    hy_top_view *views; /* one of each, of the latest look */
    bool is_utf8;
    char newest[HY_TOP_PATH_MAX]; /* the run that was found where none was named */
    char problem[256];            /* why the latest look at a run failed; "": it did not */
} hy_top_runs;

/* Opens the named runs, or the newest below runs/ where count is 0. `folders` must outlive it. False:
 * it has said what is wrong; *is_input: and the named thing is wrong, not the machine. Either way
 * hy_top_runs_close must follow. */
bool hy_top_runs_open(hy_top_runs *runs, const char *const *folders, int count, bool is_utf8,
                      bool *is_input);
void hy_top_runs_close(hy_top_runs *runs);

/* Reads what was added to each, and looks. `now`: unix seconds. */
void hy_top_runs_look(hy_top_runs *runs, double now);

#endif
