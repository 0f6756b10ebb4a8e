/* hybrid_report.c: the program hybrid-report: turns the files of runs into one HTML page.
 *
 * Exit codes: 0 done, 1 failed, 2 wrong usage or input. The program uses only hybrid_report.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/program.h"
#include "cli/terminal.h"
#include "hybrid_report.h"

enum { RUNS_MAX = 16 };

typedef struct options {
    const char *out;
    bool is_quiet;
} options;

#define AT(member) .offset = offsetof(options, member)

static const hy_cli_row rows[] = {
    {"--out", "FILE", HY_CLI_TEXT, AT(out),
     "File to write. Default: RUN/report.html for one run, ./report.html for several. The file "
     "appears only when it is complete."},
    {"--quiet", NULL, HY_CLI_SWITCH, AT(is_quiet), "Print only errors."},
};

static const hy_cli_program program = {
    .name = "hybrid-report",
    .before =
        "Usage: hybrid-report [RUN...] [--out FILE]\n\n"
        "Writes one HTML page about a run: curves of loss, learning rate, speed, prediction and\n"
        "memory, the final tables, the events, the command and the configuration. The page needs\n"
        "no network and no other file, so you can send it. With several runs, it draws their\n"
        "curves together and compares them in a table.\n\n",
    .after =
        "\n"
        "Examples:\n"
        "  hybrid-report runs/mine                            writes runs/mine/report.html\n"
        "  hybrid-report runs/plain runs/predicted --out both.html\n\n"
        "In the page: choose tokens, steps or time; drag over a chart to zoom in, double-click\n"
        "to zoom out; click a name in a legend to hide its curve. hybrid-train also writes\n"
        "OUT/report.html when a run ends or is stopped; save.report = false turns this off.\n"
        "Exit codes: 0 done, 1 failed, 2 wrong usage or input.\n",
    .rows = rows,
    .row_count = sizeof rows / sizeof rows[0],
    .word = "RUN",
    .word_type = "folder",
    .word_help = "A run folder (the --out of hybrid-train) or its metrics.jsonl. The run need not "
                 "be finished. Default: the newest run in runs/.",
};

static void print_result(const hy_run *const *runs, int count, const char *path) {
    struct stat info;
    size_t steps = 0, unreadable = 0;
    for (int r = 0; r < count; r++) {
        steps += hy_run_points(runs[r]);
        unreadable += hy_run_describe(runs[r])->lines_unreadable;
    }
    double bytes = stat(path, &info) == 0 ? (double)info.st_size : 0;
    hy_cli_printf(stdout, "wrote %s: %d %s, %zu logged steps, %.0f KiB\n", path, count,
                  count == 1 ? "run" : "runs", steps, bytes / 1024);
    if (unreadable > 0)
        hy_cli_warning("skipped %zu lines of metrics.jsonl that could not be read", unreadable);
}

/* The default is RUN/report.html for one run, report.html for several. */
static int write_page(const options *o, const hy_run *const *runs, int count) {
    const char *folder = count > 1 ? "" : hy_run_describe(runs[0])->folder;
    size_t length = strlen(folder);
    bool needs_slash = length > 0 && folder[length - 1] != '/';
    char *path;
    int written = o->out ? asprintf(&path, "%s", o->out)
                         : asprintf(&path, "%s%sreport.html", folder, needs_slash ? "/" : "");
    if (written < 0) return hy_cli_refuse(HY_EXIT_FAILED, "out of memory");
    hy_status status = hy_report_write(runs, count, path);
    int code = status == HY_OK ? HY_EXIT_DONE : hy_cli_fail(status);
    if (code == HY_EXIT_DONE && !o->is_quiet) print_result(runs, count, path);
    free(path);
    return code;
}

int main(int argc, char **argv) {
    options o = {0};
    hy_run *runs[RUNS_MAX] = {0};
    int code = hy_cli_parse(&program, &argc, argv, &o), count = argc - 1;
    if (code != HY_CLI_GO_ON) return code;
    char newest[HY_CLI_RUN_BYTES], *found[] = {argv[0], newest};
    if (count == 0) {
        code = hy_cli_take_newest(newest, o.is_quiet);
        if (code != HY_EXIT_DONE) return code;
        argv = found;
        count = 1;
    }
    if (count > RUNS_MAX)
        return hy_cli_wrong_usage("one page can show at most 16 runs; one too many: ",
                                  argv[RUNS_MAX + 1]);
    if (o.out && !o.out[0]) return hy_cli_wrong_usage("--out needs a value: FILE", "");
    code = HY_EXIT_DONE;
    for (int i = 0; i < count && code == HY_EXIT_DONE; i++) {
        hy_status status = hy_run_open(argv[i + 1], &runs[i]);
        if (status != HY_OK)
            code = hy_cli_fail(status);
        else if (hy_run_points(runs[i]) == 0 && hy_run_events(runs[i]) == 0) /* the wrong folder? */
            code = hy_cli_wrong_usage("no readable line in metrics.jsonl of ", argv[i + 1]);
    }
    if (code == HY_EXIT_DONE) code = write_page(&o, (const hy_run *const *)runs, count);
    for (int i = 0; i < count; i++) hy_run_close(runs[i]);
    return code;
}
