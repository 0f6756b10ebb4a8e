/* test_kernels_lion.c: the Lion op: its formula by hand, the reference, rounding, and m in 8
 * bits. */
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
    call.t[HY_UPDATE_PARAM] = hy_tensor_1d(w, HY_F32, 5);
    call.t[HY_UPDATE_GRAD] = hy_tensor_1d(g, HY_F32, 5);
    call.t[HY_UPDATE_M] = hy_tensor_1d(m, HY_F32, 5);
    call.t[HY_UPDATE_CLIP] = hy_tensor_1d(clip, HY_F32, 2);
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
        trial_check(&t, HY_UPDATE_PARAM,
                    2); /* one stochastic rounding costs up to two to nearest */
        trial_check(&t, HY_UPDATE_M, 2);
        if (t.call.t[HY_UPDATE_MASTER].data) trial_check(&t, HY_UPDATE_MASTER, 1);
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

START_TEST(eight_bit_state_is_quantised_as_the_op_does_it) {
    check_eight_bits(run_call, lion_trial);
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
