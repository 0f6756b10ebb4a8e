/* parallel.c: the one place where an op spreads over threads.
 *
 * OpenMP's own pool does the work; without OpenMP tasks run one after the other, with the same
 * result. The team is always the whole team: libgomp ends and restarts threads when its size
 * changes. Tasks are taken dynamically, so a core slowed by other work costs little. */
#include "kernels/cpu/cpu.h"

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
