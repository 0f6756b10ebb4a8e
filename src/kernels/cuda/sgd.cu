/* sgd.cu: one step of SGD with momentum on a run of parameters: the formula of HY_OP_SGD in kernels.h, in
 * the CPU's order. Types, noise and 8-bit codes are update.cuh's. */
#include "kernels/cuda/update.cuh"

typedef struct sgd_args {
    hy_view param, grad, master;
    hy_state_view momentum; /* data NULL: the run keeps none */
    const float *clip;
    bool needs_noise, is_nesterov;
    float lr, keep, decay; /* keep: of the momentum */
    uint64_t seed, first;
    int64_t count;
} sgd_args;

__device__ __forceinline__ void step_element(const sgd_args &a, float gradient, float *p,
                                             float *momentum) {
    float g = gradient + a.decay * *p, step = g;
    if (a.momentum.t.data) {
        *momentum = a.keep * *momentum + g;
        step = a.is_nesterov ? g + a.keep * *momentum : *momentum;
    }
    *p -= a.lr * step;
}

/* All lanes of a warp take part in finding scales, those behind the end with zeros. */
template <bool has_codes>
__global__ void __launch_bounds__(HY_UPDATE_THREADS) sgd_kernel(sgd_args a) {
    int64_t thread = (int64_t)blockIdx.x * HY_UPDATE_THREADS + threadIdx.x;
    const hy_view &exact = a.master.data ? a.master : a.param;
    float grad_scale = a.clip[1], p[HY_QUADS][HY_QUAD];
    hy_quad_bits p_bits[HY_QUADS], g_bits[HY_QUADS];
    uint32_t words[HY_QUADS][HY_QUAD] = {};
    hy_state_quads<has_codes, true> momentum = {};
#pragma unroll
    for (int k = 0; k < HY_QUADS; k++) {
        int64_t at = hy_quad_at(thread, k);
        int n = hy_quad_length(at, a.count);
        p_bits[k] = hy_fetch(exact, at, n);
        g_bits[k] = hy_fetch(a.grad, at, n);
        if (a.momentum.t.data) momentum.fetch(a.momentum, k, at, n);
    }
    if (a.needs_noise) { /* made while the loads are under way */
#pragma unroll
        for (int k = 0; k < HY_QUADS; k++) {
            hy_rounding_words(a.seed, a.first + (uint64_t)hy_quad_at(thread, k), words[k]);
        }
    }
    if (grad_scale == 0) return;
#pragma unroll
    for (int k = 0; k < HY_QUADS; k++) {
        float g[HY_QUAD];
        hy_widen(p_bits[k], exact.dtype, p[k]);
        hy_widen(g_bits[k], a.grad.dtype, g);
        momentum.widen(a.momentum, k);
#pragma unroll
        for (int i = 0; i < HY_QUAD; i++) {
            step_element(a, g[i] * grad_scale, &p[k][i], &momentum.x[k][i]);
        }
    }
    if (has_codes) {
        momentum.begin_largest(a.momentum);
#pragma unroll
        for (int apart = 16; apart > 0; apart >>= 1) momentum.join_largest(a.momentum, apart);
    }
#pragma unroll
    for (int k = 0; k < HY_QUADS; k++) {
        int64_t at = hy_quad_at(thread, k);
        int n = hy_quad_length(at, a.count);
        hy_store_param(a.param, a.master, at, n, p[k], words[k]);
        if (a.momentum.t.data) momentum.store(a.momentum, k, at, n, words[k]);
    }
}

hy_status hy_cuda_sgd(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *t = call->t;
    sgd_args a = {};
    a.param = hy_view_of(&t[HY_SGD_PARAM]);
    a.grad = hy_view_of(&t[HY_SGD_GRAD]);
    a.momentum = hy_state_view_of(&t[HY_SGD_MOMENTUM]);
    a.clip = (const float *)t[HY_SGD_CLIP].data;
    a.master = hy_view_of(&t[HY_SGD_MASTER]);
    a.needs_noise = (!a.master.data && t[HY_SGD_PARAM].dtype != HY_F32) ||
                    (a.momentum.t.data && t[HY_SGD_MOMENTUM].dtype == HY_BF16);
    a.is_nesterov = call->attr.sgd.is_nesterov;
    a.lr = call->attr.sgd.lr;
    a.keep = call->attr.sgd.momentum;
    a.decay = call->attr.sgd.weight_decay;
    a.seed = call->attr.sgd.seed;
    a.first = call->attr.sgd.first;
    a.count = hy_tensor_count(&t[HY_SGD_PARAM]);
    auto kernel = a.momentum.scale ? sgd_kernel<true> : sgd_kernel<false>;
    kernel<<<hy_quad_blocks(a.count, HY_UPDATE_THREADS), HY_UPDATE_THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
