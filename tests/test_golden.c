/* test_golden.c: the model compared with PyTorch.
 *
 * Each file in tests/golden (its README describes how they are made) is a small model with a batch
 * and the results of PyTorch in double precision: logits, loss, every gradient, ten AdamW steps.
 * The tests compute the same in fp32 and compare, at every recompute setting and several numbers of
 * loss chunks. The last test changes one weight at a time and requires that the comparison
 * fails. */
#include <math.h>

#include "golden/checks.h"

#define TENSOR_BOUND 1e-5
#define CURVE_BOUND 1e-4
#define RECOMPUTE_SETTINGS (HY_KEEP_ALL + 1)
static const golden_bounds bounds = {.tensor = TENSOR_BOUND, .loss = 1e-5, .norm = 1e-4};

/* ---- tests ----------------------------------------------------------------------------------- */

START_TEST(logits_are_those_of_pytorch) {
    golden g;
    open_golden(&g, golden_cases[_i]);
    check_logits(&g, &bounds);
    close_golden(&g);
}
END_TEST

START_TEST(evaluation_gives_the_loss_of_pytorch) {
    golden g;
    open_golden(&g, golden_cases[_i]);
    for (int c = 0; c < GOLDEN_CHUNKINGS; c++) {
        trial t;
        open_trial(&t, &g, 0, golden_chunkings[c], false);
        spoil_results(&g);
        hy_batch_input input = input_of(&g, 1, false);
        must(hy_batch_evaluate(t.plan, &input));
        must(g.backend->stream_sync(g.stream));
        double far = loss_distance(&g);
        ck_assert_msg(far <= bounds.loss, "%s, %d chunks: the loss is off by %.2e", g.name,
                      golden_chunkings[c], far);
        close_trial(&t);
    }
    close_golden(&g);
}
END_TEST

START_TEST(loss_and_every_gradient_are_those_of_pytorch) {
    golden g;
    open_golden(&g, golden_cases[_i]);
    for (int c = 0; c < GOLDEN_CHUNKINGS; c++) {
        for (int recompute = 0; recompute < RECOMPUTE_SETTINGS; recompute++) {
            check_training(&g, &bounds, recompute, golden_chunkings[c]);
        }
    }
    close_golden(&g);
}
END_TEST

START_TEST(recomputing_changes_no_bit_of_loss_or_gradient) {
    golden g;
    open_golden(&g, golden_cases[_i]);
    check_recomputation(&g, RECOMPUTE_SETTINGS);
    close_golden(&g);
}
END_TEST

START_TEST(two_half_passes_accumulate_to_the_gradients_of_pytorch) {
    golden g;
    open_golden(&g, golden_cases[_i]);
    check_half_passes(&g, &bounds);
    close_golden(&g);
}
END_TEST

static void check_final_params(const golden *g) {
    int compared = 0;
    for (int32_t i = 0; i < g->model->params.count; i++) {
        char name[HY_PARAM_NAME_MAX + 16];
        snprintf(name, sizeof name, "final.%s", param_at(g, i)->name);
        if (!hy_safetensors_find(g->file, name)) continue;
        double far = store_distance(g, &g->weights, i, "final");
        ck_assert_msg(far <= TENSOR_BOUND, "%s: after the steps %s is off by %.2e", g->name,
                      param_at(g, i)->name, far);
        compared++;
    }
    ck_assert_int_eq(compared, 3);
}

START_TEST(ten_adamw_steps_follow_pytorch) {
    golden g;
    open_golden(&g, golden_cases[_i]);
    check_ten_steps(&g, &bounds);
    check_final_params(&g);
    close_golden(&g);
}
END_TEST

START_TEST(fifty_adamw_steps_follow_pytorch) {
    golden g;
    open_golden(&g, golden_curves[_i]);
    check_curve(&g, CURVE_BOUND);
    close_golden(&g);
}
END_TEST

/* Where the file's gradient of a parameter is largest: a change there must matter. */
static int64_t most_felt(const golden *g, int32_t index) {
    float *gradient = bytes_of(g, entry_of(g, "grad.%s", param_at(g, index)->name));
    int64_t best = 0;
    for (int64_t i = 1; i < param_at(g, index)->count; i++) {
        if (fabsf(gradient[i]) > fabsf(gradient[best])) best = i;
    }
    free(gradient);
    return best;
}

/* The test of the tests: one element of any one parameter off by 0.01 is beyond the bounds. */
START_TEST(one_wrong_weight_is_detected) {
    golden g;
    trial training, evaluation;
    open_golden(&g, golden_cases[_i]);
    open_trial(&training, &g, 0, 1, true);
    open_trial(&evaluation, &g, 0, 1, false);
    for (int32_t i = 0; i < g.model->params.count; i++) {
        const char *name = "";
        float *element = (float *)hy_store_backing(&g.weights, i) + most_felt(&g, i);
        float *right = from_device(&g, element, sizeof(float)), wrong = *right + 0.01f;
        to_device(&g, element, &wrong, sizeof(float));
        train(&training);
        ck_assert_msg(worst_gradient(&g, &name) > 3 * TENSOR_BOUND,
                      "%s: the gradients do not feel %s", g.name, param_at(&g, i)->name);
        ck_assert_msg(logits_distance(&evaluation) > 3 * TENSOR_BOUND,
                      "%s: the logits do not feel %s", g.name, param_at(&g, i)->name);
        to_device(&g, element, right, sizeof(float));
        free(right);
    }
    train(&training);
    check_loss_and_gradients(&g, &bounds, 0, 1); /* and all is well again */
    close_trial(&training);
    close_trial(&evaluation);
    close_golden(&g);
}
END_TEST

static Suite *golden_suite(void) {
    Suite *suite = suite_create("golden");
    TCase *tc = tcase_create("pytorch");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, logits_are_those_of_pytorch, 0, GOLDEN_CASES);
    tcase_add_loop_test(tc, evaluation_gives_the_loss_of_pytorch, 0, GOLDEN_CASES);
    tcase_add_loop_test(tc, loss_and_every_gradient_are_those_of_pytorch, 0, GOLDEN_CASES);
    tcase_add_loop_test(tc, recomputing_changes_no_bit_of_loss_or_gradient, 0, GOLDEN_CASES);
    tcase_add_loop_test(tc, two_half_passes_accumulate_to_the_gradients_of_pytorch, 0,
                        GOLDEN_CASES);
    tcase_add_loop_test(tc, ten_adamw_steps_follow_pytorch, 0, GOLDEN_CASES);
    tcase_add_loop_test(tc, fifty_adamw_steps_follow_pytorch, 0, GOLDEN_CURVES);
    tcase_add_loop_test(tc, one_wrong_weight_is_detected, 0, GOLDEN_CASES);
    suite_add_tcase(suite, tc);
    return suite;
}

HY_TEST_MAIN(golden_suite)
