/* selftest.c: opens the device under test and runs the parts. See hybrid.h. */
#include <stdio.h>

#include "base/error.h"
#include "base/sized.h"
#include "config/derived.h"
#include "selftest/selftest.h"

void hy_selftest_tell_op(hy_selftest_run *run, const hy_selftest_op *op) {
    run->result->ops++;
    run->result->failures += !op->is_ok;
    if (run->observer && run->observer->on_op) run->observer->on_op(run->observer->user, op);
}

void hy_selftest_tell_rate(hy_selftest_run *run, const char *name, double value, const char *unit) {
    hy_selftest_rate rate = {.size = sizeof rate, .name = name, .value = value, .unit = unit};
    if (run->observer && run->observer->on_rate) run->observer->on_rate(run->observer->user, &rate);
}

hy_status hy_selftest_run_call(const hy_selftest_device *device, hy_op_call *call) {
    hy_backend *b = device->backend;
    void *workspace = NULL;
    HY_TRY(b->supports(b, call));
    HY_TRY(b->prepare(b, call));
    size_t bytes = b->workspace(b, call);
    if (bytes > 0) {
        HY_TRY(b->alloc(b, HY_DEVICE, bytes, &workspace));
        call->workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)bytes);
    }
    hy_status status = b->enqueue(device->stream, call);
    if (status == HY_OK) status = b->stream_sync(device->stream);
    if (workspace) b->release(b, HY_DEVICE, workspace, bytes);
    return status;
}

static void close_device(hy_selftest_device *device) {
    if (device->stream) device->backend->stream_destroy(device->stream);
    if (device->backend) device->backend->destroy(device->backend);
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
    if (status == HY_OK) {
        status = run.gpu.backend ? hy_selftest_parity(&run) : hy_selftest_answers(&run);
    }
    if (status == HY_OK) status = hy_selftest_rates(&run);
    close_device(&run.gpu);
    close_device(&run.cpu);
    hy_copy_sized(out, size, &result, sizeof result);
    return status;
}
