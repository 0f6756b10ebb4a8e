/* op_rates.c: how fast each op runs at the sizes of a training step.
 *   build/bench/op_rates [threads]                       the CPU backend, GPT-2 124M, 4 x 1024
 *   build/bench/op_rates --device cuda [gpt2|qwen]       the CUDA backend, whole steps in bf16
 *
 * On the CPU, matrix products are given as GFLOP/s and as a share of OpenBLAS's own rate with the
 * same number of threads; ops bound by memory as GB/s of what they must read and write. Each figure
 * is the best of several runs, timed around the queue, on random numbers. On a card, every op of a
 * step of GPT-2 124M (64 x 1024) and of Qwen2.5-1.5B (8 x 1024) with its share
 * (op_rates/step_ops.h). On both, how fast frozen weights of codes become numbers. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/cpu/blas.h"
#include "kernels/ops.h"
#include "memory/layout.h"
#include "op_rates/step_ops.h"

enum { B = 4, T = 1024, N = B * T, C = 768, H = 12, D = 64, F = 3072, V = 50257, LOSS_ROWS = 1024 };

typedef struct bench {
    hy_backend *backend;
    hy_stream *stream;
    void (*library_threads)(int); /* NULL: OpenBLAS is not available */
} bench;

static void stop(const char *what) {
    fprintf(stderr, "op_rates: %s: %s\n", what, hy_error_message());
    exit(EXIT_FAILURE);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void *memory(bench *b, size_t bytes) {
    void *data;
    if (b->backend->alloc(b->backend, HY_DEVICE, bytes, &data) != HY_OK) stop("memory");
    return data;
}

/* Cheap numbers in [-1, 1) from a linear congruence; good enough for matmuls. */
static hy_tensor numbers(bench *b, hy_dtype dtype, int64_t rows, int64_t cols) {
    hy_tensor t = hy_tensor_2d(NULL, dtype, rows, cols);
    uint32_t state = 1;
    t.data = memory(b, hy_tensor_bytes(&t));
    for (int64_t i = 0; i < rows * cols; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)state * 0x1p-31f;
        if (dtype == HY_F32) ((float *)t.data)[i] = value;
        if (dtype == HY_BF16) ((uint16_t *)t.data)[i] = (uint16_t)(state >> 18 | 0x3c00u);
    }
    return t;
}

static hy_tensor integers(bench *b, int64_t count, int32_t below) {
    hy_tensor t = hy_tensor_1d(memory(b, (size_t)count * 4), HY_I32, count);
    for (int64_t i = 0; i < count; i++) ((int32_t *)t.data)[i] = (int32_t)(i * 7919 % below);
    return t;
}

static void release(bench *b, hy_op_call *call) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        b->backend->release(b->backend, HY_DEVICE, call->t[i].data, 0);
    }
}

/* ---- timing ---------------------------------------------------------------------------------- */

/* The best seconds per call over several runs of at least half a second together. */
static double seconds(bench *b, hy_op_call *call) {
    size_t bytes = b->backend->workspace(b->backend, call);
    void *workspace = memory(b, bytes);
    double best = 1e9, begin = hy_clock();
    call->workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)bytes);
    if (b->backend->supports(b->backend, call) != HY_OK) stop(hy_op_name(call->kind));
    for (int i = 0; i < 3 || (i < 50 && hy_clock() - begin < 0.5); i++) {
        double start = hy_clock();
        b->backend->enqueue(b->stream, call);
        if (b->backend->stream_sync(b->stream) != HY_OK) stop(hy_op_name(call->kind));
        double taken = hy_clock() - start;
        if (taken < best) best = taken;
    }
    b->backend->release(b->backend, HY_DEVICE, workspace, bytes);
    return best;
}

/* The same product as one call of OpenBLAS with all its threads. */
static double library_seconds(bench *b, const hy_op_call *call) {
    const hy_tensor *t = call->t;
    hy_gemm g = {.m = hy_tensor_height(&t[HY_MATMUL_D]),
                 .n = hy_tensor_width(&t[HY_MATMUL_D]),
                 .a = t[HY_MATMUL_A].data,
                 .b = t[HY_MATMUL_B].data,
                 .c = t[HY_MATMUL_D].data,
                 .lda = hy_tensor_width(&t[HY_MATMUL_A]),
                 .ldb = hy_tensor_width(&t[HY_MATMUL_B]),
                 .ldc = hy_tensor_width(&t[HY_MATMUL_D]),
                 .alpha = 1,
                 .trans_a = call->attr.matmul.trans_a,
                 .trans_b = call->attr.matmul.trans_b};
    g.k = g.trans_a ? hy_tensor_height(&t[HY_MATMUL_A]) : hy_tensor_width(&t[HY_MATMUL_A]);
    double best = 1e9, begin = hy_clock();
    b->library_threads(b->backend->facts.threads);
    for (int i = 0; i < 3 || (i < 50 && hy_clock() - begin < 0.5); i++) {
        double start = hy_clock();
        hy_sgemm(hy_blas_get(), &g);
        double taken = hy_clock() - start;
        if (taken < best) best = taken;
    }
    b->library_threads(1);
    return best;
}

/* ---- matrix products ------------------------------------------------------------------------- */

static void matmul(bench *b, const char *what, hy_dtype dtype, int64_t m, int64_t n, int64_t k,
                   bool trans_a, bool trans_b) {
    hy_op_call call = {.kind = HY_OP_MATMUL,
                       .attr.matmul = {.trans_a = trans_a, .trans_b = trans_b, .alpha = 1}};
    call.t[HY_MATMUL_A] = numbers(b, dtype, trans_a ? k : m, trans_a ? m : k);
    call.t[HY_MATMUL_B] = numbers(b, dtype, trans_b ? n : k, trans_b ? k : n);
    call.t[HY_MATMUL_D] = numbers(b, dtype, m, n);
    double flops = hy_op_flops(&call), ours = seconds(b, &call);
    printf("  %-34s %8.1f ms  %7.1f GFLOP/s", what, ours * 1e3, flops / ours * 1e-9);
    if (b->library_threads && dtype == HY_F32) {
        double theirs = library_seconds(b, &call);
        printf("   OpenBLAS alone %7.1f: %.2f", flops / theirs * 1e-9, theirs / ours);
    }
    printf("\n");
    release(b, &call);
}

static void matmuls(bench *b) {
    printf("matmuls (%d tokens)\n", N);
    matmul(b, "qkv forward", HY_F32, N, 3 * C, C, false, true);
    matmul(b, "projection forward", HY_F32, N, C, C, false, true);
    matmul(b, "mlp up forward", HY_F32, N, F, C, false, true);
    matmul(b, "mlp down forward", HY_F32, N, C, F, false, true);
    matmul(b, "mlp up, gradient of x", HY_F32, N, C, F, false, false);
    matmul(b, "mlp up, gradient of w", HY_F32, F, C, N, true, false);
    matmul(b, "projection, gradient of w", HY_F32, C, C, N, true, false);
    matmul(b, "logits of 1024 tokens", HY_F32, LOSS_ROWS, V, C, false, true);
    matmul(b, "logits, gradient of x", HY_F32, LOSS_ROWS, C, V, false, false);
    matmul(b, "logits, gradient of w", HY_F32, V, C, LOSS_ROWS, true, false);
    matmul(b, "small: 256 x 128 x 128", HY_F32, 256, 128, 128, false, true);
    matmul(b, "logits of one token", HY_F32, 1, V, C, false, true);
    matmul(b, "mlp up forward, bf16", HY_BF16, N, F, C, false, true);
    matmul(b, "mlp up, gradient of w, bf16", HY_BF16, F, C, N, true, false);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void bandwidth(bench *b, const char *what, hy_op_call *call, double bytes) {
    double best = seconds(b, call);
    printf("  %-34s %8.2f ms  %7.1f GB/s\n", what, best * 1e3, bytes / best * 1e-9);
    release(b, call);
}

static void set_heads(hy_op_call *call) {
    call->attr.heads.batch = B;
    call->attr.heads.seq = T;
    call->attr.heads.heads = call->attr.heads.kv_heads = H;
    call->attr.heads.head_dim = D;
    call->attr.heads.scale = 0.125f;
}

static void attention(bench *b, hy_dtype dtype) {
    hy_op_call forward = {.kind = HY_OP_ATTENTION}, backward = {.kind = HY_OP_ATTENTION_BWD};
    set_heads(&forward);
    set_heads(&backward);
    forward.t[HY_ATTENTION_QKV] = numbers(b, dtype, N, 3 * C);
    forward.t[HY_ATTENTION_OUT] = numbers(b, dtype, N, C);
    forward.t[HY_ATTENTION_LSE] = numbers(b, HY_F32, 1, N * H);
    double taken = seconds(b, &forward);
    printf("  attention forward, %-15s %8.1f ms  %7.1f GFLOP/s\n", hy_dtype_name(dtype),
           taken * 1e3, hy_op_flops(&forward) / taken * 1e-9);
    backward.t[HY_ATTENTION_BWD_DOUT] = numbers(b, dtype, N, C);
    backward.t[HY_ATTENTION_BWD_QKV] = forward.t[HY_ATTENTION_QKV];
    backward.t[HY_ATTENTION_BWD_OUT] = forward.t[HY_ATTENTION_OUT];
    backward.t[HY_ATTENTION_BWD_LSE] = forward.t[HY_ATTENTION_LSE];
    backward.t[HY_ATTENTION_BWD_DQKV] = numbers(b, dtype, N, 3 * C);
    taken = seconds(b, &backward);
    printf("  attention backward, %-14s %8.1f ms  %7.1f GFLOP/s\n", hy_dtype_name(dtype),
           taken * 1e3, hy_op_flops(&backward) / taken * 1e-9);
    release(b, &backward);
}

static void norms(bench *b) {
    hy_op_call norm = {.kind = HY_OP_NORM}, back = {.kind = HY_OP_NORM_BWD};
    for (int i = 0; i < 6; i++) {
        bool is_table = i == HY_NORM_X || i == HY_NORM_Y, is_row = i > HY_NORM_Y;
        norm.t[i] = numbers(b, HY_F32, is_table ? N : 1, is_row ? N : C);
    }
    bandwidth(b, "layernorm", &norm, 8.0 * N * C);
    for (int i = 0; i < 9; i++) {
        bool is_row = i == HY_NORM_BWD_MEAN || i == HY_NORM_BWD_RSTD;
        bool is_column = i == HY_NORM_BWD_WEIGHT || i > HY_NORM_BWD_DX;
        back.t[i] = numbers(b, HY_F32, is_row || is_column ? 1 : N, is_row ? N : C);
    }
    bandwidth(b, "layernorm backward", &back, 16.0 * N * C);
    hy_op_call bias = {.kind = HY_OP_BIAS_GRAD};
    bias.t[HY_BIAS_GRAD_DY] = numbers(b, HY_F32, N, F);
    bias.t[HY_BIAS_GRAD_DBIAS] = numbers(b, HY_F32, 1, F);
    bandwidth(b, "bias gradient", &bias, 4.0 * N * F);
}

static void activations(bench *b) {
    hy_op_call gelu = {.kind = HY_OP_GELU}, back = {.kind = HY_OP_GELU_BWD};
    for (int i = 0; i < 2; i++) gelu.t[i] = numbers(b, HY_F32, N, F);
    bandwidth(b, "gelu", &gelu, 8.0 * N * F);
    for (int i = 0; i < 3; i++) back.t[i] = numbers(b, HY_F32, N, F);
    bandwidth(b, "gelu backward", &back, 12.0 * N * F);
    hy_op_call half = {.kind = HY_OP_GELU};
    for (int i = 0; i < 2; i++) half.t[i] = numbers(b, HY_BF16, N, F);
    bandwidth(b, "gelu, bf16", &half, 4.0 * N * F);
    hy_op_call swiglu = {.kind = HY_OP_SWIGLU_BWD};
    for (int i = 0; i < 3; i++) swiglu.t[i] = numbers(b, HY_F32, N, i ? 2 * F : F);
    bandwidth(b, "swiglu backward", &swiglu, 20.0 * N * F);
}

static void losses(bench *b) {
    for (int wants_grad = 0; wants_grad < 2; wants_grad++) {
        hy_op_call call = {.kind = HY_OP_CROSS_ENTROPY, .attr.loss = {V, 1, wants_grad}};
        call.t[HY_CROSS_ENTROPY_LOGITS] = numbers(b, HY_F32, LOSS_ROWS, V);
        call.t[HY_CROSS_ENTROPY_TARGETS] = integers(b, LOSS_ROWS, V);
        call.t[HY_CROSS_ENTROPY_LOSSES] = numbers(b, HY_F32, 1, LOSS_ROWS);
        bandwidth(b, wants_grad ? "cross-entropy, gradient" : "cross-entropy", &call,
                  (wants_grad ? 8.0 : 4.0) * LOSS_ROWS * V);
    }
}

static void embeddings(bench *b) {
    hy_op_call call = {.kind = HY_OP_EMBED_BWD, .attr.accumulate = true, .attr.embed.seq = T};
    call.t[HY_EMBED_BWD_TOKENS] = integers(b, N, V);
    call.t[HY_EMBED_BWD_DX] = numbers(b, HY_F32, N, C);
    call.t[HY_EMBED_BWD_DWTE] = numbers(b, HY_F32, V, C);
    call.t[HY_EMBED_BWD_DWPE] = numbers(b, HY_F32, T, C);
    bandwidth(b, "embedding backward", &call, 12.0 * N * C);
}

static void optimizer(bench *b) {
    static const char *const names[] = {"adamw, fp32", "adamw, bf16 parameters and state"};
    int64_t count = 16 << 20;
    for (int narrow = 0; narrow < 2; narrow++) {
        hy_dtype dtype = narrow ? HY_BF16 : HY_F32;
        hy_op_call call = {.kind = HY_OP_ADAMW};
        call.attr.adamw.lr = 1e-4f;
        call.attr.adamw.beta1 = 0.9f;
        call.attr.adamw.beta2 = 0.95f;
        call.attr.adamw.eps = 1e-8f;
        call.attr.adamw.correction1 = call.attr.adamw.correction2 = 1;
        static const int own[] = {HY_UPDATE_PARAM, HY_UPDATE_GRAD, HY_UPDATE_M, HY_UPDATE_V};
        for (int i = 0; i < 4; i++) call.t[own[i]] = numbers(b, dtype, 1, count);
        for (int64_t i = 0; !narrow && i < count; i++)
            ((float *)call.t[HY_UPDATE_V].data)[i] = 0.5f;
        call.t[HY_UPDATE_CLIP] = numbers(b, HY_F32, 1, 2);
        bandwidth(b, names[narrow], &call, (narrow ? 14.0 : 28.0) * (double)count);
    }
    hy_op_call norm = {.kind = HY_OP_SQ_NORM};
    norm.t[HY_REDUCE_X] = numbers(b, HY_F32, 1, count);
    norm.t[HY_REDUCE_OUT] = hy_tensor_1d(memory(b, 8), HY_F64, 1);
    bandwidth(b, "squared norm", &norm, 4.0 * (double)count);
}

/* ---- frozen weights -------------------------------------------------------------------------- */

static const hy_dtype code_types[] = {HY_E4M3, HY_I8, HY_NF4};
#define CODE_TYPES (sizeof code_types / sizeof code_types[0])

static hy_tensor codes_at(void *data, hy_dtype dtype, int64_t rows, int64_t cols) {
    hy_tensor t = hy_tensor_2d(data, dtype, rows, cols);
    t.quant = (hy_quant){.block = hy_coded_block(dtype, rows, cols), .group = hy_coded_most(dtype)};
    t.quant.scale = (float *)(void *)((char *)data + hy_tensor_bytes(&t));
    return t;
}

static double bytes_of_decoding(const hy_op_call *call) {
    const hy_tensor *codes = &call->t[HY_CAST_SRC];
    return (double)(hy_tensor_bytes(codes) + hy_tensor_scale_bytes(codes) +
                    hy_tensor_bytes(&call->t[HY_CAST_DST]));
}

static void decoding(bench *b) {
    for (size_t i = 0; i < CODE_TYPES; i++) {
        hy_op_call call = {.kind = HY_OP_CAST};
        char what[64];
        snprintf(what, sizeof what, "%s to bf16", hy_dtype_name(code_types[i]));
        void *data = memory(b, 2 * (size_t)(F * C));
        memset(data, 0x35, 2 * (size_t)(F * C));
        call.t[HY_CAST_SRC] = codes_at(data, code_types[i], F, C);
        call.t[HY_CAST_DST] = numbers(b, HY_BF16, F, C);
        bandwidth(b, what, &call, bytes_of_decoding(&call));
    }
}

static void decoding_on_card(hy_backend *backend) {
    static char somewhere[HY_ALIGNMENT];
    printf("frozen weights of 12288 x 4096\n");
    for (size_t i = 0; i < CODE_TYPES; i++) {
        hy_op_call call = {.kind = HY_OP_CAST};
        call.t[HY_CAST_SRC] = codes_at(somewhere, code_types[i], 12288, 4096);
        call.t[HY_CAST_DST] = hy_tensor_2d(somewhere, HY_BF16, 12288, 4096);
        double taken = backend->op_seconds(backend, &call), bytes = bytes_of_decoding(&call);
        printf("  %s to bf16 %.4f ms, %.0f GB/s\n", hy_dtype_name(code_types[i]), taken * 1e3,
               taken > 0 ? bytes / taken * 1e-9 : 0);
    }
}

/* ---- a card ---------------------------------------------------------------------------------- */

static const step_work steps[] = {
    {"gpt2-124m",
     {.layers = 12,
      .width = 768,
      .heads = 12,
      .kv_heads = 12,
      .head_size = 64,
      .mlp_width = 3072,
      .vocab = 50257,
      .context = 1024,
      .has_qkv_bias = true,
      .has_proj_bias = true,
      .has_tied_head = true,
      .norm_eps = 1e-5,
      .init_std = 0.02},
     64,
     1024,
     8},
    {"qwen2.5-1.5b",
     {.layers = 28,
      .width = 1536,
      .heads = 12,
      .kv_heads = 2,
      .head_size = 128,
      .mlp_width = 8960,
      .vocab = 151936,
      .context = 1024,
      .is_rms = true,
      .has_rope = true,
      .is_gated = true,
      .has_qkv_bias = true,
      .has_tied_head = true,
      .norm_eps = 1e-6,
      .rope_theta = 1e6,
      .init_std = 0.02},
     8,
     1024,
     16},
};

static void show_tuning(void *user, const char *what, int done, int total) {
    (void)user;
    fprintf(stderr, "\rtuning %d of %d: %-60.60s", done, total, what);
    if (done == total) fprintf(stderr, "\n");
}

static int rates_of_a_card(const char *which) {
    hy_cuda_options options = {.tune = HY_TUNE_FAST, .on_tuning = show_tuning};
    hy_backend *backend;
    if (hy_cuda_backend_create(&options, &backend) != HY_OK) stop("cuda");
    printf("%s; %s\n", backend->facts.name, backend->facts.detail);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (which && strncmp(steps[i].name, which, strlen(which)) != 0) continue;
        if (step_ops_print(&steps[i], backend) != HY_OK) stop(steps[i].name);
    }
    decoding_on_card(backend);
    backend->destroy(backend);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--device") == 0 && strcmp(argv[2], "cuda") == 0) {
        return rates_of_a_card(argc > 3 ? argv[3] : NULL);
    }
    hy_cpu_options options = {.threads = argc > 1 ? atoi(argv[1]) : 0};
    bench b = {0};
    if (hy_cpu_backend_create(&options, &b.backend) != HY_OK) stop("backend");
    if (b.backend->stream_create(b.backend, "bench", &b.stream) != HY_OK) stop("stream");
    const hy_device_facts *facts = &b.backend->facts;
    printf("%s, %d threads\n%s%s%s\n", facts->name, facts->threads, facts->detail,
           facts->warning[0] ? "\nwarning: " : "", facts->warning);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW);
    void *symbol =
        library && hy_blas_get()->library ? dlsym(library, "openblas_set_num_threads") : NULL;
    memcpy(&b.library_threads, &symbol, sizeof symbol);
    matmuls(&b);
    printf("the rest of a step\n");
    attention(&b, HY_F32);
    attention(&b, HY_BF16);
    norms(&b);
    activations(&b);
    losses(&b);
    embeddings(&b);
    optimizer(&b);
    decoding(&b);
    b.backend->stream_destroy(b.stream);
    b.backend->destroy(b.backend);
    return EXIT_SUCCESS;
}
