/* adamw.cu: one step of AdamW on a run of parameters.
 *
 * In quads (quad.cuh): a thread fetches parameter, gradient, m and v in whatever types they have,
 * steps in fp32 in the CPU's order (decay first, then the step), and stores. 16-bit parameters
 * without master, and 16-bit m and v, are rounded stochastically with the noise that HY_OP_ADAMW in
 * kernels.h defines. m and v in 8 bits are read, changed and written in one pass: a quantisation
 * block, of 8 to 256 elements, belongs to lanes of one warp, which find its largest by shuffles. */
#include <math.h>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/quad.cuh"

#define THREADS 256

/* m or v: with scale, codes. */
typedef struct state_view {
    hy_view t;
    float *scale; /* of blocks; codes only */
    int shift;    /* a block has 1 << shift elements */
} state_view;

typedef struct adamw_args {
    hy_view param, grad, master;
    state_view m, v;
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

/* ---- codes ----------------------------------------------------------------------------------- */

/* Four codes are a word. Those behind the end stand for zero: 128 where codes have a sign. */
template <bool is_signed>
__device__ __forceinline__ uint32_t fetch_codes(const hy_view &t, int64_t at, int n) {
    const uint8_t *codes = (const uint8_t *)t.data + at;
    if (n == HY_QUAD && t.is_packed) return *(const uint32_t *)codes;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < HY_QUAD; i++) {
        word |= (uint32_t)(i < n ? codes[i] : is_signed ? 128 : 0) << 8 * i;
    }
    return word;
}

__device__ __forceinline__ void store_codes(const hy_view &t, int64_t at, int n, uint32_t word) {
    uint8_t *codes = (uint8_t *)t.data + at;
    if (n == HY_QUAD && t.is_packed) {
        *(uint32_t *)codes = word;
        return;
    }
#pragma unroll
    for (int i = 0; i < HY_QUAD; i++) {
        if (i < n) codes[i] = (uint8_t)(word >> 8 * i);
    }
}

/* ---- what a thread has ----------------------------------------------------------------------- */

/* Which bits of an element's word are meant: see HY_OP_ADAMW. */
enum noise_use { PARAM_BITS, M_BITS, V_BITS };

/* Stochastically, to bf16. */
template <noise_use use>
__device__ __forceinline__ hy_quad_bits rounded(const float x[HY_QUAD],
                                                const uint32_t words[HY_QUAD]) {
    hy_quad_bits bits;
    uint32_t u[HY_QUAD];
#pragma unroll
    for (int i = 0; i < HY_QUAD; i++) {
        u[i] = hy_dithered(x[i], use == PARAM_BITS ? hy_param_bits(words[i])
                                 : use == M_BITS   ? hy_m_bits(words[i])
                                                   : hy_v_bits(words[i]));
    }
    bits.w[0] = hy_upper_halves(u[0], u[1]);
    bits.w[1] = hy_upper_halves(u[2], u[3]);
    return bits;
}

/* m or v of both quads; is_m says which. */
template <bool has_codes, bool is_m> struct state_quads {
    static constexpr noise_use noise = is_m ? M_BITS : V_BITS;
    hy_quad_bits bits[HY_QUADS];
    float scale[HY_QUADS];
    float x[HY_QUADS][HY_QUAD];

    __device__ __forceinline__ void fetch(const state_view &s, int k, int64_t at, int n) {
        if (has_codes && s.scale) {
            bits[k].w[0] = fetch_codes<is_m>(s.t, at, n);
            scale[k] = n > 0 ? s.scale[at >> s.shift] : 0;
        } else {
            bits[k] = hy_fetch(s.t, at, n);
        }
    }
    __device__ __forceinline__ void widen(const state_view &s, int k) {
        if (has_codes && s.scale) {
#pragma unroll
            for (int i = 0; i < HY_QUAD; i++) {
                uint32_t code = bits[k].w[0] >> 8 * i & 0xffu;
                x[k][i] = scale[k] * (is_m ? hy_decode_signed(code) : hy_decode_unsigned(code));
            }
        } else {
            hy_widen(bits[k], s.t.dtype, x[k]);
        }
    }
    /* The largest magnitude of each quad, on the way to that of its block. */
    __device__ __forceinline__ void begin_largest(const state_view &s) {
#pragma unroll
        for (int k = 0; k < HY_QUADS; k++) {
            scale[k] =
                fmaxf(fmaxf(fabsf(x[k][0]), fabsf(x[k][1])), fmaxf(fabsf(x[k][2]), fabsf(x[k][3])));
        }
        if (1 << s.shift == HY_WARP_ELEMENTS) scale[0] = scale[1] = fmaxf(scale[0], scale[1]);
    }
    /* Joins lanes that are `apart`, where they belong to one block. */
    __device__ __forceinline__ void join_largest(const state_view &s, int apart) {
        if (apart * 2 * HY_QUAD > 1 << s.shift) return;
#pragma unroll
        for (int k = 0; k < HY_QUADS; k++) {
            scale[k] = fmaxf(scale[k], __shfl_xor_sync(0xffffffffu, scale[k], apart));
        }
    }
    __device__ __forceinline__ void store(const state_view &s, int k, int64_t at, int n,
                                          const uint32_t words[HY_QUAD]) const {
        if (has_codes && s.scale) {
            uint32_t codes = hy_encode_four<is_m>(x[k], scale[k]);
            store_codes(s.t, at, n, codes);
            if (n > 0 && (at & ((1 << s.shift) - 1)) == 0) s.scale[at >> s.shift] = scale[k];
        } else if (s.t.dtype == HY_F32) {
            hy_store(s.t, at, n, hy_narrow(x[k], HY_F32));
        } else {
            hy_store(s.t, at, n, rounded<noise>(x[k], words));
        }
    }
};

__device__ __forceinline__ void store_param(const adamw_args &a, int64_t at, int n,
                                            const float x[HY_QUAD], const uint32_t words[HY_QUAD]) {
    hy_quad_bits bits;
    if (a.master.data) hy_store(a.master, at, n, hy_narrow(x, HY_F32));
    if (a.master.data || a.param.dtype == HY_F32) {
        bits = hy_narrow(x, a.param.dtype);
    } else if (a.param.dtype == HY_BF16) {
        bits = rounded<PARAM_BITS>(x, words);
    } else {
#pragma unroll
        for (int i = 0; i < HY_QUAD / 2; i++) {
            bits.w[i] = hy_round_f16(x[2 * i], hy_param_bits(words[2 * i])) |
                        hy_round_f16(x[2 * i + 1], hy_param_bits(words[2 * i + 1])) << 16;
        }
    }
    hy_store(a.param, at, n, bits);
}

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

template <bool has_codes> __global__ void __launch_bounds__(THREADS) adamw_kernel(adamw_args a) {
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const hy_view &exact = a.master.data ? a.master : a.param;
    float grad_scale = a.clip[1], p[HY_QUADS][HY_QUAD];
    hy_quad_bits p_bits[HY_QUADS], g_bits[HY_QUADS];
    uint32_t words[HY_QUADS][HY_QUAD] = {};
    state_quads<has_codes, true> m;
    state_quads<has_codes, false> v;
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
        store_param(a, at, n, p[k], words[k]);
        m.store(a.m, k, at, n, words[k]);
        v.store(a.v, k, at, n, words[k]);
    }
}

/* ---- the op ---------------------------------------------------------------------------------- */

static state_view state_of(const hy_tensor *t) {
    state_view s = {hy_view_of(t), NULL, 0};
    if (t->dtype != HY_U8) return s;
    s.scale = t->quant.scale;
    while (1 << s.shift < t->quant.block) s.shift++;
    return s;
}

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
    a.m = state_of(&t[HY_ADAMW_M]);
    a.v = state_of(&t[HY_ADAMW_V]);
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
    unsigned blocks = hy_quad_blocks(a.count, THREADS);
    auto kernel = a.m.scale || a.v.scale ? adamw_kernel<true> : adamw_kernel<false>;
    kernel<<<blocks, THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
