/* selftest_ranks.c: the report of the self-test of several ranks, on the terminal and in a file.
 * See inspect.h.
 *
 * hy_selftest_ranks runs the tests; this file prints. Lines are written to the file at once, so
 * that a test that hangs leaves the results before it. Only rank 0 prints. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

#include "cli/inspect.h"
#include "cli/program.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "hybrid_tools.h"

#define REPORT_NAME "selftest.txt"

enum { SAID_MAX = 16, SAID_BYTES = 600, NAME_COLUMNS = 26, FILE_COLUMNS = 200 };

typedef struct report {
    const hy_cli_terminal *terminal;
    hy_cli_progress progress;
    FILE *file; /* NULL: no file */
    char path[1024];
    char part[96]; /* the section of the current lines */
    char failures[SAID_MAX][SAID_BYTES];
    int failure_count;
} report;

/* ---- the file -------------------------------------------------------------------------------- */

/* Creates the folder and its parents. */
static bool make_folder(const char *folder) {
    char path[1000];
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path) errno = ENAMETOOLONG;
    for (char *at = path + 1; *at; at++) {
        if (*at != '/') continue;
        *at = 0;
        (void)mkdir(path, 0777); /* only the last error counts */
        *at = '/';
    }
    return strlen(folder) < sizeof path && (mkdir(path, 0777) == 0 || errno == EEXIST);
}

static bool open_file(report *r, const char *folder) {
    if (folder[0] == 0) return true;
    snprintf(r->path, sizeof r->path, "%.990s/" REPORT_NAME, folder);
    if (make_folder(folder)) r->file = fopen(r->path, "w");
    if (r->file == NULL) hy_cli_error("cannot write %s: %s", r->path, strerror(errno));
    return r->file != NULL;
}

/* A failed write is reported once. */
static bool close_file(report *r) {
    if (r->file == NULL) return true;
    bool is_whole = ferror(r->file) == 0;
    is_whole &= fclose(r->file) == 0;
    if (!is_whole) hy_cli_error("could not write %s: %s", r->path, strerror(errno));
    return is_whole;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void clear_progress(report *r) {
    hy_observer o = hy_cli_progress_observer(&r->progress);
    if (r->terminal->is_tty && o.on_progress) o.on_progress(o.user, "", 1);
}

static void write_head(FILE *out) {
    struct utsname system;
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime(&now));
    fprintf(out, "  %-*s  hybrid-train " HYBRID_VERSION ", %s\n", NAME_COLUMNS, "version", date);
    if (uname(&system) == 0)
        fprintf(out, "  %-*s  %.60s %.90s, %.60s\n", NAME_COLUMNS, "system", system.sysname,
                system.release, system.machine);
}

static const char *word_of(const hy_selftest_check *check) {
    return check->verdict == HY_CHECK_PASSED   ? "ok"
           : check->verdict == HY_CHECK_FAILED ? "FAILED"
                                               : "";
}

/* Numbers keep their columns; longer texts are printed as they are. */
static void write_text(FILE *out, const char *text, int indent, int columns) {
    if (indent + (int)strlen(text) <= columns)
        fprintf(out, "%s\n", text);
    else
        hy_cli_write_wrapped(out, text, indent, columns);
}

/* "  all-gather, 64 MiB          ok      1234.5 us    27.182 GB/s" */
static void write_check(FILE *out, const hy_selftest_check *check, int columns, const char *colour,
                        const char *plain) {
    bool is_failed = check->verdict == HY_CHECK_FAILED,
         is_info = check->verdict == HY_CHECK_REPORTED;
    int indent = 2 + NAME_COLUMNS + 2 + (is_info ? 0 : 8);
    fprintf(out, "  %-*s  ", NAME_COLUMNS, check->name);
    if (!is_info) fprintf(out, "%s%-6s%s  ", is_failed ? colour : "", word_of(check), plain);
    write_text(out, check->text, indent, columns);
    if (!is_failed) return;
    fprintf(out, "%*s", indent, "");
    write_text(out, check->message, indent, columns);
}

static void on_check(void *user, const hy_selftest_check *check) {
    report *r = user;
    const hy_cli_terminal *t = r->terminal;
    bool is_new = strcmp(r->part, check->part) != 0, is_first = r->part[0] == 0;
    if (check->verdict == HY_CHECK_FAILED && r->failure_count < SAID_MAX)
        snprintf(r->failures[r->failure_count++], SAID_BYTES, "%s: %s: %s", check->part,
                 check->name, check->message);
    snprintf(r->part, sizeof r->part, "%s", check->part);
    if (r->file != NULL) {
        if (is_first) fputs("self-test of several ranks\n", r->file);
        if (is_first) write_head(r->file);
        if (is_new) fprintf(r->file, "\n%s\n", check->part);
        write_check(r->file, check, FILE_COLUMNS, "", "");
        fflush(r->file);
    }
    if (t->is_quiet) return;
    clear_progress(r);
    if (is_first) hy_cli_heading(t, "self-test of several ranks");
    if (is_first) write_head(t->out);
    if (is_new) hy_cli_section(t, check->part);
    write_check(t->out, check, hy_cli_terminal_columns(t), hy_cli_colour_code(t, HY_CLI_RED),
                check->verdict == HY_CHECK_FAILED ? hy_cli_colour_code(t, HY_CLI_PLAIN) : "");
    fflush(t->out);
}

/* Without a terminal, the lines themselves show the progress. */
static void on_progress(void *user, const char *what, double fraction) {
    report *r = user;
    if (r->terminal->is_tty && !r->terminal->is_quiet)
        hy_cli_draw_work(&r->progress, what, fraction);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void write_end(FILE *out, const hy_ranks_result *result) {
    fprintf(out, "\n%d of %d checks passed: %d rank%s over %s.\n",
            result->checks - result->failures, result->checks, result->ranks,
            result->ranks == 1 ? "" : "s", result->transport);
}

static int end(report *r, const hy_rank_info *who, hy_status status,
               const hy_ranks_result *result) {
    clear_progress(r);
    if (status != HY_OK) {
        if (r->file != NULL) fprintf(r->file, "\nfailed: %s\n", hy_error_message());
        int code = hy_cli_fail_as(who, status);
        (void)close_file(r);
        return status == HY_ERR_DEVICE ? HY_EXIT_USAGE : code;
    }
    if (r->file != NULL) write_end(r->file, result);
    if (!r->terminal->is_quiet) write_end(r->terminal->out, result);
    if (!r->terminal->is_quiet && r->file != NULL)
        fprintf(r->terminal->out, "report: %s\n", r->path);
    else if (!r->terminal->is_quiet)
        fputs("use --out FOLDER to write the report to a file\n", r->terminal->out);
    for (int i = 0; i < r->failure_count; i++) hy_cli_error("self-test: %s", r->failures[i]);
    bool is_written = close_file(r);
    return result->failures || !is_written ? HY_EXIT_FAILED : HY_EXIT_DONE;
}

int hy_cli_selftest_ranks(const hy_cli_terminal *terminal, const hy_config *config,
                          const hy_rank_info *who) {
    report r = {.terminal = terminal};
    hy_ranks_observer observer = {.user = &r, .on_check = on_check, .on_progress = on_progress};
    hy_ranks_result result;
    hy_cli_progress_init(&r.progress, terminal);
    bool is_written = who->rank == 0 && hy_cli_names(config, "out");
    if (is_written && !open_file(&r, hy_cli_value(config, "out"))) return HY_EXIT_USAGE;
    hy_status status = hy_selftest_ranks(config, &observer, &result);
    return end(&r, who, status, &result);
}
