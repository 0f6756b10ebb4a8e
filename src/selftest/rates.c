/* rates.c: measures how fast the device runs the main operations of training. See selftest.h.
 *
 * After a warm-up, operations are enqueued in groups until a fifth of a second has passed. The
 * sizes fit a card with 4 GB, and take a CPU some seconds. */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "selftest/selftest.h"

#define ENOUGH_SECONDS 0.2
#define COPY_BYTES ((size_t)128 << 20)

static hy_status enqueue_times(const hy_selftest_device *device, const hy_op_call *call, int times,
                               double *seconds) {
    HY_TRY(device->backend->stream_sync(device->stream));
    double start = hy_clock();
    for (int i = 0; i < times; i++) HY_TRY(device->backend->enqueue(device->stream, call));
    HY_TRY(device->backend->stream_sync(device->stream));
    *seconds = (hy_clock() - start) / times;
    return HY_OK;
}

/* The call is ready to be enqueued. */
static hy_status seconds_of(const hy_selftest_device *device, const hy_op_call *call,
                            double *seconds) {
    HY_TRY(enqueue_times(device, call, 1, seconds));
    HY_TRY(enqueue_times(device, call, 1, seconds));
    int times = (int)(ENOUGH_SECONDS / (*seconds + 1e-6));
    return times < 2 ? HY_OK : enqueue_times(device, call, times, seconds);
}

/* The rates of a CPU are small in TFLOP/s, so they get more digits. */
static void report_flops(hy_selftest_run *run, const char *name, double flops) {
    bool is_tera = flops >= 1e12;
    hy_selftest_report_rate(run, name, flops * (is_tera ? 1e-12 : 1e-9),
                            is_tera ? "TFLOP/s" : "GFLOP/s");
}

static hy_status report_matmul(hy_selftest_run *run, const hy_selftest_device *device,
                               hy_dtype dtype, int64_t size) {
    hy_selftest_memory m = {.backend = device->backend};
    hy_op_call call;
    char name[96];
    double seconds;
    hy_status status = hy_selftest_matmul(&m, device->stream, dtype, size, &call);
    if (status == HY_OK) status = seconds_of(device, &call, &seconds);
    if (status == HY_OK) {
        snprintf(name, sizeof name, "matmul, %s, %lld x %lld x %lld", hy_dtype_name(dtype),
                 (long long)size, (long long)size, (long long)size);
        report_flops(run, name, hy_op_flops(&call) / seconds);
    }
    hy_selftest_release(&m);
    return status;
}

/* ---- fp8 ------------------------------------------------------------------------------------- */

/* Converts a bf16 matrix to fp8, as it is and transposed, then multiplies both, as for the gradient
 * of a weight. */
static hy_status time_fp8(const hy_selftest_device *device, hy_selftest_memory *m, int64_t size,
                          double *bytes, double *flops) {
    hy_op_call largest = {.kind = HY_OP_LARGEST}, to_fp8 = {.kind = HY_OP_TO_FP8};
    hy_op_call matmul = {.kind = HY_OP_MATMUL, .attr.matmul = {.trans_b = true, .alpha = 1}};
    hy_tensor *codes = &to_fp8.t[HY_TO_FP8_CODES], *transposed = &to_fp8.t[HY_TO_FP8_TRANSPOSED];
    char *small;
    double seconds;
    HY_TRY(hy_selftest_take_tensor(m, device->stream, HY_BF16, size, size, &to_fp8.t[HY_TO_FP8_X]));
    HY_TRY(hy_selftest_take_tensor(m, device->stream, HY_BF16, size, size, &matmul.t[HY_MATMUL_D]));
    HY_TRY(hy_selftest_take(m, 3 * 256, (void **)&small));
    *codes = *transposed = hy_tensor_2d(NULL, HY_E4M3, size, size);
    HY_TRY(hy_selftest_take(m, hy_tensor_bytes(codes), &codes->data));
    HY_TRY(hy_selftest_take(m, hy_tensor_bytes(transposed), &transposed->data));
    codes->quant.scale = (float *)(void *)(small + 256);
    transposed->quant.scale = (float *)(void *)(small + 512);
    to_fp8.t[HY_TO_FP8_LARGEST] = hy_tensor_1d(small, HY_F32, 1);
    largest.t[HY_LARGEST_X] = to_fp8.t[HY_TO_FP8_X];
    largest.t[HY_LARGEST_OUT] = to_fp8.t[HY_TO_FP8_LARGEST];
    HY_TRY(device->backend->enqueue(device->stream, &largest));
    HY_TRY(hy_selftest_prepare(m, &to_fp8));
    HY_TRY(seconds_of(device, &to_fp8, &seconds));
    *bytes = 4 * (double)size * (double)size / seconds;
    matmul.t[HY_MATMUL_A] = *codes;
    matmul.t[HY_MATMUL_B] = *transposed;
    HY_TRY(hy_selftest_prepare(m, &matmul));
    HY_TRY(seconds_of(device, &matmul, &seconds));
    *flops = hy_op_flops(&matmul) / seconds;
    return HY_OK;
}

static hy_status report_fp8(hy_selftest_run *run, const hy_selftest_device *device, int64_t size) {
    hy_selftest_memory m = {.backend = device->backend};
    double bytes, flops;
    char name[96];
    hy_status status = time_fp8(device, &m, size, &bytes, &flops);
    if (status == HY_OK) {
        snprintf(name, sizeof name, "matmul, e4m3, %lld x %lld x %lld", (long long)size,
                 (long long)size, (long long)size);
        report_flops(run, name, flops);
        snprintf(name, sizeof name, "bf16 to fp8, as it is and transposed, %lld x %lld",
                 (long long)size, (long long)size);
        hy_selftest_report_rate(run, name, bytes * 1e-9, "GB/s");
    }
    hy_selftest_release(&m);
    return status;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Forward, then backward in the same memory; and whether cuDNN was used. */
static hy_status time_attention(const hy_selftest_device *device, hy_selftest_memory *m,
                                hy_dtype dtype, const hy_op_attr *attr, double rates[2],
                                bool is_cudnn[2]) {
    int64_t rows = (int64_t)attr->heads.batch * attr->heads.seq;
    int64_t width = (int64_t)attr->heads.heads * attr->heads.head_dim;
    hy_op_call forward = {.kind = HY_OP_ATTENTION, .attr = *attr};
    hy_op_call backward = {.kind = HY_OP_ATTENTION_BWD, .attr = *attr};
    double seconds;
    HY_TRY(hy_selftest_take_tensor(m, device->stream, dtype, rows, 3 * width,
                                   &forward.t[HY_ATTENTION_QKV]));
    HY_TRY(hy_selftest_take_tensor(m, device->stream, dtype, rows, width,
                                   &forward.t[HY_ATTENTION_OUT]));
    HY_TRY(hy_selftest_take_tensor(m, device->stream, HY_F32, 1, rows * attr->heads.heads,
                                   &forward.t[HY_ATTENTION_LSE]));
    HY_TRY(hy_selftest_take_tensor(m, device->stream, dtype, rows, 3 * width,
                                   &backward.t[HY_ATTENTION_BWD_DQKV]));
    HY_TRY(hy_selftest_prepare(m, &forward));
    HY_TRY(seconds_of(device, &forward, &seconds));
    rates[0] = hy_op_flops(&forward) / seconds;
    is_cudnn[0] = forward.plan != NULL;
    backward.t[HY_ATTENTION_BWD_DOUT] = backward.t[HY_ATTENTION_BWD_OUT] =
        forward.t[HY_ATTENTION_OUT];
    backward.t[HY_ATTENTION_BWD_QKV] = forward.t[HY_ATTENTION_QKV];
    backward.t[HY_ATTENTION_BWD_LSE] = forward.t[HY_ATTENTION_LSE];
    HY_TRY(hy_selftest_prepare(m, &backward));
    HY_TRY(seconds_of(device, &backward, &seconds));
    rates[1] = hy_op_flops(&backward) / seconds;
    is_cudnn[1] = backward.plan != NULL;
    return HY_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static hy_status report_copy(hy_selftest_run *run, const hy_selftest_device *device,
                             const char *name, void *to, const void *from, double factor) {
    enum { TIMES = 8 };
    double start = 0;
    for (int i = -1; i < TIMES; i++) { /* the first is a warm-up */
        if (i == 0) start = hy_clock();
        HY_TRY(device->backend->copy(device->stream, to, from, COPY_BYTES));
        if (i < 0) HY_TRY(device->backend->stream_sync(device->stream));
    }
    HY_TRY(device->backend->stream_sync(device->stream));
    double rate = TIMES * (double)COPY_BYTES / (hy_clock() - start);
    hy_selftest_report_rate(run, name, factor * rate * 1e-9, "GB/s");
    return HY_OK;
}

static hy_status report_copies(hy_selftest_run *run, const hy_selftest_device *device) {
    hy_selftest_memory m = {.backend = device->backend};
    void *a = NULL, *b = NULL, *pinned = NULL;
    hy_status status;
    HY_TRY_TO(end, status, hy_selftest_take(&m, COPY_BYTES, &a));
    HY_TRY_TO(end, status, hy_selftest_take(&m, COPY_BYTES, &b));
    HY_TRY_TO(end, status,
              report_copy(run, device, "copy within device memory, read and write", b, a, 2));
    if (!run->result->is_gpu) goto end;
    HY_TRY_TO(end, status, m.backend->alloc(m.backend, HY_PINNED, COPY_BYTES, &pinned));
    HY_TRY_TO(end, status,
              report_copy(run, device, "copy to the card, pinned memory", a, pinned, 1));
    HY_TRY_TO(end, status,
              report_copy(run, device, "copy from the card, pinned memory", pinned, a, 1));
end:
    device->backend->release(device->backend, HY_PINNED, pinned, COPY_BYTES);
    hy_selftest_release(&m);
    return status;
}

hy_status hy_selftest_rates(hy_selftest_run *run) {
    bool is_gpu = run->result->is_gpu;
    const hy_selftest_device *device = is_gpu ? &run->gpu : &run->cpu;
    hy_dtype narrow = !is_gpu ? HY_F32 : run->result->capability >= 80 ? HY_BF16 : HY_F16;
    if (is_gpu) HY_TRY(report_matmul(run, device, narrow, 4096));
    if (is_gpu && run->result->capability >= 89) HY_TRY(report_fp8(run, device, 8192));
    HY_TRY(report_matmul(run, device, HY_F32, is_gpu ? 2048 : 1024));
    int32_t batch = is_gpu ? 4 : 1, seq = is_gpu ? 2048 : 256;
    const hy_heads_attr heads = {
        .batch = batch, .seq = seq, .heads = 16, .kv_heads = 16, .head_dim = 128, .scale = 0.088f};
    static const char *const ways[] = {"forward", "backward"};
    hy_selftest_memory m = {.backend = device->backend};
    double rates[2];
    bool is_cudnn[2];
    char name[96];
    hy_status status =
        time_attention(device, &m, narrow, &(hy_op_attr){.heads = heads}, rates, is_cudnn);
    for (int i = 0; i < 2 && status == HY_OK; i++) {
        const char *whose = !is_gpu ? "" : is_cudnn[i] ? ", cuDNN's" : ", our kernels";
        snprintf(name, sizeof name, "attention %s, %s, %d x %d, 16 heads of 128%s", ways[i],
                 hy_dtype_name(narrow), batch, seq, whose);
        report_flops(run, name, rates[i]);
    }
    hy_selftest_release(&m);
    HY_TRY(status);
    return report_copies(run, device);
}
