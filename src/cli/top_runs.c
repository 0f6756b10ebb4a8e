/* top_runs.c: finds, opens and re-reads runs.
 *
 * A folder without metrics is a run that has just begun, or none: it is watched until they appear. A
 * run that cannot be read for once (a disk that went away) keeps what was known of it. */
#include "cli/top_runs.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/safe_text.h"
#include "cli/terminal.h"
#include "hybrid.h"

#define RUNS_FOLDER "runs" /* where hybrid-train puts runs that were given no folder */

/* ---- the newest run -------------------------------------------------------------------------- */

static bool is_newer(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

/* When a run was last written to; its configuration is there before its metrics. */
static bool find_time(const char *folder, struct timespec *out) {
    static const char *const files[] = {"metrics.jsonl", "config.cfg"};
    char path[HY_TOP_PATH_MAX + 32];
    struct stat info;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        if (stat(path, &info) != 0) continue;
        *out = info.st_mtim;
        return true;
    }
    return false;
}

static bool find_newest(char newest[HY_TOP_PATH_MAX]) {
    DIR *folder = opendir(RUNS_FOLDER);
    struct timespec latest = {0}, time;
    char path[HY_TOP_PATH_MAX];
    newest[0] = '\0';
    if (folder == NULL) return false;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, RUNS_FOLDER "/%s", entry->d_name);
        if (!find_time(path, &time) || (newest[0] != '\0' && !is_newer(time, latest))) continue;
        latest = time;
        memcpy(newest, path, sizeof path);
    }
    closedir(folder);
    return newest[0] != '\0';
}

/* ---- opening --------------------------------------------------------------------------------- */

/* A folder that exists and holds no metrics yet. */
static bool is_awaited(const char *folder) {
    char path[HY_TOP_PATH_MAX];
    struct stat info;
    if (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode)) return false;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    return stat(path, &info) != 0;
}

/* Adds a run to the list, open where it can be. */
static bool add_run(hy_top_runs *runs, const char *folder, bool *is_input) {
    int i = runs->count++;
    runs->folders[i] = folder;
    if (is_awaited(folder)) return true;
    hy_status status = hy_run_open(folder, &runs->runs[i]);
    if (status == HY_OK) return true;
    *is_input = status == HY_ERR_INPUT;
    hy_cli_error("%s", hy_error_message());
    return false;
}

static bool reserve(hy_top_runs *runs, int count) {
    runs->folders = calloc((size_t)count, sizeof(char *));
    runs->runs = calloc((size_t)count, sizeof(hy_run *));
    runs->views = calloc((size_t)count, sizeof *runs->views);
    if (runs->folders != NULL && runs->runs != NULL && runs->views != NULL) return true;
    hy_cli_error("no memory for %d runs", count);
    return false;
}

bool hy_top_runs_open(hy_top_runs *runs, const char *const *folders, int count, bool is_utf8,
                      bool *is_input) {
    *runs = (hy_top_runs){.is_utf8 = is_utf8};
    *is_input = false;
    if (!reserve(runs, count > 0 ? count : 1)) return false;
    for (int i = 0; i < count; i++)
        if (!add_run(runs, folders[i], is_input)) return false;
    if (count > 0) return true;
    if (find_newest(runs->newest)) return add_run(runs, runs->newest, is_input);
    *is_input = true;
    hy_cli_error("there is no run below " RUNS_FOLDER "/ here; name one: hybrid-top FOLDER "
                 "(hybrid-train's --out)");
    return false;
}

void hy_top_runs_close(hy_top_runs *runs) {
    for (int i = 0; i < runs->count; i++)
        if (runs->runs[i] != NULL) hy_run_close(runs->runs[i]);
    free(runs->folders);
    free(runs->runs);
    free(runs->views);
}

/* ---- reading on ------------------------------------------------------------------------------ */

static void read_on(hy_top_runs *runs, int i) {
    hy_status status = HY_OK;
    if (runs->runs[i] != NULL)
        status = hy_run_refresh(runs->runs[i], NULL);
    else if (!is_awaited(runs->folders[i]))
        status = hy_run_open(runs->folders[i], &runs->runs[i]);
    if (status != HY_OK)
        hy_cli_copy_safely(runs->problem, sizeof runs->problem, hy_error_message(), runs->is_utf8);
}

void hy_top_runs_look(hy_top_runs *runs, double now) {
    runs->problem[0] = '\0';
    for (int i = 0; i < runs->count; i++) {
        read_on(runs, i);
        if (runs->runs[i] != NULL)
            hy_top_look(runs->runs[i], now, runs->is_utf8, &runs->views[i]);
        else
            hy_top_look_at_nothing(runs->folders[i], runs->is_utf8, &runs->views[i]);
    }
}
