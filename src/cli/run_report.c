/* run_report.c: OUT/report.html, written when a run is over. See run_report.h.
 *
 * The page is made from the files in the folder, exactly as hybrid-report makes it. */
#include "cli/run_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hybrid.h"
#include "hybrid_report.h"

/* A run that failed before it wrote anything has nothing to show: *is_written stays false. */
static hy_status write_page(const char *folder, const char *path, bool *is_written) {
    hy_run *run;
    hy_status status = hy_run_open(folder, &run);
    *is_written = false;
    if (status != HY_OK) return status == HY_ERR_INPUT ? HY_OK : status;
    bool has_lines = hy_run_points(run) > 0 || hy_run_events(run) > 0;
    if (has_lines) status = hy_report_write((const hy_run *const[]){run}, 1, path);
    hy_run_close(run);
    *is_written = has_lines && status == HY_OK;
    return status;
}

void hy_cli_write_report(const hy_cli_terminal *terminal, const char *folder) {
    static const char name[] = "/report.html";
    size_t size = strlen(folder) + sizeof name;
    bool is_written;
    if (folder[0] == '\0') return;
    char *path = malloc(size);
    if (path == NULL) {
        hy_cli_warning("there is no report: out of memory");
        return;
    }
    snprintf(path, size, "%s%s", folder, name);
    if (write_page(folder, path, &is_written) != HY_OK) {
        hy_cli_warning("there is no report: %s", hy_error_message());
    } else if (is_written && !terminal->is_quiet) {
        fprintf(terminal->out, "look at it:  %s\n", path);
    }
    free(path);
}
