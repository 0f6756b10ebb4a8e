/* test_kernels_muon.c: the ops of Muon that go element by element, and momentum in 8 bits. */
#include "kernels/cpu/blas.h"
#include "optimizer_checks.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

START_TEST(muon_agrees_with_the_reference) {
    for (int i = 0; i < 2 * UPDATE_MIXTURES; i++) {
        trial t = update_mixture(muon_trial, i / 2, 40010 + i % 2);
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_UPDATE_PARAM,
                    2); /* one stochastic rounding costs up to two to nearest */
        trial_check(&t, HY_UPDATE_M, 2);
        if (t.call.t[HY_UPDATE_MASTER].data) trial_check(&t, HY_UPDATE_MASTER, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(the_blend_agrees_with_the_reference) {
    static const hy_dtype types[] = {HY_F32, HY_BF16};
    for (int i = 0; i < 16; i++) {
        trial t = muon_blend_trial(types[i % 2], types[i / 2 % 2], types[i / 4 % 2], 40010 + i / 8);
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_MUON_BLEND_OUT, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(scaling_to_one_agrees_with_the_reference) {
    static const hy_dtype types[] = {HY_F32, HY_BF16, HY_F16};
    for (int i = 0; i < 9; i++) {
        trial t = to_unit_trial(types[i % 3], types[i / 3], 3, i == 4 ? 140011 : 10011);
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_TO_UNIT_Y, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(a_row_has_the_same_bits_in_any_company) { check_unit_company(run_call); }
END_TEST

/* What the step leaves as momentum is what the blend looked ahead to. */
START_TEST(the_blend_without_nesterov_is_the_momentum_after_the_step) {
    enum { COUNT = 4001 };
    trial step = muon_trial(HY_F32, HY_F32, HY_F32, false, COUNT);
    trial ahead = muon_blend_trial(HY_F32, HY_F32, HY_F32, COUNT);
    hy_op_call blend = ahead.call;
    blend.t[HY_MUON_BLEND_GRAD] = step.call.t[HY_UPDATE_GRAD];
    blend.t[HY_MUON_BLEND_M] = step.call.t[HY_UPDATE_M];
    blend.t[HY_MUON_BLEND_CLIP] = step.call.t[HY_UPDATE_CLIP];
    run_call(&blend);
    run_call(&step.call);
    ck_assert_mem_eq(blend.t[HY_MUON_BLEND_OUT].data, step.call.t[HY_UPDATE_M].data, COUNT * 4);
    trial_end(&step);
    trial_end(&ahead);
}
END_TEST

START_TEST(a_scale_of_zero_leaves_everything_as_it_was) { check_zero_scale(run_call, muon_trial); }
END_TEST

START_TEST(with_a_master_the_parameter_is_its_rounding_to_nearest) {
    check_master_rounding(run_call, muon_trial);
}
END_TEST

START_TEST(stochastic_rounding_takes_its_noise_from_the_logical_index) {
    check_rounding_noise(run_call, muon_trial, 42, 1000001);
}
END_TEST

START_TEST(a_step_cut_in_pieces_gives_the_same_bits) { check_cut_step(run_call, muon_trial); }
END_TEST

START_TEST(eight_bit_momentum_is_quantised_as_the_op_does_it) {
    check_eight_bits(run_call, muon_trial);
}
END_TEST

/* The blend reads codes as the step does. */
START_TEST(eight_bit_momentum_is_read_as_it_is_decoded) {
    enum { COUNT = 5003, BLOCK = 256, BLOCKS = (COUNT + BLOCK - 1) / BLOCK };
    static float scales[BLOCKS], wide[COUNT], narrow[COUNT];
    static uint8_t codes[COUNT];
    trial t = muon_blend_trial(HY_F32, HY_F32, HY_F32, COUNT);
    for (int i = 0; i < BLOCKS; i++) scales[i] = 0.01f * (float)(i % 20);
    for (int i = 0; i < COUNT; i++) codes[i] = (uint8_t)(1 + i * 37 % 255);
    hy_op_call widen = {.kind = HY_OP_DEQUANTIZE, .attr.quantize = {BLOCK, true}};
    widen.t[0] = hy_tensor_1d(codes, HY_U8, COUNT);
    widen.t[1] = hy_tensor_1d(scales, HY_F32, BLOCKS);
    widen.t[2] = hy_tensor_1d(wide, HY_F32, COUNT);
    run_call(&widen);
    hy_op_call from_codes = t.call, from_numbers = t.call;
    from_codes.t[HY_MUON_BLEND_M] = widen.t[0];
    from_codes.t[HY_MUON_BLEND_M].quant = (hy_quant){.scale = scales, .block = BLOCK};
    from_codes.t[HY_MUON_BLEND_OUT] = hy_tensor_1d(narrow, HY_F32, COUNT);
    from_numbers.t[HY_MUON_BLEND_M] = widen.t[2];
    run_call(&from_codes);
    run_call(&from_numbers);
    ck_assert_mem_eq(narrow, from_numbers.t[HY_MUON_BLEND_OUT].data, sizeof narrow);
    trial_end(&t);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: muon");
    TCase *all = tcase_create("muon");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, muon_agrees_with_the_reference);
    tcase_add_test(all, the_blend_agrees_with_the_reference);
    tcase_add_test(all, scaling_to_one_agrees_with_the_reference);
    tcase_add_test(all, a_row_has_the_same_bits_in_any_company);
    tcase_add_test(all, the_blend_without_nesterov_is_the_momentum_after_the_step);
    tcase_add_test(all, a_scale_of_zero_leaves_everything_as_it_was);
    tcase_add_test(all, with_a_master_the_parameter_is_its_rounding_to_nearest);
    tcase_add_test(all, stochastic_rounding_takes_its_noise_from_the_logical_index);
    tcase_add_test(all, a_step_cut_in_pieces_gives_the_same_bits);
    tcase_add_test(all, eight_bit_momentum_is_quantised_as_the_op_does_it);
    tcase_add_test(all, eight_bit_momentum_is_read_as_it_is_decoded);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
