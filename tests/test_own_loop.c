/* test_own_loop.c: custom loops: learning, places of state, large parameters, jumps.
 * test_own_loop_use.c tests wrong use and stopping. */
#include "own_loop_rig.h"

#include "base/hash.h"
#include "formats/safetensors.h"
#include "kernels/half.h"

/* ---- learning -------------------------------------------------------------------------------- */

static int64_t jumps_of(hy_loop *loop, bool rejected) {
    hy_summary s;
    hy_trainer_summary(hy_loop_trainer(loop), &s);
    return rejected ? s.rejected_moves : s.moves;
}

START_TEST(logistic_regression_learns_with_every_predictor) {
    static const char *const kinds[] = {"none", "outer", "line"};
    hy_loop *loop = new_loop(KEYS("predictor", kinds[_i]));
    tally t = {.last_residual = NAN};
    int64_t jumps = 0;
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        jumps = jumps_of(loop, false);
        honest_answer(loop, &step, &t);
    }
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.02);
    if (_i == 0) ck_assert_int_eq(t.looks, 0);
    bool moves_always = _i == 1;
    if (moves_always) ck_assert_int_ge(jumps, 10);
    if (moves_always) ck_assert(t.last_residual >= -1 && t.last_residual <= 1);
    ck_assert_int_eq(jumps_of(loop, false), jumps); /* it is over, and says what it came to */
    hy_loop_destroy(loop);
}
END_TEST

/* Question by question in one call each, with gradients in another place every time. */
START_TEST(one_call_for_all_gives_the_same_bits) {
    static logistic places[3];
    logistic expected = learn(&usual, KEYS("predictor", "outer"));
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    hy_step_info info, same;
    hy_loop_step step = next_step(loop), again;
    for (int i = 0; !step.is_over; i++) {
        logistic *at = &places[i % 3];
        double loss = loss_of(&step);
        *at = gradient;
        void *grads[] = {at->weights, at->bias};
        bool is_told = step.todo == HY_DO_GRADIENTS;
        must(hy_loop_exchange(loop, is_told ? grads : NULL, loss, BATCH, &step, &info));
        must(hy_loop_next(loop, &again));
        ck_assert(step.todo == again.todo && step.batch == again.batch && step.lr == again.lr);
        ck_assert(hy_loop_last(loop, &same) && same.step == info.step && same.loss == info.loss);
    }
    ck_assert_mem_eq(&expected, &learned, sizeof expected);
    must_fail(hy_loop_exchange(loop, NULL, 1, BATCH, &step, NULL), HY_ERR_STATE, "is over");
    must_fail(hy_loop_exchange(loop, NULL, 1, BATCH, NULL, NULL), HY_ERR_INPUT, "is NULL");
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(two_runs_give_the_same_bits) {
    static const char *const kinds[] = {"outer", "line"};
    logistic first = learn(&usual, KEYS("predictor", kinds[_i]));
    logistic second = learn(&usual, KEYS("predictor", kinds[_i]));
    ck_assert_mem_eq(&first, &second, sizeof first);
    ck_assert_mem_ne(&first, &nothing, sizeof first);
}
END_TEST

/* With nothing but a length: no preset and no profile of our own models shines through. */
START_TEST(a_loop_begins_with_values_that_nobody_chose_for_another_model) {
    static const char *const pairs[][2] = {{"steps", "40"}, {"lr", "0.01"}, {"device", "cpu"}};
    hy_config *config;
    hy_loop *loop;
    const char *value, *origin;
    must(hy_config_create(&config));
    if (_i == 2) must(hy_config_set(config, "profile", "aggressive", HY_FROM_CALLER));
    for (int i = 0; i < 3; i++) {
        must(hy_config_set(config, pairs[i][0], pairs[i][1], HY_FROM_CALLER));
    }
    if (_i == 1) must(hy_config_use_own(config)); /* the same beforehand */
    must(hy_loop_create(config, &usual, NULL, &loop));
    hy_loop_step step = next_step(loop);
    ck_assert_int_eq(step.count, 1);
    ck_assert_double_eq(step.lr, 0.01);
    ck_assert_int_eq(step.phase, HY_FULL);
    hy_loop_destroy(loop);
    must(hy_config_get(config, "predict_from", &value, &origin));
    ck_assert_str_eq(value, _i == 1 ? "0.1" : "0.3"); /* the caller's own is not changed unasked */
    hy_config_destroy(config);
}
END_TEST

START_TEST(what_the_caller_says_counts_in_a_loop) {
    static const char *const said[][2] = {{"lr_warmup_steps", "8"}, {"lr_warmup_ratio", "0.2"}};
    hy_config *config;
    hy_loop *loop;
    must(hy_config_create(&config));
    must(hy_config_set(config, said[_i][0], said[_i][1], HY_FROM_FILE));
    must(hy_config_set(config, "grad_accum_steps", "3", HY_FROM_FILE));
    must(hy_config_set(config, "device", "cpu", HY_FROM_CALLER));
    must_fail(hy_loop_create(config, &usual, NULL, &loop), HY_ERR_INPUT, "train.steps is 0");
    must(hy_config_set(config, "steps", "40", HY_FROM_SET));
    must(hy_loop_create(config, &usual, NULL, &loop));
    hy_loop_step step = next_step(loop);
    ck_assert_int_eq(step.count, 3);
    ck_assert_double_eq_tol(step.lr, 0.001 / 8, 1e-12);
    hy_loop_destroy(loop);
    hy_config_destroy(config);
}
END_TEST

START_TEST(updates_are_adamw_with_clipping_and_decay_on_matrices) {
    hy_loop *loop = new_loop(KEYS("predictor", "none", "grad_clip", "0.1", "weight_decay", "0.3"));
    double w[FEATURES + 1] = {0}, m[FEATURES + 1] = {0}, v[FEATURES + 1] = {0};
    for (int step = 1; step <= 20; step++) {
        hy_loop_step next = next_step(loop);
        hy_step_info done;
        honest_answer(loop, &next, &(tally){0});
        ck_assert(hy_loop_last(loop, &done));
        double square = 0;
        for (int j = 0; j <= FEATURES; j++) {
            double g = j < FEATURES ? gradient.weights[j] : gradient.bias[0];
            square += g * g;
        }
        ck_assert_double_eq_tol(done.grad_norm, sqrt(square), 1e-6);
        ck_assert_double_gt(done.grad_norm, 0.1);
        for (int j = 0; j <= FEATURES; j++) {
            double g = (j < FEATURES ? gradient.weights[j] : gradient.bias[0]) * 0.1 / sqrt(square);
            m[j] = 0.9 * m[j] + 0.1 * g;
            v[j] = 0.95 * v[j] + 0.05 * g * g;
            w[j] *= 1 - (j < FEATURES ? 0.3 * next.lr : 0);
            w[j] -= next.lr * (m[j] / (1 - pow(0.9, step))) /
                    (sqrt(v[j] / (1 - pow(0.95, step))) + 1e-8);
        }
    }
    for (int j = 0; j < FEATURES; j++) ck_assert_double_eq_tol(learned.weights[j], w[j], 1e-5);
    ck_assert_double_eq_tol(learned.bias[0], w[FEATURES], 1e-5);
    hy_loop_destroy(loop);
}
END_TEST

/* A group that stands still, and one that decays though it is a vector. */
START_TEST(groups_have_separate_rates_and_decays) {
    hy_parameter_group groups[] = {{0, -1}, {0.5, 0.9}};
    hy_parameter list[2] = {parameters[0], parameters[1]};
    hy_loop_options options = {
        .parameters = {.list = list, .count = 2, .groups = groups, .group_count = 2}};
    list[1].group = 1;
    hy_loop *loop = loop_with(&options, KEYS("predictor", "none", "grad_clip", "0"));
    learned.bias[0] = 2;
    hy_loop_step step = next_step(loop);
    honest_answer(loop, &step, &(tally){0});
    double rate = 0.5 * step.lr;
    double expected = 2 * (1 - rate * 0.9) - rate * (gradient.bias[0] > 0 ? 1 : -1);
    ck_assert_double_eq_tol(learned.bias[0], expected, 1e-5);
    for (int j = 0; j < FEATURES; j++) ck_assert(learned.weights[j] == 0);
    hy_loop_destroy(loop);
}
END_TEST

/* ---- where state lives, and in which type ---------------------------------------------------- */

START_TEST(where_the_state_lives_changes_no_bit) {
    static const char *const places[][2] = {
        {"optim_place", "pinned"}, {"optim_place", "disk"}, {"offload_strategy", "pinned"}};
    logistic here = learn(&usual, KEYS("predictor", "outer", "optim_place", "device"));
    logistic there = learn(&usual, KEYS("predictor", "outer", places[_i][0], places[_i][1],
                                        "max_gpu_mem", "64MiB", "offload_folder", folder));
    ck_assert_mem_eq(&here, &there, sizeof here);
}
END_TEST

START_TEST(every_optimizer_and_state_type_learns) {
    static const char *const kinds[][4] = {
        {"optimizer", "sgd", "lr", "0.5"},     {"optimizer", "adamw8bit", "lr", "0.05"},
        {"optim_dtype", "bf16", "lr", "0.05"}, {"optimizer", "paged_adamw", "lr", "0.05"},
        {"optimizer", "lion", "lr", "0.01"},   {"optimizer", "adafactor", "lr", "0.3"}};
    const char *const *k = kinds[_i];
    /* over others than AdamW a fork would have to speak first */
    learn(&usual,
          KEYS("predictor", "outer", "confidence_threshold", "0.5", k[0], k[1], k[2], k[3]));
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + (_i ? 0.03 : 0.05));
}
END_TEST

/* The caller sees bf16; the master behind it continues in fp32, through jumps that are refused
 * too. */
static uint16_t low[FEATURES + 1], low_grads[FEATURES + 1];

static void widen(void) {
    for (int j = 0; j < FEATURES; j++) learned.weights[j] = hy_bf16_to_f32(low[j]);
    learned.bias[0] = hy_bf16_to_f32(low[FEATURES]);
}

static void narrow_gradient(void) {
    for (int j = 0; j < FEATURES; j++) low_grads[j] = hy_f32_to_bf16(gradient.weights[j]);
    low_grads[FEATURES] = hy_f32_to_bf16(gradient.bias[0]);
}

START_TEST(weights_of_16_bits_have_a_master_in_fp32) {
    hy_parameter list[] = {
        {.name = "w", .weights = low, .grads = low_grads, .ndim = 1, .shape = {FEATURES + 1}}};
    hy_loop_options options = {
        .parameters = {.list = list, .count = 1, .dtype = HY_BF16, .grad_dtype = HY_BF16}};
    bool has_master = _i == 0;
    int64_t jumps = 0;
    memset(low, 0, sizeof low);
    hy_loop *loop = loop_with(
        &options, KEYS("predictor", "outer", "master_dtype", has_master ? "fp32" : "bf16"));
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        hy_memory_state memory;
        must(hy_trainer_memory(hy_loop_trainer(loop), &memory));
        uint64_t master = memory.classes[HY_MASTER].live[HY_DEVICE];
        ck_assert_int_eq(master > 0, has_master);
        jumps = jumps_of(loop, false);
        widen();
        double loss = loss_of(&step);
        narrow_gradient();
        bool is_second_look = step.todo == HY_DO_LOSS && step.step % 3 == 0;
        must(hy_loop_answer(loop, is_second_look ? NAN : loss, BATCH)); /* some are refused */
    }
    widen();
    ck_assert_int_ge(jumps, 3);
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.04);
    hy_loop_destroy(loop);
}
END_TEST

/* Micro-batches that weigh differently: summed by the caller, or by the library. */
static void answer_each(hy_loop *loop, const hy_loop_step *step) {
    int64_t weight = 1 + step->batch % 5, first = step->batch * BATCH;
    bool wants = step->todo == HY_DO_GRADIENTS;
    gradient = nothing;
    double loss = loss_sum(&learned, first, weight, 1.0 / (double)weight, wants ? &gradient : NULL);
    must(hy_loop_answer(loop, loss / (double)weight, weight));
}

static void answer_all(hy_loop *loop, const hy_loop_step *step) {
    double loss = 0, weights = 0;
    gradient = nothing;
    for (int64_t b = step->batch; b < step->batch + step->count; b++)
        weights += (double)(1 + b % 5);
    for (int64_t b = step->batch; b < step->batch + step->count; b++) {
        loss += loss_sum(&learned, b * BATCH, 1 + b % 5, 1 / weights,
                         step->todo == HY_DO_GRADIENTS ? &gradient : NULL);
    }
    must(hy_loop_answer(loop, loss / weights, (int64_t)weights));
}

START_TEST(gradients_are_summed_by_them_or_by_us) {
    logistic expected = {0};
    for (int us = 0; us < 2; us++) {
        hy_loop_options options = usual;
        options.parameters.sums_gradients = us;
        hy_loop *loop = loop_with(&options, KEYS("predictor", "none", "grad_accum_steps", "4"));
        for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
            ck_assert_int_eq(step.count, us ? 1 : 4);
            us ? answer_each(loop, &step) : answer_all(loop, &step);
        }
        hy_loop_destroy(loop);
        if (!us) expected = learned;
    }
    for (int j = 0; j < FEATURES; j++) {
        ck_assert_double_eq_tol(learned.weights[j], expected.weights[j], 2e-4);
    }
}
END_TEST

/* ---- large parameters, and updates that wait for them ---------------------------------------- */

#define ROWS 2200
#define LARGE ((int64_t)ROWS * ROWS)

static float *large, *large_grads;

static double large_loss(bool wants) {
    double sum = 0;
    for (int64_t i = 0; i < LARGE; i++) {
        float off = large[i] - (float)(i % 7);
        sum += (double)off * off;
        if (wants) large_grads[i] = off / 1000;
    }
    return sum / (double)LARGE;
}

static uint64_t large_digest(const char *const *pairs, bool in_turn, bool is_stopped) {
    hy_parameter list[] = {
        parameters[0],
        {.name = "large", .weights = large, .grads = large_grads, .ndim = 2, .shape = {ROWS, ROWS}},
        parameters[1]};
    hy_loop_options options = {.parameters = {.list = list, .count = 3}, .uses_in_turn = in_turn};
    for (int64_t i = 0; i < LARGE; i++) large[i] = 0.5f * (float)(i % 5);
    hy_loop *loop = loop_with(&options, pairs);
    for (hy_loop_step step = next_step(loop); !step.is_over; step = next_step(loop)) {
        bool wants = step.todo == HY_DO_GRADIENTS;
        if (wants && in_turn) {
            must(hy_loop_use(loop, 0));
            must(hy_loop_use(loop, step.step % 2 ? 1 : -1));
            must(hy_loop_use(loop, 2));
        }
        double loss = loss_of(&step) + large_loss(wants);
        if (is_stopped && step.step == 3) {
            must(hy_loop_stop(loop));
        } else {
            must(hy_loop_answer(loop, loss, BATCH));
        }
    }
    hy_loop_destroy(loop);
    return hy_hash_bytes(large, (size_t)LARGE * sizeof *large, 0) ^
           hy_hash_bytes(&learned, sizeof learned, 1);
}

/* Cut into parts that travel: the same bits wherever the state is, and one tensor of its shape in
 * the file. */
START_TEST(a_large_parameter_travels_in_parts) {
    static const char *const kinds[] = {"adamw", "adamw8bit", "adafactor"};
    char *out = path_in("run");
    large = malloc((size_t)LARGE * sizeof *large);
    large_grads = malloc((size_t)LARGE * sizeof *large_grads);
#define HERE "steps", "6", "predictor", "none", "optimizer", kinds[_i]
#define THERE HERE, "optim_place", "pinned", "max_gpu_mem", "500MiB"
    uint64_t expected = large_digest(KEYS(HERE), false, false);
    ck_assert(large_digest(KEYS(THERE), false, false) == expected);
    ck_assert(large_digest(KEYS(THERE), true, false) == expected);
    large_digest(KEYS(THERE, "out", out), true, true);
    hy_safetensors *file;
    must(hy_safetensors_open(path_in("run/checkpoint-3/weights.safetensors"), &file));
    const hy_safetensors_entry *entry = hy_safetensors_find(file, "large");
    ck_assert(entry && entry->ndim == 2 && entry->shape[0] == ROWS && entry->shape[1] == ROWS);
    hy_safetensors_close(file);
    ck_assert(large_digest(KEYS(THERE, "resume", out), true, false) == expected);
    free(large);
    free(large_grads);
}
END_TEST

START_TEST(gradients_before_every_parameter_was_asked_for_are_refused) {
    hy_loop_options options = usual;
    options.uses_in_turn = true;
    hy_loop *loop = loop_with(
        &options, KEYS("predictor", "none", "optim_place", "pinned", "max_gpu_mem", "64MiB"));
    hy_loop_step step = next_step(loop);
    must_fail(hy_loop_use(loop, 2), HY_ERR_INPUT, "parameter number 2 does not exist");
    honest_answer(loop, &step, &(tally){0});
    step = next_step(loop);
    must_fail(hy_loop_answer(loop, loss_of(&step), BATCH), HY_ERR_STATE, "weights is next");
    ck_assert(next_step(loop).is_over);
    hy_loop_destroy(loop);
}
END_TEST

/* ---- jumps ----------------------------------------------------------------------------------- */

START_TEST(a_rejected_jump_restores_the_weights_bit_for_bit) {
    static const double after[] = {100, NAN, INFINITY};
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    for (int i = 0; i < 3; i++) {
        hy_loop_step step = run_until(loop, HY_PREDICT);
        logistic before = learned;
        while (step.phase == HY_PREDICT) {
            bool is_proposed = memcmp(&before, &learned, sizeof before) != 0;
            ck_assert_int_eq(step.todo, HY_DO_LOSS);
            must(hy_loop_answer(loop, is_proposed ? after[i] : 0.5, BATCH));
            step = next_step(loop);
        }
        ck_assert_int_eq(jumps_of(loop, true), i + 1);
        ck_assert_mem_eq(&before, &learned, sizeof before);
        ck_assert_str_eq(step.reason, "the guard rejected the jump");
    }
    hy_loop_destroy(loop);
}
END_TEST

/* The formula of outer in double: returns the weight after a jump and updates the velocity. */
static double outer_jump(double d, double phi, double *velocity) {
    *velocity = 0.7 * *velocity + d;
    return phi + 0.7 * (0.7 * *velocity + d);
}

/* Three jumps in a row. */
START_TEST(an_accepted_jump_is_the_predictors_formula) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    double velocity[FEATURES] = {0};
    logistic phi = nothing, proposed = nothing;
    tally t = {0};
    for (int done = 0; done < 20; done++) { /* predict_from: a window begins there */
        hy_loop_step step = next_step(loop);
        honest_answer(loop, &step, &t);
    }
    phi = learned;
    for (int jump = 0; jump < 3; jump++) {
        hy_loop_step step = run_until(loop, HY_PREDICT);
        logistic old = learned;
        while (step.phase == HY_PREDICT) {
            if (memcmp(&old, &learned, sizeof old) != 0) proposed = learned;
            must(hy_loop_answer(loop, 0.5, BATCH));
            step = next_step(loop);
        }
        ck_assert_int_eq(jumps_of(loop, false), jump + 1);
        for (int j = 0; j < FEATURES; j++) {
            double d = (double)old.weights[j] - (double)phi.weights[j];
            double from = (double)phi.weights[j];
            double expected = outer_jump(d, from, &velocity[j]);
            ck_assert_double_eq_tol(learned.weights[j], expected, 1e-6);
            ck_assert_double_eq_tol(learned.weights[j], proposed.weights[j], 1e-6);
        }
        phi = learned;
    }
    hy_loop_destroy(loop);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("own_loop");
    TCase *tests = tcase_create("own_loop");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_loop_test(tests, logistic_regression_learns_with_every_predictor, 0, 3);
    tcase_add_test(tests, one_call_for_all_gives_the_same_bits);
    tcase_add_loop_test(tests, two_runs_give_the_same_bits, 0, 2);
    tcase_add_loop_test(tests, a_loop_begins_with_values_that_nobody_chose_for_another_model, 0, 3);
    tcase_add_loop_test(tests, what_the_caller_says_counts_in_a_loop, 0, 2);
    tcase_add_test(tests, updates_are_adamw_with_clipping_and_decay_on_matrices);
    tcase_add_test(tests, groups_have_separate_rates_and_decays);
    tcase_add_loop_test(tests, where_the_state_lives_changes_no_bit, 0, 3);
    tcase_add_loop_test(tests, every_optimizer_and_state_type_learns, 0, 6);
    tcase_add_loop_test(tests, weights_of_16_bits_have_a_master_in_fp32, 0, 2);
    tcase_add_test(tests, gradients_are_summed_by_them_or_by_us);
    tcase_add_loop_test(tests, a_large_parameter_travels_in_parts, 0, 3);
    tcase_add_test(tests, gradients_before_every_parameter_was_asked_for_are_refused);
    tcase_add_test(tests, a_rejected_jump_restores_the_weights_bit_for_bit);
    tcase_add_test(tests, an_accepted_jump_is_the_predictors_formula);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
