/* op_time.cu: measures how long a prepared op takes on this card, for planning.
 *
 * A matmul with a plan was timed when its algorithm was chosen. Any other op runs a few times on its
 * own scratch memory, which is freed afterwards: its tensors one after another, filled with zeros,
 * which are valid numbers and indices in every type; only experts have equal numbers of rows.
 * Nothing here fails: an op that cannot be measured takes 0. */
#include "kernels/cuda/backend.cuh"
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/timing.cuh"
#include "kernels/grouped.h"

enum { SAMPLES = 5, MOST_REPEATS = 20 };

/* A sample repeats short ops for this long, because the clock is coarse. */
#define SAMPLE_MICROSECONDS 100.0f

/* Lays out the tensors of `call` in the scratch memory. */
static void lay_out(hy_timing *t, const hy_op_call *given, size_t workspace, hy_op_call *call) {
    *call = *given;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        const hy_tensor *from = &given->t[i];
        if (!hy_has(from)) continue;
        call->t[i].data = hy_timing_take(t, hy_tensor_bytes(from));
        if (!from->quant.scale) continue;
        call->t[i].quant.scale = (float *)hy_timing_take(t, hy_tensor_scale_bytes(from));
    }
    call->workspace = {};
    if (workspace > 0) {
        call->workspace = hy_tensor_1d(hy_timing_take(t, workspace), HY_U8, (int64_t)workspace);
    }
}

/* Gives experts their rows; other ops have none. */
static bool deal_out_rows(const hy_op_call *call, cudaStream_t stream) {
    static_assert((int)HY_GROUPED_MATMUL_OFFSETS == (int)HY_GROUPED_GRAD_OFFSETS, "");
    int32_t offsets[HY_ROUTE_EXPERTS_MAX + 1];
    const hy_tensor *t = &call->t[HY_GROUPED_MATMUL_OFFSETS];
    if (call->kind != HY_OP_GROUPED_MATMUL && call->kind != HY_OP_GROUPED_GRAD) return true;
    int64_t E = hy_tensor_count(t) - 1, R = hy_grouped_rows(call);
    for (int64_t e = 0; e <= E; e++) offsets[e] = (int32_t)(R * e / E);
    return cudaMemcpyAsync(t->data, offsets, hy_tensor_bytes(t), cudaMemcpyHostToDevice, stream) ==
           cudaSuccess;
}

/* Microseconds: the best of a few samples, because disturbances make a run longer; 0: it does not
 * run. */
template <typename F> static float best_time(const hy_timing *t, F run) {
    float best = 0;
    if (hy_time_runs(t, 1, run) <= 0) return 0; /* loads the kernels */
    float about = hy_time_runs(t, 1, run);
    if (about <= 0) return 0;
    int repeats = hy_clamp(SAMPLE_MICROSECONDS / about, 1, MOST_REPEATS);
    for (int i = 0; i < SAMPLES; i++) {
        float time = hy_time_runs(t, repeats, run);
        if (time > 0 && (best == 0 || time < best)) best = time;
    }
    return best;
}

double hy_cuda_op_seconds(hy_backend *b, const hy_op_call *given) {
    hy_cuda *cuda = (hy_cuda *)b->self;
    hy_cuda_op op = hy_cuda_op_of(given->kind);
    hy_timing t = {};
    hy_op_call call;
    bool is_planned = given->kind == HY_OP_MATMUL && !given->attr.matmul.is_batch_invariant;
    if (is_planned) return hy_cuda_matmul_seconds(given);
    if (!op.run) return 0;
    size_t workspace = op.workspace ? op.workspace(cuda, given) : 0;
    lay_out(&t, given, workspace, &call);
    size_t bytes = t.used;
    if (bytes == 0 || !hy_timing_open(&t)) return 0;
    lay_out(&t, given, workspace, &call);
    hy_cuda_run run = {&call, cuda, t.stream};
    float best = 0;
    if (cudaMemsetAsync(t.memory, 0, bytes, t.stream) == cudaSuccess &&
        deal_out_rows(&call, t.stream)) {
        best = best_time(&t, [&] { return op.run(&run); });
    }
    hy_timing_close(&t);
    return (double)best * 1e-6;
}
