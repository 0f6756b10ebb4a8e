/* update.cu: the elementwise optimizers AdamW, SGD with momentum and Lion, by the formulas of
 * kernels.h, in the CPU's order (decay first, then the step); and the elementwise parts of Muon.
 *
 * They work in quads (quad.cuh): a thread loads parameter, gradient and state of any type, computes
 * in fp32, and stores. 16-bit parameters without master, and 16-bit state, are rounded
 * stochastically with the noise that HY_OP_ADAMW in kernels.h defines. 8-bit state is read, changed
 * and written in one pass: a quantisation block of 8 to 256 elements belongs to lanes of one warp,
 * which find its largest magnitude by shuffles. */
#include <math.h>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/rounding.cuh"

#define THREADS 256

/* An array of the state; with scale, it is quantised. */
typedef struct hy_state_view {
    hy_view t;
    float *scale; /* of blocks; only if quantised */
    int shift;    /* a block has 1 << shift elements */
} hy_state_view;

static inline hy_state_view hy_state_view_of(const hy_tensor *t) {
    hy_state_view s = {hy_view_of(t), NULL, 0};
    if (t->dtype != HY_U8) return s;
    s.scale = t->quant.scale;
    while (1 << s.shift < t->quant.block) s.shift++;
    return s;
}

/* ---- quantised state ------------------------------------------------------------------------- */

/* Four quantised values are a word. Those after the end represent zero: 128 if they are signed. */
template <bool is_signed>
__device__ __forceinline__ uint32_t hy_fetch_codes(const hy_view &t, int64_t at, int n) {
    const uint8_t *codes = (const uint8_t *)t.data + at;
    if (n == HY_QUAD && t.is_packed) return *(const uint32_t *)codes;
    uint32_t word = 0;
    HY_EACH(i, HY_QUAD) {
        word |= (uint32_t)(i < n ? codes[i] : is_signed ? 128 : 0) << 8 * i;
    }
    return word;
}

__device__ __forceinline__ void hy_store_codes(const hy_view &t, int64_t at, int n, uint32_t word) {
    uint8_t *codes = (uint8_t *)t.data + at;
    if (n == HY_QUAD && t.is_packed) {
        *(uint32_t *)codes = word;
        return;
    }
    HY_EACH(i, HY_QUAD) {
        if (i < n) codes[i] = (uint8_t)(word >> 8 * i);
    }
}

/* ---- the state of a thread ------------------------------------------------------------------- */

/* One array of the state, both quads. is_m: signed, like m of AdamW; otherwise like v. */
template <bool has_codes, bool is_m> struct hy_state_quads {
    static constexpr hy_noise_use noise = is_m ? HY_M_BITS : HY_V_BITS;
    hy_quad_bits bits[HY_QUADS];
    float scale[HY_QUADS];
    float x[HY_QUADS][HY_QUAD];

    __device__ __forceinline__ void fetch(const hy_state_view &s, int k, int64_t at, int n) {
        if (has_codes && s.scale) {
            bits[k].w[0] = hy_fetch_codes<is_m>(s.t, at, n);
            scale[k] = n > 0 ? s.scale[at >> s.shift] : 0;
        } else {
            bits[k] = hy_fetch(s.t, at, n);
        }
    }
    __device__ __forceinline__ void widen(const hy_state_view &s, int k) {
        if (has_codes && s.scale) {
            HY_EACH(i, HY_QUAD) {
                uint32_t code = bits[k].w[0] >> 8 * i & 0xffu;
                x[k][i] = scale[k] * (is_m ? hy_decode_signed(code) : hy_decode_unsigned(code));
            }
        } else {
            hy_widen(bits[k], s.t.dtype, x[k]);
        }
    }
    /* The largest magnitude of each quad, the first step towards that of its block. */
    __device__ __forceinline__ void begin_largest(const hy_state_view &s) {
        HY_EACH(k, HY_QUADS) {
            scale[k] =
                fmaxf(fmaxf(fabsf(x[k][0]), fabsf(x[k][1])), fmaxf(fabsf(x[k][2]), fabsf(x[k][3])));
        }
        if (1 << s.shift == HY_WARP_ELEMENTS) scale[0] = scale[1] = fmaxf(scale[0], scale[1]);
    }
    /* Combines lanes that are `apart`, if they belong to one block. */
    __device__ __forceinline__ void join_largest(const hy_state_view &s, int apart) {
        if (apart * 2 * HY_QUAD > 1 << s.shift) return;
        HY_EACH(k, HY_QUADS) {
            scale[k] = fmaxf(scale[k], __shfl_xor_sync(0xffffffffu, scale[k], apart));
        }
    }
    __device__ __forceinline__ void store(const hy_state_view &s, int k, int64_t at, int n,
                                          const uint32_t words[HY_QUAD]) const {
        if (has_codes && s.scale) {
            uint32_t codes = hy_encode_four<is_m>(x[k], scale[k]);
            hy_store_codes(s.t, at, n, codes);
            if (n > 0 && (at & ((1 << s.shift) - 1)) == 0) s.scale[at >> s.shift] = scale[k];
        } else if (s.t.dtype == HY_F32) {
            hy_store(s.t, at, n, hy_narrow(x[k], HY_F32));
        } else {
            hy_store(s.t, at, n, hy_rounded<noise>(x[k], words));
        }
    }
};

/* ---- the steps ------------------------------------------------------------------------------- */

/* Each says how many arrays of state it has; the first may be absent if it is the only one. A
 * direction, if there is one, is in place of the second array. */
struct adamw_step {
    static constexpr int states = 2;
    static constexpr bool has_direction = false;
    float beta1, beta2;
    float keep; /* 1 - lr weight_decay */
    float step; /* lr / correction1 */
    float root; /* 1 / sqrt(correction2) */
    float eps;

    /* Square root and quotient are the hardware's, within two units in the last place. */
    __device__ __forceinline__ void apply(int64_t, float gradient, float *p, float *m, float *v,
                                          bool) const {
        float divisor;
        *m = beta1 * *m + (1.0f - beta1) * gradient;
        *v = beta2 * *v + (1.0f - beta2) * gradient * gradient;
        asm("sqrt.approx.f32 %0, %1;" : "=f"(divisor) : "f"(*v));
        *p = *p * keep - __fdividef(step * *m, divisor * root + eps);
    }
};

struct sgd_step {
    static constexpr int states = 1;
    static constexpr bool has_direction = false;
    float lr, keep, decay; /* keep: factor of the momentum */
    bool is_nesterov;

    __device__ __forceinline__ void apply(int64_t, float gradient, float *p, float *momentum,
                                          float *, bool has_momentum) const {
        float g = gradient + decay * *p, step = g;
        if (has_momentum) {
            *momentum = keep * *momentum + g;
            step = is_nesterov ? g + keep * *momentum : *momentum;
        }
        *p -= lr * step;
    }
};

struct lion_step {
    static constexpr int states = 1;
    static constexpr bool has_direction = false;
    float beta1, beta2, lr;
    float keep; /* 1 - lr weight_decay */

    __device__ __forceinline__ void apply(int64_t, float gradient, float *p, float *m, float *,
                                          bool) const {
        float c = beta1 * *m + (1.0f - beta1) * gradient;
        float step = c > 0.0f ? lr : c < 0.0f ? -lr : 0.0f;
        *m = beta2 * *m + (1.0f - beta2) * gradient;
        *p = *p * keep - step;
    }
};

struct muon_step {
    static constexpr int states = 1;
    static constexpr bool has_direction = true;
    float keep, decay; /* keep: factor of the momentum; decay: times lr */
    bool is_cautious;
    float step[HY_MUON_PIECES]; /* lr coefficient */
    int64_t ends[HY_MUON_PIECES - 1];

    __device__ __forceinline__ void apply(int64_t at, float gradient, float *p, float *m,
                                          const float *direction, bool) const {
        float length = at < ends[0] ? step[0] : at < ends[1] ? step[1] : step[2];
        bool decays = !is_cautious || *direction * *p > 0.0f;
        *m = keep * *m + (1.0f - keep) * gradient;
        *p = *p - (decays ? decay * *p : 0.0f) - length * *direction;
    }
};

/* ---- the kernel ------------------------------------------------------------------------------ */

template <typename Step> struct update_args {
    hy_view param, grad, master, direction;
    hy_state_view m, v; /* as for AdamW; data NULL: this run has none */
    const float *clip;
    bool needs_noise;
    Step step;
    uint64_t seed, first;
    int64_t count;
};

template <typename Step, bool has_codes>
__global__ void __launch_bounds__(THREADS) update_kernel(update_args<Step> a) {
    constexpr bool has_v = Step::states > 1;
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const hy_view &exact = a.master.data ? a.master : a.param;
    float grad_scale = a.clip[1], p[HY_QUADS][HY_QUAD];
    hy_quad_bits p_bits[HY_QUADS], g_bits[HY_QUADS], d_bits[HY_QUADS];
    uint32_t words[HY_QUADS][HY_QUAD] = {};
    hy_state_quads<has_codes, true> m;
    hy_state_quads<has_codes, false> v;
    if (!has_v) m = {}; /* it may be absent */
    HY_EACH(k, HY_QUADS) {
        int64_t at = hy_quad_at(thread, k);
        int n = hy_quad_length(at, a.count);
        p_bits[k] = hy_fetch(exact, at, n);
        g_bits[k] = hy_fetch(a.grad, at, n);
        if (has_v || a.m.t.data) m.fetch(a.m, k, at, n);
        if (has_v) v.fetch(a.v, k, at, n);
        if (Step::has_direction) d_bits[k] = hy_fetch(a.direction, at, n);
    }
    if (a.needs_noise) { /* computed while loads are in flight */
        HY_EACH(k, HY_QUADS) {
            hy_rounding_words(a.seed, a.first + (uint64_t)hy_quad_at(thread, k), words[k]);
        }
    }
    if (grad_scale == 0) return;
    HY_EACH(k, HY_QUADS) {
        float g[HY_QUAD];
        hy_widen(p_bits[k], exact.dtype, p[k]);
        hy_widen(g_bits[k], a.grad.dtype, g);
        m.widen(a.m, k);
        if (has_v) v.widen(a.v, k);
        if (Step::has_direction) hy_widen(d_bits[k], a.direction.dtype, v.x[k]);
        HY_EACH(i, HY_QUAD) {
            a.step.apply(hy_quad_at(thread, k) + i, g[i] * grad_scale, &p[k][i], &m.x[k][i],
                         &v.x[k][i], a.m.t.data);
        }
    }
    if (has_codes) {
        /* All lanes of a warp take part, those after the end with zeros. m and v are interleaved,
         * because each shuffle waits for the one before. */
        if (!has_v || a.m.scale) m.begin_largest(a.m);
        if (has_v && a.v.scale) v.begin_largest(a.v);
#pragma unroll
        for (int apart = 16; apart > 0; apart >>= 1) {
            if (!has_v || a.m.scale) m.join_largest(a.m, apart);
            if (has_v && a.v.scale) v.join_largest(a.v, apart);
        }
    }
    HY_EACH(k, HY_QUADS) {
        int64_t at = hy_quad_at(thread, k);
        int n = hy_quad_length(at, a.count);
        hy_store_param(a.param, a.master, at, n, p[k], words[k]);
        if (has_v || a.m.t.data) m.store(a.m, k, at, n, words[k]);
        if (has_v) v.store(a.v, k, at, n, words[k]);
    }
}

/* ---- the ops --------------------------------------------------------------------------------- */

template <typename Step> static hy_status update(const hy_cuda_run *run, const Step &step) {
    const hy_tensor *t = run->call->t;
    update_args<Step> a = {};
    a.param = hy_view_of(&t[HY_UPDATE_PARAM]);
    a.grad = hy_view_of(&t[HY_UPDATE_GRAD]);
    a.clip = (const float *)t[HY_UPDATE_CLIP].data;
    a.master = hy_view_of(&t[HY_UPDATE_MASTER]);
    a.m = hy_state_view_of(&t[HY_UPDATE_M]);
    a.v = hy_state_view_of(&t[HY_UPDATE_V]);
    a.direction = hy_view_of(&t[HY_UPDATE_DIRECTION]);
    a.needs_noise = (!a.master.data && a.param.dtype != HY_F32) ||
                    (a.m.t.data && a.m.t.dtype == HY_BF16) ||
                    (a.v.t.data && a.v.t.dtype == HY_BF16);
    a.step = step;
    a.seed = run->call->attr.seed, a.first = run->call->attr.first;
    a.count = hy_tensor_count(&t[HY_UPDATE_PARAM]);
    auto kernel = a.m.scale || a.v.scale ? update_kernel<Step, true> : update_kernel<Step, false>;
    kernel<<<hy_quad_blocks(a.count, THREADS), THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}

hy_status hy_cuda_adamw(const hy_cuda_run *run) {
    const hy_adamw_attr &attr = run->call->attr.adamw;
    return update<adamw_step>(run, {attr.beta1, attr.beta2, 1.0f - attr.lr * attr.weight_decay,
                                    attr.lr / attr.correction1, 1.0f / sqrtf(attr.correction2),
                                    attr.eps});
}

hy_status hy_cuda_sgd(const hy_cuda_run *run) {
    const hy_sgd_attr &attr = run->call->attr.sgd;
    return update<sgd_step>(run, {attr.lr, attr.momentum, attr.weight_decay, attr.is_nesterov});
}

hy_status hy_cuda_lion(const hy_cuda_run *run) {
    const hy_lion_attr &attr = run->call->attr.lion;
    return update<lion_step>(run,
                             {attr.beta1, attr.beta2, attr.lr, 1.0f - attr.lr * attr.weight_decay});
}

hy_status hy_cuda_muon(const hy_cuda_run *run) {
    const hy_muon_attr &attr = run->call->attr.muon;
    muon_step step = {attr.momentum, attr.lr * attr.weight_decay, attr.is_cautious};
    for (int i = 0; i < HY_MUON_PIECES; i++) step.step[i] = attr.lr * attr.coefficient[i];
    for (int i = 0; i < HY_MUON_PIECES - 1; i++) step.ends[i] = attr.ends[i];
    return update(run, step);
}

/* ---- the input of Muon's orthogonalization --------------------------------------------------- */

template <bool has_codes>
__global__ void __launch_bounds__(THREADS)
    muon_blend_kernel(hy_view out, hy_view grad, hy_state_view m, const float *clip, float keep,
                      bool is_nesterov, int64_t count) {
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float grad_scale = clip[1];
    hy_quad_bits g_bits[HY_QUADS];
    hy_state_quads<has_codes, true> momentum;
    HY_EACH(k, HY_QUADS) {
        int64_t at = hy_quad_at(thread, k);
        int n = hy_quad_length(at, count);
        g_bits[k] = hy_fetch(grad, at, n);
        momentum.fetch(m, k, at, n);
    }
    HY_EACH(k, HY_QUADS) {
        int64_t at = hy_quad_at(thread, k);
        float g[HY_QUAD];
        hy_widen(g_bits[k], grad.dtype, g);
        momentum.widen(m, k);
        HY_EACH(i, HY_QUAD) {
            float gradient = g[i] * grad_scale;
            float next = keep * momentum.x[k][i] + (1.0f - keep) * gradient;
            g[i] = is_nesterov ? keep * next + (1.0f - keep) * gradient : next;
        }
        hy_store(out, at, hy_quad_length(at, count), hy_narrow(g, out.dtype));
    }
}

hy_status hy_cuda_muon_blend(const hy_cuda_run *run) {
    const hy_tensor *t = run->call->t;
    const hy_muon_attr &attr = run->call->attr.muon;
    hy_state_view m = hy_state_view_of(&t[HY_MUON_BLEND_M]);
    int64_t count = hy_tensor_count(&t[HY_MUON_BLEND_OUT]);
    auto kernel = m.scale ? muon_blend_kernel<true> : muon_blend_kernel<false>;
    kernel<<<hy_quad_blocks(count, THREADS), THREADS, 0, run->stream>>>(
        hy_view_of(&t[HY_MUON_BLEND_OUT]), hy_view_of(&t[HY_MUON_BLEND_GRAD]), m,
        (const float *)t[HY_MUON_BLEND_CLIP].data, attr.momentum, attr.is_nesterov, count);
    return hy_cuda_launched(run);
}
