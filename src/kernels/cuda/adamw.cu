/* adamw.cu: one step of AdamW on a run of parameters.
 *
 * A thread per octet (octet.cuh): it fetches parameter, gradient, m and v in whatever types they
 * have, steps in fp32 in the CPU's order (decay first, then the step), and stores. 16-bit
 * parameters without master, and 16-bit m and v, are rounded stochastically with the noise that
 * HY_OP_ADAMW in kernels.h defines. In 8 bits a quantisation block of 8 to 256 elements belongs to
 * 1 to 32 neighbouring lanes, which find its largest by shuffles: codes are read, changed and
 * written in one pass. */
#include <math.h>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/octet.cuh"

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

/* ---- m and v --------------------------------------------------------------------------------- */

/* Eight codes are two words. */
__device__ __forceinline__ hy_octet_bits fetch_codes(const hy_view &t, int64_t at, int n) {
    hy_octet_bits bits = {};
    const uint8_t *codes = (const uint8_t *)t.data + at;
    if (n == HY_OCTET && t.is_packed) {
        uint2 two = *(const uint2 *)codes;
        bits.w[0] = two.x, bits.w[1] = two.y;
        return bits;
    }
#pragma unroll
    for (int i = 0; i < HY_OCTET; i++) {
        if (i < n) bits.w[i / 4] |= (uint32_t)codes[i] << i % 4 * 8;
    }
    return bits;
}

__device__ __forceinline__ void store_codes(const hy_view &t, int64_t at, int n,
                                            const uint32_t w[2]) {
    uint8_t *codes = (uint8_t *)t.data + at;
    if (n == HY_OCTET && t.is_packed) {
        *(uint2 *)codes = make_uint2(w[0], w[1]);
        return;
    }
#pragma unroll
    for (int i = 0; i < HY_OCTET; i++) {
        if (i < n) codes[i] = (uint8_t)(w[i / 4] >> i % 4 * 8);
    }
}

template <bool has_codes>
__device__ __forceinline__ hy_octet_bits fetch_state(const state_view &s, int64_t at, int n) {
    return has_codes && s.scale ? fetch_codes(s.t, at, n) : hy_fetch(s.t, at, n);
}

template <bool has_codes, bool is_signed>
__device__ __forceinline__ void widen_state(const state_view &s, float scale,
                                            const hy_octet_bits &bits, float x[HY_OCTET]) {
    if (has_codes && s.scale) {
#pragma unroll
        for (int i = 0; i < HY_OCTET; i++) {
            uint32_t code = bits.w[i / 4] >> i % 4 * 8 & 0xffu;
            x[i] = scale * (is_signed ? hy_decode_signed(code) : hy_decode_unsigned(code));
        }
    } else {
        hy_widen(bits, s.t.dtype, x);
    }
}

/* The largest magnitude of the block that this thread's octet is part of. All lanes take part;
 * elements behind the end are zero. */
__device__ __forceinline__ float largest_of_block(const float x[HY_OCTET], int shift) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < HY_OCTET; i++) largest = fmaxf(largest, fabsf(x[i]));
    for (int d = 1 << shift >> 4; d > 0; d >>= 1) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, d));
    }
    return largest;
}

/* Where the largest is so small that its inverse would overflow, both sides are lifted first. */
template <bool is_signed>
__device__ __forceinline__ void store_as_codes(const state_view &s, int64_t at, int n,
                                               const float x[HY_OCTET]) {
    float largest = largest_of_block(x, s.shift);
    float lift = largest < 0x1p-60f ? 0x1p60f : 1.0f;
    float inverse = largest > 0 ? 1.0f / (largest * lift) : 0.0f;
    uint32_t w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < HY_OCTET; i++) {
        float share = x[i] * lift * inverse;
        uint32_t code = is_signed ? hy_encode_signed(share) : hy_encode_unsigned(share);
        w[i / 4] |= code << i % 4 * 8;
    }
    if (n == 0) return;
    store_codes(s.t, at, n, w);
    if ((at & ((1 << s.shift) - 1)) == 0) s.scale[at >> s.shift] = largest;
}

/* Two elements rounded to 16 bits, in a word. */
#define PAIR(ROUND, BITS, i)                                                                       \
    (ROUND(x[2 * (i)], BITS(words[2 * (i)])) | ROUND(x[2 * (i) + 1], BITS(words[2 * (i) + 1]))     \
                                                   << 16)

template <bool has_codes, bool is_signed>
__device__ __forceinline__ void store_state(const state_view &s, int64_t at, int n,
                                            const float x[HY_OCTET],
                                            const uint32_t words[HY_OCTET]) {
    if (has_codes && s.scale) return store_as_codes<is_signed>(s, at, n, x);
    if (n == 0) return;
    if (s.t.dtype == HY_F32) return hy_store(s.t, at, n, hy_narrow(x, HY_F32));
    hy_octet_bits bits;
#pragma unroll
    for (int i = 0; i < HY_OCTET / 2; i++) {
        bits.w[i] =
            is_signed ? PAIR(hy_round_bf16, hy_m_bits, i) : PAIR(hy_round_bf16, hy_v_bits, i);
    }
    hy_store(s.t, at, n, bits);
}

/* ---- parameters ------------------------------------------------------------------------------ */

__device__ __forceinline__ void store_param(const adamw_args &a, int64_t at, int n,
                                            const float x[HY_OCTET],
                                            const uint32_t words[HY_OCTET]) {
    hy_octet_bits bits;
    if (n == 0) return;
    if (a.master.data) hy_store(a.master, at, n, hy_narrow(x, HY_F32));
    if (a.master.data || a.param.dtype == HY_F32) {
        bits = hy_narrow(x, a.param.dtype);
    } else if (a.param.dtype == HY_BF16) {
#pragma unroll
        for (int i = 0; i < HY_OCTET / 2; i++) bits.w[i] = PAIR(hy_round_bf16, hy_param_bits, i);
    } else {
#pragma unroll
        for (int i = 0; i < HY_OCTET / 2; i++) bits.w[i] = PAIR(hy_round_f16, hy_param_bits, i);
    }
    hy_store(a.param, at, n, bits);
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Threads behind the end go along with zeros: their lanes take part in the shuffles. */
template <bool has_codes> __global__ void __launch_bounds__(THREADS) adamw_kernel(adamw_args a) {
    int64_t at = HY_OCTET * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    int n = hy_octet_length(at, a.count);
    float grad_scale = a.clip[1], m_scale = 0, v_scale = 0;
    const hy_view &exact = a.master.data ? a.master : a.param;
    hy_octet_bits p_bits = hy_fetch(exact, at, n), g_bits = hy_fetch(a.grad, at, n);
    hy_octet_bits m_bits = fetch_state<has_codes>(a.m, at, n);
    hy_octet_bits v_bits = fetch_state<has_codes>(a.v, at, n);
    if (has_codes && a.m.scale && n > 0) m_scale = a.m.scale[at >> a.m.shift];
    if (has_codes && a.v.scale && n > 0) v_scale = a.v.scale[at >> a.v.shift];
    if (grad_scale == 0) return;
    float p[HY_OCTET], g[HY_OCTET], m[HY_OCTET], v[HY_OCTET];
    uint32_t words[HY_OCTET] = {};
    if (a.needs_noise) hy_rounding_words(a.seed, a.first + (uint64_t)at, words);
    hy_widen(p_bits, exact.dtype, p);
    hy_widen(g_bits, a.grad.dtype, g);
    widen_state<has_codes, true>(a.m, m_scale, m_bits, m);
    widen_state<has_codes, false>(a.v, v_scale, v_bits, v);
#pragma unroll
    for (int i = 0; i < HY_OCTET; i++) {
        float gradient = g[i] * grad_scale;
        m[i] = a.beta1 * m[i] + (1.0f - a.beta1) * gradient;
        v[i] = a.beta2 * v[i] + (1.0f - a.beta2) * gradient * gradient;
        p[i] = p[i] * a.keep - a.step * m[i] / (sqrtf(v[i]) * a.root + a.eps);
    }
    store_param(a, at, n, p, words);
    store_state<has_codes, true>(a.m, at, n, m, words);
    store_state<has_codes, false>(a.v, at, n, v, words);
}

static state_view state_of(const hy_tensor *t) {
    state_view s = {hy_view_of(t), NULL, 0};
    if (t->dtype != HY_U8) return s;
    s.scale = t->quant.scale;
    while (1 << s.shift < t->quant.block) s.shift++;
    return s;
}

hy_status hy_cuda_adamw(const hy_cuda_run *run) {
    const hy_op_call *call = run->call;
    const hy_tensor *t = call->t;
    adamw_args a = {};
    a.param = hy_view_of(&t[0]);
    a.grad = hy_view_of(&t[1]);
    a.m = state_of(&t[2]);
    a.v = state_of(&t[3]);
    a.clip = (const float *)t[4].data;
    a.master = hy_view_of(&t[5]);
    a.needs_noise =
        (!hy_has(&t[5]) && t[0].dtype != HY_F32) || t[2].dtype == HY_BF16 || t[3].dtype == HY_BF16;
    a.beta1 = call->attr.adamw.beta1;
    a.beta2 = call->attr.adamw.beta2;
    a.keep = 1.0f - call->attr.adamw.lr * call->attr.adamw.weight_decay;
    a.step = call->attr.adamw.lr / call->attr.adamw.correction1;
    a.root = 1.0f / sqrtf(call->attr.adamw.correction2);
    a.eps = call->attr.adamw.eps;
    a.seed = call->attr.adamw.seed;
    a.first = call->attr.adamw.first;
    a.count = hy_tensor_count(&t[0]);
    unsigned blocks = (unsigned)hy_ceil_div(a.count, HY_OCTET * THREADS);
    auto kernel = a.m.scale || a.v.scale ? adamw_kernel<true> : adamw_kernel<false>;
    kernel<<<blocks, THREADS, 0, run->stream>>>(a);
    return hy_cuda_launched(run);
}
