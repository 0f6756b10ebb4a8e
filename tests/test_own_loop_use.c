/* test_own_loop_use.c: custom loops: numbers that are not finite, folders, questions, wrong use. */
#include "own_loop_rig.h"

#include <pthread.h>
#include <unistd.h>

#include "base/file.h"

/* ---- trouble --------------------------------------------------------------------------------- */

START_TEST(numbers_that_are_not_finite_skip_the_update) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    for (int i = 0; i < 30; i++) {
        hy_loop_step step = next_step(loop);
        honest_answer(loop, &step, &t);
    }
    for (int what = 0; what < 2; what++) {
        hy_step_info done;
        hy_loop_step step = run_until(loop, HY_FULL);
        logistic before = learned;
        double loss = loss_of(&step);
        if (what == 0) gradient.weights[5] = NAN;
        must(hy_loop_answer(loop, what ? NAN : loss, BATCH));
        ck_assert(hy_loop_last(loop, &done) && done.was_skipped);
        ck_assert_mem_eq(&before, &learned, sizeof before);
        ck_assert(strstr(next_step(loop).obstacle, "cooldown") != NULL);
    }
    run_to_the_end(loop);
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.02);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_divergence_in_correct_takes_the_last_jump_back) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    hy_loop_step step = run_until(loop, HY_PREDICT);
    logistic before = learned;
    while (step.phase == HY_PREDICT) {
        must(hy_loop_answer(loop, 0.5, BATCH));
        step = next_step(loop);
    }
    ck_assert_int_eq(step.phase, HY_CORRECT);
    honest_answer(loop, &step, &(tally){0}); /* the first of two goes well */
    step = run_until(loop, HY_CORRECT);
    loss_of(&step);
    must(hy_loop_answer(loop, 3, BATCH));
    ck_assert_mem_eq(&before, &learned, sizeof before);
    ck_assert_str_eq(next_step(loop).reason, "the loss or the gradient diverged");
    run_to_the_end(loop);
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.02);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(twenty_skipped_updates_in_a_row_end_the_run) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    for (int i = 0; i < 19; i++) {
        gradient.bias[0] = INFINITY;
        must(hy_loop_answer(loop, 1, BATCH));
    }
    must_fail(hy_loop_answer(loop, 1, BATCH), HY_ERR_NUMERIC, "in the last 20 steps");
    ck_assert_mem_eq(&learned, &nothing, sizeof learned);
    ck_assert(next_step(loop).is_over);
    hy_loop_destroy(loop);
}
END_TEST

/* The limit does not start over when the run is resumed. */
START_TEST(skipped_updates_before_and_after_a_resume_count_together) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer", "out", path_in("run")));
    for (int i = 0; i < 12; i++) {
        gradient.bias[0] = INFINITY;
        must(hy_loop_answer(loop, 1, BATCH));
    }
    must(hy_loop_stop(loop));
    hy_loop_destroy(loop);
    loop = new_loop(KEYS("predictor", "outer", "resume", path_in("run")));
    for (int i = 0; i < 7; i++) {
        gradient.bias[0] = INFINITY;
        must(hy_loop_answer(loop, 1, BATCH));
    }
    must_fail(hy_loop_answer(loop, 1, BATCH), HY_ERR_NUMERIC, "in the last 20 steps");
    must_fail(hy_loop_save(loop), HY_ERR_STATE, "cannot save: the run is over");
    hy_loop_destroy(loop);
}
END_TEST

/* The arm with jumps is the only one with gradients that are not finite. The wait before the next
 * test begins at the step of this one. */
START_TEST(after_a_paired_test_that_failed_the_run_waits_for_the_next) {
    hy_loop_options options = usual;
    options.can_rewind = true;
    hy_loop *loop =
        loop_with(&options, KEYS("predictor", "outer", "regime", "fine-tuning", "fork_budget",
                                 "0.5", "fork_steps", "24", "steps", "300"));
    int64_t first = run_until(loop, HY_PREDICT).step, second = -1;
    for (bool is_in_arm = true; second < 0;) {
        hy_loop_step step = next_step(loop);
        ck_assert(!step.is_over);
        double loss = loss_of(&step);
        if (is_in_arm && step.todo == HY_DO_GRADIENTS) gradient.bias[0] = INFINITY;
        must(hy_loop_answer(loop, loss, BATCH));
        hy_loop_step next = next_step(loop);
        if (next.step < step.step) is_in_arm = false; /* the arm's steps are discarded */
        if (!is_in_arm && next.phase == HY_PREDICT) second = next.step;
    }
    ck_assert_int_ge(second, first + 100);
    hy_loop_destroy(loop);
}
END_TEST

/* ---- folders --------------------------------------------------------------------------------- */

typedef struct blob {
    int64_t number, loads;
} blob;

static hy_status save_blob(void *user, void **bytes, size_t *size) {
    const blob *b = user;
    int64_t *copy = malloc(sizeof *copy);
    *copy = b->number;
    *bytes = copy;
    *size = sizeof *copy;
    return HY_OK;
}

static hy_status load_blob(void *user, const void *bytes, size_t size) {
    blob *b = user;
    ck_assert_uint_eq(size, sizeof b->number);
    memcpy(&b->number, bytes, size);
    b->loads++;
    return HY_OK;
}

static hy_loop_options with_blob(blob *b) {
    hy_loop_options options = usual;
    options.can_evaluate = true;
    options.parameters.user = b;
    options.parameters.save = save_blob;
    options.parameters.load = load_blob;
    return options;
}

/* Stopped in any phase, the loop continues to the same bits, with the caller's own part. */
START_TEST(a_stopped_loop_goes_on_to_the_same_bits) {
    static const hy_phase phases[] = {HY_FULL, HY_PREDICT, HY_CORRECT};
    blob b = {.number = 41};
    hy_loop_options options = with_blob(&b);
    char *out = path_in("run");
    const char *const *keys = KEYS("predictor", "outer", "out", out, "tail_share", "0.2");
    logistic expected = learn(&options, KEYS("predictor", "outer", "tail_share", "0.2"));
    hy_loop *loop = loop_with(&options, keys);
    for (int i = 0; i < 3; i++) {
        hy_loop_step step = run_until(loop, phases[_i]);
        honest_answer(loop, &step, &(tally){0});
    }
    run_until(loop, phases[_i]);
    b.number = 42;
    must(hy_loop_stop(loop));
    ck_assert(next_step(loop).is_over);
    hy_loop_destroy(loop);
    b.number = 0;
    loop = loop_with(&options, KEYS("predictor", "outer", "tail_share", "0.2", "resume", out));
    ck_assert_int_eq(b.number, 42);
    ck_assert_int_eq(b.loads, 1);
    tally t = run_to_the_end(loop);
    ck_assert_mem_eq(&expected, &learned, sizeof expected);
    ck_assert_int_ge(t.evaluations, 2); /* at the end: of the weights, and of their average */
    ck_assert(hy_path_exists(path_in("run/summary.json")));
    ck_assert(hy_path_exists(path_in("run/metrics.jsonl")));
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_loop_is_saved_between_steps) {
    blob b = {.number = 7};
    hy_loop_options options = with_blob(&b);
    hy_loop *loop = loop_with(&options, KEYS("predictor", "outer", "out", path_in("run")));
    run_until(loop, HY_PREDICT);
    must_fail(hy_loop_save(loop), HY_ERR_STATE, "between two steps");
    hy_loop_step step = run_until(loop, HY_CORRECT);
    logistic before = learned;
    must(hy_loop_save(loop));
    ck_assert_mem_eq(&before, &learned, sizeof before);
    char name[64];
    snprintf(name, sizeof name, "run/checkpoint-%lld/caller.bin", (long long)step.step);
    ck_assert(hy_path_exists(path_in(name)));
    honest_answer(loop, &step, &(tally){0});
    hy_loop_destroy(loop); /* and nothing more is */
    ck_assert(!hy_path_exists(path_in("run/summary.json")));
}
END_TEST

START_TEST(nothing_is_written_unless_a_folder_is_named) {
    char here[4096]; /* where runs of others may lie */
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    ck_assert_int_eq(chdir(path_in("")), 0);
    learn(&usual, KEYS("predictor", "none", "out", "", "steps", "3"));
    ck_assert(!hy_path_exists("runs"));
    ck_assert_int_eq(chdir(here), 0);
}
END_TEST

/* ---- questions and compute ------------------------------------------------------------------- */

START_TEST(micro_batches_are_requested_by_number) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer", "grad_accum_steps", "2"));
    int64_t expected = 0;
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        if (step.todo == HY_DO_GRADIENTS) {
            ck_assert_int_eq(step.batch, expected);
            ck_assert_int_eq(step.count, 2);
            expected += 2;
        } else {
            ck_assert_int_ge(step.batch, expected); /* training has not reached it */
            ck_assert_int_eq(step.count, 1);
        }
        ck_assert_int_eq(next_step(loop).batch, step.batch); /* the same until it is answered */
        honest_answer(loop, &step, &(tally){0});
    }
    ck_assert_int_gt(expected, 200);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(phases_say_which_precision_they_want) {
    hy_loop *loop =
        new_loop(KEYS("predictor", "outer", "precision", "bf16", "precision_correct", "fp32"));
    ck_assert_int_eq(run_until(loop, HY_FULL).precision, HY_BF16);
    ck_assert_int_eq(run_until(loop, HY_CORRECT).precision, HY_F32);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(whether_predicting_pays_is_tested_where_batches_can_be_asked_for_again) {
    hy_loop_options options = usual;
    options.can_rewind = _i == 1;
    hy_loop *loop = loop_with(&options, KEYS("predictor", "outer", "regime", "fine-tuning",
                                             "fork_budget", "0.5", "steps", "300"));
    int64_t highest = -1, again = 0, forks = 0;
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        if (step.todo == HY_DO_GRADIENTS) {
            again += step.batch <= highest;
            if (step.batch > highest) highest = step.batch;
        }
        hy_summary s;
        hy_trainer_summary(hy_loop_trainer(loop), &s);
        forks = s.forks;
        honest_answer(loop, &step, &(tally){0});
    }
    ck_assert_int_eq(again > 0, _i == 1);
    ck_assert_int_eq(forks > 0, _i == 1);
    hy_loop_destroy(loop);
}
END_TEST

/* ---- wrong use ------------------------------------------------------------------------------- */

static void refuse_one(hy_config *config, hy_parameter wrong, const char *message) {
    hy_loop *loop;
    hy_loop_options options = {.parameters = {.list = &wrong, .count = 1}};
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, message);
    ck_assert_ptr_null(loop);
}

START_TEST(wrong_parameters_are_refused) {
    hy_config *config = config_with(KEYS("predictor", "outer"));
    hy_loop *loop;
    float x[3] = {0};
    hy_parameter right = {.name = "w", .weights = x, .grads = x, .ndim = 1, .shape = {2}}, p;
    refuse_one(config, (p = right, p.name = "", p), "number 0 has no name");
    refuse_one(config, (p = right, p.weights = NULL, p), "no memory for its weights");
    refuse_one(config, (p = right, p.shape[0] = 0, p), "dimension 0 has 0 elements");
    refuse_one(config, (p = right, p.ndim = 9, p), "9 dimensions");
    refuse_one(config, (p = right, p.group = 1, p), "group 1");
    refuse_one(config, (p = right, p.weights = (char *)x + 1, p), "not a multiple of 4 bytes");
    p = right;
    p.ndim = 2;
    p.shape[0] = p.shape[1] = INT64_MAX;
    refuse_one(config, p, "too many elements");
    hy_parameter twice[] = {right, right};
    hy_loop_options options = {.parameters = {.list = twice, .count = 2}};
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT,
              "two parameters have the name w");
    hy_parameter tied[] = {right, right, right};
    float shared[3];
    options.parameters.list = tied;
    options.parameters.count = 3;
    tied[1].name = "other";
    tied[1].weights = shared; /* in the order of the list it lies between them */
    tied[2].name = "head";
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, "share memory");
    ck_assert(strstr(hy_error_message(), "w and head") || strstr(hy_error_message(), "head and w"));
    tied[0].weights = shared; /* two of its numbers and two of theirs: one is both's */
    tied[1].weights = shared + 1;
    tied[0].shape[0] = tied[1].shape[0] = 2;
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT,
              "parameters w and other share memory");
    options.parameters.count = 0;
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, "at least one");
    options = usual;
    options.parameters.dtype = HY_I32;
    must_fail(hy_loop_create(config, &options, NULL, &loop), HY_ERR_INPUT, "type of weights");
    must_fail(hy_loop_create(NULL, &usual, NULL, &loop), HY_ERR_INPUT, "is NULL");
    must(hy_config_set(config, "steps", "0", HY_FROM_CALLER));
    must_fail(hy_loop_create(config, &usual, NULL, &loop), HY_ERR_INPUT, "train.steps is 0");
    hy_config_destroy(config);
    config = config_with(KEYS("master_dtype", "bf16"));
    must_fail(hy_loop_create(config, &usual, NULL, &loop), HY_ERR_INPUT, "the weights are fp32");
    hy_config_destroy(config);
}
END_TEST

START_TEST(calls_that_cannot_be_are_refused_and_change_nothing) {
    hy_parameter list[2] = {parameters[0], parameters[1]};
    hy_loop_options options = {.parameters = {.list = list, .count = 2}};
    list[1].grads = NULL;
    hy_loop *loop = loop_with(&options, KEYS("predictor", "none", "steps", "2"));
    hy_loop_step step = next_step(loop);
    double loss = loss_of(&step);
    must_fail(hy_loop_answer(loop, loss, BATCH), HY_ERR_INPUT, "bias has no gradient");
    must_fail(hy_loop_set_gradient(loop, 2, gradient.bias), HY_ERR_INPUT,
              "parameter number 2 does not exist");
    must_fail(hy_loop_set_gradient(loop, 1, NULL), HY_ERR_INPUT, "gradient of parameter bias");
    must(hy_loop_set_gradient(loop, 1, gradient.bias));
    must_fail(hy_loop_answer(loop, loss, 0), HY_ERR_INPUT, "0 tokens");
    ck_assert_mem_eq(&learned, &nothing, sizeof learned);
    must_fail(hy_loop_save(loop), HY_ERR_STATE, "no folder");
    must(hy_loop_answer(loop, loss, BATCH));
    run_to_the_end(loop);
    must_fail(hy_loop_answer(loop, loss, BATCH), HY_ERR_STATE, "the run is over");
    must_fail(hy_loop_save(loop), HY_ERR_STATE, "over");
    hy_loop_destroy(loop);
    must_fail(hy_loop_answer(loop, loss, BATCH), HY_ERR_STATE, "was destroyed");
    must_fail(hy_loop_next(loop, &step), HY_ERR_STATE, "was destroyed");
    must_fail(hy_loop_next(NULL, &step), HY_ERR_INPUT, "it is NULL");
    hy_loop_destroy(loop); /* twice is none too many */
    hy_loop_destroy(NULL);
}
END_TEST

/* A call from another thread while one is under way: the observer is called inside of one. */
static hy_loop *shared;
static hy_status from_elsewhere;

static void *ask_elsewhere(void *unused) {
    hy_loop_step step;
    from_elsewhere = hy_loop_next(shared, &step);
    return unused;
}

static void call_from_another_thread(void *user, const hy_step_info *info) {
    pthread_t other;
    (void)user, (void)info;
    ck_assert_int_eq(pthread_create(&other, NULL, ask_elsewhere, NULL), 0);
    pthread_join(other, NULL);
}

START_TEST(two_threads_at_once_are_refused) {
    hy_config *config = config_with(KEYS("predictor", "none", "steps", "2"));
    hy_observer observer = {.on_step = call_from_another_thread};
    learned = nothing;
    must(hy_loop_create(config, &usual, &observer, &shared));
    hy_loop_step step = next_step(shared);
    honest_answer(shared, &step, &(tally){0});
    ck_assert_int_eq(from_elsewhere, HY_ERR_STATE);
    hy_loop_destroy(shared);
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_loop_use");
    TCase *tests = tcase_create("own_loop_use");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, numbers_that_are_not_finite_skip_the_update);
    tcase_add_test(tests, a_divergence_in_correct_takes_the_last_jump_back);
    tcase_add_test(tests, twenty_skipped_updates_in_a_row_end_the_run);
    tcase_add_test(tests, skipped_updates_before_and_after_a_resume_count_together);
    tcase_add_test(tests, after_a_paired_test_that_failed_the_run_waits_for_the_next);
    tcase_add_loop_test(tests, a_stopped_loop_goes_on_to_the_same_bits, 0, 3);
    tcase_add_test(tests, a_loop_is_saved_between_steps);
    tcase_add_test(tests, nothing_is_written_unless_a_folder_is_named);
    tcase_add_test(tests, micro_batches_are_requested_by_number);
    tcase_add_test(tests, phases_say_which_precision_they_want);
    tcase_add_loop_test(
        tests, whether_predicting_pays_is_tested_where_batches_can_be_asked_for_again, 0, 2);
    tcase_add_test(tests, wrong_parameters_are_refused);
    tcase_add_test(tests, calls_that_cannot_be_are_refused_and_change_nothing);
    tcase_add_test(tests, two_threads_at_once_are_refused);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
