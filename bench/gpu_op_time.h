/* gpu_op_time.h: the seconds that a prepared op takes: the median over rounds of the mean of several
 * calls, which are waited for together. Options --rounds and --calls. */
#ifndef BENCH_GPU_OP_TIME_H
#define BENCH_GPU_OP_TIME_H

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/kernels.h"

enum { GPU_ROUNDS_MAX = 101 };

static inline int gpu_by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline hy_status gpu_run_calls(hy_backend *backend, hy_stream *stream,
                                      const hy_op_call *call, int64_t calls) {
    for (int64_t i = 0; i < calls; i++) HY_TRY(backend->enqueue(stream, call));
    return backend->stream_sync(stream);
}

static inline hy_status gpu_op_time(hy_backend *backend, hy_stream *stream, const hy_op_call *call,
                                    int64_t rounds, int64_t calls, double *median) {
    double seconds[GPU_ROUNDS_MAX];
    HY_FAIL_IF(rounds < 1 || rounds > GPU_ROUNDS_MAX || calls < 1, HY_ERR_INPUT,
               "--rounds is %lld and --calls %lld; expected 1 to %d rounds of 1 or more calls",
               (long long)rounds, (long long)calls, GPU_ROUNDS_MAX);
    HY_TRY(gpu_run_calls(backend, stream, call, calls));
    for (int64_t i = 0; i < rounds; i++) {
        double begin = hy_clock();
        HY_TRY(gpu_run_calls(backend, stream, call, calls));
        seconds[i] = (hy_clock() - begin) / (double)calls;
    }
    qsort(seconds, (size_t)rounds, sizeof seconds[0], gpu_by_size);
    *median = seconds[rounds / 2];
    return HY_OK;
}

#endif
