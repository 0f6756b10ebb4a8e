/* gpu_rig.h: what tests of ops on CUDA need: calls run on the device.
 *
 * A call is made of host tensors, as in kernel_rig.h. gpu_run lays them out in one block of device
 * memory with bands of a known byte between them, so that a write beside a tensor shows; outputs
 * and workspace come as NaN, so that what is not written shows; inputs must come back as they were.
 * Each call runs twice, and both times must give the same bits. */
#ifndef HY_TESTS_GPU_RIG_H
#define HY_TESTS_GPU_RIG_H

#include "gpu/gpu_harness.h"
#include "kernel_rig.h"
#include "kernels/ops.h"

enum { GPU_BAND = 1024, GPU_ALIGNMENT = 256, GPU_BAND_BYTE = 0xa5, GPU_NAN_BYTE = 0xff };

/* ---- laying a call out ----------------------------------------------------------------------- */

/* Positions marked `+` in kernels.h. */
static inline bool gpu_adds_to(const hy_op_call *call, int at) {
    static const char *const added[HY_OP_COUNT] = {
        [HY_OP_MATMUL] = "2",         [HY_OP_BIAS_GRAD] = "1",     [HY_OP_NORM_BWD] = "78",
        [HY_OP_HEAD_NORM_BWD] = "67", [HY_OP_EMBED_BWD] = "23",    [HY_OP_SUM] = "1",
        [HY_OP_SQ_NORM] = "1",        [HY_OP_DIFF_DOT] = "4",      [HY_OP_COLLECT] = "1",
        [HY_OP_ADD_PARTS] = "2",      [HY_OP_ATTENTION_BWD] = "7", [HY_OP_CONV_BWD] = "5",
        [HY_OP_DELTA_BWD] = "89",     [HY_OP_GATE_BWD] = "7",      [HY_OP_GROUPED_MATMUL] = "3",
        [HY_OP_GROUPED_GRAD] = "3",
    };
    return call->attr.accumulate && added[call->kind] && strchr(added[call->kind], '0' + at);
}

/* The first position that holds the same memory as `at`; `at` itself when none before does. */
static inline int gpu_owner(const hy_op_call *call, int at) {
    for (int i = 0; i < at; i++) {
        if (call->t[i].data == call->t[at].data) return i;
    }
    return at;
}

static inline bool gpu_is_alone(const hy_op_call *call, int at) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (i != at && call->t[i].data == call->t[at].data) return false;
    }
    return true;
}

typedef struct gpu_layout {
    size_t begin[HY_OP_TENSORS], end[HY_OP_TENSORS]; /* 0: absent, or the memory of another */
    size_t scale[HY_OP_TENSORS];                     /* of 8-bit tensors; 0: none */
    bool is_output[HY_OP_TENSORS]; /* written, and neither added to nor shared with an input */
    size_t workspace, workspace_bytes, total;
} gpu_layout;

static inline size_t gpu_aligned(size_t offset) {
    return (offset + GPU_ALIGNMENT - 1) / GPU_ALIGNMENT * GPU_ALIGNMENT;
}

static inline gpu_layout gpu_lay_out(const hy_op_call *call, size_t workspace_bytes) {
    gpu_layout l = {.workspace_bytes = workspace_bytes};
    size_t cursor = GPU_BAND;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!call->t[i].data || gpu_owner(call, i) != i) continue;
        l.begin[i] = cursor + (gpu.shifted >> i & 1) * hy_dtype_size(call->t[i].dtype);
        l.end[i] = l.begin[i] + hy_tensor_bytes(&call->t[i]);
        l.is_output[i] = hy_op_access(call->kind, i) == HY_ACCESS_WRITE && !gpu_adds_to(call, i) &&
                         gpu_is_alone(call, i);
        cursor = gpu_aligned(l.end[i] + GPU_BAND);
        if (!call->t[i].quant.scale) continue;
        l.scale[i] = cursor;
        cursor = gpu_aligned(cursor + hy_tensor_scale_bytes(&call->t[i]) + GPU_BAND);
    }
    l.workspace = cursor;
    l.total = gpu_aligned(cursor + workspace_bytes + GPU_BAND);
    return l;
}

/* The block as it is before the call. */
static inline char *gpu_image(const hy_op_call *call, const gpu_layout *l) {
    char *image = malloc(l->total);
    ck_assert_ptr_nonnull(image);
    memset(image, GPU_BAND_BYTE, l->total);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!l->begin[i]) continue;
        const hy_tensor *t = &call->t[i];
        if (l->scale[i]) memcpy(image + l->scale[i], t->quant.scale, hy_tensor_scale_bytes(t));
        if (l->is_output[i]) {
            memset(image + l->begin[i], GPU_NAN_BYTE, l->end[i] - l->begin[i]);
        } else {
            memcpy(image + l->begin[i], call->t[i].data, l->end[i] - l->begin[i]);
        }
    }
    memset(image + l->workspace, GPU_NAN_BYTE, l->workspace_bytes);
    return image;
}

/* Under the sanitizers every round has fresh memory of its own: what nobody wrote is then known. */
static inline void gpu_reserve(size_t bytes) {
    if (bytes <= gpu.capacity && !gpu.is_small) return;
    gpu.backend->release(gpu.backend, HY_DEVICE, gpu.device, gpu.capacity);
    gpu.device = NULL;
    gpu.capacity = 0;
    must(gpu.backend->alloc(gpu.backend, HY_DEVICE, bytes, (void **)&gpu.device));
    gpu.capacity = bytes;
}

/* The call with its tensors on the device. */
static inline hy_op_call gpu_bound(const hy_op_call *call, const gpu_layout *l) {
    hy_op_call bound = *call;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (call->t[i].data) bound.t[i].data = gpu.device + l->begin[gpu_owner(call, i)];
        if (l->scale[i]) bound.t[i].quant.scale = (float *)(gpu.device + l->scale[i]);
    }
    if (l->workspace_bytes > 0) {
        bound.workspace =
            hy_tensor_1d(gpu.device + l->workspace, HY_U8, (int64_t)l->workspace_bytes);
    }
    return bound;
}

/* ---- types ----------------------------------------------------------------------------------- */

/* Types a test goes through here: fp32, bf16, fp16, two mixtures drawn per tensor, and the mixture
 * of training (bf16 activations and weights, fp32 gradients), which must be served. */
enum { GPU_MIXTURES = TRAINING_TYPES + 1 };

/* May the backend refuse this mixture? */
static inline bool gpu_may_refuse(int mixture) { return mixture == 3 || mixture == 4; }

/* ---- running --------------------------------------------------------------------------------- */

/* Every byte in [from, to) is a band's. */
static inline void gpu_check_band(const hy_op_call *call, const char *image, size_t from, size_t to,
                                  const char *before) {
    for (size_t k = from; k < to; k++) {
        if ((unsigned char)image[k] == GPU_BAND_BYTE) continue;
        ck_abort_msg("%s wrote into the band before %s: %zu bytes before it, %zu behind the last",
                     hy_op_name(call->kind), before, to - k, k - from);
    }
}

static inline void gpu_check_bands(const hy_op_call *call, const gpu_layout *l, const char *image) {
    size_t from = 0;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!l->begin[i]) continue;
        const char *name = hy_op_tensor_name(call->kind, i);
        gpu_check_band(call, image, from, l->begin[i], name);
        from = l->end[i];
        if (!l->scale[i]) continue;
        gpu_check_band(call, image, from, l->scale[i], "its scales");
        from = l->scale[i] + hy_tensor_scale_bytes(&call->t[i]);
    }
    gpu_check_band(call, image, from, l->workspace, "the workspace");
    gpu_check_band(call, image, l->workspace + l->workspace_bytes, l->total, "the end");
}

static inline void gpu_check_inputs(const hy_op_call *call, const gpu_layout *l, const char *before,
                                    const char *after) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!l->begin[i] || hy_op_access(call->kind, i) != HY_ACCESS_READ) continue;
        if (!gpu_is_alone(call, i)) continue;
        ck_assert_msg(
            memcmp(before + l->begin[i], after + l->begin[i], l->end[i] - l->begin[i]) == 0,
            "%s changed its input %s", hy_op_name(call->kind), hy_op_tensor_name(call->kind, i));
    }
}

/* Outputs and workspace stay unwritten under the sanitizers, and are NaN otherwise. */
static inline void gpu_copy_in(const gpu_layout *l, const char *image) {
    hy_backend *b = gpu.backend;
    size_t from = 0, behind = l->workspace + l->workspace_bytes;
    if (!gpu.is_small) {
        must(b->copy(gpu.stream, gpu.device, image, l->total));
        return;
    }
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!l->begin[i] || !l->is_output[i]) continue;
        must(b->copy(gpu.stream, gpu.device + from, image + from, l->begin[i] - from));
        from = l->end[i];
    }
    must(b->copy(gpu.stream, gpu.device + from, image + from, l->workspace - from));
    must(b->copy(gpu.stream, gpu.device + behind, image + behind, l->total - behind));
}

static inline void gpu_copy_out(const gpu_layout *l, char *image) {
    size_t behind = l->workspace + l->workspace_bytes;
    must(gpu.backend->copy(gpu.stream, image, gpu.device, l->workspace));
    must(gpu.backend->copy(gpu.stream, image + behind, gpu.device + behind, l->total - behind));
    must(gpu.backend->stream_sync(gpu.stream));
}

static inline void gpu_round(const hy_op_call *call, const void *plan, const gpu_layout *l,
                             const char *before, char *after) {
    gpu_reserve(l->total);
    hy_op_call bound = gpu_bound(call, l);
    bound.plan = plan;
    gpu_copy_in(l, before);
    must(gpu.backend->enqueue(gpu.stream, &bound));
    gpu_copy_out(l, after);
    gpu_check_bands(call, l, after);
}

static inline void gpu_check_equal(const hy_op_call *call, const gpu_layout *l, const char *first,
                                   const char *second) {
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!l->begin[i]) continue;
        ck_assert_msg(memcmp(first + l->begin[i], second + l->begin[i], l->end[i] - l->begin[i]) ==
                          0,
                      "%s: two runs give different bits of %s", hy_op_name(call->kind),
                      hy_op_tensor_name(call->kind, i));
    }
}

/* The call as planning sees it: memory is somewhere, aligned, and shared where it will be. */
static inline hy_op_call gpu_planned(const hy_op_call *call) {
    hy_op_call planned = *call;
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        uintptr_t somewhere = (uintptr_t)GPU_ALIGNMENT * (uintptr_t)(1 + gpu_owner(call, i));
        if (call->t[i].data) planned.t[i].data = (void *)somewhere;
    }
    return planned;
}

/* Runs a call of host tensors on the device; its outputs are in the host tensors afterwards. False
 * when the backend does not serve this mixture of types, which it must say with the op's name. */
static inline bool gpu_run(const hy_op_call *call) {
    hy_backend *b = gpu.backend;
    hy_op_call planned = gpu_planned(call);
    hy_status status = b->supports(b, &planned);
    if (status != HY_OK) {
        const char *said = hy_error_message();
        ck_assert_msg(status == HY_ERR_INPUT && strstr(said, hy_op_name(call->kind)), "%s", said);
        return false;
    }
    must(b->prepare(b, &planned));
    gpu_layout l = gpu_lay_out(call, b->workspace(b, &planned));
    char *before = gpu_image(call, &l), *first = malloc(l.total), *second = malloc(l.total);
    ck_assert(first && second);
    gpu_round(call, planned.plan, &l, before, first);
    gpu_round(call, planned.plan, &l, before, second);
    gpu_check_inputs(call, &l, before, first);
    gpu_check_equal(call, &l, first, second);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (l.begin[i]) memcpy(call->t[i].data, first + l.begin[i], l.end[i] - l.begin[i]);
        if (l.scale[i]) {
            memcpy(call->t[i].quant.scale, first + l.scale[i], hy_tensor_scale_bytes(&call->t[i]));
        }
    }
    free(before);
    free(first);
    free(second);
    return true;
}

/* A call that must be served. */
static inline void gpu_must_run(const hy_op_call *call) {
    ck_assert_msg(gpu_run(call), "refused: %s", hy_error_message());
}

/* Runs a trial on the device and by the reference. Only mixtures may be refused. */
static inline bool gpu_run_both(trial *t, int mixture) {
    t->exact.attr = t->call.attr;
    if (!gpu_run(&t->call)) {
        ck_assert_msg(gpu_may_refuse(mixture), "refused: %s", hy_error_message());
        return false;
    }
    reference_run(&t->exact);
    return true;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Half the distance of two neighbours, relative; fp32: some dozens of roundings inside. */
static inline double half_spacing(hy_dtype dtype) {
    return dtype == HY_BF16 ? 0x1p-8 : dtype == HY_F16 ? 0x1p-11 : 1e-5;
}

/* As trial_check, and no single element may be far off: within `worst` times one rounding of itself
 * and one rounding of the tensor's usual size (what is summed is that large, the sum may be
 * small). */
static inline void gpu_check_to(const trial *t, int at, double factor, double worst) {
    const hy_tensor *found = &t->call.t[at];
    const double *expected = t->exact.t[at].data;
    int64_t count = hy_tensor_count(found);
    double square = 0;
    trial_check(t, at, factor);
    for (int64_t i = 0; i < count; i++) square += expected[i] * expected[i];
    double usual = sqrt(square / (double)count);
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs(real_at(found, i) - expected[i]);
        double allowed = worst * half_spacing(found->dtype) * (fabs(expected[i]) + usual);
        if (difference <= allowed) continue;
        ck_abort_msg("%s: %s (%s) element %lld of %lld is %.9g, expected %.9g",
                     hy_op_name(t->call.kind), hy_op_tensor_name(t->call.kind, at),
                     hy_dtype_name(found->dtype), (long long)i, (long long)count, real_at(found, i),
                     expected[i]);
    }
}

/* Where each element is rounded once or twice. */
static inline void gpu_check(const trial *t, int at, double factor) {
    gpu_check_to(t, at, factor, factor);
}

/* A test that goes through types; under the sanitizers fp32 and bf16 alone. */
#define EACH_TYPE(name, count)                                                                     \
    static void name##_in(int mixture);                                                            \
    START_TEST(name) {                                                                             \
        for (int mixture = 0; mixture < (gpu.is_small ? 2 : (count)); mixture++)                   \
            name##_in(mixture);                                                                    \
    }                                                                                              \
    END_TEST                                                                                       \
    static void name##_in(int mixture)

#endif
