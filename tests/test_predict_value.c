/* test_predict_value.c: the arithmetic behind bench/predict_value: spreads and the compute
 * factor. */
#include "harness.h"

#include <math.h>

#include "../bench/predict_value/analysis.c"

static double budget_for(const double *budgets, const double *losses, int count, double loss,
                         int *bound) {
    double falling[8];
    return pv_budget_for(budgets, losses, count, loss, falling, bound);
}

START_TEST(a_loss_that_adamw_reached_gives_its_budget) {
    static const double budgets[] = {80, 100, 120}, losses[] = {2.0, 1.8, 1.7};
    for (int i = 0; i < 3; i++) {
        int bound = 9;
        ck_assert_double_eq_tol(budget_for(budgets, losses, 3, losses[i], &bound), budgets[i],
                                1e-9);
        ck_assert_int_eq(bound, 0);
    }
}
END_TEST

START_TEST(between_two_budgets_it_is_their_geometric_mean) {
    static const double budgets[] = {100, 400}, losses[] = {2.0, 1.0};
    int bound;
    ck_assert_double_eq_tol(budget_for(budgets, losses, 2, 1.5, &bound), 200, 1e-9);
    ck_assert_int_eq(bound, 0);
}
END_TEST

START_TEST(outside_of_what_was_run_it_is_a_bound) {
    static const double budgets[] = {80, 100, 120}, losses[] = {2.0, 1.8, 1.7};
    int bound;
    ck_assert_double_eq(budget_for(budgets, losses, 3, 2.5, &bound), 80);
    ck_assert_int_eq(bound, -1);
    ck_assert_double_eq(budget_for(budgets, losses, 3, 1.5, &bound), 120);
    ck_assert_int_eq(bound, 1);
}
END_TEST

/* 1.9 and 2.1 pool to 2.0, then 2.2 joins them: 6.2 / 3, and the curve falls. */
START_TEST(noise_that_rises_is_averaged) {
    static const double budgets[] = {80, 100, 120, 140}, losses[] = {1.9, 2.1, 2.2, 1.0};
    double falling[4];
    int bound;
    double at_mean = pv_budget_for(budgets, losses, 4, 6.2 / 3, falling, &bound);
    for (int i = 0; i < 3; i++) ck_assert_double_eq_tol(falling[i], 6.2 / 3, 1e-12);
    ck_assert_double_eq(falling[3], 1.0);
    ck_assert_double_ge(at_mean, 80);
    ck_assert_double_le(at_mean, 120 + 1e-9);
    double middle = pv_budget_for(budgets, losses, 4, 0.5 * (6.2 / 3 + 1), falling, &bound);
    ck_assert_double_eq_tol(middle, sqrt(120.0 * 140.0), 1e-9);
}
END_TEST

START_TEST(a_run_that_broke_gives_no_factor) {
    static const double budgets[] = {80, 100}, losses[] = {2.0, NAN}, good[] = {2.0, 1.5};
    int bound;
    ck_assert_double_nan(budget_for(budgets, losses, 2, 1.9, &bound));
    ck_assert_double_nan(budget_for(budgets, good, 2, NAN, &bound));
}
END_TEST

START_TEST(spread_is_of_a_sample) {
    static const double values[] = {1, 2, 6}, broken[] = {1, NAN};
    pv_spread s = pv_spread_of(values, 3);
    ck_assert_double_eq(s.min, 1);
    ck_assert_double_eq_tol(s.mean, 3, 1e-12);
    ck_assert_double_eq(s.max, 6);
    ck_assert_double_eq_tol(s.deviation, sqrt(7), 1e-12);
    ck_assert_double_nan(pv_spread_of(broken, 2).mean);
    ck_assert_double_eq(pv_spread_of(values, 1).deviation, 0);
}
END_TEST

START_TEST(the_smallest_ignores_what_broke) {
    static const double values[] = {NAN, 3, 2, 4}, none[] = {NAN, NAN};
    ck_assert_int_eq(pv_smallest(values, 4), 2);
    ck_assert_int_eq(pv_smallest(none, 2), -1);
}
END_TEST

static Suite *predict_value_suite(void) {
    Suite *suite = suite_create("predict_value");
    TCase *tests = tcase_create("analysis");
    tcase_add_test(tests, a_loss_that_adamw_reached_gives_its_budget);
    tcase_add_test(tests, between_two_budgets_it_is_their_geometric_mean);
    tcase_add_test(tests, outside_of_what_was_run_it_is_a_bound);
    tcase_add_test(tests, noise_that_rises_is_averaged);
    tcase_add_test(tests, a_run_that_broke_gives_no_factor);
    tcase_add_test(tests, spread_is_of_a_sample);
    tcase_add_test(tests, the_smallest_ignores_what_broke);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(predict_value_suite)
