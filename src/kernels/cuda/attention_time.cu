/* attention_time.cu: times our own attention and cuDNN's for one call. See attention_choice.cuh.
 *
 * The tensors of the call are in scratch memory that exists only for one timing, filled with random
 * numbers; a backward pass reads the result of a forward pass. The two are timed alternately, which
 * evens out clock drift, and the median counts. Their results must agree first: a library that
 * computes something else is not faster. Nothing here fails a run. */
#include "kernels/cuda/attention_choice.cuh"
#include "kernels/cuda/matmul.cuh"
#include "kernels/cuda/timing.cuh"

enum { OWN, CUDNN, BOTH };
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 9, MOST_REPEATS = 20 };

/* A sample repeats a short pass for this long, because the clock is coarse; all samples of one
 * attention together take about this long. */
#define SAMPLE_MICROSECONDS 200.0f
#define TOTAL_MICROSECONDS 50000.0f

/* How far results may differ in addition to 1 % of each: about ten times the effect of rounding
 * weights and gradients of scores to 16 bits on sums of these random numbers. */
#define FORWARD_SLACK 0.02f
#define BACKWARD_SLACK 0.05f

typedef struct bench {
    hy_cuda *cuda;
    hy_timing timing;
    hy_op_call call;     /* with tensors in the scratch memory and the plan of cuDNN */
    void *expected;      /* our own result */
    unsigned *differing; /* elements of cuDNN's result that differ */
} bench;

static bool is_forward(const bench *b) { return b->call.kind == HY_OP_ATTENTION; }

static hy_tensor *result_of(bench *b) {
    return is_forward(b) ? &b->call.t[HY_ATTENTION_OUT] : &b->call.t[HY_ATTENTION_BWD_DQKV];
}

/* ---- scratch --------------------------------------------------------------------------------- */

/* Lays out the tensors. The workspace is large enough for either. */
static void lay_out(bench *b, const hy_op_call *given) {
    hy_timing *t = &b->timing;
    size_t workspace = given->kind == HY_OP_ATTENTION
                           ? hy_cudnn_attention_workspace(b->cuda, given)
                           : hy_cuda_attention_bwd_workspace(b->cuda, given);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!hy_has(&given->t[i])) continue;
        b->call.t[i].data = hy_timing_take(t, hy_tensor_bytes(&given->t[i]));
    }
    b->call.workspace = hy_tensor_1d(hy_timing_take(t, workspace), HY_U8, (int64_t)workspace);
    b->expected = hy_timing_take(t, hy_tensor_bytes(result_of(b)));
    b->differing = (unsigned *)hy_timing_take(t, sizeof *b->differing);
}

/* ---- running --------------------------------------------------------------------------------- */

static hy_status run_one(bench *b, int who) {
    hy_cuda_run run = {&b->call, b->cuda, b->timing.stream};
    hy_status status = HY_OK;
    if (who == CUDNN) return hy_cudnn_attention_runs(&run, &status) ? status : HY_ERR_STATE;
    return is_forward(b) ? hy_cuda_attention_tiles(&run) : hy_cuda_attention_bwd_tiles(&run);
}

/* The input of a backward pass: out and lse of our own forward pass. */
static hy_status run_before(bench *b) {
    const hy_tensor *t = b->call.t;
    hy_op_call forward = {};
    hy_cuda_run run = {&forward, b->cuda, b->timing.stream};
    forward.kind = HY_OP_ATTENTION;
    forward.attr = b->call.attr;
    forward.t[HY_ATTENTION_QKV] = t[HY_ATTENTION_BWD_QKV];
    forward.t[HY_ATTENTION_OUT] = t[HY_ATTENTION_BWD_OUT];
    forward.t[HY_ATTENTION_LSE] = t[HY_ATTENTION_BWD_LSE];
    return hy_cuda_attention_tiles(&run);
}

static hy_status fill(bench *b) {
    const hy_tensor *qkv = hy_attention_qkv(&b->call), *dout = &b->call.t[HY_ATTENTION_BWD_DOUT];
    hy_matmul_fill(qkv->data, qkv->dtype, hy_tensor_count(qkv), 1, b->timing.stream);
    if (is_forward(b)) return HY_OK;
    hy_matmul_fill(dout->data, dout->dtype, hy_tensor_count(dout), 2, b->timing.stream);
    return run_before(b);
}

static bool agree(bench *b) {
    const hy_tensor *result = result_of(b);
    unsigned differing = 1;
    if (run_one(b, OWN) != HY_OK) return false;
    cudaMemcpyAsync(b->expected, result->data, hy_tensor_bytes(result), cudaMemcpyDeviceToDevice,
                    b->timing.stream);
    cudaMemsetAsync(b->differing, 0, sizeof differing, b->timing.stream);
    cudaMemsetAsync(result->data, 0xff, hy_tensor_bytes(result), b->timing.stream); /* NaN */
    if (run_one(b, CUDNN) != HY_OK) return false;
    hy_matmul_compare(result->data, b->expected, result->dtype, hy_tensor_count(result),
                      is_forward(b) ? FORWARD_SLACK : BACKWARD_SLACK, b->differing,
                      b->timing.stream);
    cudaMemcpyAsync(&differing, b->differing, sizeof differing, cudaMemcpyDeviceToHost,
                    b->timing.stream);
    return cudaStreamSynchronize(b->timing.stream) == cudaSuccess && differing == 0;
}

/* ---- timing ---------------------------------------------------------------------------------- */

static float time_once(bench *b, int who, int repeats) {
    return hy_time_runs(&b->timing, repeats, [&] { return run_one(b, who); });
}

/* Both have run before, so their kernels are loaded. */
static bool time_both(bench *b, float times[BOTH]) {
    float samples[BOTH][MOST_ROUNDS], about = 0;
    for (int who = 0; who < BOTH; who++) {
        float once = time_once(b, who, 1);
        if (once <= 0) return false;
        if (once > about) about = once;
    }
    int repeats = hy_clamp(SAMPLE_MICROSECONDS / about, 1, MOST_REPEATS);
    int rounds = hy_clamp(TOTAL_MICROSECONDS / (about * (float)repeats), LEAST_ROUNDS, MOST_ROUNDS);
    for (int round = 0; round < rounds; round++) {
        for (int who = 0; who < BOTH; who++) {
            samples[who][round] = time_once(b, who, repeats);
            if (samples[who][round] <= 0) return false;
        }
    }
    for (int who = 0; who < BOTH; who++) times[who] = hy_matmul_median(samples[who], rounds);
    return true;
}

static void report_progress(const hy_cuda *cuda, const hy_op_call *call) {
    const hy_heads_attr *a = &call->attr.heads;
    char what[128];
    if (!cuda->options.on_tuning) return;
    snprintf(what, sizeof what, "%s, %d x %d, %d heads of %d", cuda->host.op_name(call->kind),
             (int)a->batch, (int)a->seq, (int)a->heads, (int)a->head_dim);
    cuda->options.on_tuning(cuda->options.user, what, cuda->plans->tuned, 0);
}

bool hy_attention_time(hy_cuda *cuda, const hy_op_call *call, const hy_cudnn_attention *offer,
                       float *own_us, float *cudnn_us) {
    bench b = {};
    float times[BOTH];
    b.cuda = cuda;
    b.call = *call;
    b.call.plan = offer;
    lay_out(&b, call);
    if (!hy_timing_open(&b.timing)) return false;
    lay_out(&b, call);
    report_progress(cuda, call);
    bool is_timed = fill(&b) == HY_OK && agree(&b) && time_both(&b, times);
    hy_timing_close(&b.timing);
    if (!is_timed) return false;
    *own_us = times[OWN];
    *cudnn_us = times[CUDNN];
    return true;
}
