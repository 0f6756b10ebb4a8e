/* update.c: the frame around element-wise optimizers. See update.h.
 *
 * Parameters and state that are kept in 16 bits are rounded stochastically, because rounding to
 * nearest would swallow the small changes they live by; with a master copy the parameter is its
 * rounding to nearest. The noise of logical element i is word i mod 4 of hy_philox(seed,
 * HY_RNG_ROUNDING, i / 4): see HY_OP_ADAMW in kernels.h. State in 8 bits goes to the nearest code:
 * there the scale moves with its block's largest number and shakes the others loose, while noise of
 * the size of a step would outweigh what it keeps. */
#include "kernels/cpu/update.h"

#include "base/rng.h"
#include "kernels/cpu/codes.h"

#define ELEMENTS_PER_TASK (32 * 1024)

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

/* Which bits of an element's word each of its numbers takes. */
static inline uint32_t param_bits(uint32_t word) { return word & 0xffffu; }
static inline uint32_t first_bits(uint32_t word) { return word >> 16; }
static inline uint32_t second_bits(uint32_t word) { return word * 0x9E3779B1u >> 16; }

#define DEFINE_ROUND_RUN(NAME, ROUND, BITS)                                                        \
    HY_CLONES static void NAME(const float *restrict x, const uint32_t *restrict words,            \
                               uint16_t *restrict out, int64_t n) {                                \
        for (int64_t i = 0; i < n; i++) out[i] = ROUND(x[i], BITS(words[i]));                      \
    }
DEFINE_ROUND_RUN(round_param_bf16, round_bf16, param_bits)
DEFINE_ROUND_RUN(round_param_f16, round_f16, param_bits)
DEFINE_ROUND_RUN(round_first_bf16, round_bf16, first_bits)
DEFINE_ROUND_RUN(round_second_bf16, round_bf16, second_bits)

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* State of elements [at, at + n) from codes; runs begin with a block: 1024 is a multiple of all
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

/* ---- a run of elements ----------------------------------------------------------------------- */

static bool needs_noise(const hy_cpu_update *u) {
    bool needs = !hy_tensor_is_given(u->master) && u->param->dtype != HY_F32;
    for (int i = 0; i < u->states; i++) needs = needs || u->state[i]->dtype == HY_BF16;
    return needs;
}

static void store_param(const hy_cpu_update *u, int64_t at, int64_t n, const float *values,
                        const uint32_t *words) {
    void *out = hy_element(u->param, at);
    if (hy_tensor_is_given(u->master)) {
        hy_cpu_narrow(u->param->dtype, values, out, n); /* fp32 too: a plain copy of the master */
    } else if (u->param->dtype == HY_BF16) {
        round_param_bf16(values, words, out, n);
    } else if (u->param->dtype == HY_F16) {
        round_param_f16(values, words, out, n);
    }
}

static void store_state(const hy_cpu_update *u, int i, int64_t at, int64_t n, const float *values,
                        const uint32_t *words) {
    const hy_tensor *t = u->state[i];
    if (t->dtype == HY_U8) {
        encode_run(t, u->is_signed[i], at, n, values);
    } else if (t->dtype == HY_BF16) {
        (i == 0 ? round_first_bf16 : round_second_bf16)(values, words, hy_element(t, at), n);
    }
}

static void update_elements(const hy_op_call *call, const hy_cpu_update *u, float grad_scale,
                            int64_t at, int64_t n) {
    const hy_tensor *exact = hy_tensor_is_given(u->master) ? u->master : u->param;
    float p_buffer[HY_CPU_RUN], g_buffer[HY_CPU_RUN], buffer[HY_CPU_UPDATE_STATES][HY_CPU_RUN];
    float *state[HY_CPU_UPDATE_STATES] = {NULL};
    uint32_t word_buffer[NOISE_WORDS];
    const uint32_t *words = NULL;
    if (needs_noise(u)) words = noise_of(u->seed, u->first + (uint64_t)at, n, word_buffer);
    float *p = hy_target(exact, at, p_buffer);
    hy_read(exact, at, n, p_buffer);
    for (int i = 0; i < u->states; i++) {
        state[i] = hy_target(u->state[i], at, buffer[i]);
        if (u->state[i]->dtype == HY_U8) {
            decode_run(u->state[i], u->is_signed[i], at, n, state[i]);
        } else {
            hy_read(u->state[i], at, n, state[i]);
        }
    }
    u->step(call, grad_scale, hy_read(u->grad, at, n, g_buffer), p, state, n);
    for (int i = 0; i < u->states; i++) store_state(u, i, at, n, state[i], words);
    store_param(u, at, n, p, words);
}

static float scale_of(const hy_cpu_update *u) { return ((const float *)u->clip->data)[1]; }

void hy_cpu_update_task(const hy_op_call *call, const hy_cpu_update *u, int64_t task) {
    int64_t begin = task * ELEMENTS_PER_TASK;
    int64_t end = hy_min64(begin + ELEMENTS_PER_TASK, hy_tensor_count(u->param));
    for (int64_t at = begin; at < end; at += HY_CPU_RUN) {
        update_elements(call, u, scale_of(u), at, hy_min64(HY_CPU_RUN, end - at));
    }
}

hy_status hy_cpu_update_run(const hy_cpu_run *run, const hy_cpu_update *u, hy_cpu_task task) {
    if (scale_of(u) == 0) return HY_OK;
    hy_cpu_for_each(run, hy_ceil_div(hy_tensor_count(u->param), ELEMENTS_PER_TASK), task);
    return HY_OK;
}
