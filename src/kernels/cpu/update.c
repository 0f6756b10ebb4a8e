/* update.c: the elementwise optimizers AdamW, SGD with momentum and Lion, as defined in kernels.h,
 * in fp32 and in PyTorch's order (decay first, then the step); and the elementwise parts of Muon
 * and Adafactor.
 *
 * The code around the steps is shared: reading and writing all types of parameter, gradient and
 * state, the noise of stochastic rounding, the 8-bit format, and the clip factor of 0 that changes
 * nothing. 16-bit parameters and state are rounded stochastically, because rounding to nearest
 * would lose small changes; with a master copy, the parameter is its rounding to nearest. The noise
 * of logical element i is word i mod 4 of hy_philox(seed, HY_RNG_ROUNDING, i / 4): see HY_OP_ADAMW
 * in kernels.h. 8-bit state is rounded to nearest: there the scale moves with the largest number of
 * its block, which changes the rounding of the others, while noise of the size of a step would
 * exceed the stored information. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/cpu/adafactor.h"
#include "kernels/cpu/codes.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector_math.h"

#define ELEMENTS_PER_TASK (32 * 1024)

/* ---- noise ----------------------------------------------------------------------------------- */

/* Words of hy_philox for counters first, first + 1, ...: the same function, one lane per
 * counter. */
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

/* A word for each logical element [first, first + n), n at most HY_CPU_RUN. `words` has room for
 * all counters around them. Returns where the word of the first element is. */
#define NOISE_WORDS (HY_CPU_RUN + 8)
static const uint32_t *noise_of(uint64_t seed, uint64_t first, int64_t n, uint32_t *words) {
    uint64_t skipped = first % 4;
    philox_run(seed, first / 4, words, ((int64_t)skipped + n + 3) / 4);
    return words + skipped;
}

/* ---- stochastic rounding --------------------------------------------------------------------- */

/* Rounds up with the probability of the part that is cut off. bf16 is the upper half of fp32, so
 * adding 16 random bits below it and truncating does that. Infinity and NaN are unchanged. */
static inline uint16_t round_bf16(float x, uint32_t random16) {
    uint32_t u = hy_float_bits(x);
    uint32_t is_finite = (u & 0x7f800000u) != 0x7f800000u;
    uint16_t rounded = (uint16_t)((u + random16) >> 16);
    return is_finite ? rounded : hy_f32_to_bf16(x);
}

/* fp16: as above with 13 bits cut off, or in units of 2^-24 if the result is subnormal. */
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

/* The bits of an element's word that each of its numbers uses. */
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

/* ---- the steps ------------------------------------------------------------------------------- */

#define STATES 2 /* at most */

/* Updates elements [0, n) of p and state, n at most HY_CPU_RUN, which are the elements from `at` on
 * of the tensors; grad_scale is the clip factor. A direction, if there is one, follows the
 * state. */
typedef void step_function(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                           float *const state[STATES], int64_t at, int64_t n);

typedef struct adamw_factors {
    float grad; /* factor of the gradient: clipping and loss scaling */
    float beta1, beta2;
    float keep; /* 1 - lr weight_decay */
    float step; /* lr / correction1 */
    float root; /* 1 / sqrt(correction2) */
    float eps;
} adamw_factors;

HY_CLONES static void adamw_run(float *p, const float *grad, float *m, float *v, adamw_factors f,
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

static void adamw_step(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                       float *const state[STATES], int64_t at, int64_t n) {
    (void)at;
    float lr = call->attr.adamw.lr;
    adamw_factors f = {
        .grad = grad_scale,
        .beta1 = call->attr.adamw.beta1,
        .beta2 = call->attr.adamw.beta2,
        .keep = 1.0f - lr * call->attr.adamw.weight_decay,
        .step = lr / call->attr.adamw.correction1,
        .root = 1.0f / sqrtf(call->attr.adamw.correction2),
        .eps = call->attr.adamw.eps,
    };
    adamw_run(p, grad, state[0], state[1], f, n);
}

HY_CLONES static void sgd_run(float *p, const float *grad, hy_sgd_attr f, float grad_scale,
                              int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) p[i] -= f.lr * (grad[i] * grad_scale + f.weight_decay * p[i]);
}

HY_CLONES static void momentum_run(float *p, const float *grad, float *momentum, hy_sgd_attr f,
                                   float grad_scale, int64_t n) {
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * grad_scale + f.weight_decay * p[i];
        float b = f.momentum * momentum[i] + g;
        momentum[i] = b;
        p[i] -= f.lr * (f.is_nesterov ? g + f.momentum * b : b);
    }
}

static void sgd_step(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                     float *const state[STATES], int64_t at, int64_t n) {
    (void)at;
    if (state[0]) {
        momentum_run(p, grad, state[0], call->attr.sgd, grad_scale, n);
    } else {
        sgd_run(p, grad, call->attr.sgd, grad_scale, n);
    }
}

HY_CLONES static void lion_run(float *p, const float *grad, float *m, hy_lion_attr f,
                               float grad_scale, int64_t n) {
    float keep = 1.0f - f.lr * f.weight_decay;
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * grad_scale;
        float c = f.beta1 * m[i] + (1.0f - f.beta1) * g;
        float sign = (float)((c > 0.0f) - (c < 0.0f));
        m[i] = f.beta2 * m[i] + (1.0f - f.beta2) * g;
        p[i] = p[i] * keep - f.lr * sign;
    }
}

static void lion_step(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                      float *const state[STATES], int64_t at, int64_t n) {
    (void)at;
    lion_run(p, grad, state[0], call->attr.lion, grad_scale, n);
}

/* adafactor.c has already updated the state and computed the size of the step. */
static void adafactor_step(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                           float *const state[STATES], int64_t at, int64_t n) {
    (void)grad_scale, (void)state;
    hy_cpu_adafactor_apply(call, grad, p, at, n);
}

/* A stretch with one coefficient. */
HY_CLONES static void muon_run(float *p, const float *grad, float *m, const float *direction,
                               const hy_muon_attr *a, float coefficient, float grad_scale,
                               int64_t n) {
    float decay = a->lr * a->weight_decay, step = a->lr * coefficient, rest = 1.0f - a->momentum;
    float always = a->is_cautious ? 0.0f : 1.0f;
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float decays = direction[i] * p[i] > 0.0f ? 1.0f : always;
        m[i] = a->momentum * m[i] + rest * (grad[i] * grad_scale);
        p[i] = p[i] - decays * decay * p[i] - step * direction[i];
    }
}

static void muon_step(const hy_op_call *call, float grad_scale, const float *grad, float *p,
                      float *const state[STATES], int64_t at, int64_t n) {
    const hy_muon_attr *a = &call->attr.muon;
    for (int64_t i = 0; i < n;) {
        int piece = 0;
        int64_t end = n;
        while (piece < HY_MUON_PIECES - 1 && at + i >= a->ends[piece]) piece++;
        if (piece < HY_MUON_PIECES - 1) end = hy_min64(n, a->ends[piece] - at);
        muon_run(p + i, grad + i, state[0] + i, state[1] + i, a, a->coefficient[piece], grad_scale,
                 end - i);
        i = end;
    }
}

/* ---- a run of elements ----------------------------------------------------------------------- */

/* The first array of state is signed in 8 bits, the second is not. */
static bool is_signed(int array) { return array == 0; }

/* What an update does with its tensors. */
typedef struct update {
    step_function *step;
    int states; /* arrays of state that are read and written here */
    bool has_direction;
} update;

static update update_of(const hy_op_call *call) {
    static const update all[HY_OP_COUNT] = {
        [HY_OP_ADAMW] = {adamw_step, 2, false},         [HY_OP_SGD] = {sgd_step, 1, false},
        [HY_OP_LION] = {lion_step, 1, false},           [HY_OP_MUON] = {muon_step, 1, true},
        [HY_OP_ADAFACTOR] = {adafactor_step, 0, false},
    };
    update u = all[call->kind];
    if (!hy_tensor_is_given(&call->t[HY_UPDATE_M])) u.states = 0; /* SGD without momentum */
    return u;
}

static float grad_scale_of(const hy_op_call *call) {
    return ((const float *)call->t[HY_UPDATE_CLIP].data)[1];
}

/* Quantised state: runs begin with a block, because 1024 is a multiple of all block sizes. */
static void read_state(const hy_tensor *t, bool is_signed, int64_t at, int64_t n, float *x) {
    int64_t block = t->quant.block;
    if (t->dtype != HY_U8) {
        hy_read(t, at, n, x);
        return;
    }
    for (int64_t i = 0; i < n; i += block) {
        hy_decode_block((const uint8_t *)t->data + at + i, hy_min64(block, n - i), is_signed,
                        t->quant.scale[(at + i) / block], x + i);
    }
}

static void store_state(const hy_tensor *t, int array, int64_t at, int64_t n, const float *x,
                        const uint32_t *words) {
    int64_t block = t->quant.block;
    if (t->dtype == HY_BF16) {
        (array == 0 ? round_first_bf16 : round_second_bf16)(x, words, hy_element(t, at), n);
    }
    for (int64_t i = 0; t->dtype == HY_U8 && i < n; i += block) {
        t->quant.scale[(at + i) / block] = hy_encode_block(
            x + i, hy_min64(block, n - i), is_signed(array), (uint8_t *)t->data + at + i);
    }
}

static void store_param(const hy_op_call *call, int64_t at, int64_t n, const float *values,
                        const uint32_t *words) {
    const hy_tensor *param = &call->t[HY_UPDATE_PARAM];
    void *out = hy_element(param, at);
    if (hy_tensor_is_given(&call->t[HY_UPDATE_MASTER])) {
        /* also for fp32: a plain copy of the master */
        hy_cpu_narrow(param->dtype, values, out, n);
    } else if (param->dtype == HY_BF16) {
        round_param_bf16(values, words, out, n);
    } else if (param->dtype == HY_F16) {
        round_param_f16(values, words, out, n);
    }
}

static void update_elements(const hy_op_call *call, int64_t at, int64_t n) {
    update u = update_of(call);
    const hy_tensor *t = call->t, *arrays = &t[HY_UPDATE_M];
    bool has_master = hy_tensor_is_given(&t[HY_UPDATE_MASTER]);
    const hy_tensor *exact = &t[has_master ? HY_UPDATE_MASTER : HY_UPDATE_PARAM];
    float p_buffer[HY_CPU_RUN], g_buffer[HY_CPU_RUN], buffer[STATES][HY_CPU_RUN];
    float *state[STATES] = {NULL}, *p = hy_target(exact, at, p_buffer);
    bool needs_noise = !has_master && t[HY_UPDATE_PARAM].dtype != HY_F32;
    for (int i = 0; i < u.states; i++) needs_noise |= arrays[i].dtype == HY_BF16;
    uint32_t word_buffer[NOISE_WORDS];
    const uint32_t *words = NULL;
    if (needs_noise) {
        words = noise_of(call->attr.seed, call->attr.first + (uint64_t)at, n, word_buffer);
    }
    hy_read(exact, at, n, p_buffer);
    for (int i = 0; i < u.states; i++) {
        state[i] = hy_target(&arrays[i], at, buffer[i]);
        read_state(&arrays[i], is_signed(i), at, n, state[i]);
    }
    const float *grad = hy_read(&t[HY_UPDATE_GRAD], at, n, g_buffer);
    if (u.has_direction) {
        state[u.states] = buffer[u.states];
        const float *direction = hy_read(&t[HY_UPDATE_DIRECTION], at, n, buffer[u.states]);
        if (direction != state[u.states]) memcpy(state[u.states], direction, (size_t)n * 4);
    }
    u.step(call, grad_scale_of(call), grad, p, state, at, n);
    for (int i = 0; i < u.states; i++) store_state(&arrays[i], i, at, n, state[i], words);
    store_param(call, at, n, p, words);
}

hy_status hy_cpu_update(const hy_cpu_run *run) {
    if (grad_scale_of(run->call) == 0) return HY_OK;
    return hy_cpu_for_elements(run, hy_tensor_count(&run->call->t[HY_UPDATE_PARAM]),
                               ELEMENTS_PER_TASK, update_elements);
}

/* ---- the input of Muon's orthogonalization --------------------------------------------------- */

HY_CLONES static void blend_run(const float *grad, const float *m, const hy_muon_attr *a,
                                float grad_scale, float *out, int64_t n) {
    float keep = a->momentum, rest = 1.0f - keep;
    bool is_nesterov = a->is_nesterov;
    HY_SIMD
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * grad_scale, next = keep * m[i] + rest * g;
        out[i] = is_nesterov ? keep * next + rest * g : next;
    }
}

static void blend_elements(const hy_op_call *call, int64_t at, int64_t n) {
    const hy_tensor *t = call->t, *out = &t[HY_MUON_BLEND_OUT];
    float g_buffer[HY_CPU_RUN], m[HY_CPU_RUN], buffer[HY_CPU_RUN],
        *made = hy_target(out, at, buffer);
    float grad_scale = ((const float *)t[HY_MUON_BLEND_CLIP].data)[1];
    const hy_tensor *state = &t[HY_MUON_BLEND_M];
    const float *momentum = state->dtype == HY_U8 ? m : hy_read(state, at, n, m);
    if (state->dtype == HY_U8) read_state(state, true, at, n, m);
    blend_run(hy_read(&t[HY_MUON_BLEND_GRAD], at, n, g_buffer), momentum, &call->attr.muon,
              grad_scale, made, n);
    hy_write(out, at, n, made);
}

hy_status hy_cpu_muon_blend(const hy_cpu_run *run) {
    return hy_cpu_for_elements(run, hy_tensor_count(&run->call->t[HY_MUON_BLEND_OUT]),
                               ELEMENTS_PER_TASK, blend_elements);
}
