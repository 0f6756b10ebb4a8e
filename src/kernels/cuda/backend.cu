/* backend.cu: the card as a device: its op table, memory and facts.
 *
 * This is the only entry of the shared object. Streams, events and copies are in stream.cu, pinned
 * memory is in pinned.cu. Enqueueing does not repeat the checks of planning. A launch that fails is
 * reported at once, a kernel that fails later at the next sync. */
#include "kernels/cuda/backend.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_choice.cuh"
#include "kernels/cuda/matmul.cuh"

hy_cuda_op hy_cuda_op_of(hy_op_kind kind) {
    switch (kind) {
    case HY_OP_MATMUL: return {hy_cuda_matmul, hy_cuda_matmul_workspace, hy_cuda_matmul_supports};
    case HY_OP_BIAS_GRAD: return {hy_cuda_bias_grad, hy_cuda_bias_grad_workspace, NULL};
    case HY_OP_NORM: return {hy_cuda_norm, NULL, NULL};
    case HY_OP_NORM_BWD: return {hy_cuda_norm_bwd, hy_cuda_norm_bwd_workspace, NULL};
    case HY_OP_HEAD_NORM: return {hy_cuda_head_norm, NULL, NULL};
    case HY_OP_HEAD_NORM_BWD: return {hy_cuda_head_norm_bwd, hy_cuda_head_norm_bwd_workspace, NULL};
    case HY_OP_ROPE: return {hy_cuda_rope, NULL, NULL};
    case HY_OP_ATTENTION:
        return {hy_cuda_attention, hy_cudnn_attention_workspace, hy_cuda_attention_supports};
    case HY_OP_ATTENTION_BWD:
        return {hy_cuda_attention_bwd, hy_cuda_attention_bwd_workspace, hy_cuda_attention_supports};
    case HY_OP_ATTENTION_CACHED:
        return {hy_attention_blocks,
                [](const hy_cuda *, const hy_op_call *call) {
                    return hy_attention_blocks_workspace(call);
                },
                hy_cuda_attention_supports};
    case HY_OP_CONV: return {hy_cuda_conv, NULL, NULL};
    case HY_OP_CONV_BWD: return {hy_cuda_conv_bwd, hy_cuda_conv_bwd_workspace, NULL};
    case HY_OP_CONV_CACHED: return {hy_cuda_conv_cached, NULL, NULL};
    case HY_OP_DELTA: return {hy_cuda_delta, hy_cuda_delta_workspace, NULL};
    case HY_OP_DELTA_BWD: return {hy_cuda_delta_bwd, hy_cuda_delta_workspace, NULL};
    case HY_OP_DELTA_CACHED: return {hy_cuda_delta, hy_cuda_delta_workspace, NULL};
    case HY_OP_GATE: return {hy_cuda_gate, NULL, NULL};
    case HY_OP_GATE_BWD: return {hy_cuda_gate_bwd, hy_cuda_gate_bwd_workspace, NULL};
    case HY_OP_GELU: return {hy_cuda_gelu, NULL, NULL};
    case HY_OP_GELU_BWD: return {hy_cuda_gelu_bwd, NULL, NULL};
    case HY_OP_SWIGLU: return {hy_cuda_swiglu, NULL, NULL};
    case HY_OP_SWIGLU_BWD: return {hy_cuda_swiglu_bwd, NULL, NULL};
    case HY_OP_EMBED: return {hy_cuda_embed, NULL, NULL};
    case HY_OP_EMBED_BWD: return {hy_cuda_embed_bwd, hy_cuda_embed_bwd_workspace, NULL};
    case HY_OP_CROSS_ENTROPY: return {hy_cuda_cross_entropy, NULL, NULL};
    case HY_OP_PREFERENCE: return {hy_cuda_preference, hy_cuda_preference_workspace, NULL};
    case HY_OP_POLICY: return {hy_cuda_policy, hy_cuda_policy_workspace, NULL};
    case HY_OP_SAMPLE: return {hy_cuda_sample, NULL, hy_cuda_sample_supports};
    case HY_OP_SUM: return {hy_cuda_reduce, hy_cuda_reduce_workspace, NULL};
    case HY_OP_SQ_NORM: return {hy_cuda_reduce, hy_cuda_reduce_workspace, NULL};
    case HY_OP_CLIP: return {hy_cuda_clip, NULL, NULL};
    case HY_OP_ADAMW: return {hy_cuda_adamw, NULL, NULL};
    case HY_OP_SGD: return {hy_cuda_sgd, NULL, NULL};
    case HY_OP_LION: return {hy_cuda_lion, NULL, NULL};
    case HY_OP_ADAFACTOR: return {hy_cuda_adafactor, hy_cuda_adafactor_workspace, NULL};
    case HY_OP_MUON: return {hy_cuda_muon, NULL, NULL};
    case HY_OP_MUON_BLEND: return {hy_cuda_muon_blend, NULL, NULL};
    case HY_OP_TO_UNIT: return {hy_cuda_to_unit, hy_cuda_to_unit_workspace, NULL};
    case HY_OP_CAST: return {hy_cuda_cast, NULL, NULL};
    case HY_OP_FILL: return {hy_cuda_fill, NULL, NULL};
    case HY_OP_COMBINE: return {hy_cuda_combine, NULL, NULL};
    case HY_OP_DIFF_DOT: return {hy_cuda_diff_dot, hy_cuda_diff_dot_workspace, NULL};
    case HY_OP_QUANTIZE: return {hy_cuda_quantize, NULL, NULL};
    case HY_OP_DEQUANTIZE: return {hy_cuda_dequantize, NULL, NULL};
    case HY_OP_WRAP: return {hy_cuda_wrap, NULL, NULL};
    case HY_OP_UNWRAP: return {hy_cuda_unwrap, NULL, NULL};
    case HY_OP_LARGEST: return {hy_cuda_largest, NULL, NULL};
    case HY_OP_TO_FP8: return {hy_cuda_to_fp8, NULL, NULL};
    case HY_OP_SPREAD: return {hy_cuda_spread, NULL, NULL};
    case HY_OP_COLLECT: return {hy_cuda_collect, NULL, NULL};
    case HY_OP_DROPOUT: return {hy_cuda_dropout, NULL, NULL};
    case HY_OP_ADD_PARTS: return {hy_cuda_add_parts, NULL, NULL};
    case HY_OP_ROUTE: return {hy_cuda_route, hy_cuda_route_workspace, NULL};
    case HY_OP_ROUTE_BWD: return {hy_cuda_route_bwd, hy_cuda_route_workspace, NULL};
    case HY_OP_SORT_EXPERTS: return {hy_cuda_sort_experts, hy_cuda_sort_experts_workspace, NULL};
    case HY_OP_GROUPED_MATMUL:
    case HY_OP_GROUPED_GRAD:
        return {hy_cuda_grouped, hy_cuda_grouped_workspace, hy_cuda_grouped_supports};
    case HY_OP_SUM_ROWS: return {hy_cuda_sum_rows, NULL, NULL};
    default: return {NULL, NULL, NULL};
    }
}

static hy_cuda *self_of(hy_backend *b) { return (hy_cuda *)b->self; }

/* ---- the reserve ----------------------------------------------------------------------------- */

/* The driver loads a kernel when it is first launched and needs memory of the card for that. If
 * other programs have taken all of it, this block is freed, once, so that a retry succeeds. */
#define RESERVE_BYTES ((size_t)32 << 20)

/* The card is const for callers that fail; for them, losing the reserve changes nothing. */
static void give_up_reserve(const hy_cuda *card) {
    hy_cuda *cuda = (hy_cuda *)card;
    if (!cuda->reserve) return;
    cudaFree(cuda->reserve);
    cudaGetLastError();
    cuda->reserve = NULL;
}

/* ---- failing --------------------------------------------------------------------------------- */

hy_status hy_cuda_fail(const hy_cuda *cuda, hy_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    cuda->host.fail(status, format, arguments);
    va_end(arguments);
    return status;
}

hy_status hy_cuda_check(const hy_cuda *cuda, cudaError_t error, const char *what) {
    if (error == cudaSuccess) return HY_OK;
    cudaGetLastError(); /* reported here: the next launch must not report it again */
    hy_status status = error == cudaErrorMemoryAllocation ? HY_ERR_MEMORY : HY_ERR_DEVICE;
    if (status == HY_ERR_MEMORY) give_up_reserve(cuda);
    return hy_cuda_fail(cuda, status, "%s: %s (%s)", what, cudaGetErrorString(error),
                        cudaGetErrorName(error));
}

hy_status hy_cuda_launched(const hy_cuda_run *run) {
    return hy_cuda_check(run->cuda, cudaGetLastError(), run->cuda->host.op_name(run->call->kind));
}

/* ---- memory ---------------------------------------------------------------------------------- */

static hy_status out_of_memory(const hy_cuda *cuda, hy_place place, size_t bytes,
                               cudaError_t error) {
    size_t free_bytes = 0, total = 0;
    cudaGetLastError(); /* reported here; it must not appear again after a launch */
    if (place == HY_DEVICE && cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) {
        return hy_cuda_fail(cuda, HY_ERR_MEMORY,
                            "cannot allocate %.1f MiB of device memory: %.1f of %.1f MiB are free",
                            (double)bytes / 0x1p20, (double)free_bytes / 0x1p20,
                            (double)total / 0x1p20);
    }
    return hy_cuda_fail(cuda, HY_ERR_MEMORY, "cannot allocate %.1f MiB of %s memory: %s",
                        (double)bytes / 0x1p20, hy_place_name(place), cudaGetErrorString(error));
}

static hy_status cuda_alloc(hy_backend *b, hy_place place, size_t bytes, void **out) {
    hy_cuda *cuda = self_of(b);
    cudaError_t error = cudaSuccess;
    *out = NULL;
    if (bytes == 0) bytes = 256;
    if (place == HY_DEVICE) {
        error = cudaMalloc(out, bytes);
    } else if (place == HY_PINNED) {
        return hy_cuda_pin(cuda, bytes, out);
    } else if (place == HY_HOST) {
        if (posix_memalign(out, 256, bytes) != 0) error = cudaErrorMemoryAllocation;
    } else {
        return hy_cuda_fail(cuda, HY_ERR_INPUT,
                            "cannot allocate memory in place %d; expected device, pinned or host",
                            (int)place);
    }
    return error == cudaSuccess ? HY_OK : out_of_memory(cuda, place, bytes, error);
}

static void cuda_release(hy_backend *b, hy_place place, void *data, size_t bytes) {
    (void)b;
    (void)bytes;
    if (!data) return;
    if (place == HY_DEVICE) {
        cudaFree(data);
    } else if (place == HY_PINNED) {
        hy_cuda_unpin(data);
    } else {
        free(data);
    }
}

static hy_status cuda_memory_now(hy_backend *b, size_t *free_bytes, size_t *total) {
    return hy_cuda_check(self_of(b), cudaMemGetInfo(free_bytes, total),
                         "querying the card's free memory");
}

/* ---- ops ------------------------------------------------------------------------------------- */

static hy_status cuda_supports(hy_backend *b, const hy_op_call *call) {
    hy_cuda *cuda = self_of(b);
    HY_TRY(cuda->host.op_check(call));
    hy_cuda_op op = hy_cuda_op_of(call->kind);
    return op.supports ? op.supports(cuda, call) : HY_OK;
}

static size_t cuda_workspace(hy_backend *b, const hy_op_call *call) {
    hy_cuda_op op = hy_cuda_op_of(call->kind);
    return op.workspace ? op.workspace(self_of(b), call) : 0;
}

static hy_status cuda_prepare(hy_backend *b, hy_op_call *call) {
    call->plan = NULL;
    HY_TRY(cuda_supports(b, call));
    if (call->kind == HY_OP_MATMUL) return hy_cuda_matmul_prepare(self_of(b), call);
    bool is_attention = call->kind == HY_OP_ATTENTION || call->kind == HY_OP_ATTENTION_BWD;
    if (is_attention) hy_cudnn_attention_prepare(self_of(b), call);
    return HY_OK;
}

static hy_status cuda_enqueue(hy_stream *s, const hy_op_call *call) {
    hy_cuda *cuda = hy_cuda_stream_owner(s);
    hy_cuda_op op = hy_cuda_op_of(call->kind);
    if (!op.run) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT, "op kind %d does not exist", (int)call->kind);
    }
    size_t needed = op.workspace ? op.workspace(cuda, call) : 0;
    size_t given = call->workspace.data ? hy_tensor_bytes(&call->workspace) : 0;
    if (given < needed) {
        return hy_cuda_fail(cuda, HY_ERR_INTERNAL, "%s: the workspace has %zu bytes, expected %zu",
                            cuda->host.op_name(call->kind), given, needed);
    }
    hy_cuda_run run = {call, cuda, (cudaStream_t)hy_cuda_stream_driver(s)};
    return op.run(&run);
}

/* ---- creating and destroying ----------------------------------------------------------------- */

static hy_status choose_device(hy_cuda *cuda) {
    int count = 0, driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        return hy_cuda_fail(cuda, HY_ERR_DEVICE,
                            "the NVIDIA driver supports CUDA up to %d.%d, but this program was "
                            "built with %d.%d: update the driver, or build with an older toolkit",
                            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
        return hy_cuda_fail(cuda, HY_ERR_DEVICE,
                            "there is an NVIDIA driver, but it shows no device to this process");
    }
    HY_TRY(hy_cuda_check(cuda, error, "looking for CUDA devices"));
    if (cuda->options.device < 0 || cuda->options.device >= count) {
        return hy_cuda_fail(cuda, HY_ERR_DEVICE, "there is no CUDA device %d; accepted are 0 to %d",
                            cuda->options.device, count - 1);
    }
    return hy_cuda_check(cuda, cudaSetDevice(cuda->options.device), "choosing the CUDA device");
}

/* Checks that the file has code for this card; any kernel shows it. */
__global__ void hy_cuda_probe_kernel(int *out) { *out = 1; }

static hy_status check_capability(hy_cuda *cuda, const char *name) {
    cudaFuncAttributes attributes = {};
    cudaError_t error = cudaFuncGetAttributes(&attributes, hy_cuda_probe_kernel);
    cuda->card.code = attributes.ptxVersion;
    /* Code for cards without tiles, translated by the driver, has no kernels for those with tiles. */
    bool lacks_tiles = error == cudaSuccess && cuda->card.code < 80 && cuda->card.capability >= 80;
    if (error == cudaSuccess && !lacks_tiles) return HY_OK;
    cudaGetLastError();
    if (!lacks_tiles && error != cudaErrorNoKernelImageForDevice &&
        error != cudaErrorInvalidDeviceFunction) {
        return hy_cuda_check(cuda, error, "looking for code for the card");
    }
    return hy_cuda_fail(cuda, HY_ERR_DEVICE,
                        "%s has compute capability %d.%d, but the CUDA backend was not built for "
                        "it: build it again with CUDA_ARCHS=%d (at least 75)",
                        name, cuda->card.capability / 10, cuda->card.capability % 10,
                        cuda->card.capability);
}

static hy_status describe(hy_cuda *cuda) {
    hy_device_facts *facts = &cuda->backend.facts;
    cudaDeviceProp properties;
    HY_TRY(hy_cuda_check(cuda, cudaGetDeviceProperties(&properties, cuda->options.device),
                         "querying the CUDA device"));
    cuda->card.capability = properties.major * 10 + properties.minor;
    cuda->card.multiprocessors = properties.multiProcessorCount;
    size_t shared = properties.sharedMemPerBlockOptin, limit = cuda->options.shared_limit;
    cuda->card.shared_bytes = limit && limit < shared ? limit : shared;
    HY_TRY(check_capability(cuda, properties.name));
    HY_TRY(cuda_memory_now(&cuda->backend, &facts->memory_free, &facts->memory_total));
    snprintf(facts->name, sizeof facts->name, "%.127s", properties.name);
    facts->is_gpu = true;
    facts->capability = cuda->card.capability;
    return HY_OK;
}

static void cuda_destroy(hy_backend *b) {
    if (!b) return;
    hy_cuda *cuda = self_of(b);
    give_up_reserve(cuda);
    hy_cudnn_attention_fini(cuda);
    hy_cuda_matmul_fini(cuda); /* also writes the cache, with the choices of attention */
    hy_attention_choices_fini(cuda);
    free(cuda);
}

static hy_status set_up(hy_cuda *cuda) {
    HY_TRY(choose_device(cuda));
    HY_TRY(describe(cuda));
    HY_TRY(hy_attention_choices_init(cuda));
    HY_TRY(hy_cuda_matmul_init(cuda));
    hy_device_facts *facts = &cuda->backend.facts;
    snprintf(facts->detail, sizeof facts->detail, "sm_%d, %d multiprocessors, %s",
             facts->capability, cuda->card.multiprocessors, cuda->plans->library);
    hy_cudnn_attention_init(cuda);
    if (cudaMalloc(&cuda->reserve, RESERVE_BYTES) != cudaSuccess) cuda->reserve = NULL;
    cudaGetLastError();
    if (!cuda->options.is_measuring) return HY_OK;
    return hy_cuda_matmul_measure(cuda, &facts->matmul_flops);
}

/* Managed memory and mapped pinned memory are accessible, too. */
static hy_status check_memory(hy_backend *b, const void *data) {
    hy_cuda *cuda = (hy_cuda *)b->self;
    cudaPointerAttributes a;
    HY_TRY(hy_cuda_check(cuda, cudaPointerGetAttributes(&a, data), "querying the place of memory"));
    if (a.type == cudaMemoryTypeUnregistered) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT,
                            "it is not memory of the card: it is on the host, or was freed");
    }
    if (a.type == cudaMemoryTypeDevice && a.device != cuda->options.device) {
        return hy_cuda_fail(cuda, HY_ERR_INPUT, "it is on cuda:%d, but the run is on cuda:%d",
                            a.device, cuda->options.device);
    }
    return HY_OK;
}

static hy_backend function_table(hy_cuda *cuda) {
    hy_backend b = {};
    b.self = cuda;
    b.alloc = cuda_alloc;
    b.release = cuda_release;
    b.memory_now = cuda_memory_now;
    b.check_memory = check_memory;
    b.enqueue = cuda_enqueue;
    b.supports = cuda_supports;
    b.workspace = cuda_workspace;
    b.prepare = cuda_prepare;
    b.op_seconds = hy_cuda_op_seconds;
    b.matmul_table = hy_cuda_matmul_table;
    b.load_matmul_table = hy_cuda_load_matmul_table;
    b.destroy = cuda_destroy;
    hy_cuda_add_streams(&b);
    return b;
}

extern "C" __attribute__((visibility("default"))) hy_status
hy_cuda_entry(const hy_cuda_host *host, const hy_cuda_options *options, hy_backend **out) {
    *out = NULL;
    if (host->version != HY_CUDA_LINK_VERSION || host->call_bytes != sizeof(hy_op_call)) {
        return HY_ERR_STATE; /* nothing of the host may be called: it is from another build */
    }
    hy_cuda *cuda = (hy_cuda *)calloc(1, sizeof *cuda);
    if (!cuda) return HY_ERR_MEMORY;
    cuda->host = *host;
    if (options) cuda->options = *options;
    cuda->backend = function_table(cuda);
    hy_status status = set_up(cuda);
    if (status != HY_OK) {
        cuda_destroy(&cuda->backend);
        return status;
    }
    *out = &cuda->backend;
    return HY_OK;
}
