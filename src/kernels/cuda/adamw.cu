/* adamw.cu: one step of AdamW on a run of parameters, in the CPU's order: decay first, then the step.
 * Types, noise and 8-bit codes are update.cuh's. */
#include <math.h>

#include "kernels/cuda/update.cuh"

typedef struct adamw_args {
    hy_view param, grad, master;
    hy_state_view m, v;
    const float *clip;
    bool needs_noise;
    float beta1, beta2;
    float keep; /* 1 - lr weight_decay */
    float step; /* lr / correction1 */
    float root; /* 1 / sqrt(correction2) */
    float eps;
    uint64_t seed, first;
    int64_t count;
} adamw_args;

/* ---- the step -------------------------------------------------------------------------------- */

/* Square root and quotient are the hardware's, within two units in the last place. */
__device__ __forceinline__ void step_element(const adamw_args &a, float gradient, float *p,
                                             float *m, float *v) {
    float root;
    *m = a.beta1 * *m + (1.0f - a.beta1) * gradient;
    *v = a.beta2 * *v + (1.0f - a.beta2) * gradient * gradient;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(*v));
    *p = *p * a.keep - __fdividef(a.step * *m, root * a.root + a.eps);
}

/* All lanes of a warp take part, those behind the end with zeros. m and v side by side: each
 * shuffle waits for the one before. */
template <typename M, typename V>
__device__ __forceinline__ void find_scales(const adamw_args &a, M *m, V *v) {
    if (a.m.scale) m->begin_largest(a.m);
    if (a.v.scale) v->begin_largest(a.v);
#pragma unroll
    for (int apart = 16; apart > 0; apart >>= 1) {
        if (a.m.scale) m->join_largest(a.m, apart);
        if (a.v.scale) v->join_largest(a.v, apart);
    }
}

template <bool has_codes>
__global__ void __launch_bounds__(HY_UPDATE_THREADS) adamw_kernel(adamw_args a) {
    int64_t thread = (int64_t)blockIdx.x * HY_UPDATE_THREADS + threadIdx.x;
    const hy_view &exact = a.master.data ? a.master : a.param;
    float grad_scale = a.clip[1], p[HY_QUADS][HY_QUAD];
    hy_quad_bits p_bits[HY_QUADS], g_bits[HY_QUADS];
    uint32_t words[HY_QUADS][HY_QUAD] = {};
    hy_state_quads<has_codes, true> m;
    hy_state_quads<has_codes, false> v;
#pragma unroll
    for (int k = 0; k < HY_QUADS; k++) {
        int64_t at = hy_quad_at(thread, k);
        int n = hy_quad_length(at, a.count);
        p_bits[k] = hy_fetch(exact, at, n);
        g_bits[k] = hy_fetch(a.grad, at, n);
        m.fetch(a.m, k, at, n);
        v.fetch(a.v, k, at, n);
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
        m.widen(a.m, k);
        v.widen(a.v, k);
#pragma unroll
        for (int i = 0; i < HY_QUAD; i++) {
            step_element(a, g[i] * grad_scale, &p[k][i], &m.x[k][i], &v.x[k][i]);
        }
    }
    if (has_codes) find_scales(a, &m, &v);
#pragma unroll
    for (int k = 0; k < HY_QUADS; k++) {
        int64_t at = hy_quad_at(thread, k);
        int n = hy_quad_length(at, a.count);
        hy_store_param(a.param, a.master, at, n, p[k], words[k]);
        m.store(a.m, k, at, n, words[k]);
        v.store(a.v, k, at, n, words[k]);
    }
}

/* ---- the op ---------------------------------------------------------------------------------- */

static bool needs_noise(const hy_tensor *t) {
    return (!hy_has(&t[HY_ADAMW_MASTER]) && t[HY_ADAMW_PARAM].dtype != HY_F32) ||
           t[HY_ADAMW_M].dtype == HY_BF16 || t[HY_ADAMW_V].dtype == HY_BF16;
}

hy_status hy_cuda_adamw(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *t = call->t;
    adamw_args a = {};
    a.param = hy_view_of(&t[HY_ADAMW_PARAM]);
    a.grad = hy_view_of(&t[HY_ADAMW_GRAD]);
    a.m = hy_state_view_of(&t[HY_ADAMW_M]);
    a.v = hy_state_view_of(&t[HY_ADAMW_V]);
    a.clip = (const float *)t[HY_ADAMW_CLIP].data;
    a.master = hy_view_of(&t[HY_ADAMW_MASTER]);
    a.needs_noise = needs_noise(t);
    a.beta1 = call->attr.adamw.beta1;
    a.beta2 = call->attr.adamw.beta2;
    a.keep = 1.0f - call->attr.adamw.lr * call->attr.adamw.weight_decay;
    a.step = call->attr.adamw.lr / call->attr.adamw.correction1;
    a.root = 1.0f / sqrtf(call->attr.adamw.correction2);
    a.eps = call->attr.adamw.eps;
    a.seed = call->attr.adamw.seed;
    a.first = call->attr.adamw.first;
    a.count = hy_tensor_count(&t[HY_ADAMW_PARAM]);
    unsigned blocks = hy_quad_blocks(a.count, HY_UPDATE_THREADS);
    auto kernel = a.m.scale || a.v.scale ? adamw_kernel<true> : adamw_kernel<false>;
    kernel<<<blocks, HY_UPDATE_THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
