/* timing.cu: allocates and frees the scratch memory, the stream and the events of a timing. See
 * timing.cuh. */
#include "kernels/cuda/timing.cuh"

void *hy_timing_take(hy_timing *t, size_t bytes) {
    size_t at = t->used;
    t->used += (bytes + 255) / 256 * 256;
    return t->memory ? t->memory + at : NULL;
}

void hy_timing_close(hy_timing *t) {
    if (t->stream) cudaStreamSynchronize(t->stream);
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->end) cudaEventDestroy(t->end);
    if (t->stream) cudaStreamDestroy(t->stream);
    if (t->memory) cudaFree(t->memory);
    cudaGetLastError(); /* clear the error, so that the next launch does not report it */
}

bool hy_timing_open(hy_timing *t) {
    if (cudaMalloc((void **)&t->memory, t->used) != cudaSuccess) t->memory = NULL;
    t->used = 0;
    if (t->memory && cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking) == cudaSuccess &&
        cudaEventCreate(&t->begin) == cudaSuccess && cudaEventCreate(&t->end) == cudaSuccess) {
        return true;
    }
    hy_timing_close(t);
    return false;
}
