/* test_kernels_adamw.c: the optimizer's ops: clipping, the AdamW step, and its stochastic
 * rounding. */
#include "kernel_rig.h"
#include "kernels/cpu/blas.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }

enum { PARAM, GRAD, M, V, CLIP, MASTER };

static trial adamw_trial(hy_dtype param, hy_dtype grad, hy_dtype state, bool has_master,
                         int64_t count) {
    trial t = trial_begin(HY_OP_ADAMW, (uint64_t)(param * 100 + grad * 10 + state));
    t.call.attr.adamw.lr = 0.03f;
    t.call.attr.adamw.beta1 = 0.9f;
    t.call.attr.adamw.beta2 = 0.95f;
    t.call.attr.adamw.eps = 1e-6f;
    t.call.attr.adamw.weight_decay = 0.1f;
    t.call.attr.adamw.correction1 = 0.271f;
    t.call.attr.adamw.correction2 = 0.142625f;
    t.call.attr.adamw.seed = 42;
    t.call.attr.adamw.first = 1000001;
    trial_normal(&t, PARAM, param, 0, count, 0, 1);
    trial_normal(&t, GRAD, grad, 0, count, 0, 1);
    trial_normal(&t, M, state, 0, count, 0, 0.1);
    trial_tensor(&t, V, state, 0, count);
    for (int64_t i = 0; i < count; i++) trial_put(&t, V, i, fabs(roll_normal(&t.dice)) * 0.1);
    trial_tensor(&t, CLIP, HY_F32, 0, 2);
    trial_put(&t, CLIP, 1, 0.75);
    if (has_master) trial_normal(&t, MASTER, HY_F32, 0, count, 0, 1);
    t.exact.attr = t.call.attr;
    return t;
}

START_TEST(adamw_agrees_with_the_reference) {
    static const hy_dtype reals[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 36; i++) {
        hy_dtype state = i / 9 % 2 ? HY_BF16 : HY_F32;
        trial t = adamw_trial(reals[i % 3], reals[i / 3 % 3], state, i >= 18, 40011);
        rig_run(&cpu, &t.call);
        reference_run(&t.exact);
        /* one stochastic rounding is up to twice as far off as one to nearest */
        trial_check(&t, PARAM, 2);
        trial_check(&t, M, 2);
        trial_check(&t, V, 2);
        if (i >= 18) trial_check(&t, MASTER, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(a_scale_of_zero_leaves_everything_as_it_was) {
    trial t = adamw_trial(HY_BF16, HY_F32, HY_BF16, true, 3000);
    hy_op_call before = t.call;
    trial_put(&t, CLIP, 1, 0);
    ((float *)t.call.t[GRAD].data)[5] = NAN;
    for (int i = 0; i < 6; i++) before.t[i] = copy_tensor(&t.call.t[i]);
    rig_run(&cpu, &t.call);
    for (int i = 0; i < 6; i++) {
        ck_assert_mem_eq(t.call.t[i].data, before.t[i].data, hy_tensor_bytes(&before.t[i]));
        free(before.t[i].data);
    }
    trial_end(&t);
}
END_TEST

START_TEST(with_a_master_the_parameter_is_its_rounding_to_nearest) {
    trial t = adamw_trial(HY_BF16, HY_BF16, HY_F32, true, 5000);
    rig_run(&cpu, &t.call);
    for (int64_t i = 0; i < 5000; i++) {
        uint16_t expected = hy_f32_to_bf16(((float *)t.call.t[MASTER].data)[i]);
        ck_assert_uint_eq(((uint16_t *)t.call.t[PARAM].data)[i], expected);
    }
    trial_end(&t);
}
END_TEST

/* The same step in fp32 gives the unrounded numbers; the noise is then applied by hand. */
START_TEST(stochastic_rounding_takes_its_noise_from_the_logical_index) {
    enum { COUNT = 2503 };
    trial wide = adamw_trial(HY_F32, HY_F32, HY_F32, false, COUNT);
    trial narrow = adamw_trial(HY_BF16, HY_F32, HY_BF16, false, COUNT);
    for (int i = 0; i < 4; i++) {
        for (int64_t k = 0; k < COUNT; k++) {
            put_real(&wide.call.t[i], k, real_at(&narrow.call.t[i], k));
        }
    }
    rig_run(&cpu, &wide.call);
    rig_run(&cpu, &narrow.call);
    for (int64_t k = 0; k < COUNT; k++) {
        uint64_t index = narrow.call.attr.adamw.first + (uint64_t)k;
        uint32_t words[4], word;
        hy_philox(narrow.call.attr.adamw.seed, HY_RNG_ROUNDING, index / 4, words);
        word = words[index % 4];
        uint32_t noise[4] = {word & 0xffff, 0, word >> 16, word * 0x9E3779B1u >> 16};
        for (int i = 0; i < 4; i++) {
            if (i == GRAD) continue;
            uint32_t bits = hy_float_bits(((float *)wide.call.t[i].data)[k]);
            ck_assert_uint_eq(((uint16_t *)narrow.call.t[i].data)[k], (bits + noise[i]) >> 16);
        }
    }
    trial_end(&wide);
    trial_end(&narrow);
}
END_TEST

START_TEST(a_step_cut_in_pieces_gives_the_same_bits) {
    enum { COUNT = 4100, CUT = 1333 };
    trial whole = adamw_trial(HY_BF16, HY_BF16, HY_BF16, false, COUNT);
    trial cut = adamw_trial(HY_BF16, HY_BF16, HY_BF16, false, COUNT);
    rig_run(&cpu, &whole.call);
    for (int piece = 0; piece < 2; piece++) {
        hy_op_call call = cut.call;
        for (int i = 0; i < 4; i++) {
            call.t[i] = hy_tensor_rows(&cut.call.t[i], piece * CUT, piece ? COUNT - CUT : CUT);
        }
        call.attr.adamw.first += (uint64_t)piece * CUT;
        rig_run(&cpu, &call);
    }
    for (int i = 0; i < 4; i++) {
        ck_assert_mem_eq(cut.call.t[i].data, whole.call.t[i].data,
                         hy_tensor_bytes(&whole.call.t[i]));
    }
    trial_end(&whole);
    trial_end(&cut);
}
END_TEST

/* A step far below the spacing of bf16 moves the mean all the same; nearest would move nothing. */
START_TEST(stochastic_rounding_keeps_small_steps_on_average) {
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
            trial_put(&t, PARAM, i, 1.5);
            trial_put(&t, GRAD, i, -1);
        }
        rig_run(&cpu, &t.call);
        for (int64_t i = 0; i < COUNT; i++) sum += real_at(&t.call.t[PARAM], i) - 1.5;
        ck_assert_double_eq_tol(sum / COUNT, step, 0.05 * step);
        trial_end(&t);
    }
}
END_TEST

START_TEST(fp16_rounding_covers_subnormals_and_the_largest_numbers) {
    static const float values[] = {0, 1e-9f, 3.1e-8f, 5e-6f,  6.1e-5f,
                                   1, 65504, 70000,   -2e-7f, -65000};
    for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
        enum { COUNT = 4000 };
        trial t = adamw_trial(HY_F16, HY_F32, HY_F32, true, COUNT);
        free(t.call.t[MASTER].data); /* the value goes in as a step from 0 */
        t.call.t[MASTER].data = NULL;
        t.call.attr.adamw.lr = values[k];
        t.call.attr.adamw.weight_decay = 0;
        t.call.attr.adamw.beta1 = t.call.attr.adamw.beta2 = 0;
        t.call.attr.adamw.correction1 = t.call.attr.adamw.correction2 = 1;
        t.call.attr.adamw.eps = 0;
        for (int64_t i = 0; i < COUNT; i++) {
            trial_put(&t, PARAM, i, 0);
            trial_put(&t, GRAD, i, -1);
        }
        rig_run(&cpu, &t.call);
        double sum = 0, value = (double)values[k];
        double spacing = fabs(value) < 0x1p-14 ? 0x1p-24 : ldexp(1, ilogb(fabs(value)) - 10);
        for (int64_t i = 0; i < COUNT; i++) {
            double found = real_at(&t.call.t[PARAM], i);
            if (fabs(value) > 65520) {
                ck_assert(isinf(found));
            } else {
                ck_assert_double_le(fabs(found - value), spacing);
                sum += found - value;
            }
        }
        ck_assert_double_le(fabs(sum) / COUNT, 0.05 * spacing);
        trial_end(&t);
    }
}
END_TEST

/* ---- clipping -------------------------------------------------------------------------------- */

static void clip(double total, float max_norm, float grad_scale, float result[2]) {
    hy_op_call call = {.kind = HY_OP_CLIP, .attr.clip = {max_norm, grad_scale}};
    call.t[0] = hy_tensor_1d(&total, HY_F64, 1);
    call.t[1] = hy_tensor_1d(result, HY_F32, 2);
    rig_run(&cpu, &call);
}

START_TEST(clip_scales_gradients_down_to_the_limit) {
    float result[2];
    clip(9, 1, 1, result);
    ck_assert_float_eq(result[0], 3);
    ck_assert_float_eq_tol(result[1], 1.0f / 3, 1e-7f);
    clip(0.25, 1, 1, result);
    ck_assert_float_eq(result[1], 1);
    clip(9, 0, 1, result);
    ck_assert_float_eq(result[1], 1);
    clip(0, 1, 1, result);
    ck_assert_float_eq(result[0], 0);
    ck_assert_float_eq(result[1], 1);
}
END_TEST

START_TEST(clip_takes_the_loss_scale_out_first) {
    float result[2];
    clip(9, 1, 0.25f, result); /* true norm 0.75: below the limit */
    ck_assert_float_eq(result[1], 0.25f);
    clip(64, 1, 0.25f, result); /* true norm 2 */
    ck_assert_float_eq(result[1], 0.125f);
}
END_TEST

START_TEST(clip_of_a_norm_that_is_not_finite_gives_zero) {
    float result[2];
    clip(NAN, 1, 1, result);
    ck_assert_float_eq(result[1], 0);
    clip(INFINITY, 0, 1, result);
    ck_assert_float_eq(result[1], 0);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: adamw");
    TCase *all = tcase_create("adamw");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, adamw_agrees_with_the_reference);
    tcase_add_test(all, a_scale_of_zero_leaves_everything_as_it_was);
    tcase_add_test(all, with_a_master_the_parameter_is_its_rounding_to_nearest);
    tcase_add_test(all, stochastic_rounding_takes_its_noise_from_the_logical_index);
    tcase_add_test(all, a_step_cut_in_pieces_gives_the_same_bits);
    tcase_add_test(all, stochastic_rounding_keeps_small_steps_on_average);
    tcase_add_test(all, fp16_rounding_covers_subnormals_and_the_largest_numbers);
    tcase_add_test(all, clip_scales_gradients_down_to_the_limit);
    tcase_add_test(all, clip_takes_the_loss_scale_out_first);
    tcase_add_test(all, clip_of_a_norm_that_is_not_finite_gives_zero);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
