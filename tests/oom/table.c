/* table.c: rows of trials. See table.h. */
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE_MAX 16
#define SECONDS_EACH 60 /* a trial takes a tenth of one: more is a hang, on a busy machine too */
#define TOLD 12         /* bad trials of a row that are printed in full */

static outcome reference; /* of the scenario in hand */

/* ---- telling --------------------------------------------------------------------------------- */

void table_heading(void) {
    printf("%-26s %-12s %7s %7s %9s %8s %7s %6s %8s %6s\n", "", "refused", "of", "trials",
           "survived", "stopped", "other", "wrong", "crashed", "hung");
}

static void tell(const trial *t) {
    const outcome *r = &t->result;
    printf("  %s: number %lld refused (%zu bytes): %s: %s\n", t->scenario->name,
           (long long)t->plan.at, r->counts.first_failed_bytes, trial_verdict_name(t->verdict),
           t->why);
    if (r->message[0]) printf("    told: %s\n", r->message);
    printf("    who asked:\n");
    fault_print_stack(&r->counts.first_failed, "      ");
    if (r->counts.live_blocks <= reference.counts.live_blocks) return;
    printf("    who asked for one of the blocks that were not given back (%zu bytes):\n",
           r->counts.first_live_bytes);
    fault_print_stack(&r->counts.first_live, "      ");
}

/* ---- one row --------------------------------------------------------------------------------- */

static int64_t count_of(const refusals *r) {
    int64_t count = 0;
    for (int kind = 0; kind < FAULT_KINDS; kind++) {
        if (r->kinds & FAULT_BIT(kind)) count += reference.counts.asked[kind];
    }
    return count;
}

static int64_t after(const refusals *r, int64_t at) {
    int64_t sparse = r->most ? count_of(r) / r->most : 0;
    if (at < r->first) return at + 1;
    return r->every == 0 ? INT64_MAX : at + (r->every > sparse ? r->every : sparse);
}

static bool is_bad(const trial *t, const refusals *r) {
    if (t->verdict == TRIAL_WRONG && t->result.is_spoiled && r->cannot_save) return false;
    bool was_stopped = t->verdict == TRIAL_STOPPED && t->result.was_broken_off;
    return t->verdict >= TRIAL_OTHER || (r->must_go_on && was_stopped);
}

static void begin(trial *t, const scenario *s, const refusals *r, int64_t at) {
    memset(t, 0, sizeof *t);
    t->scenario = s;
    t->plan = (fault_plan){.kinds = r->kinds,
                           .at = at,
                           .times = r->times,
                           .budget = r->shortage,
                           .is_squeeze = r->shortage > 0};
    trial_begin(t);
}

static int processors(void) {
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > AT_ONCE_MAX ? AT_ONCE_MAX : (int)count;
}

int table_run(const scenario *s, const refusals *r) {
    static trial running[AT_ONCE_MAX];
    int slots = processors(), busy = 0, bad = 0, trials = 0, of[TRIAL_VERDICTS] = {0};
    int64_t next = 1, last = count_of(r);
    while (busy > 0 || next <= last) {
        for (int i = 0; i < slots; i++) {
            trial *t = &running[i];
            if (t->is_running && trial_has_ended(t, &reference, SECONDS_EACH)) {
                busy--;
                of[t->verdict]++;
                if (is_bad(t, r) && bad++ < TOLD) tell(t);
            }
            if (t->is_running || next > last) continue;
            begin(t, s, r, next);
            next = after(r, next);
            trials++;
            busy++;
        }
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    printf("%-26s %-12s %7lld %7d %9d %8d %7d %6d %8d %6d\n", s->name, r->what, (long long)last,
           trials, of[TRIAL_SURVIVED] + of[TRIAL_UNTOUCHED], of[TRIAL_STOPPED], of[TRIAL_OTHER],
           of[TRIAL_WRONG], of[TRIAL_CRASHED], of[TRIAL_HUNG]);
    fflush(stdout);
    return bad;
}

bool table_begin(const scenario *s) {
    static trial t;
    refusals none = {.kinds = FAULT_ALLOCATIONS};
    begin(&t, s, &none, 0);
    while (!trial_has_ended(&t, NULL, SECONDS_EACH)) {
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    reference = t.result;
    if (t.verdict == TRIAL_UNTOUCHED && reference.status == HY_OK) return true;
    printf("%s, undisturbed: %s %s: %s\n", s->name, trial_verdict_name(t.verdict), t.why,
           reference.message);
    return false;
}
