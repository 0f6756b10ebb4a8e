/* test_gpu_experts.c: routing, sorting by expert, grouped matmuls and sums of rows on CUDA, against
 * the double-precision reference. */
#include "gpu_rig.h"

#include "expert_calls.h"

/* More rows than a tile of sorting, and several tiles of each expert. */
static const experts_case large_cases[] = {{3000, 7, 3, 8, 16, LOAD_EVEN},
                                           {700, 4, 2, 200, 520, LOAD_SOME},
                                           /* more tiles than blocks of a large card */
                                           {1500, 64, 3, 72, 520, LOAD_EVEN}};

EACH_TYPE(routing_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < ROUTE_CASES; i++) {
        trial t = route_trial(&route_cases[i], mixture);
        if (gpu_run_both(&t, mixture)) {
            check_ints(&t, HY_ROUTE_CHOICE);
            trial_check(&t, HY_ROUTE_WEIGHTS, 1);
            trial_check(&t, HY_ROUTE_LOSSES, 1);
        }
        trial_end(&t);
    }
}

EACH_TYPE(routing_backward_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < 4 * ROUTE_CASES; i++) {
        trial t = route_bwd_trial(&route_cases[i / 4], mixture, i % 2 ? 0.3f : 0, i & 2 ? 2 : 0);
        if (gpu_run_both(&t, mixture) && route_cases[i / 4].experts > 1) {
            trial_check(&t, HY_ROUTE_BWD_DLOGITS, 2);
        }
        trial_end(&t);
    }
}

START_TEST(a_token_without_scores_is_routed_with_nan_weights) { check_route_nan(gpu_must_run); }
END_TEST

START_TEST(of_equal_experts_the_lower_is_chosen) { check_route_ties(gpu_must_run); }
END_TEST

START_TEST(sorting_agrees_with_the_reference) {
    for (int i = 0; i < EXPERTS_CASES + 1; i++) {
        const experts_case *c = i < EXPERTS_CASES ? &experts_cases[i] : &large_cases[0];
        trial t = sort_trial(c);
        gpu_run_both(&t, 0);
        check_ints(&t, HY_SORT_EXPERTS_ORDER);
        check_ints(&t, HY_SORT_EXPERTS_PLACE);
        check_ints(&t, HY_SORT_EXPERTS_OFFSETS);
        trial_end(&t);
    }
}
END_TEST

EACH_TYPE(weighted_swiglu_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < 4; i++) {
        int64_t N = weighted_sizes[i][0], F = weighted_sizes[i][1];
        trial f = weighted_swiglu_trial(HY_OP_SWIGLU, N, F, mixture);
        trial b = weighted_swiglu_trial(HY_OP_SWIGLU_BWD, N, F, mixture);
        if (gpu_run_both(&f, mixture)) gpu_check(&f, HY_SWIGLU_Y, 2);
        if (gpu_run_both(&b, mixture)) {
            gpu_check(&b, HY_SWIGLU_BWD_DGATE_UP, 2);
            gpu_check(&b, HY_SWIGLU_BWD_ACTIVE, 2);
            gpu_check(&b, HY_SWIGLU_BWD_DWEIGHTS, 2);
        }
        trial_end(&f);
        trial_end(&b);
    }
}

EACH_TYPE(a_sum_of_rows_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < 2 * EXPERTS_CASES; i++) {
        trial t = sum_rows_trial(&experts_cases[i / 2], i % 2, mixture);
        if (gpu_run_both(&t, mixture)) gpu_check(&t, HY_SUM_ROWS_OUT, 2);
        trial_end(&t);
    }
}

EACH_TYPE(a_sum_of_rows_may_be_written_over_its_residual, PURE_TYPES) {
    check_sum_rows_in_place(&experts_cases[1], mixture, gpu_must_run);
}

/* ---- grouped matmuls ------------------------------------------------------------------------- */

static void check_grouped(const experts_case *c, int mixture) {
    for (int i = 0; i < GROUPED_FORMS; i++) {
        trial t = grouped_trial(c, &grouped_forms[i], mixture);
        if (gpu_run_both(&t, mixture)) gpu_check(&t, HY_GROUPED_MATMUL_D, 2);
        trial_end(&t);
    }
}

static void check_grouped_grad(const experts_case *c, int mixture) {
    for (int i = 0; i < 6; i++) {
        trial t = grouped_grad_trial(c, i % 3, i > 2, mixture);
        if (gpu_run_both(&t, mixture)) gpu_check(&t, HY_GROUPED_GRAD_D, 2);
        trial_end(&t);
    }
}

EACH_TYPE(grouped_matmul_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < EXPERTS_CASES; i++) check_grouped(&experts_cases[i], mixture);
}

EACH_TYPE(grouped_gradient_agrees_with_the_reference, GPU_MIXTURES) {
    for (int i = 0; i < EXPERTS_CASES; i++) check_grouped_grad(&experts_cases[i], mixture);
}

START_TEST(many_tiles_agree_with_the_reference) {
    for (int i = 1; i < 3; i++) {
        if (gpu_leaves_out(large_cases[i].tokens * large_cases[i].out)) continue;
        check_grouped(&large_cases[i], TRAINING_TYPES);
        check_grouped_grad(&large_cases[i], TRAINING_TYPES);
    }
}
END_TEST

/* Tensors that do not begin at 16 bytes run by the plain kernel. */
START_TEST(the_result_does_not_depend_on_how_tensors_are_aligned) {
    for (unsigned shifted = 1; shifted < 16; shifted++) {
        gpu.shifted = shifted & 11; /* offsets are whole words in any case */
        check_grouped(&experts_cases[3], TRAINING_TYPES);
        check_grouped_grad(&experts_cases[3], TRAINING_TYPES);
    }
    gpu.shifted = 0;
}
END_TEST

EACH_TYPE(stored_experts_give_the_bits_of_their_numbers, PURE_TYPES) {
    static const hy_dtype stored[] = {HY_I8, HY_NF4, HY_E4M3};
    for (int i = 0; i < 6; i++) check_grouped_coded(stored[i / 2], i % 2, mixture, gpu_must_run);
}

EACH_TYPE(a_row_has_the_same_bits_alone, PURE_TYPES) {
    for (int i = 0; i < EXPERTS_CASES; i++) {
        check_grouped_rows_alone(&experts_cases[i], mixture, gpu_must_run);
    }
}

static Suite *make_suite(void) {
    Suite *suite = suite_create("cuda: experts");
    TCase *all = tcase_create("experts");
    tcase_set_timeout(all, 300);
    tcase_add_test(all, routing_agrees_with_the_reference);
    tcase_add_test(all, routing_backward_agrees_with_the_reference);
    tcase_add_test(all, a_token_without_scores_is_routed_with_nan_weights);
    tcase_add_test(all, of_equal_experts_the_lower_is_chosen);
    tcase_add_test(all, sorting_agrees_with_the_reference);
    tcase_add_test(all, weighted_swiglu_agrees_with_the_reference);
    tcase_add_test(all, a_sum_of_rows_agrees_with_the_reference);
    tcase_add_test(all, a_sum_of_rows_may_be_written_over_its_residual);
    tcase_add_test(all, grouped_matmul_agrees_with_the_reference);
    tcase_add_test(all, grouped_gradient_agrees_with_the_reference);
    tcase_add_test(all, many_tiles_agree_with_the_reference);
    tcase_add_test(all, the_result_does_not_depend_on_how_tensors_are_aligned);
    tcase_add_test(all, stored_experts_give_the_bits_of_their_numbers);
    tcase_add_test(all, a_row_has_the_same_bits_alone);
    suite_add_tcase(suite, all);
    return suite;
}

GPU_TEST_MAIN(make_suite)
