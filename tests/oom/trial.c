/* trial.c: one trial: fork, work, judge. See trial.h. */
#include "trial.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

/* DESIGN.md, section 9: what another order of summation may change. */
#define FIRST_STEP 1e-6
#define TENTH_STEP 1e-4

/* ---- the child ------------------------------------------------------------------------------- */

static int entries_in(const char *folder) {
    int count = 0;
    DIR *stream = opendir(folder);
    while (stream && readdir(stream)) count++;
    if (stream) closedir(stream);
    return count;
}

/* A thread that was joined may take a moment to leave the system's list. */
static int threads_now(int expected) {
    int count = entries_in("/proc/self/task");
    for (int i = 0; i < 50 && count > expected; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        count = entries_in("/proc/self/task");
    }
    return count;
}

char oom_folder[256];

static fault_plan planned; /* of this process's trial */

void trial_arm(void) { fault_arm(&planned); }

static void work(const trial *t, outcome *out) {
    char folder[300];
    snprintf(folder, sizeof folder, "%s/trial-XXXXXX", oom_folder);
    if (!mkdtemp(folder)) _exit(3);
    int handles = entries_in("/proc/self/fd"), threads = entries_in("/proc/self/task");
    planned = t->plan;
    out->status = t->scenario->work(folder, out);
    if (out->status != HY_OK && !out->message[0]) {
        snprintf(out->message, sizeof out->message, "%s", hy_error_message());
    }
    fault_spare();
    fault_read(&out->counts);
    out->threads = threads_now(threads) - threads;
    out->handles = entries_in("/proc/self/fd") - handles;
    hy_dir_remove(folder);
    out->has_ended = true;
}

/* ---- judging --------------------------------------------------------------------------------- */

static double allowed_at(int step) {
    double share = step < 9 ? step / 9.0 : 1;
    return FIRST_STEP * pow(TENTH_STEP / FIRST_STEP, share);
}

static bool judge(trial *t, verdict v, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool judge(trial *t, verdict v, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(t->why, sizeof t->why, format, args);
    va_end(args);
    t->verdict = v;
    return false;
}

static bool losses_agree(trial *t, const outcome *reference) {
    const outcome *r = &t->result;
    bool is_same_split = true;
    if (r->steps != reference->steps) {
        return judge(t, TRIAL_WRONG, "%d losses, undisturbed %d", r->steps, reference->steps);
    }
    for (int i = 0; i < r->steps; i++) {
        is_same_split = is_same_split && r->batch_size[i] == reference->batch_size[i];
        double off = fabs(r->loss[i] - reference->loss[i]) / fabs(reference->loss[i]);
        if (!(is_same_split ? r->loss[i] == reference->loss[i] : off <= allowed_at(i))) {
            return judge(t, TRIAL_WRONG, "loss %d is %.9g, undisturbed %.9g%s", i + 1, r->loss[i],
                         reference->loss[i], is_same_split ? "" : " (another split)");
        }
    }
    if (is_same_split && r->sampled != reference->sampled) {
        return judge(t, TRIAL_WRONG, "the sample begins with byte %d, undisturbed %d", r->sampled,
                     reference->sampled);
    }
    double off = fabs(r->val_loss - reference->val_loss) / fabs(reference->val_loss);
    bool is_equal = r->val_loss == reference->val_loss || (!is_same_split && off <= TENTH_STEP) ||
                    isnan(reference->val_loss);
    return is_equal || judge(t, TRIAL_WRONG, "validation loss is %.9g, undisturbed %.9g",
                             r->val_loss, reference->val_loss);
}

static bool is_clean(trial *t, const outcome *reference) {
    const outcome *r = &t->result;
    if (r->counts.live_blocks > reference->counts.live_blocks) {
        return judge(t, TRIAL_WRONG, "%llu blocks leaked, undisturbed %llu",
                     (unsigned long long)r->counts.live_blocks,
                     (unsigned long long)reference->counts.live_blocks);
    }
    if (r->handles > reference->handles) {
        return judge(t, TRIAL_WRONG, "%d file handles left open", r->handles - reference->handles);
    }
    return r->threads <= reference->threads ||
           judge(t, TRIAL_WRONG, "%d threads left running", r->threads - reference->threads);
}

static void judge_result(trial *t, const outcome *reference) {
    const outcome *r = &t->result;
    t->verdict = r->counts.failed ? TRIAL_SURVIVED : TRIAL_UNTOUCHED;
    if (!reference) return;
    if (!is_clean(t, reference)) return;
    if (r->status == HY_OK) {
        losses_agree(t, reference);
    } else if (!r->message[0]) {
        judge(t, TRIAL_WRONG, "%s without a message", hy_status_name(r->status));
    } else if (r->is_spoiled) {
        judge(t, TRIAL_WRONG, "nothing to go on from after %d losses: %s", r->steps, r->message);
    } else if (r->status != HY_ERR_MEMORY) {
        judge(t, TRIAL_OTHER, "%s: %s", hy_status_name(r->status), r->message);
    } else {
        t->verdict = TRIAL_STOPPED;
    }
}

/* ---- the parent ------------------------------------------------------------------------------ */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void trial_begin(trial *t) {
    t->shared =
        mmap(NULL, sizeof *t->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t->shared == MAP_FAILED) abort();
    fflush(NULL);
    t->child = fork();
    if (t->child < 0) abort();
    if (t->child == 0) {
        work(t, t->shared);
        _exit(0);
    }
    t->began = now();
    t->is_running = true;
}

bool trial_has_ended(trial *t, const outcome *reference, double seconds) {
    int status = 0;
    bool is_late = now() - t->began > seconds;
    if (is_late) kill(t->child, SIGKILL);
    if (waitpid(t->child, &status, is_late ? 0 : WNOHANG) != t->child) return false;
    t->result = *t->shared;
    t->is_running = false;
    munmap(t->shared, sizeof *t->shared);
    if (is_late) {
        judge(t, TRIAL_HUNG, "no end within %.0f s", seconds);
    } else if (WIFSIGNALED(status)) {
        judge(t, TRIAL_CRASHED, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else if (!t->result.has_ended) {
        judge(t, TRIAL_CRASHED, "left with exit code %d", WEXITSTATUS(status));
    } else {
        judge_result(t, reference);
    }
    return true;
}

const char *trial_verdict_name(verdict v) {
    static const char *const names[] = {"untouched", "survived", "stopped", "other status",
                                        "wrong",     "crashed",  "hung"};
    return names[v];
}
