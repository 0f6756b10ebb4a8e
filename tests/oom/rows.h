/* rows.h: shared by the short and the long test that refuse allocations. */
#ifndef HY_TESTS_OOM_ROWS_H
#define HY_TESTS_OOM_ROWS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "table.h"
#include "uses.h"

/* Sanitized programs are many times slower: they take every so many of what the plain one takes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define THINNED 12
#else
#define THINNED 1
#endif

/* A folder for all trials, and in it the run whose model some of them use. */
static inline void rows_open(void) {
    const char *base = getenv("TMPDIR");
    int status = 1;
    snprintf(oom_folder, sizeof oom_folder, "%s/hybrid-oom-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(oom_folder)) abort();
    snprintf(oom_prepared, sizeof oom_prepared, "%s/prepared", oom_folder);
    fflush(NULL);
    pid_t child = fork(); /* the parent starts no threads: it forks again and again */
    if (child == 0) {
        prepare_run(oom_prepared);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        printf("0 passed, 1 failed\n");
        exit(1);
    }
    table_heading();
}

static inline refusals thinned(refusals r) {
    if (THINNED == 1) return r;
    r.every = r.first ? THINNED : r.every * THINNED;
    r.first = 0;
    return r;
}

/* Rows for the scenario of this name; adds what was bad. */
static inline void rows_of(const char *name, const refusals *rows, int count, int *good, int *bad) {
    const scenario *s = NULL;
    for (int i = 0; i < oom_scenario_count; i++) {
        if (strcmp(oom_scenarios[i].name, name) == 0) s = &oom_scenarios[i];
    }
    if (!s || !table_begin(s)) {
        ++*bad;
        return;
    }
    for (int i = 0; i < count; i++) {
        refusals row = thinned(rows[i]);
        int wrong = table_run(s, &row);
        *good += wrong == 0;
        *bad += wrong > 0;
    }
}

static inline int rows_close(int good, int bad) {
    hy_dir_remove(oom_folder);
    printf("%d passed, %d failed\n", good, bad);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
