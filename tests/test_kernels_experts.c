/* test_kernels_experts.c: routing, sorting by expert, grouped matmuls and sums of rows on the CPU,
 * against the double-precision reference. */
#include "expert_calls.h"
#include "kernels/cpu/blas.h"

static rig rigs[2];
static rig *at_work;

static void load(void) { hy_blas_get(); }
static void set_up(void) {
    rigs[0] = rig_create(1);
    rigs[1] = rig_create(3);
    at_work = &rigs[1];
}
static void tear_down(void) {
    for (int i = 0; i < 2; i++) rig_destroy(&rigs[i]);
}
static void run_call(const hy_op_call *call) { rig_run(at_work, call); }

/* Both numbers of threads give the same bits of tensor `at`; afterwards as rig_run_both. */
static void run_both(trial *t, int at) {
    hy_op_call alone = t->call;
    alone.t[at] = copy_tensor(&t->call.t[at]);
    rig_run(&rigs[0], &alone);
    rig_run_both(&rigs[1], t);
    ck_assert_mem_eq(alone.t[at].data, t->call.t[at].data, hy_tensor_bytes(&alone.t[at]));
    free(alone.t[at].data);
}

/* ---- routing --------------------------------------------------------------------------------- */

EACH_MIXTURE(routing_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < ROUTE_CASES; i++) {
        trial t = route_trial(&route_cases[i], mixture);
        run_both(&t, HY_ROUTE_LOSSES);
        check_ints(&t, HY_ROUTE_CHOICE);
        trial_check(&t, HY_ROUTE_WEIGHTS, 1);
        trial_check(&t, HY_ROUTE_LOSSES, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(routing_backward_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < 4 * ROUTE_CASES; i++) {
        trial t = route_bwd_trial(&route_cases[i / 4], mixture, i % 2 ? 0.3f : 0, i & 2 ? 2 : 0);
        run_both(&t, HY_ROUTE_BWD_DLOGITS);
        if (route_cases[i / 4].experts > 1) trial_check(&t, HY_ROUTE_BWD_DLOGITS, 2);
        trial_end(&t);
    }
}

START_TEST(a_token_without_scores_is_routed_with_nan_weights) { check_route_nan(run_call); }
END_TEST

START_TEST(of_equal_experts_the_lower_is_chosen) { check_route_ties(run_call); }
END_TEST

/* Perfectly even choices have a share of 1, all tokens by one expert one of E p. */
START_TEST(the_balancing_loss_is_one_if_experts_are_chosen_equally_often) {
    float logits[8] = {3, 0, 0, 3, 3, 0, 0, 3}, weights[4], losses[12];
    int32_t choice[4];
    hy_op_call call = {.kind = HY_OP_ROUTE, .attr.route = {.scale = 1, .seq = 4}};
    call.t[HY_ROUTE_LOGITS] = hy_tensor_2d(logits, HY_F32, 4, 2);
    call.t[HY_ROUTE_CHOICE] = hy_tensor_2d(choice, HY_I32, 4, 1);
    call.t[HY_ROUTE_WEIGHTS] = hy_tensor_2d(weights, HY_F32, 4, 1);
    call.t[HY_ROUTE_LOSSES] = hy_tensor_2d(losses, HY_F32, 4, HY_ROUTE_LOSSES_COUNT);
    run_call(&call);
    for (int n = 0; n < 4; n++) ck_assert_float_eq_tol(losses[3 * n + 1], 1, 1e-6f);
    for (int i = 0; i < 8; i++) logits[i] = i % 2 ? -20 : 20;
    run_call(&call);
    for (int n = 0; n < 4; n++) ck_assert_float_eq_tol(losses[3 * n + 1], 2, 1e-6f);
}
END_TEST

START_TEST(sorting_agrees_with_the_reference) {
    for (int i = 0; i < EXPERTS_CASES; i++) {
        trial t = sort_trial(&experts_cases[i]);
        run_both(&t, HY_SORT_EXPERTS_ORDER);
        check_ints(&t, HY_SORT_EXPERTS_ORDER);
        check_ints(&t, HY_SORT_EXPERTS_PLACE);
        check_ints(&t, HY_SORT_EXPERTS_OFFSETS);
        trial_end(&t);
    }
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------ */

EACH_MIXTURE(weighted_swiglu_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < 4; i++) {
        int64_t N = weighted_sizes[i][0], F = weighted_sizes[i][1];
        trial f = weighted_swiglu_trial(HY_OP_SWIGLU, N, F, mixture);
        trial b = weighted_swiglu_trial(HY_OP_SWIGLU_BWD, N, F, mixture);
        run_both(&f, HY_SWIGLU_Y);
        run_both(&b, HY_SWIGLU_BWD_DWEIGHTS);
        trial_check(&f, HY_SWIGLU_Y, 1);
        trial_check(&b, HY_SWIGLU_BWD_DGATE_UP, 1);
        trial_check(&b, HY_SWIGLU_BWD_ACTIVE, 1);
        trial_check(&b, HY_SWIGLU_BWD_DWEIGHTS, 1);
        trial_end(&f);
        trial_end(&b);
    }
}

EACH_MIXTURE(a_sum_of_rows_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < 2 * EXPERTS_CASES; i++) {
        trial t = sum_rows_trial(&experts_cases[i / 2], i % 2, mixture);
        run_both(&t, HY_SUM_ROWS_OUT);
        trial_check(&t, HY_SUM_ROWS_OUT, 1);
        trial_end(&t);
    }
}

EACH_MIXTURE(a_sum_of_rows_may_be_written_over_its_residual, 0, PURE_TYPES) {
    check_sum_rows_in_place(&experts_cases[1], mixture, run_call);
}

/* ---- grouped matmuls ------------------------------------------------------------------------- */

EACH_MIXTURE(grouped_matmul_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < GROUPED_FORMS * EXPERTS_CASES; i++) {
        trial t = grouped_trial(&experts_cases[i / GROUPED_FORMS],
                                &grouped_forms[i % GROUPED_FORMS], mixture);
        run_both(&t, HY_GROUPED_MATMUL_D);
        trial_check(&t, HY_GROUPED_MATMUL_D, 2);
        trial_end(&t);
    }
}

EACH_MIXTURE(grouped_gradient_agrees_with_the_reference, 0, MIXTURES) {
    for (int i = 0; i < 6 * EXPERTS_CASES; i++) {
        trial t = grouped_grad_trial(&experts_cases[i / 6], i % 3, i % 6 > 2, mixture);
        run_both(&t, HY_GROUPED_GRAD_D);
        trial_check(&t, HY_GROUPED_GRAD_D, 2);
        trial_end(&t);
    }
}

EACH_MIXTURE(stored_experts_give_the_bits_of_their_numbers, 0, PURE_TYPES) {
    static const hy_dtype stored[] = {HY_I8, HY_NF4, HY_E4M3};
    for (int i = 0; i < 6; i++) check_grouped_coded(stored[i / 2], i % 2, mixture, run_call);
}

EACH_MIXTURE(a_row_has_the_same_bits_alone, 0, PURE_TYPES) {
    for (int i = 0; i < EXPERTS_CASES; i++) {
        check_grouped_rows_alone(&experts_cases[i], mixture, run_call);
    }
}

/* An expert without rows: zeros, or what was there before. */
START_TEST(an_expert_without_rows_has_no_gradient) {
    float a[2] = {1, 2}, b[2] = {3, 4}, d[3] = {9, 9, 9};
    int32_t offsets[4] = {0, 0, 2, 2};
    hy_op_call call = {.kind = HY_OP_GROUPED_GRAD, .attr.grouped.alpha = 1};
    call.t[HY_GROUPED_GRAD_A] = hy_tensor_2d(a, HY_F32, 2, 1);
    call.t[HY_GROUPED_GRAD_B] = hy_tensor_2d(b, HY_F32, 2, 1);
    call.t[HY_GROUPED_GRAD_OFFSETS] = hy_tensor_1d(offsets, HY_I32, 4);
    call.t[HY_GROUPED_GRAD_D] = (hy_tensor){.data = d, .shape = {3, 1, 1}, .ndim = 3};
    run_call(&call);
    ck_assert(d[0] == 0 && d[1] == 11 && d[2] == 0);
    call.attr.accumulate = true;
    d[0] = 5;
    run_call(&call);
    ck_assert(d[0] == 5 && d[1] == 22 && d[2] == 0);
}
END_TEST

/* ---- refusals -------------------------------------------------------------------------------- */

static float some[4096];

static void refused(const hy_op_call *call, const char *why) {
    must_fail(hy_op_check(call), HY_ERR_INPUT, why);
}

START_TEST(wrong_routing_is_refused_with_a_reason) {
    hy_op_call good = {.kind = HY_OP_ROUTE, .attr.route = {.scale = 1}}, call;
    good.t[HY_ROUTE_LOGITS] = hy_tensor_2d(some, HY_F32, 6, 5);
    good.t[HY_ROUTE_CHOICE] = hy_tensor_2d(some, HY_I32, 6, 2);
    good.t[HY_ROUTE_WEIGHTS] = hy_tensor_2d(some, HY_F32, 6, 2);
    must(hy_op_check(&good));
    call = good;
    call.t[HY_ROUTE_CHOICE].shape[1] = call.t[HY_ROUTE_WEIGHTS].shape[1] = 6;
    refused(&call, "routing: 6 of 5 experts are chosen, expected at most 32, of at most 1024");
    call = good;
    call.attr.route.score = HY_ROUTE_SCORE_COUNT;
    refused(&call, "routing: score 2 does not exist, expected 0 to 1");
    call = good;
    call.attr.route.scale = NAN;
    refused(&call, "routing: scale is nan, z 0 and balance 0, expected finite numbers");
    call = good;
    call.t[HY_ROUTE_LOSSES] = hy_tensor_2d(some, HY_F32, 6, 3);
    refused(&call, "routing: 6 tokens are no sequences of 0");
    call.attr.route.seq = 4;
    refused(&call, "routing: 6 tokens are no sequences of 4");
    call.attr.route.seq = 3;
    must(hy_op_check(&call));
    call.t[HY_ROUTE_LOSSES].shape[1] = 2;
    refused(&call, "losses has shape (6, 2), expected (6, 3)");
    call = good;
    call.t[HY_ROUTE_BIAS] = hy_tensor_1d(some, HY_F32, 4);
    refused(&call, "bias has shape (4), expected (5)");
}
END_TEST

START_TEST(wrong_sorting_is_refused_with_a_reason) {
    int32_t choice[4] = {0, 2, 1, 3}, order[4], place[4], offsets[5];
    hy_op_call call = {.kind = HY_OP_SORT_EXPERTS};
    call.t[HY_SORT_EXPERTS_CHOICE] = hy_tensor_2d(choice, HY_I32, 2, 2);
    call.t[HY_SORT_EXPERTS_ORDER] = hy_tensor_1d(order, HY_I32, 4);
    call.t[HY_SORT_EXPERTS_PLACE] = hy_tensor_2d(place, HY_I32, 2, 2);
    call.t[HY_SORT_EXPERTS_OFFSETS] = hy_tensor_1d(offsets, HY_I32, 4);
    must_fail(rig_try(at_work, &call), HY_ERR_INPUT, "element 3 of choice is 3, expected 0 to 2");
    call.t[HY_SORT_EXPERTS_ORDER].shape[0] = 3;
    refused(&call, "order has shape (3), expected (4)");
    call.t[HY_SORT_EXPERTS_OFFSETS].shape[0] = 1;
    refused(&call, "offsets are those of 0 experts, expected 1 to 1024");
}
END_TEST

START_TEST(wrong_grouped_matmuls_are_refused_with_a_reason) {
    trial t = grouped_trial(&experts_cases[1], &grouped_forms[0], 0);
    hy_op_call call = t.call;
    must(hy_op_check(&call));
    call.t[HY_GROUPED_MATMUL_A].shape[0] = 5;
    refused(&call, "grouped matmul: a has 5 rows, expected a divisor of 12");
    call.t[HY_GROUPED_MATMUL_A].shape[0] = 3;
    call.t[HY_GROUPED_MATMUL_ROWS].data = NULL;
    refused(&call, "grouped matmul: a has 3 rows, expected 12");
    call = t.call;
    call.t[HY_GROUPED_MATMUL_OFFSETS].shape[0] = 9;
    refused(&call, "offsets has shape (9), expected (10)");
    call = t.call;
    call.t[HY_GROUPED_MATMUL_B].ndim = 2;
    refused(&call, "b has shape (9, 40), expected three dimensions, experts first");
    call = t.call;
    call.attr.grouped.is_batch_invariant = true;
    call.attr.grouped.trans_b = false;
    call.t[HY_GROUPED_MATMUL_B].shape[1] = 24;
    call.t[HY_GROUPED_MATMUL_B].shape[2] = 40;
    refused(&call, "a batch-invariant one needs trans_b");
    call = t.call;
    call.attr.accumulate = true;
    call.t[HY_GROUPED_MATMUL_BIAS] = hy_tensor_2d(some, HY_F32, 9, 40);
    refused(&call, "accumulate and bias cannot be combined");
    call = t.call;
    call.attr.grouped.alpha = INFINITY;
    refused(&call, "alpha is inf, expected a finite number");
    ((int32_t *)t.call.t[HY_GROUPED_MATMUL_ROWS].data)[7] = 12;
    must_fail(rig_try(at_work, &t.call), HY_ERR_INPUT,
              "row 12 of position 7 does not exist, expected 0 to 11");
    ((int32_t *)t.call.t[HY_GROUPED_MATMUL_OFFSETS].data)[9] = 13;
    must_fail(rig_try(at_work, &t.call), HY_ERR_INPUT, "expected ascending ones up to 12");
    trial_end(&t);
}
END_TEST

START_TEST(wrong_gradients_and_sums_are_refused_with_a_reason) {
    trial g = grouped_grad_trial(&experts_cases[1], 1, false, 0);
    trial s = sum_rows_trial(&experts_cases[1], true, 0);
    hy_op_call call = g.call;
    must(hy_op_check(&call));
    call.t[HY_GROUPED_GRAD_B].shape[0] = 11;
    refused(&call, "grouped gradient: b has 11 rows, expected 12");
    call = g.call;
    call.t[HY_GROUPED_GRAD_D].shape[1] = 39;
    refused(&call, "a has shape (3, 40), expected (X, 39)");
    must(hy_op_check(&s.call));
    ((int32_t *)s.call.t[HY_SUM_ROWS_PLACE].data)[5] = -1;
    must_fail(rig_try(at_work, &s.call), HY_ERR_INPUT,
              "element 5 of place is -1, expected 0 to 11");
    s.call.t[HY_SUM_ROWS_RESIDUAL].data = s.call.t[HY_SUM_ROWS_OUT].data;
    s.call.t[HY_SUM_ROWS_RESIDUAL].dtype = HY_BF16;
    refused(&s.call, "residual and out share memory but are bf16 and fp32");
    s.call.t[HY_SUM_ROWS_RESIDUAL].data = NULL;
    trial_end(&g);
    trial_end(&s);
}
END_TEST

START_TEST(swiglu_refuses_an_order_without_weights) {
    trial t = weighted_swiglu_trial(HY_OP_SWIGLU, 3, 5, 0);
    hy_op_call call = t.call;
    call.t[HY_SWIGLU_WEIGHTS].data = NULL;
    refused(&call, "weights is missing; it is required with order or dweights");
    call = t.call;
    call.t[HY_SWIGLU_ORDER].shape[0] = 4;
    refused(&call, "order has shape (4), expected (3)");
    trial_end(&t);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("kernels: experts");
    TCase *all = tcase_create("experts");
    tcase_set_timeout(all, 120);
    tcase_add_unchecked_fixture(all, load, NULL);
    tcase_add_checked_fixture(all, set_up, tear_down);
    tcase_add_test(all, routing_agrees_with_the_reference);
    tcase_add_test(all, routing_backward_agrees_with_the_reference);
    tcase_add_test(all, a_token_without_scores_is_routed_with_nan_weights);
    tcase_add_test(all, of_equal_experts_the_lower_is_chosen);
    tcase_add_test(all, the_balancing_loss_is_one_if_experts_are_chosen_equally_often);
    tcase_add_test(all, sorting_agrees_with_the_reference);
    tcase_add_test(all, weighted_swiglu_agrees_with_the_reference);
    tcase_add_test(all, a_sum_of_rows_agrees_with_the_reference);
    tcase_add_test(all, a_sum_of_rows_may_be_written_over_its_residual);
    tcase_add_test(all, grouped_matmul_agrees_with_the_reference);
    tcase_add_test(all, grouped_gradient_agrees_with_the_reference);
    tcase_add_test(all, stored_experts_give_the_bits_of_their_numbers);
    tcase_add_test(all, a_row_has_the_same_bits_alone);
    tcase_add_test(all, an_expert_without_rows_has_no_gradient);
    tcase_add_test(all, wrong_routing_is_refused_with_a_reason);
    tcase_add_test(all, wrong_sorting_is_refused_with_a_reason);
    tcase_add_test(all, wrong_grouped_matmuls_are_refused_with_a_reason);
    tcase_add_test(all, wrong_gradients_and_sums_are_refused_with_a_reason);
    tcase_add_test(all, swiglu_refuses_an_order_without_weights);
    suite_add_tcase(suite, all);
    return suite;
}

HY_TEST_MAIN(make_suite)
