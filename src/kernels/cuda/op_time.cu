/* op_time.cu: measures how long a prepared op takes on this card, for planning.
 *
 * A matmul was timed when its algorithm was chosen. Any other op runs a few times on its own
 * scratch memory, which is freed afterwards: its tensors one after another, filled with zeros,
 * which are valid numbers and indices in every type. Nothing here fails: an op that cannot be
 * measured takes 0. */
#include "kernels/cuda/backend.cuh"
#include "kernels/cuda/matmul.cuh"

enum { SAMPLES = 5, MOST_REPEATS = 20 };

/* A sample repeats short ops for this long, because the clock is coarse. */
#define SAMPLE_SECONDS 100e-6

typedef struct timing {
    hy_cuda_run run;
    hy_op_call call; /* with tensors in `memory` */
    hy_cuda_op op;
    char *memory;
    cudaStream_t stream;
    cudaEvent_t begin, end;
} timing;

/* Allocates bytes of the scratch block; only counts while there is none. */
static void *take(const timing *t, size_t *used, size_t bytes) {
    size_t at = *used;
    *used += (bytes + 255) / 256 * 256;
    return t->memory ? t->memory + at : NULL;
}

/* Lays out the tensors; returns the bytes. */
static size_t lay_out(timing *t, const hy_op_call *given) {
    size_t used = 0;
    t->call = *given;
    size_t workspace = t->op.workspace ? t->op.workspace(t->run.cuda, given) : 0;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        const hy_tensor *from = &given->t[i];
        if (!hy_has(from)) continue;
        t->call.t[i].data = take(t, &used, hy_tensor_bytes(from));
        if (!from->quant.scale) continue;
        t->call.t[i].quant.scale = (float *)take(t, &used, hy_tensor_scale_bytes(from));
    }
    t->call.workspace = {};
    if (workspace > 0) {
        t->call.workspace = hy_tensor_1d(take(t, &used, workspace), HY_U8, (int64_t)workspace);
    }
    return used;
}

static void close_timing(timing *t) {
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->end) cudaEventDestroy(t->end);
    if (t->stream) cudaStreamDestroy(t->stream);
    if (t->memory) cudaFree(t->memory);
    cudaGetLastError(); /* clear the error, so that the next launch does not report it */
}

/* False: the scratch memory cannot be allocated. */
static bool open_timing(timing *t, hy_cuda *cuda, const hy_op_call *given) {
    *t = (timing){};
    t->op = hy_cuda_op_of(given->kind);
    t->run.cuda = cuda;
    size_t bytes = t->op.run ? lay_out(t, given) : 0;
    if (bytes == 0 || cudaMalloc((void **)&t->memory, bytes) != cudaSuccess) t->memory = NULL;
    if (!t->memory || cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking) != cudaSuccess ||
        cudaEventCreate(&t->begin) != cudaSuccess || cudaEventCreate(&t->end) != cudaSuccess ||
        cudaMemsetAsync(t->memory, 0, bytes, t->stream) != cudaSuccess) {
        close_timing(t);
        return false;
    }
    lay_out(t, given);
    t->run.call = &t->call;
    t->run.stream = t->stream;
    return true;
}

/* Seconds of one run, averaged over `repeats`; 0: it does not run. */
static double time_once(timing *t, int repeats) {
    float milliseconds = 0;
    cudaEventRecord(t->begin, t->stream);
    for (int i = 0; i < repeats; i++) {
        if (t->op.run(&t->run) != HY_OK) return 0;
    }
    cudaEventRecord(t->end, t->stream);
    if (cudaEventSynchronize(t->end) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, t->begin, t->end) != cudaSuccess) {
        return 0;
    }
    return (double)milliseconds * 1e-3 / repeats;
}

/* The best of a few, because disturbances make a run longer. */
static double best_time(timing *t) {
    double best = 0;
    if (time_once(t, 1) <= 0) return 0; /* loads the kernels */
    double about = time_once(t, 1);
    if (about <= 0) return 0;
    double wanted = SAMPLE_SECONDS / about;
    int repeats = wanted < 1 ? 1 : wanted > MOST_REPEATS ? MOST_REPEATS : (int)wanted;
    for (int i = 0; i < SAMPLES; i++) {
        double seconds = time_once(t, repeats);
        if (seconds > 0 && (best == 0 || seconds < best)) best = seconds;
    }
    return best;
}

double hy_cuda_op_seconds(hy_backend *b, const hy_op_call *call) {
    timing t;
    hy_cuda *cuda = (hy_cuda *)b->self;
    if (call->kind == HY_OP_MATMUL) return hy_cuda_matmul_seconds(call);
    if (!open_timing(&t, cuda, call)) return 0;
    double seconds = best_time(&t);
    cudaStreamSynchronize(t.stream);
    close_timing(&t);
    return seconds;
}
