/* test_loop.c: the caller's own loop: order of calls, windows and moves, trouble, compute. */
#include "own_rig.h"

#include "optim/schedule.h"
#include "own/loop.h"

#define BATCH 32

static hy_loop *new_loop(const char *const *pairs) {
    hy_config *config = config_with(pairs);
    hy_loop *loop;
    learned = nothing;
    gradient = nothing;
    must(hy_loop_create(config, parameters, 2, &loop));
    hy_config_destroy(config);
    return loop;
}

/* ---- driving a loop -------------------------------------------------------------------------- */

typedef struct tally {
    int64_t next; /* sample */
    int64_t updates, accepted, rejected, rolled_back;
    double predicted, last_residual;
} tally;

static double train_loss(tally *t) {
    gradient = nothing;
    double loss = loss_sum(&learned, t->next, BATCH, 1.0 / BATCH, &gradient) / BATCH;
    t->next += BATCH;
    return loss;
}

static double guard_loss(const tally *t) {
    return loss_sum(&learned, t->next, BATCH, 1, NULL) / BATCH;
}

static void honest_step(hy_loop *loop, const hy_loop_step *step, tally *t) {
    hy_loop_outcome done;
    if (step->wants_backward) {
        must(hy_loop_update(loop, train_loss(t), &done));
        t->updates++;
        t->rolled_back += done.was_rolled_back;
        if (!isnan(done.residual_cosine)) t->last_residual = done.residual_cosine;
        return;
    }
    double before = guard_loss(t);
    must(hy_loop_propose(loop));
    must(hy_loop_judge(loop, before, guard_loss(t), &done));
    t->accepted += done.was_accepted;
    t->rejected += !done.was_accepted;
    t->predicted += done.predicted_steps;
}

static hy_loop_step next_step(hy_loop *loop) {
    hy_loop_step step;
    must(hy_loop_next(loop, &step));
    return step;
}

static tally run_to_the_end(hy_loop *loop) {
    tally t = {.last_residual = NAN};
    for (;;) {
        hy_loop_step step = next_step(loop);
        if (step.is_over) return t;
        honest_step(loop, &step, &t);
    }
}

/* Runs honest steps until one of this phase is due; it is left to the caller. */
static hy_loop_step run_until(hy_loop *loop, hy_phase phase, tally *t) {
    for (;;) {
        hy_loop_step step = next_step(loop);
        ck_assert(!step.is_over);
        if (step.phase == phase) return step;
        honest_step(loop, &step, t);
    }
}

/* ---- learning -------------------------------------------------------------------------------- */

START_TEST(logistic_regression_learns_with_every_predictor) {
    static const char *const kinds[] = {"none", "outer", "line"};
    hy_loop *loop = new_loop(KEYS("predictor", kinds[_i]));
    tally t = run_to_the_end(loop);
    double best = held_out_loss(&truth);
    ck_assert_double_lt(held_out_loss(&learned), best + 0.02);
    if (_i == 0) ck_assert_int_eq(t.accepted + t.rejected, 0);
    if (_i == 1) ck_assert_int_ge(t.accepted, 10);
    if (_i == 1) ck_assert(t.last_residual >= -1 && t.last_residual <= 1);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(two_runs_give_the_same_bits) {
    static const char *const kinds[] = {"outer", "line"};
    logistic first = {0};
    for (int i = 0; i < 2; i++) {
        hy_loop *loop = new_loop(KEYS("predictor", kinds[_i]));
        run_to_the_end(loop);
        hy_loop_destroy(loop);
        if (i == 0) first = learned;
    }
    ck_assert_mem_eq(&first, &learned, sizeof learned);
    ck_assert_mem_ne(&first, &nothing, sizeof first);
}
END_TEST

START_TEST(updates_are_adamw_with_clipping_and_decay_on_matrices) {
    hy_loop *loop = new_loop(KEYS("predictor", "none", "grad_clip", "0.1", "weight_decay", "0.3"));
    double w[FEATURES + 1] = {0}, m[FEATURES + 1] = {0}, v[FEATURES + 1] = {0};
    tally t = {0};
    for (int step = 1; step <= 20; step++) {
        hy_loop_step next = next_step(loop);
        hy_loop_outcome done;
        must(hy_loop_update(loop, train_loss(&t), &done));
        double square = 0;
        for (int j = 0; j <= FEATURES; j++) {
            double g = j < FEATURES ? gradient.weights[j] : gradient.bias[0];
            square += g * g;
        }
        ck_assert_double_eq_tol(done.grad_norm, sqrt(square), 1e-9);
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

/* ---- moves ----------------------------------------------------------------------------------- */

static double length_between(const logistic *a, const logistic *b) {
    double square = 0;
    for (int j = 0; j < FEATURES; j++) square += pow(a->weights[j] - b->weights[j], 2);
    return sqrt(square + pow(a->bias[0] - b->bias[0], 2));
}

/* predict_from is a tenth of 200: the first step that begins there is the first of the window. */
START_TEST(a_window_begins_at_the_weights_before_its_first_step) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    for (int done = 0; done < 20; done++) {
        hy_loop_step step = next_step(loop);
        honest_step(loop, &step, &t);
    }
    logistic first = learned;
    hy_loop_step step = run_until(loop, HY_PREDICT, &t);
    ck_assert_int_eq(step.step, 20 + 8);
    ck_assert_mem_eq(loop->buffer[0], first.weights, sizeof first.weights);
    ck_assert_mem_ne(learned.weights, first.weights, sizeof first.weights);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(clearing_a_slot_clears_it_whatever_the_weights_hold) {
    float theta[2] = {NAN, INFINITY}, buffer[2] = {1, 2};
    hy_parameter parameter = {.weights = theta, .count = 2};
    hy_loop loop = {.parameters = &parameter, .count = 1, .elements = 2, .buffer = {buffer, NULL}};
    hy_loop_run(&loop, &(hy_formulas){.list = {{.target = 0}}, .count = 1});
    ck_assert(buffer[0] == 0 && buffer[1] == 0);
}
END_TEST

/* The margin for first moves is 5 % of the loss; with a history the guard knows better. */
START_TEST(the_guard_learns_what_moves_cost) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    hy_loop_outcome done;
    for (int i = 0; i < 7; i++) {
        run_until(loop, HY_PREDICT, &t);
        must(hy_loop_propose(loop));
        double after = i < 6 ? 1 + 0.001 * (i % 3) : 1.03;
        must(hy_loop_judge(loop, 1, after, &done));
        ck_assert_int_eq(done.was_accepted, i < 6);
    }
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_rejected_move_restores_the_weights_bit_for_bit) {
    static const double after[] = {100, NAN, INFINITY};
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    for (int i = 0; i < 3; i++) {
        hy_loop_outcome done;
        run_until(loop, HY_PREDICT, &t);
        logistic before = learned;
        must(hy_loop_propose(loop));
        ck_assert_mem_ne(&before, &learned, sizeof before);
        must(hy_loop_judge(loop, 0.5, after[i], &done));
        ck_assert(!done.was_accepted);
        ck_assert_mem_eq(&before, &learned, sizeof before);
        ck_assert_mem_eq(loop->buffer[0], learned.weights, sizeof learned.weights);
        for (int64_t j = 0; j < loop->elements; j++) ck_assert(loop->buffer[1][j] == 0);
    }
    hy_loop_destroy(loop);
}
END_TEST

/* Two moves in a row against the outer-Nesterov formulas in double. */
START_TEST(an_accepted_move_is_the_predictors_formula) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    double velocity[FEATURES] = {0};
    for (int move = 0; move < 2; move++) {
        hy_loop_outcome done;
        run_until(loop, HY_PREDICT, &t);
        logistic old = learned;
        float phi[FEATURES];
        memcpy(phi, loop->buffer[0], sizeof phi);
        must(hy_loop_propose(loop));
        logistic proposed = learned;
        must(hy_loop_judge(loop, 0.5, 0.5, &done));
        ck_assert(done.was_accepted);
        ck_assert_double_lt(done.predicted_steps, 30);
        for (int j = 0; j < FEATURES; j++) {
            double d = (double)old.weights[j] - (double)phi[j];
            velocity[j] = 0.7 * velocity[j] + d;
            double expected = phi[j] + 0.7 * (0.7 * velocity[j] + d);
            ck_assert_double_eq_tol(learned.weights[j], expected, 1e-6);
            ck_assert_double_eq_tol(proposed.weights[j], expected, 1e-6);
            ck_assert_double_eq_tol(loop->buffer[1][j], velocity[j], 1e-6);
            ck_assert(loop->buffer[0][j] == learned.weights[j]);
        }
    }
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_move_is_scaled_to_max_predict_steps) {
    hy_loop_outcome far, near;
    logistic moved[2], from[2];
    for (int i = 0; i < 2; i++) {
        hy_loop *loop = new_loop(
            KEYS("predictor", "outer", "outer_eta", "1.5", "max_predict_steps", i ? "1" : "30"));
        tally t = {0};
        run_until(loop, HY_PREDICT, &t);
        from[i] = learned;
        must(hy_loop_propose(loop));
        must(hy_loop_judge(loop, 0.5, 0.5, i ? &near : &far));
        moved[i] = learned;
        hy_loop_destroy(loop);
    }
    ck_assert_double_gt(far.predicted_steps, 5);
    ck_assert_double_eq_tol(near.predicted_steps, 1, 1e-9);
    double ratio = length_between(&moved[1], &from[1]) / length_between(&moved[0], &from[0]);
    ck_assert_double_eq_tol(ratio, 1 / far.predicted_steps, 1e-4);
}
END_TEST

/* ---- trouble --------------------------------------------------------------------------------- */

/* Asserts `steps` Full steps with Predict cooling down; runs them. */
static void assert_cooling(hy_loop *loop, tally *t, int steps, const char *reason) {
    for (int i = 0; i < steps; i++) {
        hy_loop_step step = next_step(loop);
        ck_assert_int_eq(step.phase, HY_FULL);
        ck_assert_str_eq(step.reason, i ? "" : reason);
        ck_assert(strstr(step.obstacle, "cools down") != NULL);
        honest_step(loop, &step, t);
    }
}

/* bench/predict_value's control: the guard is paid for and nothing moves. */
START_TEST(outer_without_momentum_and_of_length_1_moves_nothing) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer", "outer_mu", "0", "outer_eta", "1"));
    tally t = {0};
    hy_loop_outcome done;
    run_until(loop, HY_PREDICT, &t);
    logistic before = learned;
    double spent = loop->spent;
    must(hy_loop_propose(loop));
    must(hy_loop_judge(loop, 0.5, 0.5, &done));
    ck_assert(done.was_accepted);
    ck_assert(done.predicted_steps == 0);
    ck_assert_mem_eq(&before, &learned, sizeof before);
    ck_assert_double_eq_tol(loop->spent - spent, 2 * 0.25 / 3, 1e-12);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_rejection_leads_to_full_and_a_cooldown_that_doubles) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    for (int round = 0; round < 2; round++) {
        run_until(loop, HY_PREDICT, &t);
        must(hy_loop_propose(loop));
        must(hy_loop_judge(loop, 0.5, 50, NULL));
        assert_cooling(loop, &t, round ? 20 : 10, "the guard rejected the jump");
    }
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(numbers_that_are_not_finite_skip_the_update) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    for (int i = 0; i < 30; i++) {
        hy_loop_step step = next_step(loop);
        honest_step(loop, &step, &t);
    }
    for (int what = 0; what < 2; what++) {
        hy_loop_outcome done;
        run_until(loop, HY_FULL, &t);
        logistic before = learned;
        float m = loop->m[3], v = loop->v[3];
        double loss = train_loss(&t);
        if (what == 0) gradient.weights[5] = NAN;
        must(hy_loop_update(loop, what ? NAN : loss, &done));
        ck_assert(done.was_skipped && !done.was_rolled_back);
        ck_assert_mem_eq(&before, &learned, sizeof before);
        ck_assert(loop->m[3] == m && loop->v[3] == v);
        assert_cooling(loop, &t, 10, "the run diverged");
    }
    run_to_the_end(loop);
    ck_assert_double_lt(held_out_loss(&learned), held_out_loss(&truth) + 0.02);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(a_divergence_in_correct_takes_the_last_move_back) {
    static const double losses[] = {1e6, NAN};
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    hy_loop_outcome done;
    run_until(loop, HY_PREDICT, &t);
    logistic before = learned;
    must(hy_loop_propose(loop));
    must(hy_loop_judge(loop, 0.5, 0.5, &done));
    ck_assert(done.was_accepted);
    hy_loop_step step = run_until(loop, HY_CORRECT, &t);
    honest_step(loop, &step, &t); /* the first of two goes well */
    step = run_until(loop, HY_CORRECT, &t);
    train_loss(&t);
    must(hy_loop_update(loop, losses[_i], &done));
    ck_assert(done.was_rolled_back);
    ck_assert(isnan(done.residual_cosine));
    ck_assert_mem_eq(&before, &learned, sizeof before);
    ck_assert_double_gt(fabsf(loop->m[0]), 0); /* the optimizer's state is kept */
    for (int64_t j = 0; j < loop->elements; j++) ck_assert(loop->buffer[1][j] == 0);
    assert_cooling(loop, &t, 10, "the run diverged");
    tally rest = run_to_the_end(loop);
    ck_assert_int_gt(rest.accepted, 0); /* and it predicts again */
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(twenty_skipped_updates_in_a_row_end_the_run) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    hy_loop_step step;
    for (int i = 0; i < 19; i++) {
        must(hy_loop_next(loop, &step));
        gradient.bias[0] = INFINITY;
        must(hy_loop_update(loop, 1, NULL));
    }
    must(hy_loop_next(loop, &step));
    must_fail(hy_loop_update(loop, 1, NULL), HY_ERR_NUMERIC, "20 steps in a row");
    ck_assert(strstr(hy_error_message(), "gradient of bias") != NULL);
    ck_assert_mem_eq(&learned, &nothing, sizeof learned);
    hy_loop_destroy(loop);
}
END_TEST

/* ---- order and compute ----------------------------------------------------------------------- */

static hy_status call(hy_loop *loop, hy_loop_turn turn) {
    hy_loop_step step;
    switch (turn) {
    case HY_TURN_NEXT: return hy_loop_next(loop, &step);
    case HY_TURN_UPDATE: return hy_loop_update(loop, 1, NULL);
    case HY_TURN_PROPOSE: return hy_loop_propose(loop);
    default: return hy_loop_judge(loop, 1, 1, NULL);
    }
}

static void assert_only(hy_loop *loop, hy_loop_turn right, const char *name) {
    logistic before = learned;
    for (int turn = HY_TURN_NEXT; turn <= HY_TURN_JUDGE; turn++) {
        if (turn == (int)right) continue;
        must_fail(call(loop, (hy_loop_turn)turn), HY_ERR_STATE, name);
    }
    ck_assert_mem_eq(&before, &learned, sizeof before);
}

START_TEST(a_call_out_of_turn_is_refused_and_changes_nothing) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer"));
    tally t = {0};
    hy_loop_step step;
    assert_only(loop, HY_TURN_NEXT, "hy_loop_next comes next");
    must(hy_loop_next(loop, &step));
    assert_only(loop, HY_TURN_UPDATE, "phase warmup and hy_loop_update comes next");
    honest_step(loop, &step, &t);
    run_until(loop, HY_PREDICT, &t);
    assert_only(loop, HY_TURN_PROPOSE, "phase predict and hy_loop_propose comes next");
    must(hy_loop_propose(loop));
    assert_only(loop, HY_TURN_JUDGE, "phase predict and hy_loop_judge comes next");
    must(hy_loop_judge(loop, 1, 1, NULL));
    assert_only(loop, HY_TURN_NEXT, "between two steps");
    run_to_the_end(loop);
    must_fail(hy_loop_update(loop, 1, NULL), HY_ERR_STATE, "the run is over");
    must(hy_loop_next(loop, &step));
    ck_assert(step.is_over && !step.wants_backward);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(spent_compute_is_counted_and_sets_the_learning_rate) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer", "steps", "100", "guard_share", "0.7"));
    hy_schedule schedule = {.kind = HY_SCHEDULE_COSINE,
                            .lr = 0.05,
                            .min_ratio = 0.1,
                            .cooldown = 0.2,
                            .warmup = 10,
                            .total = 100};
    double expected = 0;
    int64_t true_steps = 0, moves = 0;
    tally t = {0};
    hy_loop_step step;
    for (step = next_step(loop); !step.is_over; step = next_step(loop)) {
        ck_assert_int_eq(step.step, true_steps);
        ck_assert(step.lr == hy_schedule_rate(&schedule, (int64_t)floor(expected + 1e-9)));
        bool is_move = !step.wants_backward;
        honest_step(loop, &step, &t);
        true_steps += !is_move;
        moves += is_move;
        expected += is_move ? 2 * 0.7 / 3 : 1;
        if (true_steps % 10 == 0 && !is_move) {
            must(hy_loop_spend(loop, 1.0 / 3));
            expected += 1.0 / 3;
        }
        ck_assert_double_eq_tol(loop->spent, expected, 1e-9);
    }
    ck_assert_int_gt(moves, 3);
    ck_assert_double_ge(expected, 100 - 1e-9);
    ck_assert_double_lt(expected, 101.4);
    must_fail(hy_loop_spend(loop, -1), HY_ERR_INPUT, "-1");
    must_fail(hy_loop_spend(loop, NAN), HY_ERR_INPUT, "not negative");
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(what_is_spent_between_steps_can_close_predict) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer", "predict_until", "0.5"));
    tally t = {0};
    hy_loop_step step = run_until(loop, HY_PREDICT, &t);
    honest_step(loop, &step, &t);
    for (int i = 0; i < 8; i++) { /* the eighth update completes a window */
        step = next_step(loop);
        ck_assert(step.wants_backward);
        honest_step(loop, &step, &t);
    }
    if (_i) must(hy_loop_spend(loop, 100)); /* a costly validation */
    step = next_step(loop);
    ck_assert_int_eq(step.phase, _i ? HY_FULL : HY_PREDICT);
    ck_assert_str_eq(step.obstacle, _i ? "the run is past predict_until" : "");
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(fine_tuning_does_not_predict_without_evidence) {
    hy_loop *loop = new_loop(KEYS("predictor", "outer", "regime", "fine-tuning"));
    hy_loop_step step;
    must(hy_loop_next(loop, &step));
    ck_assert_double_lt(step.confidence, 0.75);
    honest_step(loop, &step, &(tally){0});
    tally t = run_to_the_end(loop);
    ck_assert_int_eq(t.accepted + t.rejected, 0);
    hy_loop_destroy(loop);
}
END_TEST

START_TEST(wrong_parameters_are_refused) {
    hy_config *config = config_with(KEYS("predictor", "outer"));
    hy_loop *loop;
    float x[2] = {0};
    hy_parameter nameless = {"", x, x, 2, false}, placeless = {"w", NULL, x, 2, false},
                 gradless = {"w", x, NULL, 2, false}, empty = {"w", x, x, 0, false},
                 endless = {"w", x, x, INT64_MAX, false};
    must_fail(hy_loop_create(config, NULL, 1, &loop), HY_ERR_INPUT, "at least one parameter");
    must_fail(hy_loop_create(config, &empty, 0, &loop), HY_ERR_INPUT, "at least one parameter");
    must_fail(hy_loop_create(config, &nameless, 1, &loop), HY_ERR_INPUT, "number 0 has no name");
    must_fail(hy_loop_create(config, &placeless, 1, &loop), HY_ERR_INPUT, "weights");
    must_fail(hy_loop_create(config, &gradless, 1, &loop), HY_ERR_INPUT, "gradient");
    must_fail(hy_loop_create(config, &empty, 1, &loop), HY_ERR_INPUT, "0 elements");
    must_fail(hy_loop_create(config, &endless, 1, &loop), HY_ERR_INPUT, "more than can be counted");
    must(
        hy_config_set(config, "epochs", "1", HY_FROM_CALLER)); /* steps then follow from the data */
    must(hy_config_set(config, "steps", "0", HY_FROM_CALLER));
    must_fail(hy_loop_create(config, parameters, 2, &loop), HY_ERR_INPUT, "train.steps is 0");
    hy_config_destroy(config);
    config = config_with(KEYS("optimizer", "sgd"));
    must_fail(hy_loop_create(config, parameters, 2, &loop), HY_ERR_INPUT, "optimizer is sgd");
    hy_config_destroy(config);
    config = config_with(KEYS("device", "cuda:1"));
    must_fail(hy_loop_create(config, parameters, 2, &loop), HY_ERR_INPUT, "device is cuda:1");
    hy_config_destroy(config);
}
END_TEST

static Suite *make_suite(void) {
    Suite *suite = suite_create("loop");
    TCase *tests = tcase_create("loop");
    tcase_add_loop_test(tests, logistic_regression_learns_with_every_predictor, 0, 3);
    tcase_add_loop_test(tests, two_runs_give_the_same_bits, 0, 2);
    tcase_add_test(tests, updates_are_adamw_with_clipping_and_decay_on_matrices);
    tcase_add_test(tests, a_window_begins_at_the_weights_before_its_first_step);
    tcase_add_test(tests, clearing_a_slot_clears_it_whatever_the_weights_hold);
    tcase_add_test(tests, the_guard_learns_what_moves_cost);
    tcase_add_test(tests, a_rejected_move_restores_the_weights_bit_for_bit);
    tcase_add_test(tests, an_accepted_move_is_the_predictors_formula);
    tcase_add_test(tests, a_move_is_scaled_to_max_predict_steps);
    tcase_add_test(tests, outer_without_momentum_and_of_length_1_moves_nothing);
    tcase_add_test(tests, a_rejection_leads_to_full_and_a_cooldown_that_doubles);
    tcase_add_test(tests, numbers_that_are_not_finite_skip_the_update);
    tcase_add_loop_test(tests, a_divergence_in_correct_takes_the_last_move_back, 0, 2);
    tcase_add_test(tests, twenty_skipped_updates_in_a_row_end_the_run);
    tcase_add_test(tests, a_call_out_of_turn_is_refused_and_changes_nothing);
    tcase_add_test(tests, spent_compute_is_counted_and_sets_the_learning_rate);
    tcase_add_loop_test(tests, what_is_spent_between_steps_can_close_predict, 0, 2);
    tcase_add_test(tests, fine_tuning_does_not_predict_without_evidence);
    tcase_add_test(tests, wrong_parameters_are_refused);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(make_suite)
