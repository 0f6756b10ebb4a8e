/* selftest.c: the reports of the self-test: of one device, and of several ranks. See inspect.h.
 *
 * The library runs the tests; this file prints. A device gets one line per op with its types side
 * by side, so that a failure is easy to see. The lines of ranks are written to a file at once, so
 * that a test that hangs leaves the results before it; only rank 0 prints. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>

#include "cli/inspect.h"
#include "cli/program.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/table.h"
#include "hybrid_tools.h"

#define REPORT_NAME "selftest.txt"

enum {
    FAILURES_MOST = 16,
    FAILURE_BYTES = 600,
    NAME_COLUMNS = 26, /* of a check of ranks */
    FACT_COLUMNS = 10, /* of a fact about the machine, as in hy_cli_field */
    FILE_COLUMNS = 200
};

typedef struct report {
    const hy_cli_terminal *terminal;
    char failures[FAILURES_MOST][FAILURE_BYTES];
    int failure_count;
    /* of one device */
    char op[64]; /* the line being built */
    bool has_begun, has_rates;
    /* of several ranks */
    hy_cli_progress progress;
    FILE *file; /* NULL: no file */
    char path[1024];
    char part[96]; /* the section of the current lines */
} report;

/* ---- both reports ---------------------------------------------------------------------------- */

/* Failures are repeated as errors at the end. */
__attribute__((format(printf, 2, 3))) static void keep_failure(report *r, const char *format, ...) {
    va_list arguments;
    if (r->failure_count == FAILURES_MOST) return;
    va_start(arguments, format);
    vsnprintf(r->failures[r->failure_count++], FAILURE_BYTES, format, arguments);
    va_end(arguments);
}

static void print_failures(const report *r) {
    for (int i = 0; i < r->failure_count; i++) hy_cli_error("self-test: %s", r->failures[i]);
}

static void write_head(FILE *out, int columns) {
    struct utsname system;
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime(&now));
    fprintf(out, "  %-*s  hybrid-train " HYBRID_VERSION ", %s\n", columns, "version", date);
    if (uname(&system) == 0)
        fprintf(out, "  %-*s  %.60s %.90s, %.60s\n", columns, "system", system.sysname,
                system.release, system.machine);
}

/* ---- one device ------------------------------------------------------------------------------ */

/* Printed once the device is open: a test that cannot run prints one line of error and no
 * report. */
static void begin_report(report *r) {
    const hy_cli_terminal *t = r->terminal;
    hy_machine machine;
    r->has_begun = true;
    hy_cli_heading(t, "self-test");
    write_head(t->out, FACT_COLUMNS);
    if (hy_machine_probe(".", &machine) == HY_OK) {
        hy_cli_field(t, "CPU", "%s, %d cores, %s", hy_cli_cpu_name(&machine), machine.cores,
                     machine.blas);
        if (machine.driver[0] != '\0') hy_cli_field(t, "driver", "%s", machine.driver);
        if (machine.has_cuda)
            hy_cli_field(t, "GPU", "%s, %s, %s of %s free", machine.gpu, machine.gpu_detail,
                         hy_cli_bytes(machine.vram_free).text,
                         hy_cli_bytes(machine.vram_total).text);
        else
            hy_cli_field(t, "CUDA", "%s", machine.cuda);
        if (machine.is_wsl) hy_cli_field(t, "system", "WSL: Linux inside Windows");
    }
    fputc('\n', t->out);
}

static void end_line(report *r) {
    if (r->op[0] != '\0') fputc('\n', r->terminal->out);
    r->op[0] = '\0';
}

/* "  attention backward    fp32 ok 3.1e-07   bf16 ok 2.2e-03   fp16 FAILED" */
static void on_op(void *user, const hy_selftest_op *op) {
    report *r = user;
    const hy_cli_terminal *t = r->terminal;
    bool is_same = strcmp(r->op, op->name) == 0 && strcmp(op->dtype, "fp32") != 0;
    if (!op->is_ok)
        keep_failure(r, "%s, %s: %s%s%s", op->name, op->dtype, op->tensor,
                     op->tensor[0] != '\0' ? ": " : "", op->message);
    if (t->is_quiet) return;
    if (!r->has_begun) begin_report(r);
    if (!is_same) {
        end_line(r);
        snprintf(r->op, sizeof r->op, "%s", op->name);
        fprintf(t->out, "  %-24s", op->name);
    }
    fprintf(t->out, "  %s %s%s%s %-8.1e", op->dtype,
            op->is_ok ? "" : hy_cli_colour_code(t, HY_CLI_RED), op->is_ok ? "ok" : "FAILED",
            op->is_ok ? "" : hy_cli_colour_code(t, HY_CLI_PLAIN), op->error);
    fflush(t->out);
}

static void on_rate(void *user, const hy_selftest_rate *rate) {
    report *r = user;
    if (r->terminal->is_quiet) return;
    end_line(r);
    if (!r->has_rates) hy_cli_section(r->terminal, "speed");
    r->has_rates = true;
    fprintf(r->terminal->out, "  %-60s %8.2f %s\n", rate->name, rate->value, rate->unit);
    fflush(r->terminal->out);
}

int hy_cli_selftest(const hy_cli_terminal *terminal, const char *device) {
    report r = {.terminal = terminal};
    hy_selftest_observer observer = {.user = &r, .on_op = on_op, .on_rate = on_rate};
    hy_selftest_result result;
    hy_status status = hy_selftest(device, &observer, &result);
    end_line(&r);
    if (status != HY_OK) {
        int code = hy_cli_fail(status);
        return status == HY_ERR_DEVICE ? HY_EXIT_USAGE : code;
    }
    if (!terminal->is_quiet)
        fprintf(terminal->out, "\n%d of %d tests passed: %s, %s.\n", result.ops - result.failures,
                result.ops, result.device,
                result.is_gpu ? "each op compared with the CPU" : "compared with known answers");
    print_failures(&r);
    return result.failures ? HY_EXIT_FAILED : HY_EXIT_DONE;
}

/* ---- several ranks: the file ----------------------------------------------------------------- */

/* Creates the folder with its parents, and the file. */
static bool open_file(report *r, const char *folder) {
    int length = snprintf(r->path, sizeof r->path, "%s/" REPORT_NAME, folder);
    int problem = length < (int)sizeof r->path ? 0 : ENAMETOOLONG;
    for (char *at = r->path + 1; problem != ENAMETOOLONG && *at; at++) {
        if (*at != '/') continue;
        *at = 0;
        problem = mkdir(r->path, 0777) == 0 || errno == EEXIST ? 0 : errno;
        *at = '/';
    }
    if (problem == 0 && (r->file = fopen(r->path, "w")) == NULL) problem = errno;
    return problem == 0 || hy_cli_refuse(false, "cannot write %s: %s", r->path, strerror(problem));
}

/* A failed write is reported once. */
static bool close_file(report *r) {
    if (r->file == NULL) return true;
    bool is_whole = ferror(r->file) == 0;
    is_whole &= fclose(r->file) == 0;
    if (!is_whole) hy_cli_error("could not write %s: %s", r->path, strerror(errno));
    return is_whole;
}

/* ---- several ranks: lines -------------------------------------------------------------------- */

static void clear_progress(report *r) {
    hy_observer o = hy_cli_progress_observer(&r->progress);
    if (r->terminal->is_tty && o.on_progress) o.on_progress(o.user, "", 1);
}

/* Numbers keep their columns; longer texts are wrapped. */
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
    if (!is_info)
        fprintf(out, "%s%-6s%s  ", is_failed ? colour : "", is_failed ? "FAILED" : "ok", plain);
    write_text(out, check->text, indent, columns);
    if (!is_failed) return;
    fprintf(out, "%*s", indent, "");
    write_text(out, check->message, indent, columns);
}

static void on_check(void *user, const hy_selftest_check *check) {
    report *r = user;
    const hy_cli_terminal *t = r->terminal;
    bool is_new = strcmp(r->part, check->part) != 0, is_first = r->part[0] == 0;
    bool is_failed = check->verdict == HY_CHECK_FAILED;
    if (is_failed) keep_failure(r, "%s: %s: %s", check->part, check->name, check->message);
    snprintf(r->part, sizeof r->part, "%s", check->part);
    if (r->file != NULL) {
        if (is_first) fputs("self-test of several ranks\n", r->file);
        if (is_first) write_head(r->file, NAME_COLUMNS);
        if (is_new) fprintf(r->file, "\n%s\n", check->part);
        write_check(r->file, check, FILE_COLUMNS, "", "");
        fflush(r->file);
    }
    if (t->is_quiet) return;
    clear_progress(r);
    if (is_first) hy_cli_heading(t, "self-test of several ranks");
    if (is_first) write_head(t->out, NAME_COLUMNS);
    if (is_new) hy_cli_section(t, check->part);
    write_check(t->out, check, hy_cli_terminal_columns(t), hy_cli_colour_code(t, HY_CLI_RED),
                is_failed ? hy_cli_colour_code(t, HY_CLI_PLAIN) : "");
    fflush(t->out);
}

/* Without a terminal, the lines themselves show the progress. */
static void on_progress(void *user, const char *what, double fraction) {
    report *r = user;
    if (r->terminal->is_tty && !r->terminal->is_quiet)
        hy_cli_draw_work(&r->progress, what, fraction);
}

/* ---- several ranks: the end ------------------------------------------------------------------ */

static void write_end(FILE *out, const hy_ranks_result *result) {
    fprintf(out, "\n%d of %d checks passed: %d rank%s over %s.\n",
            result->checks - result->failures, result->checks, result->ranks,
            result->ranks == 1 ? "" : "s", result->transport);
}

int hy_cli_selftest_ranks(const hy_cli_terminal *terminal, const hy_config *config,
                          const hy_rank_info *who) {
    report r = {.terminal = terminal};
    hy_ranks_observer observer = {.user = &r, .on_check = on_check, .on_progress = on_progress};
    hy_ranks_result result;
    const char *out =
        who->rank == 0 && hy_cli_is_set(config, "out") ? hy_cli_value(config, "out") : "";
    hy_cli_progress_init(&r.progress, terminal);
    if (out[0] != '\0' && !open_file(&r, out)) return HY_EXIT_USAGE;
    hy_status status = hy_selftest_ranks(config, &observer, &result);
    clear_progress(&r);
    if (status != HY_OK) {
        if (r.file != NULL) fprintf(r.file, "\nfailed: %s\n", hy_error_message());
        int code = hy_cli_fail_as(who, status);
        (void)close_file(&r);
        return status == HY_ERR_DEVICE ? HY_EXIT_USAGE : code;
    }
    if (r.file != NULL) write_end(r.file, &result);
    if (!terminal->is_quiet) {
        write_end(terminal->out, &result);
        if (r.file != NULL)
            fprintf(terminal->out, "report: %s\n", r.path);
        else
            fputs("use --out FOLDER to write the report to a file\n", terminal->out);
    }
    print_failures(&r);
    bool is_written = close_file(&r);
    return result.failures || !is_written ? HY_EXIT_FAILED : HY_EXIT_DONE;
}
