/* gpu_attention.c: times our causal attention alone, forward and backward, and writes its results.
 *
 * Times one shape on packed bf16 rows of q, k and v. Each figure is the median over several rounds
 * of the mean of many calls enqueued between two waits, as CUDA events would give it. Inputs are
 * random, or files of another program. Results can be written for another program to check:
 * bench/peers/torch_attention.py does both and times PyTorch in the same run.
 *   build/bench/gpu_attention [--batch 8] [--seq 2048] [--heads 16] [--kv-heads N] [--head-dim 128]
 *       [--device cuda] [--rounds 7] [--calls 20] [--qkv FILE --dout FILE] [--out FILE --dqkv FILE]
 *       [--attention own|cudnn|auto] [--card-mib N] [--sparse-local N [--sparse-global N]] [--json]
 *
 * --card-mib: process as many heads at a time as on a card with this memory. --sparse-local: also
 * times block-sparse attention of the same shape, and prints how many times as fast it is; --out and
 * --dqkv are its results. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "gpu_heading.h"
#include "gpu_op_time.h"
#include "kernels/half.h"
#include "kernels/ops.h"

typedef struct bench {
    int argc;
    char **argv;
    hy_backend *backend;
    hy_stream *stream;
    int64_t batch, seq, heads, kv_heads, head_dim;
    hy_op_call forward, backward;
} bench;

static int64_t number(const bench *b, const char *name, int64_t fallback) {
    const char *text = gpu_option(b->argc, b->argv, name, NULL);
    return text ? strtoll(text, NULL, 10) : fallback;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static hy_status device_tensor(bench *b, hy_tensor shape, hy_tensor *out) {
    *out = shape;
    return b->backend->alloc(b->backend, HY_DEVICE, hy_tensor_bytes(&shape), &out->data);
}

/* Normal numbers, so that scores spread as in a trained model. */
static void draw(uint16_t *values, int64_t count, uint64_t first) {
    for (int64_t i = 0; i < count; i++) {
        double x = hy_rng_normal(1, HY_RNG_TEST, first + (uint64_t)i);
        values[i] = hy_f32_to_bf16((float)x);
    }
}

static hy_status read_raw(const char *path, void *data, size_t bytes) {
    hy_file_map map;
    HY_TRY(hy_file_map_open(path, &map));
    bool is_whole = map.size == bytes;
    if (is_whole) memcpy(data, map.data, bytes);
    hy_file_map_close(&map);
    if (is_whole) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: expected %zu bytes", path, bytes);
}

/* Fills a device tensor from the file of flag `name`, or with random numbers. */
static hy_status fill(bench *b, const char *name, uint64_t first, const hy_tensor *t) {
    const char *path = gpu_option(b->argc, b->argv, name, NULL);
    size_t bytes = hy_tensor_bytes(t);
    uint16_t *host = malloc(bytes);
    if (!host) return hy_fail(HY_ERR_MEMORY, "not enough memory for %zu bytes", bytes);
    hy_status status = HY_OK;
    if (path) {
        status = read_raw(path, host, bytes);
    } else {
        draw(host, hy_tensor_count(t), first);
    }
    if (status == HY_OK) status = b->backend->copy(b->stream, t->data, host, bytes);
    if (status == HY_OK) status = b->backend->stream_sync(b->stream);
    free(host);
    return status;
}

static hy_status write_raw(bench *b, const char *name, const hy_tensor *t) {
    const char *path = gpu_option(b->argc, b->argv, name, NULL);
    size_t bytes = hy_tensor_bytes(t);
    if (!path) return HY_OK;
    void *host = malloc(bytes);
    FILE *file = host ? fopen(path, "wb") : NULL;
    hy_status status = file ? HY_OK : hy_fail(HY_ERR_IO, "cannot write %s", path);
    if (status == HY_OK) status = b->backend->copy(b->stream, host, t->data, bytes);
    if (status == HY_OK) status = b->backend->stream_sync(b->stream);
    if (status == HY_OK && fwrite(host, 1, bytes, file) != bytes) {
        status = hy_fail(HY_ERR_IO, "could not write all of %s", path);
    }
    if (file && fclose(file) != 0 && status == HY_OK) {
        status = hy_fail(HY_ERR_IO, "could not write all of %s", path);
    }
    free(host);
    return status;
}

/* ---- the two ops ----------------------------------------------------------------------------- */

static hy_status ready(bench *b, hy_op_call *call) {
    size_t bytes = b->backend->workspace(b->backend, call);
    HY_TRY(b->backend->supports(b->backend, call));
    HY_TRY(b->backend->prepare(b->backend, call));
    void *workspace = NULL;
    if (bytes) HY_TRY(b->backend->alloc(b->backend, HY_DEVICE, bytes, &workspace));
    call->workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)bytes);
    return HY_OK;
}

static hy_status make_calls(bench *b) {
    int64_t rows = b->batch * b->seq, wide = b->heads * b->head_dim;
    int64_t packed = wide + 2 * b->kv_heads * b->head_dim;
    hy_tensor qkv, dout, out, lse, dqkv;
    hy_op_attr attr = {.heads = {.batch = (int32_t)b->batch,
                                 .seq = (int32_t)b->seq,
                                 .heads = (int32_t)b->heads,
                                 .kv_heads = (int32_t)b->kv_heads,
                                 .head_dim = (int32_t)b->head_dim,
                                 .scale = (float)(1 / sqrt((double)b->head_dim))}};
    hy_tensor lse_shape = {.shape = {b->batch, b->heads, b->seq}, .ndim = 3, .dtype = HY_F32};
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, rows, packed), &qkv));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, rows, packed), &dqkv));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, rows, wide), &dout));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, rows, wide), &out));
    HY_TRY(device_tensor(b, lse_shape, &lse));
    HY_TRY(fill(b, "--qkv", 0, &qkv));
    HY_TRY(fill(b, "--dout", (uint64_t)(rows * packed), &dout));
    b->forward = (hy_op_call){
        .kind = HY_OP_ATTENTION,
        .attr = attr,
        .t = {[HY_ATTENTION_QKV] = qkv, [HY_ATTENTION_OUT] = out, [HY_ATTENTION_LSE] = lse}};
    b->backward = (hy_op_call){.kind = HY_OP_ATTENTION_BWD,
                               .attr = attr,
                               .t = {[HY_ATTENTION_BWD_DOUT] = dout,
                                     [HY_ATTENTION_BWD_QKV] = qkv,
                                     [HY_ATTENTION_BWD_OUT] = out,
                                     [HY_ATTENTION_BWD_LSE] = lse,
                                     [HY_ATTENTION_BWD_DQKV] = dqkv}};
    HY_TRY(ready(b, &b->forward));
    return ready(b, &b->backward);
}

/* ---- timing ---------------------------------------------------------------------------------- */

static hy_status time_call(bench *b, const hy_op_call *call, double *median) {
    return gpu_op_time(b->backend, b->stream, call, number(b, "--rounds", 7),
                       number(b, "--calls", 20), median);
}

/* Seconds of either pass. */
typedef struct passes {
    double forward, backward;
} passes;

static void print(const bench *b, double forward, double backward) {
    double there = hy_op_flops(&b->forward) * 1e-12, back = hy_op_flops(&b->backward) * 1e-12;
    if (gpu_flag(b->argc, b->argv, "--json")) {
        printf("{\"card\": \"%s\", \"forward_ms\": %.6f, \"backward_ms\": %.6f}\n",
               b->backend->facts.name, forward * 1e3, backward * 1e3);
        return;
    }
    gpu_heading(b->argc, b->argv, &b->backend->facts);
    printf("%lld x %lld tokens, %lld heads (%lld for k and v) x %lld, causal, bf16\n",
           (long long)b->batch, (long long)b->seq, (long long)b->heads, (long long)b->kv_heads,
           (long long)b->head_dim);
    printf("  forward  %9.3f ms  %7.1f TFLOP/s\n", forward * 1e3, there / forward);
    printf("  backward %9.3f ms  %7.1f TFLOP/s\n", backward * 1e3, back / backward);
}

static void print_sparse(const bench *b, passes full, passes sparse) {
    const hy_heads_attr *a = &b->forward.attr.heads;
    hy_heads_attr all = *a;
    all.sparse_local = 0;
    double share = (double)hy_attention_pairs(a, a->seq) / (double)hy_attention_pairs(&all, a->seq);
    double both = (full.forward + full.backward) / (sparse.forward + sparse.backward);
    if (gpu_flag(b->argc, b->argv, "--json")) {
        printf("{\"sparse_local\": %d, \"sparse_global\": %d, \"share_of_pairs\": %.6f, "
               "\"forward_ms\": %.6f, \"backward_ms\": %.6f, \"times\": %.4f}\n",
               a->sparse_local, a->sparse_global, share, sparse.forward * 1e3,
               sparse.backward * 1e3, both);
        return;
    }
    printf("block-sparse, %d local and %d global blocks of 64: %.1f %% of the pairs\n",
           a->sparse_local, a->sparse_global, 100 * share);
    printf("  forward  %9.3f ms  %5.2f times as fast\n", sparse.forward * 1e3,
           full.forward / sparse.forward);
    printf("  backward %9.3f ms  %5.2f times as fast\n", sparse.backward * 1e3,
           full.backward / sparse.backward);
    printf("  both     %9.3f ms  %5.2f times as fast\n", (sparse.forward + sparse.backward) * 1e3,
           both);
}

static hy_status time_passes(bench *b, passes *out) {
    HY_TRY(time_call(b, &b->forward, &out->forward));
    return time_call(b, &b->backward, &out->backward);
}

/* The same shape again, block-sparse. */
static hy_status measure_sparse(bench *b, int64_t local, passes full) {
    hy_op_call *calls[] = {&b->forward, &b->backward};
    passes sparse;
    for (int i = 0; i < 2; i++) {
        calls[i]->attr.heads.sparse_local = (int32_t)local;
        calls[i]->attr.heads.sparse_global = (int32_t)number(b, "--sparse-global", 0);
        calls[i]->workspace = (hy_tensor){0};
        calls[i]->plan = NULL;
        HY_TRY(ready(b, calls[i]));
    }
    HY_TRY(time_passes(b, &sparse));
    print_sparse(b, full, sparse);
    return HY_OK;
}

static hy_status measure(bench *b) {
    int64_t local = number(b, "--sparse-local", 0);
    passes full;
    HY_TRY(b->backend->stream_create(b->backend, "attention", &b->stream));
    HY_TRY(make_calls(b));
    HY_TRY(time_passes(b, &full));
    print(b, full.forward, full.backward);
    if (local > 0) HY_TRY(measure_sparse(b, local, full));
    HY_TRY(write_raw(b, "--out", &b->forward.t[HY_ATTENTION_OUT]));
    return write_raw(b, "--dqkv", &b->backward.t[HY_ATTENTION_BWD_DQKV]);
}

static hy_attention_choice choice_of(const char *name) {
    if (strcmp(name, "cudnn") == 0) return HY_ATTENTION_CUDNN;
    return strcmp(name, "auto") == 0 ? HY_ATTENTION_AUTO : HY_ATTENTION_OWN;
}

static hy_status open_backend(bench *b, const char *device) {
    const char *attention = gpu_option(b->argc, b->argv, "--attention", "own");
    hy_cuda_options cuda = {.tune = HY_TUNE_OFF, .attention = choice_of(attention)};
    hy_cpu_options cpu = {0};
    HY_TRY(gpu_is_asked(device) ? hy_cuda_backend_create(&cuda, &b->backend)
                                : hy_cpu_backend_create(&cpu, &b->backend));
    int64_t mib = number(b, "--card-mib", 0);
    if (mib > 0) b->backend->facts.memory_total = (size_t)mib << 20;
    return HY_OK;
}

/* Memory is not freed: the process measures one shape and ends. */
int main(int argc, char **argv) {
    bench b = {.argc = argc, .argv = argv};
    const char *device = gpu_option(argc, argv, "--device", "cuda");
    b.batch = number(&b, "--batch", 8);
    b.seq = number(&b, "--seq", 2048);
    b.heads = number(&b, "--heads", 16);
    b.kv_heads = number(&b, "--kv-heads", b.heads);
    b.head_dim = number(&b, "--head-dim", 128);
    if (gpu_is_absent("gpu_attention", device)) return 0;
    if (open_backend(&b, device) == HY_OK && measure(&b) == HY_OK) return 0;
    fprintf(stderr, "gpu_attention: %s\n", hy_error_message());
    return 1;
}
