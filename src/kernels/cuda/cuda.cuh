/* cuda.cuh: shared by the files of the CUDA backend.
 *
 * An op is one function over a hy_cuda_run: it reads shapes and types and launches kernels on the
 * run's stream. It neither allocates nor waits: scratch memory comes from the call's workspace; the
 * op's workspace function returned its size. There are no floating-point atomics, except to count
 * integers (fp8.cu): each sum has an order that depends only on shapes, so two runs give the same
 * bits. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "base/error.h"
#include "kernels/cuda_link.h"

/* The device and its features. */
typedef struct hy_cuda_card {
    int capability; /* 90 for sm_90 */
    int code;       /* what the kernels were compiled for; less, if the driver translated them */
    int multiprocessors;
    size_t shared_bytes; /* most shared memory a block may request */
} hy_cuda_card;

typedef struct hy_cuda {
    hy_backend backend;
    hy_cuda_host host;
    hy_cuda_options options;
    hy_cuda_card card;
    struct hy_matmul_plans *plans;        /* matmul.cu */
    struct hy_cudnn *cudnn;               /* NULL: attention uses our own kernels */
    struct hy_attention_choices *choices; /* attention_choice.cu */
    int captures;                         /* graphs that are being captured */
    void *reserve;                        /* reserved device memory; NULL: freed (backend.cu) */
} hy_cuda;

/* The launch of one op. */
typedef struct hy_cuda_run {
    const hy_op_call *call;
    hy_cuda *cuda;
    cudaStream_t stream;
} hy_cuda_run;

/* An op of the table. */
typedef hy_status hy_cuda_op_run(const hy_cuda_run *run);
typedef size_t hy_cuda_op_workspace(const hy_cuda *cuda, const hy_op_call *call);
typedef hy_status hy_cuda_op_supports(const hy_cuda *cuda, const hy_op_call *call);
typedef struct hy_cuda_op {
    hy_cuda_op_run *run;
    hy_cuda_op_workspace *workspace; /* NULL: none */
    hy_cuda_op_supports *supports;   /* NULL: everything in the table */
} hy_cuda_op;

hy_cuda_op_run hy_cuda_matmul, hy_cuda_bias_grad, hy_cuda_norm, hy_cuda_norm_bwd, hy_cuda_head_norm,
    hy_cuda_head_norm_bwd, hy_cuda_rope, hy_cuda_attention, hy_cuda_attention_bwd, hy_cuda_gelu,
    hy_cuda_gelu_bwd, hy_cuda_swiglu, hy_cuda_swiglu_bwd, hy_cuda_embed, hy_cuda_embed_bwd,
    hy_cuda_cross_entropy, hy_cuda_preference, hy_cuda_policy, hy_cuda_reduce, hy_cuda_clip,
    hy_cuda_adamw, hy_cuda_sgd, hy_cuda_lion, hy_cuda_adafactor, hy_cuda_muon, hy_cuda_muon_blend,
    hy_cuda_to_unit, hy_cuda_cast, hy_cuda_fill, hy_cuda_combine, hy_cuda_diff_dot,
    hy_cuda_quantize, hy_cuda_dequantize, hy_cuda_wrap, hy_cuda_unwrap, hy_cuda_largest,
    hy_cuda_spread, hy_cuda_collect, hy_cuda_dropout, hy_cuda_to_fp8, hy_cuda_add_parts,
    hy_cuda_sample, hy_cuda_delta, hy_cuda_delta_bwd, hy_cuda_conv, hy_cuda_conv_bwd,
    hy_cuda_conv_cached, hy_cuda_gate, hy_cuda_gate_bwd;
hy_cuda_op_run hy_cuda_route, hy_cuda_route_bwd, hy_cuda_sort_experts, hy_cuda_grouped,
    hy_cuda_sum_rows, hy_cuda_weighted_swiglu, hy_cuda_weighted_swiglu_bwd;

hy_cuda_op_workspace hy_cuda_matmul_workspace, hy_cuda_bias_grad_workspace,
    hy_cuda_norm_bwd_workspace, hy_cuda_head_norm_bwd_workspace, hy_cudnn_attention_workspace,
    hy_cuda_attention_bwd_workspace, hy_cuda_embed_bwd_workspace, hy_cuda_preference_workspace,
    hy_cuda_policy_workspace, hy_cuda_reduce_workspace, hy_cuda_diff_dot_workspace,
    hy_cuda_adafactor_workspace, hy_cuda_to_unit_workspace, hy_cuda_delta_workspace,
    hy_cuda_conv_bwd_workspace, hy_cuda_gate_bwd_workspace;
hy_cuda_op_workspace hy_cuda_route_workspace, hy_cuda_sort_experts_workspace,
    hy_cuda_grouped_workspace;

hy_cuda_op_supports hy_cuda_matmul_supports, hy_cuda_attention_supports, hy_cuda_sample_supports,
    hy_cuda_grouped_supports;

/* Matmul plans (matmul.cu): descriptors and algorithm, made once per shape, living as long as the
 * backend. prepare sets call->plan. measure times a large bf16 matmul. */
hy_status hy_cuda_matmul_init(hy_cuda *cuda);
void hy_cuda_matmul_fini(hy_cuda *cuda);
hy_status hy_cuda_matmul_prepare(hy_cuda *cuda, hy_op_call *call);
hy_status hy_cuda_matmul_measure(hy_cuda *cuda, double *flops);

/* ---- failing --------------------------------------------------------------------------------- */

/* Leaves a message with the program and returns status. */
hy_status hy_cuda_fail(const hy_cuda *cuda, hy_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* HY_OK, or the error's text after `what`; out of memory is HY_ERR_MEMORY, others HY_ERR_DEVICE. */
hy_status hy_cuda_check(const hy_cuda *cuda, cudaError_t error, const char *what);
/* After a launch: reports whether it started. */
hy_status hy_cuda_launched(const hy_cuda_run *run);

/* Launches a kernel that needs more shared memory than cards provide by default. */
template <typename... P, typename... A>
static hy_status hy_launch_with_shared(const hy_cuda_run *run, void (*kernel)(P...), dim3 blocks,
                                       int threads, int shared_bytes, const A &...args) {
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    HY_TRY(hy_cuda_check(run->cuda, error, run->cuda->host.op_name(run->call->kind)));
    kernel<<<blocks, threads, (size_t)shared_bytes, run->stream>>>(args...);
    return hy_cuda_launched(run);
}

/* ---- early starts ---------------------------------------------------------------------------- */

/* From sm_90 on, a kernel that is launched early may start before the one before it in the stream
 * has ended: as soon as all its blocks have called hy_let_next_start or ended. Until
 * hy_wait_for_previous it may only read what no kernel or copy of the stream writes (weights), and
 * write nothing. Every early kernel must wait, so that all before it have ended when it ends. */
__device__ __forceinline__ void hy_let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void hy_wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* hy_launch_with_shared, early and in clusters of so many blocks, if the code is for cards that have
 * that; otherwise clusters have one block. */
template <typename... P, typename... A>
static hy_status hy_launch_early(const hy_cuda_run *run, void (*kernel)(P...), int cluster,
                                 dim3 blocks, int threads, int shared_bytes, const A &...args) {
    const char *name = run->cuda->host.op_name(run->call->kind);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.gridDim = blocks;
    config.blockDim = (unsigned)threads;
    config.dynamicSmemBytes = (size_t)shared_bytes;
    config.stream = run->stream;
    config.attrs = attributes;
    if (run->cuda->card.code >= 90) config.numAttrs = cluster > 1 ? 2 : 1;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    HY_TRY(hy_cuda_check(run->cuda, error, name));
    return hy_cuda_check(run->cuda, cudaLaunchKernelEx(&config, kernel, args...), name);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static inline int64_t hy_width(const hy_tensor *t) {
    return t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
}
static inline int64_t hy_height(const hy_tensor *t) { return hy_tensor_count(t) / hy_width(t); }
static inline int64_t hy_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline bool hy_has(const hy_tensor *t) { return t->data != NULL; }

/* An unrolled loop over i from 0 to count - 1. Arrays stay in registers only if each index is a
 * compile-time constant. */
#define HY_EACH(i, count) _Pragma("unroll") for (int i = 0; i < count; i++)

/* Begins to read what is needed later. */
__device__ __forceinline__ void hy_prefetch(const void *p) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

/* ---- elements -------------------------------------------------------------------------------- */

__device__ __forceinline__ float hy_to_float(float x) { return x; }
__device__ __forceinline__ float hy_to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float hy_to_float(__half x) { return __half2float(x); }

template <typename T> __device__ __forceinline__ T hy_from_float(float x);
template <> __device__ __forceinline__ float hy_from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __nv_bfloat16 hy_from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half hy_from_float<__half>(float x) {
    return __float2half_rn(x);
}

/* Element i of a tensor with a type known only at run time: for small tensors (weights of norms,
 * biases, their gradients), where the switch costs nothing. */
__device__ __forceinline__ float hy_load_any(const void *data, int64_t i, hy_dtype dtype) {
    if (dtype == HY_F32) return ((const float *)data)[i];
    if (dtype == HY_BF16) return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
    return __half2float(((const __half *)data)[i]);
}
__device__ __forceinline__ void hy_store_any(void *data, int64_t i, hy_dtype dtype, float x) {
    if (dtype == HY_F32)
        ((float *)data)[i] = x;
    else if (dtype == HY_BF16)
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn(x);
    else
        ((__half *)data)[i] = __float2half_rn(x);
}

/* 16 bytes of elements at once: hy_pack<__nv_bfloat16> holds 8, hy_pack<float> 4. Pointers of
 * tensors are aligned to 256 bytes, rows only as their width allows: check before using packs on
 * rows. */
template <typename T> struct alignas(16) hy_pack {
    static constexpr int count = 16 / sizeof(T);
    T v[count];
};
template <typename T> __device__ __forceinline__ hy_pack<T> hy_load_pack(const T *p) {
    hy_pack<T> r;
    *(int4 *)&r = *(const int4 *)p;
    return r;
}
template <typename T> __device__ __forceinline__ void hy_store_pack(T *p, const hy_pack<T> &r) {
    *(int4 *)p = *(const int4 *)&r;
}

/* Calls f(T{}) with the C type of a real dtype: hy_by_type(t->dtype, [&](auto zero) { using T =
 * decltype(zero); kernel<T><<<...>>>(...); }) */
template <typename F> static inline void hy_by_type(hy_dtype dtype, F f) {
    if (dtype == HY_F32)
        f(float{});
    else if (dtype == HY_BF16)
        f(__nv_bfloat16{});
    else
        f(__half{});
}

/* ---- sums over a warp and a block: the order is fixed ---------------------------------------- */

__device__ __forceinline__ float hy_warp_sum(float x) {
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
__device__ __forceinline__ float hy_warp_max(float x) {
    for (int d = 16; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* The sum of x over a block of `warps` warps, in thread 0. */
template <int warps> __device__ __forceinline__ double hy_block_sum(double x) {
    __shared__ double of_warp[warps];
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    __syncthreads(); /* of_warp may still be in use by the previous sum */
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < warps; i++) sum += of_warp[i];
    }
    return sum;
}
