/* selftest.c: opens the device under test and runs the parts. See hybrid_tools.h.
 *
 * A GPU is compared with the CPU op by op; a CPU alone is compared with known answers. Then the
 * main operations are timed. The memory of one test is released together. */
#include <stdio.h>

#include "base/error.h"
#include "base/sized.h"
#include "config/derived.h"
#include "selftest/selftest.h"

void hy_selftest_report_op(hy_selftest_run *run, const hy_selftest_op *op) {
    run->result->ops++;
    run->result->failures += !op->is_ok;
    if (run->observer && run->observer->on_op) run->observer->on_op(run->observer->user, op);
}

void hy_selftest_report_rate(hy_selftest_run *run, const char *name, double value,
                             const char *unit) {
    hy_selftest_rate rate = {.size = sizeof rate, .name = name, .value = value, .unit = unit};
    if (run->observer && run->observer->on_rate) run->observer->on_rate(run->observer->user, &rate);
}

hy_status hy_selftest_take(hy_selftest_memory *m, size_t bytes, void **out) {
    HY_TRY(m->backend->alloc(m->backend, HY_DEVICE, bytes, out));
    m->taken[m->count++] = *out;
    return HY_OK;
}

hy_status hy_selftest_take_tensor(hy_selftest_memory *m, hy_stream *stream, hy_dtype dtype,
                                  int64_t rows, int64_t cols, hy_tensor *out) {
    *out = hy_tensor_2d(NULL, dtype, rows, cols);
    HY_TRY(hy_selftest_take(m, hy_tensor_bytes(out), &out->data));
    hy_op_call draw = {.kind = HY_OP_COMBINE, .attr.combine.noise = 1};
    draw.t[HY_COMBINE_OUT] = *out;
    return m->backend->enqueue(stream, &draw);
}

hy_status hy_selftest_prepare(hy_selftest_memory *m, hy_op_call *call) {
    void *workspace = NULL;
    HY_TRY(m->backend->supports(m->backend, call));
    HY_TRY(m->backend->prepare(m->backend, call));
    size_t bytes = m->backend->workspace(m->backend, call);
    if (bytes > 0) HY_TRY(hy_selftest_take(m, bytes, &workspace));
    call->workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)bytes);
    return HY_OK;
}

hy_status hy_selftest_matmul(hy_selftest_memory *m, hy_stream *stream, hy_dtype dtype, int64_t size,
                             hy_op_call *call) {
    *call = (hy_op_call){.kind = HY_OP_MATMUL, .attr.matmul = {.trans_b = true, .alpha = 1}};
    for (int i = HY_MATMUL_A; i <= HY_MATMUL_D; i++)
        HY_TRY(hy_selftest_take_tensor(m, stream, dtype, size, size, &call->t[i]));
    return hy_selftest_prepare(m, call);
}

void hy_selftest_release(hy_selftest_memory *m) {
    while (m->count > 0) m->backend->release(m->backend, HY_DEVICE, m->taken[--m->count], 0);
}

hy_status hy_selftest_run_call(const hy_selftest_device *device, hy_op_call *call) {
    hy_backend *b = device->backend;
    hy_selftest_memory m = {.backend = b};
    hy_status status = hy_selftest_prepare(&m, call);
    if (status == HY_OK) status = b->enqueue(device->stream, call);
    if (status == HY_OK) status = b->stream_sync(device->stream);
    hy_selftest_release(&m);
    return status;
}

void hy_selftest_close_device(hy_selftest_device *device) {
    if (device->stream) device->backend->stream_destroy(device->stream);
    if (device->backend) device->backend->destroy(device->backend);
    *device = (hy_selftest_device){0};
}

static hy_status open_all(const char *device, hy_selftest_run *run) {
    hy_selftest_result *result = run->result;
    /* auto uses a card if there is a usable one. */
    hy_backend **out = &run->gpu.backend;
    int asked = HY_USE_CPU;
    (void)hy_choice_value("device", device, &asked);
    int card = hy_device_card((hy_device_choice)asked);
    hy_cuda_options options = {
        .device = card < 0 ? 0 : card, .tune = HY_TUNE_FAST, .attention = HY_ATTENTION_AUTO};
    *out = NULL;
    if (card >= 0) HY_TRY(hy_cuda_backend_create(&options, out)); /* the user chose this card */
    if (asked == HY_USE_ANY) (void)hy_cuda_backend_create(&options, out);
    HY_TRY(hy_cpu_backend_create(&(hy_cpu_options){0}, &run->cpu.backend));
    hy_selftest_device *devices[] = {&run->cpu, &run->gpu};
    for (int i = 0; i < (*out ? 2 : 1); i++) {
        hy_backend *b = devices[i]->backend;
        HY_TRY(b->stream_create(b, "self-test", &devices[i]->stream));
    }
    const hy_device_facts *facts =
        run->gpu.backend ? &run->gpu.backend->facts : &run->cpu.backend->facts;
    snprintf(result->device, sizeof result->device, "%s", facts->name);
    snprintf(result->detail, sizeof result->detail, "%s", facts->detail);
    result->is_gpu = facts->is_gpu;
    result->capability = facts->capability;
    return HY_OK;
}

hy_status hy_selftest_sized(const char *device, const hy_selftest_observer *observer,
                            hy_selftest_result *out, size_t size) {
    hy_selftest_result result = {0};
    hy_selftest_run run = {.observer = observer, .result = &result};
    hy_status status = open_all(device, &run);
    if (status == HY_OK)
        status = run.gpu.backend ? hy_selftest_parity(&run) : hy_selftest_answers(&run);
    if (status == HY_OK) status = hy_selftest_rates(&run);
    hy_selftest_close_device(&run.gpu);
    hy_selftest_close_device(&run.cpu);
    hy_copy_sized(out, size, &result, sizeof result);
    return status;
}
