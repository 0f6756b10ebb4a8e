/* gpu_delta.c: times the gated delta rule alone, forward and backward, with the ops around it in a
 * layer, and writes its results.
 *
 * Times one shape in bf16, each figure the median over several rounds of the mean of many calls
 * enqueued between two waits. Inputs are random, or files of another program. Results can be written
 * for another program to check: bench/peers/torch_delta.py does both and times flash-linear-attention
 * in the same run. a_log is 0 and dt_bias -3, so that a state lasts for some 20 tokens.
 *   build/bench/gpu_delta [--batch 8] [--seq 2048] [--heads 16] [--key-heads N] [--head-dim 128]
 *       [--device cuda] [--rounds 7] [--calls 20] [--qkv FILE --gates FILE --dout FILE]
 *       [--out FILE --dqkv FILE --dgates FILE] [--json] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "gpu_heading.h"
#include "gpu_op_time.h"
#include "kernels/half.h"

#define TAPS 4

/* The calls of a layer, in the order in which they are printed. */
enum { FORWARD, BACKWARD, CONV, CONV_BACK, GATE, GATE_BACK, DECODE, CALLS };
static const char *const call_names[CALLS] = {"delta forward",    "delta backward", "convolution",
                                              "convolution back", "gate",           "gate back",
                                              "decoding"};

typedef struct bench {
    int argc;
    char **argv;
    hy_backend *backend;
    hy_stream *stream;
    int64_t batch, seq, heads, key_heads, head_dim;
    hy_op_call calls[CALLS];
    double bytes[CALLS]; /* that must be read and written at least */
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

static hy_status read_raw(const char *path, void *data, size_t bytes) {
    hy_file_map map;
    HY_TRY(hy_file_map_open(path, &map));
    bool is_whole = map.size == bytes;
    if (is_whole) memcpy(data, map.data, bytes);
    hy_file_map_close(&map);
    if (is_whole) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: expected %zu bytes", path, bytes);
}

static hy_status to_device(bench *b, const hy_tensor *t, const void *host) {
    HY_TRY(b->backend->copy(b->stream, t->data, host, hy_tensor_bytes(t)));
    return b->backend->stream_sync(b->stream);
}

/* Fills a device tensor from the file of flag `name`, or with normal numbers. */
static hy_status fill(bench *b, const char *name, uint64_t first, const hy_tensor *t) {
    const char *path = gpu_option(b->argc, b->argv, name, NULL);
    uint16_t *host = malloc(hy_tensor_bytes(t));
    if (!host) return hy_fail(HY_ERR_MEMORY, "not enough memory for %zu bytes", hy_tensor_bytes(t));
    hy_status status = path ? read_raw(path, host, hy_tensor_bytes(t)) : HY_OK;
    for (int64_t i = 0; !path && i < hy_tensor_count(t); i++) {
        host[i] = hy_f32_to_bf16((float)hy_rng_normal(1, HY_RNG_TEST, first + (uint64_t)i));
    }
    if (status == HY_OK) status = to_device(b, t, host);
    free(host);
    return status;
}

static hy_status constant(bench *b, int64_t count, float value, hy_tensor *out) {
    uint16_t *host = malloc((size_t)count * 2);
    if (!host)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for %lld numbers", (long long)count);
    for (int64_t i = 0; i < count; i++) host[i] = hy_f32_to_bf16(value);
    hy_status status = device_tensor(b, hy_tensor_1d(NULL, HY_BF16, count), out);
    if (status == HY_OK) status = to_device(b, out, host);
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

/* ---- the ops --------------------------------------------------------------------------------- */

static hy_status ready(bench *b, int which, hy_op_call call, double bytes) {
    size_t room = b->backend->workspace(b->backend, &call);
    HY_TRY(b->backend->supports(b->backend, &call));
    HY_TRY(b->backend->prepare(b->backend, &call));
    void *workspace = NULL;
    if (room) HY_TRY(b->backend->alloc(b->backend, HY_DEVICE, room, &workspace));
    call.workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)room);
    b->calls[which] = call;
    b->bytes[which] = bytes;
    return HY_OK;
}

static hy_op_attr delta_attr(const bench *b, int64_t seq) {
    return (hy_op_attr){.delta = {.batch = (int32_t)b->batch,
                                  .seq = (int32_t)seq,
                                  .key_heads = (int32_t)b->key_heads,
                                  .heads = (int32_t)b->heads,
                                  .key_dim = (int32_t)b->head_dim,
                                  .value_dim = (int32_t)b->head_dim}};
}

/* What the delta rule has in both directions. */
typedef struct inputs {
    int64_t rows, width, wide;
    hy_tensor qkv, gates, a_log, dt_bias, dout, out, dqkv;
} inputs;

static hy_status make_delta(bench *b, inputs *in) {
    hy_tensor dgates;
    in->rows = b->batch * b->seq, in->wide = b->heads * b->head_dim;
    in->width = 2 * b->key_heads * b->head_dim + in->wide;
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, in->rows, in->width), &in->qkv));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, in->rows, in->width), &in->dqkv));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, in->rows, 2 * b->heads), &in->gates));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, in->rows, 2 * b->heads), &dgates));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, in->rows, in->wide), &in->dout));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_BF16, in->rows, in->wide), &in->out));
    HY_TRY(constant(b, b->heads, 0, &in->a_log));
    HY_TRY(constant(b, b->heads, -3, &in->dt_bias));
    HY_TRY(fill(b, "--qkv", 0, &in->qkv));
    HY_TRY(fill(b, "--gates", 1u << 30, &in->gates));
    HY_TRY(fill(b, "--dout", 2u << 30, &in->dout));
    double qkv = (double)hy_tensor_bytes(&in->qkv), out = (double)hy_tensor_bytes(&in->out);
    HY_TRY(ready(b, FORWARD,
                 (hy_op_call){.kind = HY_OP_DELTA,
                              .attr = delta_attr(b, b->seq),
                              .t = {[HY_DELTA_QKV] = in->qkv,
                                    [HY_DELTA_GATES] = in->gates,
                                    [HY_DELTA_A_LOG] = in->a_log,
                                    [HY_DELTA_DT_BIAS] = in->dt_bias,
                                    [HY_DELTA_OUT] = in->out}},
                 qkv + out));
    hy_tensor da_log = in->a_log, ddt_bias = in->dt_bias;
    HY_TRY(constant(b, b->heads, 0, &da_log));
    HY_TRY(constant(b, b->heads, 0, &ddt_bias));
    return ready(b, BACKWARD,
                 (hy_op_call){.kind = HY_OP_DELTA_BWD,
                              .attr = delta_attr(b, b->seq),
                              .t = {[HY_DELTA_BWD_DOUT] = in->dout,
                                    [HY_DELTA_BWD_QKV] = in->qkv,
                                    [HY_DELTA_BWD_GATES] = in->gates,
                                    [HY_DELTA_BWD_A_LOG] = in->a_log,
                                    [HY_DELTA_BWD_DT_BIAS] = in->dt_bias,
                                    [HY_DELTA_BWD_DQKV] = in->dqkv,
                                    [HY_DELTA_BWD_DGATES] = dgates,
                                    [HY_DELTA_BWD_DA_LOG] = da_log,
                                    [HY_DELTA_BWD_DDT_BIAS] = ddt_bias}},
                 2 * qkv + out);
}

static hy_status make_conv(bench *b, const inputs *in) {
    hy_tensor weight, dweight, y, dx;
    double x = (double)hy_tensor_bytes(&in->qkv);
    hy_op_attr attr = {.conv = {.seq = (int32_t)b->seq}};
    HY_TRY(constant(b, in->width * TAPS, 0.25f, &weight));
    HY_TRY(constant(b, in->width * TAPS, 0, &dweight));
    weight = hy_tensor_2d(weight.data, HY_BF16, in->width, TAPS);
    dweight = hy_tensor_2d(dweight.data, HY_BF16, in->width, TAPS);
    HY_TRY(device_tensor(b, in->qkv, &y));
    HY_TRY(device_tensor(b, in->qkv, &dx));
    HY_TRY(ready(
        b, CONV,
        (hy_op_call){.kind = HY_OP_CONV,
                     .attr = attr,
                     .t = {[HY_CONV_X] = in->qkv, [HY_CONV_WEIGHT] = weight, [HY_CONV_Y] = y}},
        2 * x));
    return ready(b, CONV_BACK,
                 (hy_op_call){.kind = HY_OP_CONV_BWD,
                              .attr = attr,
                              .t = {[HY_CONV_BWD_DY] = y,
                                    [HY_CONV_BWD_X] = in->qkv,
                                    [HY_CONV_BWD_WEIGHT] = weight,
                                    [HY_CONV_BWD_DX] = dx,
                                    [HY_CONV_BWD_DWEIGHT] = dweight}},
                 3 * x);
}

static hy_status make_gate(bench *b, const inputs *in) {
    hy_tensor weight, dweight, rstd, gate, y, dx, dgate;
    double x = (double)hy_tensor_bytes(&in->out);
    hy_op_attr attr = {.gate = {.heads = (int32_t)b->heads,
                                .head_dim = (int32_t)b->head_dim,
                                .stride = (int32_t)b->head_dim,
                                .eps = 1e-6f}};
    hy_tensor shape = hy_tensor_2d(NULL, HY_BF16, in->rows, in->wide);
    HY_TRY(constant(b, b->head_dim, 1, &weight));
    HY_TRY(constant(b, b->head_dim, 0, &dweight));
    HY_TRY(device_tensor(b, hy_tensor_2d(NULL, HY_F32, in->rows, b->heads), &rstd));
    HY_TRY(device_tensor(b, shape, &gate));
    HY_TRY(device_tensor(b, shape, &y));
    HY_TRY(device_tensor(b, shape, &dx));
    HY_TRY(device_tensor(b, shape, &dgate));
    HY_TRY(ready(b, GATE,
                 (hy_op_call){.kind = HY_OP_GATE,
                              .attr = attr,
                              .t = {[HY_GATE_X] = in->out,
                                    [HY_GATE_GATE] = gate,
                                    [HY_GATE_WEIGHT] = weight,
                                    [HY_GATE_Y] = y,
                                    [HY_GATE_RSTD] = rstd}},
                 3 * x));
    return ready(b, GATE_BACK,
                 (hy_op_call){.kind = HY_OP_GATE_BWD,
                              .attr = attr,
                              .t = {[HY_GATE_BWD_DY] = in->dout,
                                    [HY_GATE_BWD_X] = in->out,
                                    [HY_GATE_BWD_GATE] = gate,
                                    [HY_GATE_BWD_WEIGHT] = weight,
                                    [HY_GATE_BWD_RSTD] = rstd,
                                    [HY_GATE_BWD_DX] = dx,
                                    [HY_GATE_BWD_DGATE] = dgate,
                                    [HY_GATE_BWD_DWEIGHT] = dweight}},
                 5 * x);
}

/* The next token of each sequence. */
static hy_status make_decode(bench *b, const inputs *in) {
    hy_tensor state = {.shape = {b->batch, b->heads, b->head_dim, b->head_dim}, .ndim = 4}, first;
    int32_t *host = malloc((size_t)b->batch * 2 * sizeof *host);
    if (!host) return hy_fail(HY_ERR_MEMORY, "not enough memory for %d sequences", (int)b->batch);
    for (int32_t i = 0; i < b->batch; i++) host[i] = 1 + i, host[b->batch + i] = i;
    hy_status status = device_tensor(b, hy_tensor_1d(NULL, HY_I32, 2 * b->batch), &first);
    if (status == HY_OK) status = to_device(b, &first, host);
    free(host);
    HY_TRY(status);
    HY_TRY(device_tensor(b, state, &state));
    hy_tensor row = hy_tensor_rows(&in->qkv, 0, b->batch);
    return ready(
        b, DECODE,
        (hy_op_call){.kind = HY_OP_DELTA_CACHED,
                     .attr = delta_attr(b, 1),
                     .t = {[HY_DELTA_CACHED_QKV] = row,
                           [HY_DELTA_CACHED_GATES] = hy_tensor_rows(&in->gates, 0, b->batch),
                           [HY_DELTA_CACHED_A_LOG] = in->a_log,
                           [HY_DELTA_CACHED_DT_BIAS] = in->dt_bias,
                           [HY_DELTA_CACHED_STATE] = state,
                           [HY_DELTA_CACHED_OUT] = hy_tensor_rows(&in->out, 0, b->batch),
                           [HY_DELTA_CACHED_FIRST] = hy_tensor_rows(&first, 0, b->batch),
                           [HY_DELTA_CACHED_SLOTS] = hy_tensor_rows(&first, b->batch, b->batch)}},
        2 * (double)hy_tensor_bytes(&state));
}

/* ---- timing ---------------------------------------------------------------------------------- */

static hy_status time_call(bench *b, const hy_op_call *call, double *median) {
    return gpu_op_time(b->backend, b->stream, call, number(b, "--rounds", 7),
                       number(b, "--calls", 20), median);
}

/* Operations of the plain recurrence are as hy_op_flops counts them. */
static void print(const bench *b, const double *seconds) {
    gpu_heading(b->argc, b->argv, &b->backend->facts);
    printf("%lld x %lld tokens, %lld heads (%lld for q and k) x %lld, bf16\n", (long long)b->batch,
           (long long)b->seq, (long long)b->heads, (long long)b->key_heads, (long long)b->head_dim);
    for (int i = 0; i < CALLS; i++) {
        double flops = hy_op_flops(&b->calls[i]);
        printf("  %-16s %9.4f ms  %7.2f TB/s of what must move  %7.1f TFLOP/s\n", call_names[i],
               seconds[i] * 1e3, b->bytes[i] * 1e-12 / seconds[i], flops * 1e-12 / seconds[i]);
    }
}

static hy_status make_calls(bench *b, bool is_whole) {
    inputs in;
    HY_TRY(make_delta(b, &in));
    if (!is_whole) return HY_OK;
    HY_TRY(make_conv(b, &in));
    HY_TRY(make_gate(b, &in));
    return make_decode(b, &in);
}

static hy_status measure(bench *b) {
    double seconds[CALLS] = {0};
    bool is_json = gpu_flag(b->argc, b->argv, "--json");
    HY_TRY(b->backend->stream_create(b->backend, "delta", &b->stream));
    HY_TRY(make_calls(b, !is_json));
    for (int i = 0; i < (is_json ? 2 : CALLS); i++) {
        HY_TRY(time_call(b, &b->calls[i], &seconds[i]));
    }
    HY_TRY(write_raw(b, "--out", &b->calls[FORWARD].t[HY_DELTA_OUT]));
    HY_TRY(write_raw(b, "--dqkv", &b->calls[BACKWARD].t[HY_DELTA_BWD_DQKV]));
    HY_TRY(write_raw(b, "--dgates", &b->calls[BACKWARD].t[HY_DELTA_BWD_DGATES]));
    if (is_json) {
        printf("{\"card\": \"%s\", \"forward_ms\": %.6f, \"backward_ms\": %.6f}\n",
               b->backend->facts.name, seconds[FORWARD] * 1e3, seconds[BACKWARD] * 1e3);
    } else {
        print(b, seconds);
    }
    return HY_OK;
}

static hy_status open_backend(bench *b, const char *device) {
    hy_cuda_options cuda = {.tune = HY_TUNE_OFF};
    hy_cpu_options cpu = {0};
    return gpu_is_asked(device) ? hy_cuda_backend_create(&cuda, &b->backend)
                                : hy_cpu_backend_create(&cpu, &b->backend);
}

/* Memory is not freed: the process measures one shape and ends. */
int main(int argc, char **argv) {
    bench b = {.argc = argc, .argv = argv};
    const char *device = gpu_option(argc, argv, "--device", "cuda");
    b.batch = number(&b, "--batch", 8);
    b.seq = number(&b, "--seq", 2048);
    b.heads = number(&b, "--heads", 16);
    b.key_heads = number(&b, "--key-heads", b.heads);
    b.head_dim = number(&b, "--head-dim", 128);
    if (gpu_is_absent("gpu_delta", device)) return 0;
    if (open_backend(&b, device) == HY_OK && measure(&b) == HY_OK) return 0;
    fprintf(stderr, "gpu_delta: %s\n", hy_error_message());
    return 1;
}
