/* test_own_optimizer.c: a loop as the optimizer of a program that has its own loop: rates, skipped
 * parameters, and state that the program stores. */
#include "own_loop_rig.h"

static hy_loop *optimizer_of(const char *place) {
    return new_loop(KEYS("predictor", "none", "grad_clip", "0", "lr", "1", "schedule", "constant",
                         "lr_warmup_steps", "0", "optim_place", place));
}

/* Steps [first, end) of the program's own loop, which chooses the batches. */
static void make_steps(hy_loop *loop, int first, int end) {
    for (int i = first; i < end; i++) {
        hy_loop_step step = next_step(loop);
        step.batch = i;
        honest_answer(loop, &step, &(tally){0});
    }
}

START_TEST(the_rates_of_a_step_are_those_set_last) {
    hy_loop *loop = optimizer_of("device");
    const double rates[] = {0.25, 0.5};
    for (int i = 0; i < 2; i++) {
        double was = learned.bias[0];
        must(hy_loop_set_rates(loop, (hy_parameter_group[]){{0, 0}, {rates[i], 0.1}}));
        make_steps(loop, i, i + 1);
        double moved = fabs(learned.bias[0] - was * (1 - rates[i] * 0.1));
        ck_assert_double_le(moved, rates[i] * 1.5);
        if (i == 0) ck_assert_double_eq_tol(moved, rates[i], 1e-5); /* Adam's first step */
        for (int j = 0; j < FEATURES; j++) ck_assert(learned.weights[j] == 0);
    }
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_skipped_parameter_keeps_weights_state_and_count) {
    hy_loop *loop = optimizer_of("device");
    int64_t updates[2], steps;
    float before[2][FEATURES], after[2][FEATURES];
    must(hy_loop_set_rates(loop, (hy_parameter_group[]){{0.1, 0}, {0.1, 0}}));
    make_steps(loop, 0, 2);
    logistic was = learned;
    for (int k = 0; k < 2; k++) must(hy_loop_read_state(loop, 0, k, before[k], sizeof before[k]));
    must(hy_loop_set_rates(loop, (hy_parameter_group[]){{-1, 0.5}, {0.1, 0}}));
    make_steps(loop, 2, 5);
    for (int k = 0; k < 2; k++) must(hy_loop_read_state(loop, 0, k, after[k], sizeof after[k]));
    ck_assert_mem_eq(was.weights, learned.weights, sizeof was.weights);
    ck_assert_mem_eq(before, after, sizeof before);
    ck_assert(learned.bias[0] != was.bias[0]);
    must(hy_loop_read_updates(loop, updates, &steps));
    ck_assert_int_eq(updates[0], 2);
    ck_assert_int_eq(updates[1], 5);
    ck_assert_int_eq(steps, 5);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(state_that_the_program_stored_continues_with_the_same_bits) {
    static const char *const places[] = {"device", "pinned"};
    const hy_parameter_group rates[] = {{0.05, 0.1}, {0.05, 0}};
    float state[2][2][FEATURES] = {{{0}}};
    int64_t updates[2], steps;
    hy_loop *loop = optimizer_of(places[_i]);
    must(hy_loop_set_rates(loop, rates));
    make_steps(loop, 0, 4);
    logistic kept = learned;
    must(hy_loop_read_updates(loop, updates, &steps));
    for (int p = 0; p < 2; p++) {
        hy_state_array array;
        for (int k = 0; k < 2; k++) {
            must(hy_loop_state(loop, p, k, &array));
            ck_assert_str_eq(array.name, k ? "v" : "m");
            ck_assert_int_eq(array.dtype, HY_F32);
            must(hy_loop_read_state(loop, p, k, state[p][k], array.bytes));
        }
        ck_assert_int_eq(hy_loop_state(loop, p, 2, &array), HY_ERR_INPUT);
    }
    make_steps(loop, 4, 8);
    logistic undisturbed = learned;
    hy_loop_destroy(loop);
    loop = optimizer_of(places[1 - _i]);
    learned = kept;
    must(hy_loop_set_rates(loop, rates));
    must(hy_loop_write_updates(loop, updates, steps));
    for (int p = 0; p < 2; p++)
        for (int k = 0; k < 2; k++)
            must(hy_loop_write_state(loop, p, k, state[p][k], p ? 4 : sizeof state[p][k]));
    make_steps(loop, 4, 8);
    ck_assert_int_eq(next_step(loop).step, 8);
    ck_assert_mem_eq(&undisturbed, &learned, sizeof learned);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(wrong_calls_are_refused_by_name) {
    hy_loop *loop = optimizer_of("device");
    float array[FEATURES];
    const hy_parameter_group wrong[] = {{1, 0}, {NAN, 0}}, skipping[] = {{-1, 0}, {1, 0}};
    const int64_t below[] = {1, -1};
    must_fail(hy_loop_set_rates(loop, wrong), HY_ERR_INPUT, "parameter bias has lr_scale nan");
    must_fail(hy_loop_set_rates(loop, NULL), HY_ERR_INPUT, "it is NULL");
    must_fail(hy_loop_read_state(loop, 0, 0, array, 4), HY_ERR_INPUT, "m.weights has 48 bytes");
    must_fail(hy_loop_read_state(loop, 7, 0, array, 4), HY_ERR_INPUT, "number 7 does not exist");
    must_fail(hy_loop_write_updates(loop, below, 1), HY_ERR_INPUT, "bias is -1");
    make_steps(loop, 0, 1);
    must(hy_loop_stop(loop));
    must_fail(hy_loop_read_state(loop, 0, 0, array, sizeof array), HY_ERR_STATE,
              "while gradients are requested");
    hy_loop_destroy(loop);
    hy_loop_options rewinds = usual;
    rewinds.can_rewind = true;
    loop = loop_with(&rewinds, KEYS("predictor", "none"));
    must_fail(hy_loop_set_rates(loop, skipping), HY_ERR_INPUT, "without can_rewind");
    hy_loop_destroy(loop);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_optimizer");
    TCase *tests = tcase_create("own_optimizer");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, the_rates_of_a_step_are_those_set_last);
    tcase_add_test(tests, a_skipped_parameter_keeps_weights_state_and_count);
    tcase_add_loop_test(tests, state_that_the_program_stored_continues_with_the_same_bits, 0, 2);
    tcase_add_test(tests, wrong_calls_are_refused_by_name);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
