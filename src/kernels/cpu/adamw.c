/* adamw.c: one step of AdamW on a run of parameters.
 *
 * The arithmetic is fp32 in the order PyTorch uses: decay first, then the step. Parameters, m and v
 * that are kept in 16 bits are rounded stochastically, because rounding to nearest would swallow
 * the small changes they live by; with a master copy the parameter is its rounding to nearest. The
 * noise of logical element i is word i mod 4 of hy_philox(seed, HY_RNG_ROUNDING, i / 4): see
 * kernels.h. m and v in 8 bits go to the nearest code: there the scale moves with its block's
 * largest number and shakes the others loose, while noise of the size of a step would outweigh what
 * it keeps. */
#include <math.h>

#include "base/rng.h"
#include "kernels/cpu/codes.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define ELEMENTS_PER_TASK (32 * 1024)

/* ---- the step -------------------------------------------------------------------------------- */

typedef struct factors {
    float grad; /* on the gradient: clipping and loss scaling */
    float beta1, beta2;
    float keep; /* 1 - lr weight_decay */
    float step; /* lr / correction1 */
    float root; /* 1 / sqrt(correction2) */
    float eps;
} factors;

HY_CLONES static void adamw_run(float *p, const float *grad, float *m, float *v, factors f,
                                int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad;
        float first = f.beta1 * m[i] + (1.0f - f.beta1) * g;
        float second = f.beta2 * v[i] + (1.0f - f.beta2) * g * g;
        m[i] = first;
        v[i] = second;
        p[i] = p[i] * f.keep - f.step * first / (hy_sqrt(second) * f.root + f.eps);
    }
}

/* ---- noise ----------------------------------------------------------------------------------- */

/* Words of hy_philox for counters first, first + 1, ...: the same function, a lane per counter. */
HY_CLONES static void philox_run(uint64_t seed, uint64_t first, uint32_t *restrict out,
                                 int64_t counters) {
    for (int64_t i = 0; i < counters; i++) {
        uint64_t index = first + (uint64_t)i;
        uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = HY_RNG_ROUNDING, c3 = 0;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 10
#endif
        for (int round = 0; round < 10; round++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        out[4 * i] = c0;
        out[4 * i + 1] = c1;
        out[4 * i + 2] = c2;
        out[4 * i + 3] = c3;
    }
}

/* A word for each of the logical elements [first, first + n), n at most HY_CPU_RUN. `words` has
 * room for the whole counters around them. Returns where the first element's word is. */
#define NOISE_WORDS (HY_CPU_RUN + 8)
static const uint32_t *noise_of(uint64_t seed, uint64_t first, int64_t n, uint32_t *words) {
    uint64_t skipped = first % 4;
    philox_run(seed, first / 4, words, ((int64_t)skipped + n + 3) / 4);
    return words + skipped;
}

/* ---- stochastic rounding --------------------------------------------------------------------- */

/* Rounds up with the probability of the part cut off. bf16 is the upper half of fp32: adding 16
 * random bits below it and cutting does that. Infinity and NaN stay what they are. */
static inline uint16_t round_bf16(float x, uint32_t random16) {
    uint32_t u = hy_float_bits(x);
    uint32_t is_finite = (u & 0x7f800000u) != 0x7f800000u;
    uint16_t rounded = (uint16_t)((u + random16) >> 16);
    return is_finite ? rounded : hy_f32_to_bf16(x);
}

/* fp16: the same on 13 cut bits, or in units of 2^-24 where the result is subnormal. */
static inline uint16_t round_f16(float x, uint32_t random16) {
    uint32_t u = hy_float_bits(x), magnitude = u & 0x7fffffffu;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    if (magnitude >= 0x477fe000u) return hy_f32_to_f16(x); /* 65504 and above */
    if (magnitude >= 0x38800000u) {
        return sign | (uint16_t)((magnitude - 0x38000000u + (random16 >> 3)) >> 13);
    }
    float units = hy_bits_float(magnitude) * 0x1p24f + (float)random16 * 0x1p-16f;
    return sign | (uint16_t)units;
}

/* Which bits of an element's word each of its three numbers takes. */
static inline uint32_t param_bits(uint32_t word) { return word & 0xffffu; }
static inline uint32_t m_bits(uint32_t word) { return word >> 16; }
static inline uint32_t v_bits(uint32_t word) { return word * 0x9E3779B1u >> 16; }

#define DEFINE_ROUND_RUN(NAME, ROUND, BITS)                                                        \
    HY_CLONES static void NAME(const float *restrict x, const uint32_t *restrict words,            \
                               uint16_t *restrict out, int64_t n) {                                \
        for (int64_t i = 0; i < n; i++) out[i] = ROUND(x[i], BITS(words[i]));                      \
    }
DEFINE_ROUND_RUN(round_param_bf16, round_bf16, param_bits)
DEFINE_ROUND_RUN(round_param_f16, round_f16, param_bits)
DEFINE_ROUND_RUN(round_m_bf16, round_bf16, m_bits)
DEFINE_ROUND_RUN(round_v_bf16, round_bf16, v_bits)

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* m or v of elements [at, at + n) from codes; runs begin with a block: 1024 is a multiple of all
 * block sizes. */
static void decode_run(const hy_tensor *t, bool is_signed, int64_t at, int64_t n, float *out) {
    const uint8_t *codes = (const uint8_t *)t->data + at;
    for (int64_t i = 0; i < n; i++) {
        float share = is_signed ? hy_decode_signed(codes[i]) : hy_decode_unsigned(codes[i]);
        out[i] = t->quant.scale[(at + i) / t->quant.block] * share;
    }
}

static void encode_run(const hy_tensor *t, bool is_signed, int64_t at, int64_t n, const float *x) {
    uint8_t *codes = (uint8_t *)t->data + at;
    for (int64_t first = 0; first < n; first += t->quant.block) {
        int64_t end = hy_min64(first + t->quant.block, n);
        float largest = hy_largest(x + first, end - first), divisor = largest > 0 ? largest : 1;
        for (int64_t i = first; i < end; i++) {
            float share = x[i] / divisor;
            codes[i] = is_signed ? hy_encode_signed(share) : hy_encode_unsigned(share);
        }
        t->quant.scale[(at + first) / t->quant.block] = largest;
    }
}

/* ---- the op ---------------------------------------------------------------------------------- */

static bool needs_noise(const hy_op_call *call) {
    bool has_master = hy_tensor_is_given(&call->t[HY_ADAMW_MASTER]);
    return (!has_master && call->t[HY_ADAMW_PARAM].dtype != HY_F32) ||
           call->t[HY_ADAMW_M].dtype == HY_BF16 || call->t[HY_ADAMW_V].dtype == HY_BF16;
}

static void store_param(const hy_op_call *call, int64_t at, int64_t n, const float *values,
                        const uint32_t *words) {
    const hy_tensor *param = &call->t[HY_ADAMW_PARAM];
    void *out = hy_element(param, at);
    if (hy_tensor_is_given(&call->t[HY_ADAMW_MASTER])) {
        hy_cpu_narrow(param->dtype, values, out, n); /* fp32 too: a plain copy of the master */
    } else if (param->dtype == HY_BF16) {
        round_param_bf16(values, words, out, n);
    } else if (param->dtype == HY_F16) {
        round_param_f16(values, words, out, n);
    }
}

static void read_state(const hy_tensor *t, bool is_m, int64_t at, int64_t n, float *out) {
    if (t->dtype == HY_U8) {
        decode_run(t, is_m, at, n, out);
    } else {
        hy_read(t, at, n, out);
    }
}

static void write_state(const hy_tensor *t, bool is_m, int64_t at, int64_t n, const float *values,
                        const uint32_t *words) {
    if (t->dtype == HY_U8) {
        encode_run(t, is_m, at, n, values);
    } else if (t->dtype == HY_BF16 && is_m) {
        round_m_bf16(values, words, hy_element(t, at), n);
    } else if (t->dtype == HY_BF16) {
        round_v_bf16(values, words, hy_element(t, at), n);
    }
}

static void adamw_elements(const hy_op_call *call, factors f, int64_t at, int64_t n) {
    const hy_tensor *m = &call->t[HY_ADAMW_M], *v = &call->t[HY_ADAMW_V];
    const hy_tensor *exact = &call->t[HY_ADAMW_MASTER];
    if (!hy_tensor_is_given(exact)) exact = &call->t[HY_ADAMW_PARAM];
    float p_buffer[HY_CPU_RUN], g_buffer[HY_CPU_RUN], m_buffer[HY_CPU_RUN], v_buffer[HY_CPU_RUN];
    uint32_t word_buffer[NOISE_WORDS];
    const uint32_t *words = NULL;
    if (needs_noise(call)) {
        uint64_t first = call->attr.adamw.first + (uint64_t)at;
        words = noise_of(call->attr.adamw.seed, first, n, word_buffer);
    }
    float *p = hy_target(exact, at, p_buffer);
    float *first = hy_target(m, at, m_buffer), *second = hy_target(v, at, v_buffer);
    hy_read(exact, at, n, p_buffer);
    read_state(m, true, at, n, first);
    read_state(v, false, at, n, second);
    adamw_run(p, hy_read(&call->t[HY_ADAMW_GRAD], at, n, g_buffer), first, second, f, n);
    write_state(m, true, at, n, first, words);
    write_state(v, false, at, n, second, words);
    store_param(call, at, n, p, words);
}

static factors factors_of(const hy_op_call *call) {
    float lr = call->attr.adamw.lr;
    return (factors){
        .grad = ((const float *)call->t[HY_ADAMW_CLIP].data)[1],
        .beta1 = call->attr.adamw.beta1,
        .beta2 = call->attr.adamw.beta2,
        .keep = 1.0f - lr * call->attr.adamw.weight_decay,
        .step = lr / call->attr.adamw.correction1,
        .root = 1.0f / sqrtf(call->attr.adamw.correction2),
        .eps = call->attr.adamw.eps,
    };
}

static void adamw_task(const hy_cpu_run *run, int64_t task, int worker) {
    (void)worker;
    int64_t begin = task * ELEMENTS_PER_TASK;
    int64_t end =
        hy_min64(begin + ELEMENTS_PER_TASK, hy_tensor_count(&run->call->t[HY_ADAMW_PARAM]));
    factors f = factors_of(run->call);
    for (int64_t at = begin; at < end; at += HY_CPU_RUN) {
        adamw_elements(run->call, f, at, hy_min64(HY_CPU_RUN, end - at));
    }
}

hy_status hy_cpu_adamw(const hy_cpu_run *run) {
    int64_t count = hy_tensor_count(&run->call->t[HY_ADAMW_PARAM]);
    if (((const float *)run->call->t[HY_ADAMW_CLIP].data)[1] == 0) return HY_OK;
    hy_cpu_for_each(run, hy_ceil_div(count, ELEMENTS_PER_TASK), adamw_task);
    return HY_OK;
}
