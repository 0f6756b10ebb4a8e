/* test_kernels_adafactor.c: the Adafactor op: the reference in all types and many shapes, rows of
 * padding, gradients of any size, rounding, and what it refuses. That twenty steps are PyTorch's:
 * test_optim_steps.c. */
#include "kernels/cpu/blas.h"
#include "optimizer_checks.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

static void check_trial(trial *t) {
    rig_run_both(&cpu, t);
    trial_check(t, HY_UPDATE_PARAM, 2); /* one stochastic rounding costs up to two to nearest */
    trial_check(t, HY_UPDATE_M, 1);
    if (t->call.t[HY_UPDATE_MASTER].data) trial_check(t, HY_UPDATE_MASTER, 1);
    trial_end(t);
}

START_TEST(adafactor_agrees_with_the_reference) {
    for (int i = 0; i < UPDATE_MIXTURES; i++) {
        trial vector = update_mixture(adafactor_trial, i, 40010 + i % 2);
        trial matrix = update_mixture(factored_trial, i, 40010);
        check_trial(&vector);
        check_trial(&matrix);
    }
}
END_TEST

START_TEST(factored_steps_agree_with_the_reference_in_any_shape) {
    static const int64_t shapes[][2] = {{1, 1},    {1, 5},    {5, 1},    {8, 1024}, {9, 1025},
                                        {3, 5000}, {5000, 3}, {65, 512}, {513, 77}, {1000, 64}};
    for (int i = 0; i < 2 * 10; i++) {
        trial t = adafactor_trial_of(HY_F32, HY_F32, i % 2, shapes[i / 2][0], shapes[i / 2][1]);
        t.call.attr.adafactor.is_relative = i / 2 % 3 > 0;
        check_trial(&t);
    }
}
END_TEST

/* Gradients whose squares are next to nothing, or large, and a first step. */
START_TEST(gradients_of_any_size_agree_with_the_reference) {
    static const double sizes[] = {1e-12, 1e-6, 1e-3, 1e6};
    for (int i = 0; i < 8; i++) {
        trial t = adafactor_trial_of(HY_F32, HY_F32, false, i % 2 ? 40 : 0, 33);
        t.call.attr.adafactor.mix = 1;
        for (int64_t k = 0; k < hy_tensor_count(&t.call.t[HY_UPDATE_GRAD]); k++) {
            double g = real_at(&t.call.t[HY_UPDATE_GRAD], k) * sizes[i / 2];
            trial_put(&t, HY_UPDATE_GRAD, k, g);
        }
        for (int64_t k = 0; k < hy_tensor_count(&t.call.t[HY_UPDATE_M]); k++) {
            trial_put(&t, HY_UPDATE_M, k, 0);
        }
        check_trial(&t);
    }
}
END_TEST

START_TEST(a_scale_of_zero_leaves_everything_as_it_was) {
    check_zero_scale(run_call, adafactor_trial);
    check_zero_scale(run_call, factored_trial);
}
END_TEST

START_TEST(with_a_master_the_parameter_is_its_rounding_to_nearest) {
    check_master_rounding(run_call, adafactor_trial);
    check_master_rounding(run_call, factored_trial);
}
END_TEST

START_TEST(stochastic_rounding_takes_its_noise_from_the_logical_index) {
    check_rounding_noise(run_call, adafactor_trial, 42, 1000001);
    check_rounding_noise(run_call, factored_trial, 42, 1000001);
}
END_TEST

/* A matrix that is all zero moves nowhere, and nothing divides by it. */
START_TEST(nothing_comes_of_nothing) {
    trial t = adafactor_trial_of(HY_F32, HY_F32, false, 12, 9);
    static const int changed[] = {HY_UPDATE_PARAM, HY_UPDATE_GRAD, HY_UPDATE_M};
    for (int i = 0; i < 3; i++) {
        memset(t.call.t[changed[i]].data, 0, hy_tensor_bytes(&t.call.t[changed[i]]));
    }
    rig_run(&cpu, &t.call);
    for (int i = 0; i < 3; i++) {
        const hy_tensor *found = &t.call.t[changed[i]];
        for (int64_t k = 0; k < hy_tensor_count(found); k++) {
            ck_assert_double_eq(real_at(found, k), 0);
        }
    }
    trial_end(&t);
}
END_TEST

static void must_refuse(const hy_op_call *call, const char *words) {
    ck_assert_int_eq(cpu.backend->supports(cpu.backend, call), HY_ERR_INPUT);
    ck_assert_msg(strstr(hy_error_message(), words) != NULL, "%s", hy_error_message());
}

START_TEST(a_state_of_another_length_or_type_is_refused) {
    trial t = adafactor_trial_of(HY_F32, HY_F32, false, 12, 9);
    hy_op_call call = t.call;
    call.attr.adafactor.is_factored = false;
    must_refuse(&call, "v has shape (21), expected 108 elements");
    call = t.call;
    call.t[HY_UPDATE_M].shape[0] = 108;
    must_refuse(&call, "v has shape (108), expected 21 elements");
    call = t.call;
    call.t[HY_UPDATE_M].dtype = HY_BF16;
    must_refuse(&call, "v is bf16, expected fp32");
    call = t.call;
    call.t[HY_UPDATE_PARAM] = hy_tensor_1d(t.call.t[HY_UPDATE_PARAM].data, HY_F32, 108);
    must_refuse(&call, "is_factored needs a matrix");
    trial_end(&t);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: adafactor");
    TCase *all = tcase_create("adafactor");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, adafactor_agrees_with_the_reference);
    tcase_add_test(all, factored_steps_agree_with_the_reference_in_any_shape);
    tcase_add_test(all, gradients_of_any_size_agree_with_the_reference);
    tcase_add_test(all, a_scale_of_zero_leaves_everything_as_it_was);
    tcase_add_test(all, with_a_master_the_parameter_is_its_rounding_to_nearest);
    tcase_add_test(all, stochastic_rounding_takes_its_noise_from_the_logical_index);
    tcase_add_test(all, nothing_comes_of_nothing);
    tcase_add_test(all, a_state_of_another_length_or_type_is_refused);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
