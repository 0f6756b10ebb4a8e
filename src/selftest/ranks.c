/* ranks.c: the self-test of several ranks. See ranks.h.
 *
 * Connects the ranks, runs the parts one after the other, and collects their results. A failed
 * check is counted and the test goes on; a failed call ends it on all ranks. */
#include "selftest/ranks.h"
#include "base/sized.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/derived.h"
#include "trainer/ranks.h"
#include "trainer/trainer.h"

enum { TEXT = 400 };

/* ---- results --------------------------------------------------------------------------------- */

void hy_finding_add(hy_finding *finding, const char *format, ...) {
    va_list arguments;
    if (finding->is_wrong) return;
    finding->is_wrong = 1;
    va_start(arguments, format);
    vsnprintf(finding->message, sizeof finding->message, format, arguments);
    va_end(arguments);
}

static void report_result(hy_ranks_run *run, hy_selftest_check *check) {
    const hy_ranks_observer *o = run->observer;
    check->size = sizeof *check;
    if (hy_ranks_leads(run) && o && o->on_check) o->on_check(o->user, check);
}

void hy_ranks_report(hy_ranks_run *run, const char *name, const char *format, ...) {
    char text[2 * TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    report_result(
        run, &(hy_selftest_check){.part = run->part, .name = name, .text = text, .message = ""});
}

void hy_ranks_progress(hy_ranks_run *run, const char *what) {
    const hy_ranks_observer *o = run->observer;
    char text[TEXT];
    snprintf(text, sizeof text, "%s: %s", run->part, what);
    if (hy_ranks_leads(run) && o && o->on_progress) o->on_progress(o->user, text, run->done);
}

/* The first rank with a failure, and the number of others. */
static bool describe(const hy_ranks_run *run, const hy_finding *all, char message[TEXT]) {
    int32_t count = run->team->who.count, wrong = 0;
    message[0] = 0;
    for (int32_t r = 0; r < count; r++) {
        if (!all[r].is_wrong) continue;
        const hy_member *m = hy_control_member(run->team->control, r);
        if (wrong++ == 0)
            snprintf(message, TEXT, "rank %d (%s, pid %d): %s", r, m->host, m->pid, all[r].message);
    }
    size_t used = strlen(message);
    if (wrong > 1)
        snprintf(message + used, TEXT - used, "; also on %d more rank%s", wrong - 1,
                 wrong == 2 ? "" : "s");
    return wrong > 0;
}

hy_status hy_ranks_judge(hy_ranks_run *run, const hy_finding *mine, const char *name,
                         const char *text) {
    char message[TEXT];
    hy_finding *all = calloc((size_t)run->team->who.count, sizeof *all);
    HY_FAIL_IF(!all, HY_ERR_MEMORY, "not enough memory for the results of %d ranks",
               run->team->who.count);
    hy_status status = hy_control_gather_bytes(run->team->control, mine, sizeof *mine, all);
    if (status == HY_OK) {
        bool is_wrong = describe(run, all, message);
        run->result->checks++;
        run->result->failures += is_wrong;
        report_result(run,
                      &(hy_selftest_check){.part = run->part,
                                           .name = name,
                                           .text = text,
                                           .verdict = is_wrong ? HY_CHECK_FAILED : HY_CHECK_PASSED,
                                           .message = message});
    }
    free(all);
    return status;
}

hy_status hy_ranks_largest(hy_ranks_run *run, double *value) {
    double *all = calloc((size_t)run->team->who.count, sizeof *all);
    HY_FAIL_IF(!all, HY_ERR_MEMORY, "not enough memory for the numbers of %d ranks",
               run->team->who.count);
    hy_status status = hy_control_gather(run->team->control, value, 1, all);
    for (int32_t r = 0; r < run->team->who.count; r++) *value = all[r] > *value ? all[r] : *value;
    free(all);
    return status;
}

/* ---- devices --------------------------------------------------------------------------------- */

/* As a run opens it (setup/device.c), without timing anything. */
static hy_status open_device(hy_ranks_run *run) {
    hy_selftest_device *d = &run->device;
    hy_settings *s = &run->settings;
    int card = hy_device_card(s->device);
    hy_cuda_options cuda = {.device = card, .tune = HY_TUNE_FAST, .attention = HY_ATTENTION_OWN};
    hy_cpu_options cpu = {.threads = (int)s->threads};
    HY_TRY(card >= 0 ? hy_cuda_backend_create(&cuda, &d->backend)
                     : hy_cpu_backend_create(&cpu, &d->backend));
    if (card < 0) s->device = HY_USE_CPU;
    return d->backend->stream_create(d->backend, "self-test", &d->stream);
}

/* ---- the test -------------------------------------------------------------------------------- */

static hy_status test_all(hy_ranks_run *run) {
    hy_rank_settle(&run->settings, run->team);
    hy_status status = open_device(run);
    if (status == HY_OK) status = hy_ranks_test_machines(run);
    if (status == HY_OK) status = hy_ranks_test_exchanges(run);
    if (status == HY_OK) status = hy_ranks_test_overlap(run);
    hy_selftest_close_device(&run->device); /* training opens the device itself */
    return status == HY_OK ? hy_ranks_test_training(run) : status;
}

hy_status hy_selftest_ranks_sized(const hy_config *config, const hy_ranks_observer *observer,
                                  hy_ranks_result *out, size_t size) {
    hy_ranks_result result = {.ranks = 1};
    hy_ranks_run run = {
        .settings = *hy_config_settings(config), .observer = observer, .result = &result};
    hy_status status = hy_team_for(&run.settings, NULL, NULL, &run.team);
    if (status == HY_OK && run.team) {
        result.ranks = run.team->who.count;
        status = hy_team_fail(run.team, test_all(&run));
    }
    hy_team_close(run.team); /* keeps the error message */
    hy_copy_sized(out, size, &result, sizeof result);
    return status;
}
