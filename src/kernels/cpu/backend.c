/* backend.c: the CPU as a device: its op table, memory and facts.
 *
 * All places are ordinary memory here, but each allocation is separate, so mixing device and host
 * pointers is as wrong as on a GPU. A matmul needs no plan: prepare only checks. */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/stream.h"

#define ALIGNMENT 256

/* OpenBLAS, as distributions build it, has memory for 64 threads and aborts the program if there
 * are more. */
#define MAX_THREADS 64

typedef struct hy_cpu {
    hy_backend backend;
    const hy_blas *blas;
    hy_cpu_options options;
    uint64_t streams; /* number of streams so far: each has its own delays */
} hy_cpu;

static const hy_cpu_op ops[HY_OP_COUNT] = {
    [HY_OP_MATMUL] = {hy_cpu_matmul, hy_cpu_matmul_workspace},
    [HY_OP_BIAS_GRAD] = {hy_cpu_bias_grad, hy_cpu_bias_grad_workspace},
    [HY_OP_NORM] = {hy_cpu_norm, hy_cpu_norm_workspace},
    [HY_OP_NORM_BWD] = {hy_cpu_norm_bwd, hy_cpu_norm_bwd_workspace},
    [HY_OP_HEAD_NORM] = {hy_cpu_head_norm, NULL},
    [HY_OP_HEAD_NORM_BWD] = {hy_cpu_head_norm_bwd, hy_cpu_head_norm_bwd_workspace},
    [HY_OP_ROPE] = {hy_cpu_rope, NULL},
    [HY_OP_ATTENTION] = {hy_cpu_attention, hy_cpu_attention_workspace},
    [HY_OP_ATTENTION_BWD] = {hy_cpu_attention_bwd, hy_cpu_attention_bwd_workspace},
    [HY_OP_ATTENTION_CACHED] = {hy_cpu_attention_cached, hy_cpu_attention_cached_workspace},
    [HY_OP_CONV] = {hy_cpu_conv, NULL},
    [HY_OP_CONV_BWD] = {hy_cpu_conv_bwd, hy_cpu_conv_bwd_workspace},
    [HY_OP_CONV_CACHED] = {hy_cpu_conv_cached, NULL},
    [HY_OP_DELTA] = {hy_cpu_delta, hy_cpu_delta_workspace},
    [HY_OP_DELTA_BWD] = {hy_cpu_delta_bwd, hy_cpu_delta_bwd_workspace},
    [HY_OP_DELTA_CACHED] = {hy_cpu_delta_cached, hy_cpu_delta_cached_workspace},
    [HY_OP_GATE] = {hy_cpu_gate, NULL},
    [HY_OP_GATE_BWD] = {hy_cpu_gate_bwd, hy_cpu_gate_bwd_workspace},
    [HY_OP_GELU] = {hy_cpu_gelu, NULL},
    [HY_OP_GELU_BWD] = {hy_cpu_gelu_bwd, NULL},
    [HY_OP_SWIGLU] = {hy_cpu_swiglu, NULL},
    [HY_OP_SWIGLU_BWD] = {hy_cpu_swiglu_bwd, NULL},
    [HY_OP_EMBED] = {hy_cpu_embed, NULL},
    [HY_OP_EMBED_BWD] = {hy_cpu_embed_bwd, hy_cpu_embed_bwd_workspace},
    [HY_OP_CROSS_ENTROPY] = {hy_cpu_cross_entropy, NULL},
    [HY_OP_PREFERENCE] = {hy_cpu_preference, NULL},
    [HY_OP_POLICY] = {hy_cpu_policy, NULL},
    [HY_OP_SAMPLE] = {hy_cpu_sample, hy_cpu_sample_workspace},
    [HY_OP_SUM] = {hy_cpu_reduce, hy_cpu_reduce_workspace},
    [HY_OP_SQ_NORM] = {hy_cpu_reduce, hy_cpu_reduce_workspace},
    [HY_OP_CLIP] = {hy_cpu_clip, NULL},
    [HY_OP_ADAMW] = {hy_cpu_update, NULL},
    [HY_OP_SGD] = {hy_cpu_update, NULL},
    [HY_OP_LION] = {hy_cpu_update, NULL},
    [HY_OP_ADAFACTOR] = {hy_cpu_adafactor, hy_cpu_adafactor_workspace},
    [HY_OP_MUON_BLEND] = {hy_cpu_muon_blend, NULL},
    [HY_OP_TO_UNIT] = {hy_cpu_to_unit, hy_cpu_to_unit_workspace},
    [HY_OP_MUON] = {hy_cpu_update, NULL},
    [HY_OP_CAST] = {hy_cpu_cast, NULL},
    [HY_OP_FILL] = {hy_cpu_fill, NULL},
    [HY_OP_COMBINE] = {hy_cpu_combine, NULL},
    [HY_OP_DIFF_DOT] = {hy_cpu_diff_dot, hy_cpu_diff_dot_workspace},
    [HY_OP_QUANTIZE] = {hy_cpu_quantize, NULL},
    [HY_OP_DEQUANTIZE] = {hy_cpu_quantize, NULL},
    [HY_OP_WRAP] = {hy_cpu_wrap, NULL},
    [HY_OP_UNWRAP] = {hy_cpu_wrap, NULL},
    [HY_OP_LARGEST] = {hy_cpu_largest, NULL},
    [HY_OP_TO_FP8] = {hy_cpu_to_fp8, NULL},
    [HY_OP_SPREAD] = {hy_cpu_spread, NULL},
    [HY_OP_COLLECT] = {hy_cpu_collect, NULL},
    [HY_OP_DROPOUT] = {hy_cpu_dropout, NULL},
    [HY_OP_ADD_PARTS] = {hy_cpu_add_parts, NULL},
    [HY_OP_ROUTE] = {hy_cpu_route, hy_cpu_route_workspace},
    [HY_OP_ROUTE_BWD] = {hy_cpu_route_bwd, hy_cpu_route_workspace},
    [HY_OP_SORT_EXPERTS] = {hy_cpu_sort_experts, NULL},
    [HY_OP_GROUPED_MATMUL] = {hy_cpu_grouped, hy_cpu_grouped_workspace},
    [HY_OP_GROUPED_GRAD] = {hy_cpu_grouped, hy_cpu_grouped_workspace},
    [HY_OP_SUM_ROWS] = {hy_cpu_sum_rows, NULL},
};

/* ---- memory ---------------------------------------------------------------------------------- */

static hy_status cpu_alloc(hy_backend *b, hy_place place, size_t bytes, void **out) {
    (void)b;
    HY_FAIL_IF(place != HY_DEVICE && place != HY_PINNED && place != HY_HOST, HY_ERR_INPUT,
               "cannot allocate memory in place \"%s\"; expected device, pinned or host",
               hy_place_name(place));
    void *data = NULL;
    int error = posix_memalign(&data, ALIGNMENT, bytes ? bytes : ALIGNMENT);
    HY_FAIL_IF(error != 0, HY_ERR_MEMORY, "cannot allocate %zu bytes of %s memory: %s", bytes,
               hy_place_name(place), strerror(error));
    *out = data;
    return HY_OK;
}

static void cpu_release(hy_backend *b, hy_place place, void *data, size_t bytes) {
    (void)b;
    (void)place;
    (void)bytes;
    free(data);
}

static hy_status cpu_memory_now(hy_backend *b, size_t *free, size_t *total) {
    (void)b;
    hy_machine_memory(total, free);
    return HY_OK;
}

/* ---- ops ------------------------------------------------------------------------------------- */

static size_t cpu_workspace(hy_backend *b, const hy_op_call *call) {
    if ((unsigned)call->kind >= HY_OP_COUNT || !ops[call->kind].workspace) return 0;
    return ops[call->kind].workspace(call, b->facts.threads);
}

static hy_status cpu_supports(hy_backend *b, const hy_op_call *call) {
    (void)b;
    HY_TRY(hy_op_check(call));
    HY_FAIL_IF(call->kind == HY_OP_MATMUL &&
                   (call->attr.matmul.is_gelu || call->t[HY_MATMUL_ACT].data ||
                    call->t[HY_MATMUL_PRE].data),
               HY_ERR_INPUT, "matmul: the CPU cannot fuse gelu; use a separate op");
    /* The BLAS interface has 32-bit rows, columns and row lengths. */
    bool uses_blas = call->kind == HY_OP_MATMUL || call->kind == HY_OP_ATTENTION ||
                     call->kind == HY_OP_ATTENTION_BWD || call->kind == HY_OP_GROUPED_MATMUL ||
                     call->kind == HY_OP_GROUPED_GRAD;
    for (int i = 0; uses_blas && i < HY_OP_TENSORS; i++) {
        int64_t rows = hy_tensor_height(&call->t[i]), cols = hy_tensor_width(&call->t[i]);
        HY_FAIL_IF(call->t[i].data && (rows > INT32_MAX || cols > INT32_MAX), HY_ERR_INPUT,
                   "%s: %s has %lld rows of %lld elements; the limit on the CPU is %d for each",
                   hy_op_name(call->kind), hy_op_tensor_name(call->kind, i), (long long)rows,
                   (long long)cols, INT32_MAX);
    }
    return HY_OK;
}

static hy_status cpu_prepare(hy_backend *b, hy_op_call *call) {
    call->plan = NULL;
    return cpu_supports(b, call);
}

static hy_status execute(void *context, const hy_op_call *call) {
    hy_cpu *cpu = context;
    size_t needed = cpu_workspace(&cpu->backend, call);
    size_t given = call->workspace.data ? hy_tensor_bytes(&call->workspace) : 0;
    HY_FAIL_IF(given < needed, HY_ERR_INTERNAL, "%s: the workspace has %zu bytes, expected %zu",
               hy_op_name(call->kind), given, needed);
    hy_cpu_run run = {.call = call, .blas = cpu->blas, .threads = cpu->backend.facts.threads};
    HY_TRY(ops[call->kind].run(&run));
    return hy_cpu_largest_of(&run);
}

static hy_status cpu_enqueue(hy_stream *s, const hy_op_call *call) {
    assert(cpu_supports(NULL, call) == HY_OK);
    return hy_cpu_stream_enqueue(s, call);
}

static hy_status cpu_stream_create(hy_backend *b, const char *name, hy_stream **out) {
    hy_cpu *cpu = b->self;
    uint64_t number = cpu->streams++;
    hy_stream_options options = {.name = name,
                                 .execute = execute,
                                 .context = cpu,
                                 .delay_microseconds = cpu->options.delay_microseconds,
                                 .delay_seed = cpu->options.delay_seed + number};
    return hy_cpu_stream_create(&options, out);
}

/* ---- facts ----------------------------------------------------------------------------------- */

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Measures the rate of the matmul op on all threads, as the best of a few matmuls of about 4 ms
 * each. The time is that of the processor, so that other programs on the same cores do not count.
 * The first one starts the threads and does not count. They use their own stream, so the threads of
 * this measurement end with it. */
static hy_status measure_matmul(hy_cpu *cpu) {
    enum { M_PER_THREAD = 192, N = 768, K = 768, TRIES = 4 };
    hy_stream_options options = {.name = "measure", .execute = execute, .context = cpu};
    hy_stream *stream;
    int64_t M = (int64_t)M_PER_THREAD * hy_min64(cpu->backend.facts.threads, 16);
    HY_TRY(hy_cpu_stream_create(&options, &stream));
    float *data = calloc((size_t)(M * K + K * N + M * N), sizeof *data);
    if (!data) {
        hy_cpu_stream_destroy(stream);
        return hy_fail(HY_ERR_MEMORY, "not enough memory to measure the speed of matmuls");
    }
    hy_op_call call = {.kind = HY_OP_MATMUL, .attr.matmul = {.trans_b = true, .alpha = 1}};
    call.t[HY_MATMUL_A] = hy_tensor_2d(data, HY_F32, M, K);
    call.t[HY_MATMUL_B] = hy_tensor_2d(data + M * K, HY_F32, N, K);
    call.t[HY_MATMUL_D] = hy_tensor_2d(data + M * K + K * N, HY_F32, M, N);
    double best = 0, begin = hy_clock();
    for (int i = 0; i <= TRIES && hy_clock() - begin < 0.1; i++) {
        double start = cpu_seconds();
        cpu_enqueue(stream, &call);
        hy_cpu_stream_sync(stream);
        double seconds = (cpu_seconds() - start) / cpu->backend.facts.threads;
        double rate = seconds > 0 ? hy_op_flops(&call) / seconds : 0;
        if (i <= 1 || rate > best) best = rate;
    }
    cpu->backend.facts.matmul_flops = best;
    free(data);
    hy_cpu_stream_destroy(stream);
    return HY_OK;
}

/* Measured once per process and number of threads: plans that are compared with each other need
 * the same rate, and another program may slow down one measurement. */
static hy_status find_matmul_flops(hy_cpu *cpu) {
    static _Atomic double known[MAX_THREADS + 1]; /* 0: not measured yet */
    _Atomic double *mine = &known[cpu->backend.facts.threads];
    if (atomic_load(mine) == 0) HY_TRY(measure_matmul(cpu));
    double none = 0;
    atomic_compare_exchange_strong(mine, &none, cpu->backend.facts.matmul_flops);
    cpu->backend.facts.matmul_flops = atomic_load(mine);
    return HY_OK;
}

/* ---- creating and destroying ----------------------------------------------------------------- */

static void cpu_destroy(hy_backend *b) {
    if (b) free(b->self);
}

hy_status hy_cpu_backend_create(const hy_cpu_options *options, hy_backend **out) {
    HY_FAIL_IF(options && (options->threads < 0 || options->threads > 1024), HY_ERR_INPUT,
               "the number of threads is %d; expected 1 to 1024, or 0 for all cores",
               options->threads);
    int threads = options && options->threads ? options->threads : hy_machine_threads();
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    HY_TRY(hy_blas_check_memory(threads));
    hy_cpu *cpu = calloc(1, sizeof *cpu);
    HY_FAIL_IF(!cpu, HY_ERR_MEMORY, "not enough memory for the CPU backend");
    if (options) cpu->options = *options;
    cpu->blas = hy_blas_get();
    cpu->backend = (hy_backend){
        .self = cpu,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .memory_now = cpu_memory_now,
        .stream_create = cpu_stream_create,
        .stream_destroy = hy_cpu_stream_destroy,
        .stream_sync = hy_cpu_stream_sync,
        .stream_waited = hy_cpu_stream_waited,
        .event_create = hy_cpu_event_create,
        .event_destroy = hy_cpu_event_destroy,
        .event_record = hy_cpu_event_record,
        .stream_wait = hy_cpu_stream_wait,
        .event_sync = hy_cpu_event_sync,
        .event_is_done = hy_cpu_event_is_done,
        .copy = hy_cpu_stream_copy,
        .enqueue = cpu_enqueue,
        .call = hy_cpu_stream_call,
        .supports = cpu_supports,
        .workspace = cpu_workspace,
        .prepare = cpu_prepare,
        .destroy = cpu_destroy,
    };
    hy_device_facts *facts = &cpu->backend.facts;
    char name[112];
    facts->threads = threads;
    hy_machine_cpu_name(name, sizeof name);
    snprintf(facts->name, sizeof facts->name, "CPU: %s", name);
    snprintf(facts->detail, sizeof facts->detail, "%s", cpu->blas->detail);
    snprintf(facts->warning, sizeof facts->warning, "%s", cpu->blas->warning);
    hy_machine_memory(&facts->memory_total, &facts->memory_free);
    hy_status status = find_matmul_flops(cpu);
    if (status == HY_OK) *out = &cpu->backend;
    if (status != HY_OK) free(cpu);
    return status;
}
