/* parallel.c: the one place where an op spreads over threads.
 *
 * OpenMP's own pool does the work; without OpenMP tasks run one after the other, with the same
 * result. The team is always the whole team: libgomp ends and restarts threads when its size
 * changes. Tasks are taken dynamically, so a core slowed by other work costs little. */
#include "kernels/cpu/rows.h"

#ifdef _OPENMP
#include <omp.h>
#endif

void hy_cpu_for_each(const hy_cpu_run *run, int64_t tasks, hy_cpu_task task) {
#ifdef _OPENMP
    if (run->threads > 1 && tasks > 1) {
#pragma omp parallel for num_threads(run->threads) schedule(dynamic, 1)
        for (int64_t i = 0; i < tasks; i++) task(run, i, omp_get_thread_num());
        return;
    }
#endif
    for (int64_t i = 0; i < tasks; i++) task(run, i, 0);
}

/* How rows or elements are cut: into tasks of `each`, and those into runs. */
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
