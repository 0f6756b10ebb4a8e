/* optimizer_checks.h: steps of optimizers with random numbers, and what must hold of them on every
 * backend. */
#ifndef HY_TESTS_OPTIMIZER_CHECKS_H
#define HY_TESTS_OPTIMIZER_CHECKS_H

#include "kernel_rig.h"

static inline trial adamw_trial(hy_dtype param, hy_dtype grad, hy_dtype state, bool has_master,
                                int64_t count) {
    trial t = trial_begin(HY_OP_ADAMW, (uint64_t)(param * 100 + grad * 10 + state));
    t.call.attr.adamw.lr = 0.03f;
    t.call.attr.adamw.beta1 = 0.9f;
    t.call.attr.adamw.beta2 = 0.95f;
    t.call.attr.adamw.eps = 1e-6f;
    t.call.attr.adamw.weight_decay = 0.1f;
    t.call.attr.adamw.correction1 = 0.271f;
    t.call.attr.adamw.correction2 = 0.142625f;
    t.call.attr.seed = 42;
    t.call.attr.first = 1000001;
    trial_normal(&t, HY_UPDATE_PARAM, param, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_GRAD, grad, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_M, state, 0, count, 0, 0.1);
    trial_tensor(&t, HY_UPDATE_V, state, 0, count);
    for (int64_t i = 0; i < count; i++)
        trial_put(&t, HY_UPDATE_V, i, fabs(roll_normal(&t.dice)) * 0.1);
    trial_tensor(&t, HY_UPDATE_CLIP, HY_F32, 0, 2);
    trial_put(&t, HY_UPDATE_CLIP, 1, 0.75);
    if (has_master) trial_normal(&t, HY_UPDATE_MASTER, HY_F32, 0, count, 0, 1);
    t.exact.attr = t.call.attr;
    return t;
}

/* An SGD step with momentum; Nesterov's where `count` is even. */
static inline trial sgd_trial(hy_dtype param, hy_dtype grad, hy_dtype state, bool has_master,
                              int64_t count) {
    trial t = trial_begin(HY_OP_SGD, (uint64_t)(param * 100 + grad * 10 + state));
    t.call.attr.sgd.lr = 0.03f;
    t.call.attr.sgd.momentum = 0.9f;
    t.call.attr.sgd.weight_decay = 0.1f;
    t.call.attr.sgd.is_nesterov = count % 2 == 0;
    t.call.attr.seed = 42;
    t.call.attr.first = 1000001;
    trial_normal(&t, HY_UPDATE_PARAM, param, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_GRAD, grad, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_M, state, 0, count, 0, 0.1);
    trial_tensor(&t, HY_UPDATE_CLIP, HY_F32, 0, 2);
    trial_put(&t, HY_UPDATE_CLIP, 1, 0.75);
    if (has_master) trial_normal(&t, HY_UPDATE_MASTER, HY_F32, 0, count, 0, 1);
    t.exact.attr = t.call.attr;
    return t;
}

static inline trial lion_trial(hy_dtype param, hy_dtype grad, hy_dtype state, bool has_master,
                               int64_t count) {
    trial t = trial_begin(HY_OP_LION, (uint64_t)(param * 100 + grad * 10 + state));
    t.call.attr.lion.lr = 0.03f;
    t.call.attr.lion.beta1 = 0.9f;
    t.call.attr.lion.beta2 = 0.99f;
    t.call.attr.lion.weight_decay = 0.1f;
    t.call.attr.seed = 42;
    t.call.attr.first = 1000001;
    trial_normal(&t, HY_UPDATE_PARAM, param, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_GRAD, grad, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_M, state, 0, count, 0, 0.1);
    trial_tensor(&t, HY_UPDATE_CLIP, HY_F32, 0, 2);
    trial_put(&t, HY_UPDATE_CLIP, 1, 0.75);
    if (has_master) trial_normal(&t, HY_UPDATE_MASTER, HY_F32, 0, count, 0, 1);
    t.exact.attr = t.call.attr;
    return t;
}

/* An Adafactor step of a matrix (M,N), factored, or with M 0 of N numbers that have a state each.
 * Some rows of it have no gradient. Relative where N is odd. */
static inline trial adafactor_trial_of(hy_dtype param, hy_dtype grad, bool has_master, int64_t M,
                                       int64_t N) {
    trial t = trial_begin(HY_OP_ADAFACTOR, (uint64_t)(param * 100 + grad * 10 + M % 7));
    hy_adafactor_attr *a = &t.call.attr.adafactor;
    *a = (hy_adafactor_attr){.lr = 0.03f,
                             .rate = 0.02f,
                             .mix = 0.3f,
                             .weight_decay = 0.1f,
                             .eps1 = 0x1p-23f,
                             .eps2 = 1e-3f,
                             .threshold = 1,
                             .is_factored = M > 0,
                             .is_relative = N % 2};
    t.call.attr.seed = 42;
    t.call.attr.first = 1000001;
    trial_normal(&t, HY_UPDATE_PARAM, param, M, N, 0, 1);
    trial_normal(&t, HY_UPDATE_GRAD, grad, M, N, 0, 1);
    trial_tensor(&t, HY_UPDATE_M, HY_F32, 0, M + N);
    for (int64_t i = 0; i < M + N; i++) {
        bool is_empty = i < M && i % 5 == 3;
        for (int64_t k = 0; is_empty && k < N; k++) trial_put(&t, HY_UPDATE_GRAD, i * N + k, 0);
        trial_put(&t, HY_UPDATE_M, i, is_empty ? 0 : fabs(roll_normal(&t.dice)) * 0.1);
    }
    trial_tensor(&t, HY_UPDATE_CLIP, HY_F32, 0, 2);
    trial_put(&t, HY_UPDATE_CLIP, 1, 0.75);
    if (has_master) trial_normal(&t, HY_UPDATE_MASTER, HY_F32, M, N, 0, 1);
    t.exact.attr = t.call.attr;
    return t;
}

/* Its state is fp32, whatever is asked for. */
static inline trial adafactor_trial(hy_dtype param, hy_dtype grad, hy_dtype state, bool has_master,
                                    int64_t count) {
    (void)state;
    return adafactor_trial_of(param, grad, has_master, 0, count);
}

/* Of about as many elements. */
static inline trial factored_trial(hy_dtype param, hy_dtype grad, hy_dtype state, bool has_master,
                                   int64_t count) {
    (void)state;
    int64_t N = count < 77 ? count : 77;
    return adafactor_trial_of(param, grad, has_master, count / N, N);
}

/* Muon's last op, with three pieces; cautious where `count` is even. */
static inline trial muon_trial(hy_dtype param, hy_dtype grad, hy_dtype state, bool has_master,
                               int64_t count) {
    trial t = trial_begin(HY_OP_MUON, (uint64_t)(param * 100 + grad * 10 + state));
    t.call.attr.muon = (hy_muon_attr){.lr = 0.03f,
                                      .momentum = 0.9f,
                                      .weight_decay = 0.1f,
                                      .is_cautious = count % 2 == 0,
                                      .coefficient = {1.5f, 0.5f, 2.0f},
                                      .ends = {count / 3 + 1, count / 2 + 2}};
    t.call.attr.seed = 42;
    t.call.attr.first = 1000001;
    trial_normal(&t, HY_UPDATE_PARAM, param, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_GRAD, grad, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_M, state, 0, count, 0, 0.1);
    trial_tensor(&t, HY_UPDATE_CLIP, HY_F32, 0, 2);
    trial_put(&t, HY_UPDATE_CLIP, 1, 0.75);
    if (has_master) trial_normal(&t, HY_UPDATE_MASTER, HY_F32, 0, count, 0, 1);
    trial_normal(&t, HY_UPDATE_DIRECTION, grad, 0, count, 0, 1);
    t.exact.attr = t.call.attr;
    return t;
}

/* What goes before it: the blend of gradient and momentum; Nesterov's where `count` is even. */
static inline trial muon_blend_trial(hy_dtype out, hy_dtype grad, hy_dtype state, int64_t count) {
    trial t = trial_begin(HY_OP_MUON_BLEND, (uint64_t)(out * 100 + grad * 10 + state));
    t.call.attr.muon = (hy_muon_attr){.momentum = 0.9f, .is_nesterov = count % 2 == 0};
    trial_tensor(&t, HY_MUON_BLEND_OUT, out, 0, count);
    trial_normal(&t, HY_MUON_BLEND_GRAD, grad, 0, count, 0, 1);
    trial_normal(&t, HY_MUON_BLEND_M, state, 0, count, 0, 0.1);
    trial_tensor(&t, HY_MUON_BLEND_CLIP, HY_F32, 0, 2);
    trial_put(&t, HY_MUON_BLEND_CLIP, 1, 0.75);
    t.exact.attr = t.call.attr;
    return t;
}

static inline trial to_unit_trial(hy_dtype x, hy_dtype y, int64_t rows, int64_t cols) {
    trial t = trial_begin(HY_OP_TO_UNIT, (uint64_t)(x * 10 + y));
    t.call.attr.to_unit.eps = 1e-7f;
    trial_normal(&t, HY_TO_UNIT_X, x, rows, cols, 0, 3);
    trial_tensor(&t, HY_TO_UNIT_Y, y, rows, cols);
    t.exact.attr = t.call.attr;
    return t;
}

/* Rows of a tensor, each alone. */
static inline void check_unit_company(call_runner run) {
    enum { ROWS = 5, COLS = 30011 };
    trial t = to_unit_trial(HY_F32, HY_BF16, ROWS, COLS);
    run(&t.call);
    hy_tensor together = copy_tensor(&t.call.t[HY_TO_UNIT_Y]);
    for (int i = 0; i < ROWS; i++) {
        hy_op_call one = t.call;
        one.t[HY_TO_UNIT_X] = hy_tensor_rows(&t.call.t[HY_TO_UNIT_X], i, 1);
        one.t[HY_TO_UNIT_Y] = hy_tensor_rows(&t.call.t[HY_TO_UNIT_Y], i, 1);
        memset(one.t[HY_TO_UNIT_Y].data, 0xff, hy_tensor_bytes(&one.t[HY_TO_UNIT_Y]));
        run(&one);
    }
    ck_assert_mem_eq(t.call.t[HY_TO_UNIT_Y].data, together.data, hy_tensor_bytes(&together));
    free(together.data);
    trial_end(&t);
}

/* ---- of every optimizer's op ----------------------------------------------------------------- */

typedef trial (*update_trial)(hy_dtype param, hy_dtype grad, hy_dtype state, bool has_master,
                              int64_t count);

static inline void check_zero_scale(call_runner run, update_trial make) {
    trial t = make(HY_BF16, HY_F32, HY_BF16, true, 3000);
    hy_op_call before = t.call;
    trial_put(&t, HY_UPDATE_CLIP, 1, 0);
    ((float *)t.call.t[HY_UPDATE_GRAD].data)[5] = NAN;
    for (int i = 0; i < HY_OP_TENSORS; i++) before.t[i] = copy_tensor(&t.call.t[i]);
    run(&t.call);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!before.t[i].data) continue;
        ck_assert_mem_eq(t.call.t[i].data, before.t[i].data, hy_tensor_bytes(&before.t[i]));
        free(before.t[i].data);
    }
    trial_end(&t);
}

static inline void check_master_rounding(call_runner run, update_trial make) {
    trial t = make(HY_BF16, HY_BF16, HY_F32, true, 5000);
    const float *master = t.call.t[HY_UPDATE_MASTER].data;
    run(&t.call);
    for (int64_t i = 0; i < hy_tensor_count(&t.call.t[HY_UPDATE_PARAM]); i++) {
        uint16_t expected = hy_f32_to_bf16(master[i]);
        if (((uint16_t *)t.call.t[HY_UPDATE_PARAM].data)[i] != expected)
            ck_abort_msg("%lld", (long long)i);
    }
    trial_end(&t);
}

/* The same step in fp32 gives the unrounded numbers; the noise is then applied by hand. */
static inline void check_rounding_noise(call_runner run, update_trial make, uint64_t seed,
                                        uint64_t first) {
    enum { COUNT = 2503 };
    trial wide = make(HY_F32, HY_F32, HY_F32, false, COUNT);
    trial narrow = make(HY_BF16, HY_F32, HY_BF16, false, COUNT);
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (i == HY_UPDATE_CLIP || !hy_tensor_is_given(&wide.call.t[i])) continue;
        for (int64_t k = 0; k < hy_tensor_count(&wide.call.t[i]); k++) {
            put_real(&wide.call.t[i], k, real_at(&narrow.call.t[i], k));
        }
    }
    run(&wide.call);
    run(&narrow.call);
    for (int64_t k = 0; k < hy_tensor_count(&wide.call.t[HY_UPDATE_PARAM]); k++) {
        uint64_t index = first + (uint64_t)k;
        uint32_t words[4];
        hy_philox(seed, HY_RNG_ROUNDING, index / 4, words);
        uint32_t word = words[index % 4];
        uint32_t noise[HY_OP_TENSORS] = {[HY_UPDATE_PARAM] = word & 0xffff,
                                         [HY_UPDATE_M] = word >> 16,
                                         [HY_UPDATE_V] = word * 0x9E3779B1u >> 16};
        for (int i = 0; i < HY_OP_TENSORS; i++) {
            if (!hy_tensor_is_given(&narrow.call.t[i])) continue;
            if (narrow.call.t[i].dtype != HY_BF16) continue; /* gradient, and state that is exact */
            uint32_t bits = hy_float_bits(((float *)wide.call.t[i].data)[k]);
            ck_assert_uint_eq(((uint16_t *)narrow.call.t[i].data)[k], (bits + noise[i]) >> 16);
        }
    }
    trial_end(&wide);
    trial_end(&narrow);
}

/* Pieces begin where a unit's tensors do: at any logical index. */
static inline void check_cut_step(call_runner run, update_trial make) {
    enum { COUNT = 4100, CUT = 1333 };
    trial whole = make(HY_BF16, HY_BF16, HY_BF16, false, COUNT);
    trial cut = make(HY_BF16, HY_BF16, HY_BF16, false, COUNT);
    run(&whole.call);
    for (int piece = 0; piece < 2; piece++) {
        hy_op_call call = cut.call;
        for (int i = 0; i < HY_OP_TENSORS; i++) {
            if (i == HY_UPDATE_CLIP || !hy_tensor_is_given(&call.t[i])) continue;
            call.t[i] = hy_tensor_rows(&cut.call.t[i], piece * CUT, piece ? COUNT - CUT : CUT);
        }
        call.attr.first += (uint64_t)piece * CUT;
        for (int i = 0; call.kind == HY_OP_MUON && i < HY_MUON_PIECES - 1; i++) {
            call.attr.muon.ends[i] -= piece * CUT; /* below zero: none of it is here */
        }
        run(&call);
    }
    for (int i = 0; i < HY_OP_TENSORS; i++) {
        if (!hy_tensor_is_given(&whole.call.t[i])) continue;
        ck_assert_mem_eq(cut.call.t[i].data, whole.call.t[i].data,
                         hy_tensor_bytes(&whole.call.t[i]));
    }
    trial_end(&whole);
    trial_end(&cut);
}

/* First moments in 8 bits: dequantise, step in fp32, quantise: three ops that the one must equal
 * bit for bit. */
static inline void check_eight_bits(call_runner run, update_trial make) {
    enum { COUNT = 5003, BLOCK = 256, BLOCKS = (COUNT + BLOCK - 1) / BLOCK };
    static float scales[BLOCKS], wide_scales[BLOCKS], wide[COUNT];
    static uint8_t codes[COUNT], wide_codes[COUNT];
    for (int has_master = 0; has_master < 2; has_master++) {
        trial a = make(HY_BF16, HY_BF16, HY_F32, has_master, COUNT);
        trial b = make(HY_BF16, HY_BF16, HY_F32, has_master, COUNT);
        hy_op_call narrow = a.call, step = b.call;
        for (int i = 0; i < BLOCKS; i++) scales[i] = 0.01f * (float)(i % 20);
        for (int i = 0; i < COUNT; i++) codes[i] = (uint8_t)(1 + i * 37 % 255);
        hy_op_call widen = {.kind = HY_OP_DEQUANTIZE, .attr.quantize = {BLOCK, true}};
        widen.t[HY_DEQUANTIZE_CODES] = hy_tensor_1d(codes, HY_U8, COUNT);
        widen.t[HY_DEQUANTIZE_SCALES] = hy_tensor_1d(scales, HY_F32, BLOCKS);
        widen.t[HY_DEQUANTIZE_X] = step.t[HY_UPDATE_M] = hy_tensor_1d(wide, HY_F32, COUNT);
        run(&widen);
        run(&step);
        hy_op_call quantise = {.kind = HY_OP_QUANTIZE, .attr.quantize = {BLOCK, true}};
        quantise.t[HY_QUANTIZE_X] = step.t[HY_UPDATE_M];
        quantise.t[HY_QUANTIZE_CODES] = hy_tensor_1d(wide_codes, HY_U8, COUNT);
        quantise.t[HY_QUANTIZE_SCALES] = hy_tensor_1d(wide_scales, HY_F32, BLOCKS);
        run(&quantise);
        narrow.t[HY_UPDATE_M] = hy_tensor_1d(codes, HY_U8, COUNT);
        narrow.t[HY_UPDATE_M].quant = (hy_quant){.scale = scales, .block = BLOCK};
        run(&narrow);
        ck_assert_mem_eq(narrow.t[HY_UPDATE_PARAM].data, step.t[HY_UPDATE_PARAM].data, COUNT * 2);
        ck_assert_mem_eq(codes, wide_codes, sizeof codes);
        ck_assert_mem_eq(scales, wide_scales, sizeof scales);
        trial_end(&a);
        trial_end(&b);
    }
}

/* A step far below the spacing of the type moves the mean all the same; nearest would move
 * nothing. */
static inline void check_small_steps(call_runner run) {
    static const hy_dtype narrow[] = {HY_BF16, HY_F16};
    enum { COUNT = 100000 };
    for (int k = 0; k < 2; k++) {
        trial t = adamw_trial(narrow[k], HY_F32, HY_F32, false, COUNT);
        double step = narrow[k] == HY_BF16 ? 1e-3 : 1e-4, sum = 0;
        t.call.attr.adamw.lr = (float)step;
        t.call.attr.adamw.weight_decay = 0;
        t.call.attr.adamw.beta1 = t.call.attr.adamw.beta2 = 0;
        t.call.attr.adamw.correction1 = t.call.attr.adamw.correction2 = 1;
        t.call.attr.adamw.eps = 0;
        for (int64_t i = 0; i < COUNT; i++) {
            trial_put(&t, HY_UPDATE_PARAM, i, 1.5);
            trial_put(&t, HY_UPDATE_GRAD, i, -1);
        }
        run(&t.call);
        for (int64_t i = 0; i < COUNT; i++) sum += real_at(&t.call.t[HY_UPDATE_PARAM], i) - 1.5;
        ck_assert_double_eq_tol(sum / COUNT, step, 0.05 * step);
        trial_end(&t);
    }
}

/* All types of parameter, gradient and state, with and without a master; i from 0 to 35. */
enum { UPDATE_MIXTURES = 36 };

static inline trial update_mixture(update_trial make, int i, int64_t count) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    hy_dtype state = i / 9 % 2 ? HY_BF16 : HY_F32;
    return make(reals[i % 3], reals[i / 3 % 3], state, i >= 18, count);
}

#endif
