/* parity.c: compares every op on a GPU with the CPU. See selftest.h.
 *
 * A call runs on the CPU in its own memory, and twice on the GPU on copies. Then its outputs are
 * compared: GPU with CPU within rounding, GPU with GPU bit by bit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/half.h"
#include "kernels/ops.h"
#include "selftest/selftest.h"

/* ---- running --------------------------------------------------------------------------------- */

/* Copies all tensors into memory allocated on the device, or back to the host. */
static hy_status copy_tensors(const hy_selftest_device *device, const hy_op_call *from,
                              hy_op_call *to, bool is_in) {
    hy_backend *b = device->backend;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!from->t[i].data) continue;
        size_t bytes = hy_selftest_bytes(&from->t[i]);
        void *data = to->t[i].data;
        if (is_in) HY_TRY(b->alloc(b, HY_DEVICE, bytes, &data));
        if (is_in) hy_selftest_place(&to->t[i], data);
        HY_TRY(b->copy(device->stream, data, from->t[i].data, bytes));
    }
    return b->stream_sync(device->stream);
}

/* Runs a call in host memory on the GPU and stores the GPU's results there. */
static hy_status run_on_gpu(const hy_selftest_device *gpu, hy_op_call *call) {
    hy_op_call there = *call;
    for (int i = 0; i < HY_OP_TENSORS; i++) there.t[i].data = NULL;
    hy_status status = copy_tensors(gpu, call, &there, true);
    if (status == HY_OK) status = hy_selftest_run_call(gpu, &there);
    if (status == HY_OK) status = copy_tensors(gpu, &there, call, false);
    for (int i = 0; i < HY_OP_TENSORS; i++)
        gpu->backend->release(gpu->backend, HY_DEVICE, there.t[i].data, 0);
    return status;
}

/* The backward pass of attention reads the output of its forward pass. */
static hy_status complete(const hy_selftest_device *cpu, hy_op_call *call) {
    if (call->kind != HY_OP_ATTENTION_BWD) return HY_OK;
    hy_op_call forward = {.kind = HY_OP_ATTENTION, .attr = call->attr};
    forward.t[HY_ATTENTION_QKV] = call->t[HY_ATTENTION_BWD_QKV];
    forward.t[HY_ATTENTION_DOC_STARTS] = call->t[HY_ATTENTION_BWD_DOC_STARTS];
    forward.t[HY_ATTENTION_OUT] = call->t[HY_ATTENTION_BWD_OUT];
    forward.t[HY_ATTENTION_LSE] = call->t[HY_ATTENTION_BWD_LSE];
    return hy_selftest_run_call(cpu, &forward);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static double value_at(const hy_tensor *t, int64_t i) {
    switch (t->dtype) {
    case HY_F32: return (double)((const float *)t->data)[i];
    case HY_BF16: return (double)hy_bf16_to_f32(((const uint16_t *)t->data)[i]);
    case HY_F16: return (double)hy_f16_to_f32(((const uint16_t *)t->data)[i]);
    case HY_F64: return ((const double *)t->data)[i];
    case HY_I32: return (double)((const int32_t *)t->data)[i];
    default: return (double)((const uint8_t *)t->data)[i];
    }
}

static double distance(const hy_tensor *found, const hy_tensor *expected) {
    double wrong = 0, size = 0;
    if (hy_is_fp8(found->dtype) && *found->quant.scale != *expected->quant.scale) return INFINITY;
    for (int64_t i = 0; i < hy_tensor_count(found); i++) {
        double a = value_at(found, i), b = value_at(expected, i);
        wrong += (a - b) * (a - b);
        size += b * b;
    }
    double far = size > 0 ? sqrt(wrong / size) : sqrt(wrong);
    return isnan(far) ? INFINITY : far;
}

/* With 16-bit inputs, the delta rule rounds what it multiplies to bf16, whatever the type of a
 * result. */
static bool rounds_to_bf16(const hy_op_call *call) {
    bool is_delta = call->kind == HY_OP_DELTA || call->kind == HY_OP_DELTA_BWD ||
                    call->kind == HY_OP_DELTA_CACHED;
    return is_delta && call->t[0].dtype != HY_F32;
}

/* 8-bit values may differ by one if a root was rounded the other way. fp8 sums on a card keep about
 * 13 bits of the largest of a few products; with fast sums, of all products. The largest of a
 * result is one of its numbers. */
static double allowed_of(const hy_op_call *call, int at) {
    hy_dtype dtype = call->t[at].dtype;
    int of, largest = hy_op_largest(call->kind, &of);
    if (at == largest) dtype = call->t[of].dtype;
    if (rounds_to_bf16(call)) dtype = HY_BF16;
    double allowed = dtype == HY_U8 ? 1e-3 : hy_selftest_allowed(call->kind, dtype);
    bool is_fp8 = call->kind == HY_OP_MATMUL && hy_is_fp8(call->t[HY_MATMUL_A].dtype);
    return !is_fp8 ? allowed : allowed + (call->attr.matmul.is_fast ? 1e-2 : 2e-3);
}

/* A result above 1 is too far. */
static double share_of(double error, double allowed) {
    return allowed > 0 ? error / allowed : error > 0 ? INFINITY : 0;
}

static void compare(const hy_op_call *gpu, const hy_op_call *cpu, hy_selftest_op *op) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!gpu->t[i].data || !(hy_op_access(gpu->kind, i) & HY_ACCESS_WRITE)) continue;
        double error = distance(&gpu->t[i], &cpu->t[i]), allowed = allowed_of(gpu, i);
        bool is_worse = share_of(error, allowed) > share_of(op->error, op->allowed);
        if (op->tensor[0] && !is_worse) continue;
        op->tensor = hy_op_tensor_name(gpu->kind, i);
        op->error = error;
        op->allowed = allowed;
    }
    op->is_ok = op->error <= op->allowed;
    if (!op->is_ok)
        op->message = "difference from the CPU's result is larger than rounding can explain";
}

static bool same_bits(const hy_op_call *a, const hy_op_call *b) {
    for (int i = 0; i < HY_OP_TENSORS; i++)
        if (a->t[i].data && memcmp(a->t[i].data, b->t[i].data, hy_tensor_bytes(&a->t[i])) != 0)
            return false;
    return true;
}

/* ---- all calls ------------------------------------------------------------------------------- */

/* Three copies of one call: for the CPU and for two runs on the GPU. */
static hy_status try_call(const hy_selftest_run *run, hy_op_call calls[3], hy_selftest_op *op) {
    for (int k = 0; k < 3; k++) HY_TRY(complete(&run->cpu, &calls[k]));
    HY_TRY(hy_selftest_run_call(&run->cpu, &calls[0]));
    HY_TRY(run_on_gpu(&run->gpu, &calls[1]));
    HY_TRY(run_on_gpu(&run->gpu, &calls[2]));
    compare(&calls[1], &calls[0], op);
    if (op->is_ok && !same_bits(&calls[1], &calls[2])) {
        op->is_ok = false;
        op->message = "two runs gave different bits";
    }
    return HY_OK;
}

/* Whether the card is too old for this op. */
static bool is_beyond(const hy_device_facts *facts, const hy_op_call *call) {
    return facts->is_gpu && facts->capability < 89 && call->kind == HY_OP_MATMUL &&
           hy_is_fp8(call->t[HY_MATMUL_A].dtype);
}

static const char *added_to_name(const hy_op_call *call) {
    if (call->kind == HY_OP_MATMUL && call->attr.matmul.is_batch_invariant) return ", invariant";
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (call->t[i].dtype == HY_I8) return ", int8 weights";
        if (call->t[i].dtype == HY_NF4)
            return call->t[i].quant.group > 0 ? ", nf4 weights" : ", nf4_single weights";
        if (call->kind != HY_OP_MATMUL || !hy_is_fp8(call->t[i].dtype)) continue;
        return i == HY_MATMUL_A ? ", fp8" : ", fp8 weights";
    }
    return "";
}

static void test_call(hy_selftest_run *run, int i, hy_dtype dtype) {
    hy_op_call calls[3];
    bool is_made = true;
    for (int k = 0; k < 3; k++) is_made &= hy_selftest_call_make(i, dtype, &calls[k]);
    if (is_made && !is_beyond(&run->gpu.backend->facts, &calls[0])) {
        char message[HY_ERROR_MESSAGE_MAX], name[64];
        snprintf(name, sizeof name, "%s%s", hy_op_name(calls[0].kind), added_to_name(&calls[0]));
        hy_selftest_op op = {.size = sizeof op,
                             .name = name,
                             .dtype = hy_dtype_name(dtype),
                             .tensor = "",
                             .message = ""};
        if (try_call(run, calls, &op) != HY_OK) {
            snprintf(message, sizeof message, "%s", hy_error_message());
            op.error = INFINITY;
            op.message = message;
            op.is_ok = false;
        }
        hy_selftest_report_op(run, &op);
    }
    for (int k = 0; k < 3; k++) hy_selftest_call_free(&calls[k]);
}

hy_status hy_selftest_parity(hy_selftest_run *run) {
    static const hy_dtype dtypes[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; hy_selftest_call_exists(i); i++)
        for (int k = 0; k < 3; k++) test_call(run, i, dtypes[k]);
    return HY_OK;
}
