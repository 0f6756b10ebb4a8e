/* test_kernels_sgd.c: the SGD op: PyTorch's numbers, the reference, rounding, and momentum in 8
 * bits. */
#include "kernels/cpu/blas.h"
#include "optimizer_checks.h"

static rig cpu;

static void load(void) { hy_blas_get(); }
static void set_up(void) { cpu = rig_create(2); }
static void tear_down(void) { rig_destroy(&cpu); }
static void run_call(const hy_op_call *call) { rig_run(&cpu, call); }

/* What PyTorch 2.15 on a CPU has after eight steps:
 *   w = torch.tensor([1, -2, 0.5, 0, 3.], requires_grad=True)
 *   opt = torch.optim.SGD([w], lr=0.1, momentum=M, nesterov=N, weight_decay=D)
 *   for t in range(8):
 *       w.grad = torch.tensor([((7 * i + 5 * t) % 11 - 5) / 8 for i in range(5)])
 *       opt.step() */
START_TEST(eight_steps_are_those_of_pytorch) {
    static const struct {
        float momentum;
        bool is_nesterov;
        float decay, w[5];
    } cases[] = {
        {0.0f, false, 0.0f, {0.987500012f, -2.0250001f, 0.599999964f, -0.0500000007f, 2.93750024f}},
        {0.9f, false, 0.0f, {0.976347148f, -1.87978303f, 0.776901662f, -0.447484523f, 2.91641665f}},
        {0.9f, true, 0.0f, {0.966212571f, -1.91680443f, 0.849211454f, -0.45273608f, 2.86227489f}},
        {0.9f, false, 0.1f, {0.686765134f, -1.34834552f, 0.631216407f, -0.403087795f, 2.09476852f}},
        {0.5f, true, 0.05f, {0.89194119f, -1.88002992f, 0.643553317f, -0.111458279f, 2.6756072f}},
        {0.0f,
         false,
         0.1f,
         {0.909931958f, -1.87244833f, 0.559154332f, -0.0444026478f, 2.70576239f}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        float w[5] = {1, -2, 0.5f, 0, 3}, g[5], momentum[5] = {0}, clip[2] = {1, 1};
        hy_op_call call = {.kind = HY_OP_SGD};
        call.attr.sgd.lr = 0.1f;
        call.attr.sgd.momentum = cases[c].momentum;
        call.attr.sgd.is_nesterov = cases[c].is_nesterov;
        call.attr.sgd.weight_decay = cases[c].decay;
        call.t[HY_UPDATE_PARAM] = hy_tensor_1d(w, HY_F32, 5);
        call.t[HY_UPDATE_GRAD] = hy_tensor_1d(g, HY_F32, 5);
        if (cases[c].momentum > 0) call.t[HY_UPDATE_M] = hy_tensor_1d(momentum, HY_F32, 5);
        call.t[HY_UPDATE_CLIP] = hy_tensor_1d(clip, HY_F32, 2);
        for (int step = 0; step < 8; step++) {
            for (int i = 0; i < 5; i++) g[i] = (float)((7 * i + 5 * step) % 11 - 5) / 8;
            rig_run(&cpu, &call);
        }
        for (int i = 0; i < 5; i++) ck_assert_float_eq_tol(w[i], cases[c].w[i], 1e-6f);
    }
}
END_TEST

START_TEST(sgd_agrees_with_the_reference) {
    for (int i = 0; i < 2 * UPDATE_MIXTURES; i++) {
        trial t = update_mixture(sgd_trial, i / 2, 40010 + i % 2);
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_UPDATE_PARAM,
                    2); /* one stochastic rounding costs up to two to nearest */
        trial_check(&t, HY_UPDATE_M, 2);
        if (t.call.t[HY_UPDATE_MASTER].data) trial_check(&t, HY_UPDATE_MASTER, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(without_a_buffer_the_gradient_alone_is_the_step) {
    for (int i = 0; i < UPDATE_MIXTURES; i++) {
        trial t = update_mixture(sgd_trial, i, 4001);
        free(t.call.t[HY_UPDATE_M].data);
        free(t.exact.t[HY_UPDATE_M].data);
        t.call.t[HY_UPDATE_M] = t.exact.t[HY_UPDATE_M] = (hy_tensor){0};
        rig_run_both(&cpu, &t);
        trial_check(&t, HY_UPDATE_PARAM, 2);
        if (t.call.t[HY_UPDATE_MASTER].data) trial_check(&t, HY_UPDATE_MASTER, 1);
        trial_end(&t);
    }
}
END_TEST

START_TEST(a_scale_of_zero_leaves_everything_as_it_was) { check_zero_scale(run_call, sgd_trial); }
END_TEST

START_TEST(with_a_master_the_parameter_is_its_rounding_to_nearest) {
    check_master_rounding(run_call, sgd_trial);
}
END_TEST

START_TEST(stochastic_rounding_takes_its_noise_from_the_logical_index) {
    check_rounding_noise(run_call, sgd_trial, 42, 1000001);
}
END_TEST

START_TEST(a_step_cut_in_pieces_gives_the_same_bits) { check_cut_step(run_call, sgd_trial); }
END_TEST

START_TEST(eight_bit_momentum_is_quantised_as_the_op_does_it) {
    check_eight_bits(run_call, sgd_trial);
}
END_TEST

START_TEST(eight_bit_momentum_wants_scales) {
    trial t = sgd_trial(HY_F32, HY_F32, HY_F32, false, 1000);
    hy_op_call call = t.call;
    call.t[HY_UPDATE_M].dtype = HY_U8;
    ck_assert_int_eq(cpu.backend->supports(cpu.backend, &call), HY_ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(hy_error_message(), "momentum is u8 but has no scales"));
    trial_end(&t);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: sgd");
    TCase *all = tcase_create("sgd");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, eight_steps_are_those_of_pytorch);
    tcase_add_test(all, sgd_agrees_with_the_reference);
    tcase_add_test(all, without_a_buffer_the_gradient_alone_is_the_step);
    tcase_add_test(all, a_scale_of_zero_leaves_everything_as_it_was);
    tcase_add_test(all, with_a_master_the_parameter_is_its_rounding_to_nearest);
    tcase_add_test(all, stochastic_rounding_takes_its_noise_from_the_logical_index);
    tcase_add_test(all, a_step_cut_in_pieces_gives_the_same_bits);
    tcase_add_test(all, eight_bit_momentum_is_quantised_as_the_op_does_it);
    tcase_add_test(all, eight_bit_momentum_wants_scales);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
