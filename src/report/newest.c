/* newest.c: finds the newest run of a folder. See hybrid_report.h.
 *
 * A program that gets no run takes this one: `hybrid-train --resume`, hybrid-top, hybrid-report,
 * hybrid-chat and hybrid-export all choose the same. Names do not count. */
#include <limits.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "hybrid_report.h"

/* Whether `run` is newer than *latest, which then becomes its time. */
static bool is_newer(const char *run, struct timespec *latest) {
    static const char *const files[] = {"metrics.jsonl", "config.cfg"};
    struct stat info;
    bool is_run = false;
    for (size_t i = 0; i < sizeof files / sizeof files[0] && !is_run; i++) {
        char path[PATH_MAX];
        is_run = hy_path_join(path, sizeof path, run, files[i]) == HY_OK &&
                 stat(path, &info) == 0 && S_ISREG(info.st_mode);
    }
    if (!is_run) return false;
    const struct timespec time = info.st_mtim;
    if (time.tv_sec < latest->tv_sec) return false;
    if (time.tv_sec == latest->tv_sec && time.tv_nsec < latest->tv_nsec) return false;
    *latest = time;
    return true;
}

hy_status hy_run_newest(const char *runs, char *path, size_t size) {
    char **names, run[PATH_MAX];
    size_t count, newest = SIZE_MAX;
    struct timespec latest = {0};
    HY_FAIL_IF(!hy_path_is_dir(runs), HY_ERR_INPUT,
               "no run found: there is no folder %s/; name a run folder", runs);
    HY_TRY(hy_dir_list(runs, &names, &count));
    for (size_t i = 0; i < count; i++) {
        bool is_named =
            names[i][0] != '.' && hy_path_join(run, sizeof run, runs, names[i]) == HY_OK;
        if (is_named && is_newer(run, &latest)) newest = i;
    }
    hy_status status = newest == SIZE_MAX
                           ? hy_fail(HY_ERR_INPUT, "no run found in %s/; name a run folder", runs)
                           : hy_path_join(path, size, runs, names[newest]);
    hy_dir_list_free(names, count);
    return status;
}
