/* parallel.c: distributes an op over threads.
 *
 * Each thread that runs ops (the worker of a stream) has a team of helpers, created at its first op
 * and ended with it. Tasks are taken one by one, by the worker as well, and it never waits for a
 * task that has not begun. So a helper that gets no core, because another program uses it, delays
 * only the task it is in. A waiting thread polls for a short while and then sleeps, which frees a
 * core for threads with work.
 *
 * The gate is one atomic with everything that must be decided together: the number of the job,
 * whether it is closed, and how many helpers are inside. A helper enters only an open gate, and the
 * fields of a job change only while the gate is closed and nobody is inside. */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "kernels/cpu/rows.h"

#define LOOK_SECONDS 30e-6 /* polling time before sleeping: about the cost of a sleep and a wake */

enum { INSIDE = 0xfff, CLOSED = 0x1000, ONE_JOB = 0x2000 };
enum { HELPERS = 1, CALLER = 2 }; /* who sleeps at the gate */

typedef struct helper {
    struct team *team;
    pthread_t thread;
    int worker; /* 0 is the caller */
} helper;

typedef struct team {
    atomic_uint gate;
    atomic_uint sleepers; /* helpers */
    atomic_bool is_over;
    const hy_cpu_run *run;
    hy_cpu_task task;
    int64_t tasks;
    atomic_llong next;
    int size, started; /* requested threads; helpers that were started */
    helper helpers[];
} team;

static _Thread_local team *own_team;

static void sleep_while(atomic_uint *word, unsigned value, unsigned who) {
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, value, NULL, NULL, who);
}

static void wake(atomic_uint *word, int count, unsigned who) {
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET_PRIVATE, count, NULL, NULL, who);
}

static void take_tasks(team *t, int worker) {
    for (int64_t i;
         (i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) < t->tasks;) {
        t->task(t->run, i, worker);
    }
}

/* ---- helpers --------------------------------------------------------------------------------- */

static bool is_news(unsigned gate, unsigned known) {
    return !(gate & CLOSED) && gate / ONE_JOB != known / ONE_JOB;
}

/* Waits until there is a job other than `known`, or no more will come. */
static unsigned await_job(team *t, unsigned known) {
    double begin = hy_clock();
    for (;;) {
        unsigned gate = atomic_load(&t->gate);
        if (is_news(gate, known) || atomic_load(&t->is_over)) return gate;
        if (hy_clock() - begin < LOOK_SECONDS) continue;
        atomic_fetch_add(&t->sleepers, 1);
        gate = atomic_load(&t->gate);
        if (!is_news(gate, known) && !atomic_load(&t->is_over))
            sleep_while(&t->gate, gate, HELPERS);
        atomic_fetch_sub(&t->sleepers, 1);
        begin = hy_clock();
    }
}

static void *helper_main(void *argument) {
    helper *h = argument;
    team *t = h->team;
    unsigned known = CLOSED;
    for (;;) {
        unsigned gate = await_job(t, known);
        if (atomic_load(&t->is_over)) return NULL;
        if (!atomic_compare_exchange_weak(&t->gate, &gate, gate + 1)) continue;
        known = gate;
        take_tasks(t, h->worker);
        gate = atomic_fetch_sub(&t->gate, 1) - 1;
        if ((gate & CLOSED) && !(gate & INSIDE)) wake(&t->gate, 1, CALLER);
    }
}

/* ---- the caller ------------------------------------------------------------------------------ */

void hy_cpu_team_end(void) {
    team *t = own_team;
    own_team = NULL;
    if (!t) return;
    atomic_store(&t->is_over, true);
    atomic_fetch_add(&t->gate,
                     ONE_JOB); /* a thread about to sleep sees another value; it stays closed */
    wake(&t->gate, INT_MAX, HELPERS);
    for (int i = 0; i < t->started; i++) pthread_join(t->helpers[i].thread, NULL);
    free(t);
}

/* NULL if there is not enough memory: the op runs only on the caller, with the same result. A team
 * without all of its helpers continues with those it has. */
static team *team_of(int threads) {
    if (own_team && own_team->size == threads) return own_team;
    hy_cpu_team_end();
    size_t helpers = (size_t)threads - 1;
    team *t = calloc(1, sizeof *t + helpers * sizeof t->helpers[0]);
    if (!t) return NULL;
    t->size = threads;
    atomic_init(&t->gate, CLOSED);
    for (size_t i = 0; i < helpers; i++) {
        t->helpers[i] = (helper){.team = t, .worker = (int)i + 1};
        if (pthread_create(&t->helpers[i].thread, NULL, helper_main, &t->helpers[i]) != 0) break;
        t->started++;
    }
    return own_team = t;
}

static void await_helpers(team *t, unsigned gate) {
    double begin = hy_clock();
    while (gate & INSIDE) {
        if (hy_clock() - begin >= LOOK_SECONDS) sleep_while(&t->gate, gate, CALLER);
        gate = atomic_load(&t->gate);
    }
}

void hy_cpu_for_each(const hy_cpu_run *run, int64_t tasks, hy_cpu_task task) {
    team *t = run->threads > 1 && tasks > 1 ? team_of(run->threads) : NULL;
    if (!t) {
        for (int64_t i = 0; i < tasks; i++) task(run, i, 0);
        return;
    }
    t->run = run;
    t->task = task;
    t->tasks = tasks;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store(&t->gate, (atomic_load(&t->gate) & ~(unsigned)(CLOSED | INSIDE)) + ONE_JOB);
    int wanted = tasks - 1 < INT_MAX ? (int)(tasks - 1) : INT_MAX;
    if (atomic_load(&t->sleepers) > 0) wake(&t->gate, wanted, HELPERS);
    take_tasks(t, 0);
    await_helpers(t, atomic_fetch_or(&t->gate, CLOSED) | CLOSED);
}

/* How rows or elements are divided: into tasks of `each`, and those into runs. */
typedef struct hy_cpu_cut {
    int64_t count, each, run;
    hy_cpu_work work;
} hy_cpu_cut;

static void cut_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    const hy_cpu_cut *cut = run->cut;
    int64_t end = hy_min64((task + 1) * cut->each, cut->count);
    for (int64_t at = task * cut->each; at < end; at += cut->run) {
        cut->work(run->call, at, hy_min64(cut->run, end - at));
    }
}

static hy_status for_cut(const hy_cpu_run *run, hy_cpu_cut cut) {
    hy_cpu_run inner = *run;
    inner.cut = &cut;
    hy_cpu_for_each(&inner, hy_ceil_div(cut.count, cut.each), cut_task);
    return HY_OK;
}

hy_status hy_cpu_for_rows(const hy_cpu_run *run, int64_t rows, int64_t each, hy_cpu_work work) {
    return for_cut(run, (hy_cpu_cut){rows, each, each, work});
}

hy_status hy_cpu_for_elements(const hy_cpu_run *run, int64_t count, int64_t each,
                              hy_cpu_work work) {
    return for_cut(run, (hy_cpu_cut){count, each, HY_CPU_RUN, work});
}
