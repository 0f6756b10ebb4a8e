/* test_kernels_lion.c: the Lion op: its formula by hand, the reference, rounding, and m in 8 bits. */
#include "kernels/cpu/blas.h"
#include "optimizer_checks.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

/* Worked out by hand: lr 1/16, beta1 3/4, beta2 1/2, decay 2, so that every number is exact. */
START_TEST(a_step_goes_by_the_sign_of_the_mixture_and_keeps_another) {
    float w[5] = {1, 1, 1, -2, 0}, g[5] = {-8, 8, -3, 0, 0}, m[5] = {4, 4, 1, 0, 0};
    static const float after[5] = {0.8125f, 0.8125f, 0.875f, -1.75f, 0};
    static const float mean[5] = {-2, 6, -1, 0, 0};
    float clip[2] = {9, 1};
    hy_op_call call = {
        .kind = HY_OP_LION,
        .attr.lion = {.lr = 0.0625f, .beta1 = 0.75f, .beta2 = 0.5f, .weight_decay = 2}};
    call.t[HY_LION_PARAM] = hy_tensor_1d(w, HY_F32, 5);
    call.t[HY_LION_GRAD] = hy_tensor_1d(g, HY_F32, 5);
    call.t[HY_LION_M] = hy_tensor_1d(m, HY_F32, 5);
    call.t[HY_LION_CLIP] = hy_tensor_1d(clip, HY_F32, 2);
    rig_run(&cpu, &call);
    for (int i = 0; i < 5; i++) {
        ck_assert_float_eq(w[i], after[i]); /* the third mixture is 0: decay alone */
        ck_assert_float_eq(m[i], mean[i]);
    }
}
END_TEST

START_TEST(lion_agrees_with_the_reference) {
    for (int i = 0; i < 2 * UPDATE_MIXTURES; i++) {
        trial t = update_mixture(lion_trial, i / 2, 40010 + i % 2);
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_LION_PARAM, 2); /* one stochastic rounding costs up to two to nearest */
        trial_check(&t, HY_LION_M, 2);
        if (t.call.t[HY_LION_MASTER].data) trial_check(&t, HY_LION_MASTER, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(a_scale_of_zero_leaves_everything_as_it_was) { check_zero_scale(run_call, lion_trial); }
END_TEST

START_TEST(with_a_master_the_parameter_is_its_rounding_to_nearest) {
    check_master_rounding(run_call, lion_trial);
}
END_TEST

START_TEST(stochastic_rounding_takes_its_noise_from_the_logical_index) {
    check_rounding_noise(run_call, lion_trial, 42, 1000001);
}
END_TEST

START_TEST(a_step_cut_in_pieces_gives_the_same_bits) { check_cut_step(run_call, lion_trial); }
END_TEST

/* Dequantise, step in fp32, quantise: three ops that the one must equal bit for bit. */
START_TEST(eight_bit_state_is_quantised_as_the_op_does_it) {
    enum { COUNT = 5003, BLOCK = 256, BLOCKS = (COUNT + BLOCK - 1) / BLOCK };
    static float scales[BLOCKS], wide_scales[BLOCKS], wide[COUNT];
    static uint8_t codes[COUNT], wide_codes[COUNT];
    trial a = lion_trial(HY_BF16, HY_BF16, HY_F32, false, COUNT);
    trial b = lion_trial(HY_BF16, HY_BF16, HY_F32, false, COUNT);
    hy_op_call narrow = a.call, step = b.call;
    for (int i = 0; i < BLOCKS; i++) scales[i] = 0.01f * (float)(i % 20);
    for (int i = 0; i < COUNT; i++) codes[i] = (uint8_t)(1 + i * 37 % 255);
    hy_op_call widen = {.kind = HY_OP_DEQUANTIZE, .attr.quantize = {BLOCK, true}};
    widen.t[0] = hy_tensor_1d(codes, HY_U8, COUNT);
    widen.t[1] = hy_tensor_1d(scales, HY_F32, BLOCKS);
    widen.t[2] = step.t[HY_LION_M] = hy_tensor_1d(wide, HY_F32, COUNT);
    rig_run(&cpu, &widen);
    rig_run(&cpu, &step);
    hy_op_call quantise = {.kind = HY_OP_QUANTIZE, .attr.quantize = {BLOCK, true}};
    quantise.t[0] = step.t[HY_LION_M];
    quantise.t[1] = hy_tensor_1d(wide_codes, HY_U8, COUNT);
    quantise.t[2] = hy_tensor_1d(wide_scales, HY_F32, BLOCKS);
    rig_run(&cpu, &quantise);
    narrow.t[HY_LION_M] = hy_tensor_1d(codes, HY_U8, COUNT);
    narrow.t[HY_LION_M].quant = (hy_quant){.scale = scales, .block = BLOCK};
    rig_run(&cpu, &narrow);
    ck_assert_mem_eq(narrow.t[HY_LION_PARAM].data, step.t[HY_LION_PARAM].data, COUNT * 2);
    ck_assert_mem_eq(codes, wide_codes, sizeof codes);
    ck_assert_mem_eq(scales, wide_scales, sizeof scales);
    trial_end(&a);
    trial_end(&b);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: lion");
    TCase *all = tcase_create("lion");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, a_step_goes_by_the_sign_of_the_mixture_and_keeps_another);
    tcase_add_test(all, lion_agrees_with_the_reference);
    tcase_add_test(all, a_scale_of_zero_leaves_everything_as_it_was);
    tcase_add_test(all, with_a_master_the_parameter_is_its_rounding_to_nearest);
    tcase_add_test(all, stochastic_rounding_takes_its_noise_from_the_logical_index);
    tcase_add_test(all, a_step_cut_in_pieces_gives_the_same_bits);
    tcase_add_test(all, eight_bit_state_is_quantised_as_the_op_does_it);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
