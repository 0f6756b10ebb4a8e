/* selftest.c: the self-test as a report that can be sent: machine, versions, ops, rates.
 *
 * Everything comes from hy_selftest and hy_machine_probe; this file only words it. Ops are one line each,
 * their types side by side, so that a failing one is seen at a glance. */
#include <math.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "cli/exit_code.h"
#include "cli/figures.h"
#include "cli/inspect.h"
#include "hybrid.h"

enum { SAID_MAX = 16, SAID_BYTES = 400 };

typedef struct report {
    const hy_cli_terminal *terminal;
    char op[64]; /* the line being written */
    bool has_begun, has_rates;
    char failures[SAID_MAX][SAID_BYTES];
    int failure_count;
} report;

static void say(const hy_cli_terminal *terminal, const char *what, const char *value) {
    fprintf(terminal->out, "  %-10s  %s\n", what, value);
}

/* ---- what is tested ---------------------------------------------------------------------------- */

static void say_versions(const hy_cli_terminal *terminal) {
    struct utsname system;
    char line[512], date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime(&now));
    snprintf(line, sizeof line, "hybrid-train " HYBRID_VERSION ", %s", date);
    say(terminal, "version", line);
    if (uname(&system) == 0) {
        snprintf(line, sizeof line, "%.60s %.90s, %.60s", system.sysname, system.release,
                 system.machine);
        say(terminal, "system", line);
    }
}

static void say_machine(const hy_cli_terminal *terminal, const hy_machine *machine) {
    char line[1200];
    const char *cpu = strncmp(machine->cpu, "CPU: ", 5) == 0 ? machine->cpu + 5 : machine->cpu;
    snprintf(line, sizeof line, "%s, %d cores, %s", cpu, machine->cores, machine->blas);
    say(terminal, "CPU", line);
    if (machine->driver[0] != '\0') say(terminal, "driver", machine->driver);
    if (machine->has_cuda) {
        snprintf(line, sizeof line, "%s, %s, %s of %s free", machine->gpu, machine->gpu_detail,
                 hy_cli_bytes(machine->vram_free).text, hy_cli_bytes(machine->vram_total).text);
        say(terminal, "GPU", line);
    } else {
        say(terminal, "CUDA", machine->cuda);
    }
    if (machine->is_wsl) say(terminal, "system", "WSL: Linux inside Windows");
}

/* Once the device is open: what cannot be tested is one line of error and no report. */
static void begin(report *r) {
    hy_machine machine;
    if (r->has_begun) return;
    r->has_begun = true;
    hy_cli_heading(r->terminal, "self-test");
    say_versions(r->terminal);
    if (hy_machine_probe(".", &machine) == HY_OK) say_machine(r->terminal, &machine);
    fputc('\n', r->terminal->out);
}

/* ---- ops --------------------------------------------------------------------------------------- */

static void end_line(report *r) {
    if (r->op[0] != '\0') fputc('\n', r->terminal->out);
    r->op[0] = '\0';
}

static void keep_failure(report *r, const hy_selftest_op *op) {
    if (r->failure_count == SAID_MAX) return;
    snprintf(r->failures[r->failure_count++], SAID_BYTES, "%s, %s: %s%s%s", op->name, op->dtype,
             op->tensor, op->tensor[0] != '\0' ? ": " : "", op->message);
}

/* "  attention backward    fp32 ok 3.1e-07   bf16 ok 2.2e-03   fp16 FAILED" */
static void on_op(void *user, const hy_selftest_op *op) {
    report *r = user;
    const hy_cli_terminal *t = r->terminal;
    bool is_same = strcmp(r->op, op->name) == 0 && strcmp(op->dtype, "fp32") != 0;
    if (!op->is_ok) keep_failure(r, op);
    if (t->is_quiet) return;
    begin(r);
    if (!is_same) {
        end_line(r);
        snprintf(r->op, sizeof r->op, "%s", op->name);
        fprintf(t->out, "  %-24s", op->name);
    }
    if (op->is_ok) {
        fprintf(t->out, "  %s ok %-8.1e", op->dtype, op->error);
    } else {
        fprintf(t->out, "  %s %sFAILED%s %-8.1e", op->dtype, hy_cli_colour_code(t, HY_CLI_RED),
                hy_cli_colour_code(t, HY_CLI_PLAIN), op->error);
    }
    fflush(t->out);
}

static void on_rate(void *user, const hy_selftest_rate *rate) {
    report *r = user;
    if (r->terminal->is_quiet) return;
    end_line(r);
    if (!r->has_rates) {
        fputc('\n', r->terminal->out);
        hy_cli_heading(r->terminal, "how fast");
        r->has_rates = true;
    }
    fprintf(r->terminal->out, "  %-56s %8.2f %s\n", rate->name, rate->value, rate->unit);
    fflush(r->terminal->out);
}

/* ---- the end ----------------------------------------------------------------------------------- */

static int close_report(report *r, const hy_selftest_result *result) {
    const hy_cli_terminal *t = r->terminal;
    if (!t->is_quiet) {
        end_line(r);
        fprintf(t->out, "\n%d of %d tests passed: %s, %s.\n", result->ops - result->failures,
                result->ops, result->device,
                result->is_gpu ? "each op against the CPU" : "against answers known beforehand");
    }
    for (int i = 0; i < r->failure_count; i++) hy_cli_error("self-test: %s", r->failures[i]);
    return result->failures ? HY_EXIT_FAILED : HY_EXIT_DONE;
}

int hy_cli_selftest(const hy_cli_terminal *terminal, const char *device) {
    report r = {.terminal = terminal};
    hy_selftest_observer observer = {.user = &r, .on_op = on_op, .on_rate = on_rate};
    hy_selftest_result result;
    hy_status status = hy_selftest(device, &observer, &result);
    if (status == HY_OK) return close_report(&r, &result);
    end_line(&r);
    hy_cli_error("%s", hy_error_message());
    return status == HY_ERR_INPUT || status == HY_ERR_DEVICE ? HY_EXIT_USAGE : HY_EXIT_FAILED;
}
