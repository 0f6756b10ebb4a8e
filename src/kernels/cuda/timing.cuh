/* timing.cuh: scratch memory, a stream and a clock to time kernels with.
 *
 * Used by op_time.cu, attention_time.cu and matmul_tune.cu. The caller lays out its tensors twice:
 * before hy_timing_open the parts are only counted, after it they have addresses. Everything is
 * freed after the timing, before the arenas are allocated. */
#pragma once

#include "kernels/cuda/cuda.cuh"

typedef struct hy_timing {
    char *memory; /* NULL: not open yet */
    size_t used;
    cudaStream_t stream;
    cudaEvent_t begin, end;
} hy_timing;

/* The next part of the scratch memory; NULL while it is only counted. */
void *hy_timing_take(hy_timing *t, size_t bytes);
/* Allocates the parts taken so far and begins again with the first; false: not possible. */
bool hy_timing_open(hy_timing *t);
void hy_timing_close(hy_timing *t); /* waits for the stream first */

static inline int hy_clamp(float x, int least, int most) {
    return x < (float)least ? least : x > (float)most ? most : (int)x;
}

/* Microseconds of one `run`, averaged over `repeats`; negative: it fails. `run` returns
 * hy_status. */
template <typename F> static float hy_time_runs(const hy_timing *t, int repeats, F run) {
    float milliseconds = -1.0f;
    cudaEventRecord(t->begin, t->stream);
    for (int i = 0; i < repeats; i++) {
        if (run() != HY_OK) return -1.0f;
    }
    cudaEventRecord(t->end, t->stream);
    if (cudaEventSynchronize(t->end) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, t->begin, t->end) != cudaSuccess) {
        return -1.0f;
    }
    return milliseconds * 1e3f / (float)repeats;
}
