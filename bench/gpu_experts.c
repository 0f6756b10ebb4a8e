/* gpu_experts.c: times the ops of mixtures of experts, grouped matmuls beside one dense matmul of
 * the same operations.
 *
 * Tokens choose experts at random, so rows per expert vary as they do. Each figure is the median
 * over rounds of the mean of several calls. "of dense" is the dense matmul's time by the grouped
 * one's. Without sizes it measures those of the table below.
 *   build/bench/gpu_experts [--experts 64 --chosen 8 --tokens 16384 --width 2048 --out 2048]
 *       [--device cuda] [--rounds 5] [--calls 10]
 *
 * width and out are those of a row before and after an expert. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "gpu_heading.h"
#include "gpu_op_time.h"
#include "kernels/half.h"

typedef struct sizes {
    int64_t experts, chosen, tokens, width, out;
} sizes;

/* 1,024 and 2,048 rows per expert; OLMoE's down projection; Qwen3-30B-A3B's gate and up. */
static const sizes table[] = {{64, 4, 16384, 2048, 2048},
                              {64, 8, 16384, 2048, 2048},
                              {64, 8, 16384, 1024, 2048},
                              {128, 8, 16384, 2048, 1536}};

typedef struct bench {
    int argc;
    char **argv;
    hy_backend *backend;
    hy_stream *stream;
    sizes s;
    hy_tensor choice, order, place, offsets; /* of the tokens' choices */
    hy_tensor tokens, rows_in, rows_out;     /* (X,width), (R,width), (R,out) */
    hy_tensor experts, nf4, gradient;        /* (E,out,width) */
    hy_tensor dense, dense_gradient;         /* (out,width) */
    hy_tensor workspace;
    hy_tensor memory[64]; /* to be freed */
    int count;
} bench;

static int64_t number(const bench *b, const char *name, int64_t fallback) {
    const char *text = gpu_option(b->argc, b->argv, name, NULL);
    return text ? strtoll(text, NULL, 10) : fallback;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static hy_status allocate(bench *b, size_t bytes, void **out) {
    HY_TRY(b->backend->alloc(b->backend, HY_DEVICE, bytes, out));
    b->memory[b->count++] = hy_tensor_1d(*out, HY_U8, (int64_t)bytes);
    return HY_OK;
}

static void free_all(bench *b) {
    for (int i = 0; i < b->count; i++) {
        b->backend->release(b->backend, HY_DEVICE, b->memory[i].data,
                            (size_t)b->memory[i].shape[0]);
    }
    b->count = 0;
}

/* Fills memory with a block of random bytes of `unit`, again and again. */
static hy_status fill(bench *b, char *data, size_t bytes, const void *unit, size_t unit_bytes) {
    for (size_t at = 0; at < bytes; at += unit_bytes) {
        size_t some = bytes - at < unit_bytes ? bytes - at : unit_bytes;
        HY_TRY(b->backend->copy(b->stream, data + at, unit, some));
    }
    return b->backend->stream_sync(b->stream);
}

/* A tensor of normal numbers; with coded, the codes and scales of such numbers. */
static hy_status make_random(bench *b, hy_dtype dtype, int64_t E, int64_t rows, int64_t cols,
                             hy_tensor *out) {
    enum { UNIT = 1 << 18 };
    static uint16_t halves[UNIT];
    static float floats[UNIT];
    *out = (hy_tensor){.shape = {E, rows, cols}, .ndim = 3, .dtype = dtype};
    if (E == 1) *out = hy_tensor_2d(NULL, dtype, rows, cols);
    for (int64_t i = 0; i < UNIT; i++) {
        floats[i] = (float)hy_rng_normal(1, HY_RNG_TEST, (uint64_t)i);
        halves[i] = hy_f32_to_bf16(floats[i]);
    }
    HY_TRY(allocate(b, hy_tensor_bytes(out), &out->data));
    const void *unit = dtype == HY_F32 ? (const void *)floats : halves;
    HY_TRY(
        fill(b, out->data, hy_tensor_bytes(out), unit, UNIT * (size_t)(dtype == HY_F32 ? 4 : 2)));
    if (!hy_is_coded(dtype)) return HY_OK;
    out->quant.block = hy_coded_block(dtype, E * rows, cols);
    size_t bytes = hy_tensor_scale_bytes(out);
    HY_TRY(allocate(b, bytes, (void **)&out->quant.scale));
    return fill(b, (char *)out->quant.scale, bytes, floats, sizeof floats);
}

/* Each token's experts, all different. */
static hy_status draw_choices(bench *b) {
    int64_t k = b->s.chosen, R = b->s.tokens * k;
    int32_t *choice = malloc((size_t)R * sizeof *choice);
    if (!choice) return hy_fail(HY_ERR_MEMORY, "not enough memory for choices");
    for (int64_t i = 0, drawn = 0; i < R; drawn++) {
        bool is_new = true;
        choice[i] = (int32_t)hy_rng_below(1, HY_RNG_TEST, (uint64_t)drawn, (uint64_t)b->s.experts);
        for (int64_t j = i / k * k; j < i; j++) is_new = is_new && choice[j] != choice[i];
        i += is_new;
    }
    hy_status status = b->backend->copy(b->stream, b->choice.data, choice, (size_t)R * 4);
    if (status == HY_OK) status = b->backend->stream_sync(b->stream);
    free(choice);
    return status;
}

static hy_status make_ints(bench *b, int64_t rows, int64_t cols, hy_tensor *out) {
    *out = rows ? hy_tensor_2d(NULL, HY_I32, rows, cols) : hy_tensor_1d(NULL, HY_I32, cols);
    return allocate(b, hy_tensor_bytes(out), &out->data);
}

static hy_status make_tensors(bench *b) {
    const sizes *s = &b->s;
    int64_t R = s->tokens * s->chosen;
    HY_TRY(make_ints(b, s->tokens, s->chosen, &b->choice));
    HY_TRY(make_ints(b, 0, R, &b->order));
    HY_TRY(make_ints(b, s->tokens, s->chosen, &b->place));
    HY_TRY(make_ints(b, 0, s->experts + 1, &b->offsets));
    HY_TRY(make_random(b, HY_BF16, 1, s->tokens, s->width, &b->tokens));
    HY_TRY(make_random(b, HY_BF16, 1, R, s->width, &b->rows_in));
    HY_TRY(make_random(b, HY_BF16, 1, R, s->out, &b->rows_out));
    HY_TRY(make_random(b, HY_BF16, s->experts, s->out, s->width, &b->experts));
    HY_TRY(make_random(b, HY_NF4, s->experts, s->out, s->width, &b->nf4));
    HY_TRY(make_random(b, HY_F32, s->experts, s->out, s->width, &b->gradient));
    HY_TRY(make_random(b, HY_BF16, 1, s->out, s->width, &b->dense));
    HY_TRY(make_random(b, HY_F32, 1, s->out, s->width, &b->dense_gradient));
    b->workspace = hy_tensor_1d(NULL, HY_U8, (int64_t)256 << 20);
    HY_TRY(allocate(b, (size_t)256 << 20, &b->workspace.data));
    return draw_choices(b);
}

/* ---- timing ---------------------------------------------------------------------------------- */

static hy_status time_call(bench *b, hy_op_call *call, double *median) {
    call->workspace = b->workspace;
    HY_TRY(b->backend->supports(b->backend, call));
    HY_TRY(b->backend->prepare(b->backend, call));
    return gpu_op_time(b->backend, b->stream, call, number(b, "--rounds", 5),
                       number(b, "--calls", 10), median);
}

/* ---- matmuls --------------------------------------------------------------------------------- */

/* The three matmuls of a layer, dense: forward, input gradient, weight gradient. */
static hy_op_call dense_call(const bench *b, int which) {
    hy_op_call call = {.kind = HY_OP_MATMUL, .attr.matmul = {.alpha = 1}};
    call.attr.matmul.trans_b = which == 0;
    call.attr.matmul.trans_a = which == 2;
    call.t[HY_MATMUL_A] = which == 0 ? b->rows_in : b->rows_out;
    call.t[HY_MATMUL_B] = which == 2 ? b->rows_in : b->dense;
    call.t[HY_MATMUL_D] = which == 0 ? b->rows_out : which == 1 ? b->rows_in : b->dense_gradient;
    return call;
}

static hy_op_call grouped_call(const bench *b, int which, bool reads_rows, bool is_nf4) {
    hy_op_call call = {.kind = HY_OP_GROUPED_MATMUL, .attr.grouped.alpha = 1};
    hy_tensor of_tokens = reads_rows ? b->tokens : b->rows_in;
    if (which == 2) {
        call.kind = HY_OP_GROUPED_GRAD;
        call.t[HY_GROUPED_GRAD_A] = b->rows_out;
        call.t[HY_GROUPED_GRAD_B] = of_tokens;
        call.t[HY_GROUPED_GRAD_OFFSETS] = b->offsets;
        call.t[HY_GROUPED_GRAD_D] = b->gradient;
        if (reads_rows) call.t[HY_GROUPED_GRAD_ROWS_B] = b->order;
        return call;
    }
    call.attr.grouped.trans_b = which == 0;
    call.t[HY_GROUPED_MATMUL_A] = which == 0 ? of_tokens : b->rows_out;
    call.t[HY_GROUPED_MATMUL_B] = is_nf4 ? b->nf4 : b->experts;
    call.t[HY_GROUPED_MATMUL_OFFSETS] = b->offsets;
    call.t[HY_GROUPED_MATMUL_D] = which == 0 ? b->rows_out : b->rows_in;
    if (reads_rows && which == 0) call.t[HY_GROUPED_MATMUL_ROWS] = b->order;
    return call;
}

static hy_status compare(bench *b, const char *name, int which, bool reads_rows, bool is_nf4,
                         double dense) {
    hy_op_call call = grouped_call(b, which, reads_rows, is_nf4);
    double seconds;
    HY_TRY(time_call(b, &call, &seconds));
    printf("  %-34s %9.3f ms  %7.1f TFLOP/s  %5.2f of dense\n", name, seconds * 1e3,
           hy_op_flops(&call) * 1e-12 / seconds, dense / seconds);
    return HY_OK;
}

static hy_status compare_matmuls(bench *b) {
    static const char *const names[] = {"forward", "input gradient", "weight gradient"};
    for (int which = 0; which < 3; which++) {
        hy_op_call call = dense_call(b, which);
        double dense;
        HY_TRY(time_call(b, &call, &dense));
        printf("  %-34s %9.3f ms  %7.1f TFLOP/s\n", names[which], dense * 1e3,
               hy_op_flops(&call) * 1e-12 / dense);
        HY_TRY(compare(b, "  grouped", which, false, false, dense));
        if (which != 1)
            HY_TRY(compare(b, "  grouped, tokens through rows", which, true, false, dense));
        if (which != 2)
            HY_TRY(compare(b, "  grouped, NF4 experts", which, which == 0, true, dense));
    }
    hy_op_call few = grouped_call(b, 0, true, false);
    few.attr.grouped.is_batch_invariant = true;
    double seconds;
    HY_TRY(time_call(b, &few, &seconds));
    printf("  %-34s %9.3f ms  %7.1f TFLOP/s\n", "batch-invariant", seconds * 1e3,
           hy_op_flops(&few) * 1e-12 / seconds);
    return HY_OK;
}

/* ---- the other ops --------------------------------------------------------------------------- */

static hy_status sort(bench *b, double *seconds) {
    hy_op_call call = {.kind = HY_OP_SORT_EXPERTS};
    call.t[HY_SORT_EXPERTS_CHOICE] = b->choice;
    call.t[HY_SORT_EXPERTS_ORDER] = b->order;
    call.t[HY_SORT_EXPERTS_PLACE] = b->place;
    call.t[HY_SORT_EXPERTS_OFFSETS] = b->offsets;
    return time_call(b, &call, seconds);
}

static void print_bytes(const char *name, double seconds, double bytes) {
    printf("  %-34s %9.3f ms  %7.1f GB/s\n", name, seconds * 1e3, bytes * 1e-9 / seconds);
}

/* Choices are drawn anew afterwards: those of random logits. */
static hy_status time_routing(bench *b) {
    const sizes *s = &b->s;
    hy_tensor logits, weights, losses, dlogits;
    double seconds;
    HY_TRY(make_random(b, HY_BF16, 1, s->tokens, s->experts, &logits));
    HY_TRY(make_random(b, HY_BF16, 1, s->tokens, s->experts, &dlogits));
    HY_TRY(make_random(b, HY_F32, 1, s->tokens, s->chosen, &weights));
    HY_TRY(make_random(b, HY_F32, 1, s->tokens, HY_ROUTE_LOSSES_COUNT, &losses));
    hy_op_attr attr = {.route = {.is_renormalised = true, .scale = 1, .z = 1, .balance = 1}};
    attr.route.seq = (int32_t)(s->tokens % 4 == 0 ? s->tokens / 4 : s->tokens);
    hy_op_call f = {.kind = HY_OP_ROUTE, .attr = attr}, g = {.kind = HY_OP_ROUTE_BWD, .attr = attr};
    f.t[HY_ROUTE_LOGITS] = g.t[HY_ROUTE_BWD_LOGITS] = logits;
    f.t[HY_ROUTE_CHOICE] = g.t[HY_ROUTE_BWD_CHOICE] = b->choice;
    f.t[HY_ROUTE_WEIGHTS] = g.t[HY_ROUTE_BWD_DWEIGHTS] = weights;
    f.t[HY_ROUTE_LOSSES] = losses;
    g.t[HY_ROUTE_BWD_DLOGITS] = dlogits;
    double bytes = (double)hy_tensor_bytes(&logits);
    HY_TRY(time_call(b, &f, &seconds));
    print_bytes("routing with losses", seconds, bytes);
    HY_TRY(time_call(b, &g, &seconds));
    print_bytes("routing backward", seconds, 2 * bytes);
    HY_TRY(sort(b, &seconds));
    print_bytes("sorting", seconds, 3 * (double)hy_tensor_bytes(&b->choice));
    return HY_OK;
}

static hy_status time_rows(bench *b) {
    const sizes *s = &b->s;
    int64_t R = s->tokens * s->chosen;
    double seconds, half = 2.0 * (double)R * (double)s->width;
    hy_tensor wide, weights, dweights;
    HY_TRY(make_random(b, HY_BF16, 1, R, 2 * s->width, &wide));
    HY_TRY(make_random(b, HY_F32, 1, 1, R, &weights));
    HY_TRY(make_random(b, HY_F32, 1, 1, R, &dweights));
    hy_op_call f = {.kind = HY_OP_SWIGLU}, g = {.kind = HY_OP_SWIGLU_BWD};
    f.t[HY_SWIGLU_GATE_UP] = g.t[HY_SWIGLU_BWD_GATE_UP] = g.t[HY_SWIGLU_BWD_DGATE_UP] = wide;
    f.t[HY_SWIGLU_Y] = g.t[HY_SWIGLU_BWD_DY] = g.t[HY_SWIGLU_BWD_ACTIVE] = b->rows_in;
    f.t[HY_SWIGLU_WEIGHTS] = g.t[HY_SWIGLU_BWD_WEIGHTS] = weights;
    f.t[HY_SWIGLU_ORDER] = g.t[HY_SWIGLU_BWD_ORDER] = b->order;
    g.t[HY_SWIGLU_BWD_DWEIGHTS] = dweights;
    HY_TRY(time_call(b, &f, &seconds));
    print_bytes("swiglu with weights", seconds, 3 * half);
    HY_TRY(time_call(b, &g, &seconds));
    print_bytes("swiglu with weights, backward", seconds, 6 * half);
    hy_op_call sum = {.kind = HY_OP_SUM_ROWS};
    sum.t[HY_SUM_ROWS_Y] = b->rows_in;
    sum.t[HY_SUM_ROWS_PLACE] = b->place;
    sum.t[HY_SUM_ROWS_OUT] = b->tokens;
    HY_TRY(time_call(b, &sum, &seconds));
    print_bytes("sum of rows", seconds, half + half / (double)s->chosen);
    return HY_OK;
}

/* ---- a shape --------------------------------------------------------------------------------- */

static hy_status measure(bench *b, const sizes *s) {
    double seconds;
    b->s = *s;
    printf("%lld tokens, %lld of %lld experts each, %lld -> %lld, bf16\n", (long long)s->tokens,
           (long long)s->chosen, (long long)s->experts, (long long)s->width, (long long)s->out);
    HY_TRY(make_tensors(b));
    HY_TRY(sort(b, &seconds));
    HY_TRY(compare_matmuls(b));
    HY_TRY(time_rows(b));
    HY_TRY(time_routing(b));
    free_all(b);
    return HY_OK;
}

static hy_status measure_all(bench *b) {
    HY_TRY(b->backend->stream_create(b->backend, "experts", &b->stream));
    gpu_heading(b->argc, b->argv, &b->backend->facts);
    if (b->argc > 1 && gpu_option(b->argc, b->argv, "--experts", NULL)) {
        sizes own = {number(b, "--experts", 64), number(b, "--chosen", 8),
                     number(b, "--tokens", 16384), number(b, "--width", 2048),
                     number(b, "--out", 2048)};
        return measure(b, &own);
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) HY_TRY(measure(b, &table[i]));
    return HY_OK;
}

static hy_status open_backend(bench *b, const char *device) {
    hy_cuda_options cuda = {.tune = HY_TUNE_FAST};
    hy_cpu_options cpu = {0};
    return gpu_is_asked(device) ? hy_cuda_backend_create(&cuda, &b->backend)
                                : hy_cpu_backend_create(&cpu, &b->backend);
}

int main(int argc, char **argv) {
    bench b = {.argc = argc, .argv = argv};
    const char *device = gpu_option(argc, argv, "--device", "cuda");
    if (gpu_is_absent("gpu_experts", device)) return 0;
    if (open_backend(&b, device) == HY_OK && measure_all(&b) == HY_OK) return 0;
    fprintf(stderr, "gpu_experts: %s\n", hy_error_message());
    return 1;
}
