/* test_engine_exact.c: no choice of the memory engine changes a bit of a run.
 *
 * Each value is tried alone, and every pair of values of different choices occurs in some run, so that a
 * few dozen short runs cover them all. Part of the runs have streams with random delays, part are stopped
 * half-way and go on with the choices of another run. See engine_rows.h. */
#include "engine_rows.h"

#include <math.h>

START_TEST(the_list_of_rows_has_every_pair_of_values) {
    row rows[MOST_ROWS];
    int count = make_rows(1, rows);
    for (int i = 0; i < CHOICES; i++) {
        for (int k = i + 1; k < CHOICES; k++) {
            for (int pair = 0; pair < value_count(i) * value_count(k); pair++) {
                bool is_there = false;
                for (int r = 0; r < count; r++) {
                    is_there |= rows[r].value[i] == pair % value_count(i) &&
                                rows[r].value[k] == pair / value_count(i);
                }
                ck_assert(is_there);
            }
        }
    }
}
END_TEST

START_TEST(a_run_makes_moves_and_repeats_itself) {
    const row first = {{0}};
    hy_summary summary;
    hy_trainer *t = small_trainer(models[0].words, "none", NULL, NULL);
    next_losses(t, ENGINE_STEPS, plain.steps);
    hy_trainer_summary(t, &summary);
    ck_assert_int_ge(summary.moves, 2);
    ck_assert_int_gt(t->engine.progress.average_samples, 1);
    hy_trainer_destroy(t);
    run_plain(_i);
    check_row(_i, &first, &first);
}
END_TEST

/* A choice that is not heeded changes no bit either. */
START_TEST(choices_are_heeded) {
    static const hy_place places[] = {HY_DEVICE, HY_PINNED, HY_DISK};
    const char *pairs[ENGINE_WORDS];
    for (int v = 0; v < 3; v++) {
        row r = {{v, v, v, v, v > 0, v == 2, v, v, v > 0, 4, v, v > 0, 0, 0, 0}};
        words_of(&r, pairs);
        hy_trainer *t = small_trainer(models[2].words, "none", NULL, pairs);
        const hy_store *stores[] = {
            hy_store_of(&t->engine, HY_ROW_WORKING), hy_store_of(&t->engine, HY_ROW_MASTER),
            hy_store_of(&t->engine, HY_ROW_GRADS), hy_store_of(&t->engine, HY_ROW_OPTIM),
            hy_store_of(&t->engine, HY_ROW_OPTIM + 1)};
        for (int i = 0; i < 5; i++) ck_assert_int_eq(stores[i]->place, places[v]);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(hy_store_of(&t->engine, HY_ROW_SLOW + i)->place,
                             v == 2 ? HY_DISK : HY_PINNED);
            ck_assert(t->engine.work.train[i]->options.recompute != 0);
            ck_assert_int_eq(t->engine.work.train[i]->options.recompute_layers, v);
            ck_assert_int_eq(t->engine.work.train[i]->options.offloads, v > 0);
        }
        ck_assert_int_eq(t->engine.plan.choice.updates_on_gather, v > 0);
        ck_assert_int_eq(t->engine.plan.choice.resident_units, v);
        hy_trainer_destroy(t);
    }
}
END_TEST

START_TEST(each_choice_alone_changes_no_bit) {
    run_plain(_i);
    for (int i = 0; i < CHOICES; i++) {
        for (int v = 1; v < value_count(i); v++) {
            row r = {{0}};
            const row next = {{0}};
            r.value[i] = v;
            check_row(_i, &r, &next);
        }
    }
}
END_TEST

/* The long form has every row with every model (tests/long/test_engine_exact_all.c). Here the first two models
 * have all of them, others every fourth, each beginning at another one. Sanitizers look for races and wrong
 * addresses, ten times as slowly: fewer will do. */
static int row_step(int model) {
#ifdef HY_ALL_ROWS
    return model >= 0;
#else
    return model < 2 ? 2 : 4;
#endif
}

START_TEST(pairs_of_choices_change_no_bit) {
    row rows[MOST_ROWS];
    int count = make_rows((uint64_t)_i + 1, rows);
    run_plain(_i);
    for (int i = _i % row_step(_i); i < count; i += row_step(_i)) {
        check_row(_i, &rows[i], &rows[(i + 1) % count]);
    }
}
END_TEST

/* ---- what rarely happens --------------------------------------------------------------------------- */

/* Called before each step; true when what it is about has happened. */
typedef bool (*trouble)(hy_trainer *t, int step);

/* A Correct step whose loss is taken for a divergence: the move is undone. */
static bool diverge(hy_trainer *t, int step) {
    if (step > 6 && t->progress.machine.phase == HY_CORRECT) {
        t->progress.divergence = (hy_divergence){.count = 100, .loss_mean = 0.001, .grad_level = 0};
    }
    return t->progress.machine.divergences > 0;
}

/* An arm with moves is tried and thrown away. */
static bool fork_off(hy_trainer *t, int step) {
    (void)step;
    must(hy_trainer_consider_fork(t));
    return t->progress.fork_spent > 0;
}

/* Gradients that are not finite: nothing is updated. */
static bool overflow(hy_trainer *t, int step) {
    if (step == 6 || step == 7) t->engine.progress.loss_scale.scale = INFINITY;
    if (step == 8) t->engine.progress.loss_scale.scale = 1;
    return t->engine.progress.skipped > 0;
}

static bool wait_for_moves(hy_trainer *t, int step) {
    (void)step;
    return t->progress.machine.moves + t->progress.machine.rejections > 0;
}

static const struct {
    const char *name, *words;
    trouble trouble;
} rare[] = {
    {"a divergence", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA "precision bf16 ", diverge},
    {"a fork",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 "precision fp32 regime fine-tuning fork_budget 0.5 "
                                         "fork_steps 3 schedule constant steps 40 ",
     fork_off},
    {"skipped steps", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA "precision bf16 ", overflow},
    {"line", ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 "precision bf16 predictor line ", wait_for_moves},
    {"ema with a divergence", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA "precision bf16 predictor ema ",
     diverge},
    {"ema with windows of one step",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2
     "precision fp32 predictor ema full_steps 0 correct_steps 1 ",
     wait_for_moves},
    {"a divergence with the predictor in 8 bits",
     ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA ALL_BF16 "master_dtype bf16 predictor_dtype 8bit ",
     diverge},
    {"a fork with the predictor in 8 bits",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 ALL_BF16
     "master_dtype bf16 predictor_dtype 8bit regime fine-tuning fork_budget 0.5 fork_steps 3 "
     "schedule constant steps 40 ",
     fork_off},
};
enum { RARE = sizeof rare / sizeof rare[0], RARE_STEPS = 20 };

static void rare_losses(int kind, const row *r, const char *out, double losses[RARE_STEPS]) {
    const char *pairs[ENGINE_WORDS];
    bool has_happened = false;
    words_of(r, pairs);
    hy_trainer *t = small_trainer(rare[kind].words, out, NULL, pairs);
    engine_delay(t, atoi(choices[DELAYS].values[r->value[DELAYS]]));
    for (int i = 0; i < RARE_STEPS; i++) {
        hy_step_info info;
        has_happened |= rare[kind].trouble(t, i);
        must(hy_trainer_step(t, &info));
        losses[i] = info.loss;
    }
    ck_assert_msg(has_happened, "%s", rare[kind].name);
    must(hy_trainer_save(t));
    hy_trainer_destroy(t);
}

START_TEST(what_rarely_happens_is_the_same_everywhere) {
    row rows[MOST_ROWS];
    const row first = {{0}};
    double expected[RARE_STEPS], losses[RARE_STEPS];
    int count = make_rows((uint64_t)_i + 50, rows);
    rare_losses(_i, &first, plain_folder, expected);
    for (int i = 0; i < count; i += 3) {
        char text[512] = "";
        rare_losses(_i, &rows[i], folder, losses);
        describe(&rows[i], text, sizeof text);
        ck_assert_msg(memcmp(losses, expected, sizeof losses) == 0, "%s:%s changed a loss",
                      rare[_i].name, text);
        ck_assert_msg(!engine_difference(plain_folder, folder), "%s:%s changed a tensor",
                      rare[_i].name, text);
    }
}
END_TEST

static Suite *exact_suite(void) {
    Suite *suite = suite_create("memory engine: exact");
    TCase *tests = tcase_create("exact"), *last = tcase_create("rare");
    tcase_set_timeout(tests, 300);
    tcase_set_timeout(last, 300);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_checked_fixture(last, set_up, tear_down);
    tcase_add_test(tests, the_list_of_rows_has_every_pair_of_values);
    tcase_add_loop_test(tests, a_run_makes_moves_and_repeats_itself, 0, MODELS);
    tcase_add_test(tests, choices_are_heeded);
    tcase_add_loop_test(tests, each_choice_alone_changes_no_bit, 0, 2);
    tcase_add_loop_test(tests, pairs_of_choices_change_no_bit, 0, MODELS);
    tcase_add_loop_test(last, what_rarely_happens_is_the_same_everywhere, 0, RARE);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, last);
    return suite;
}

HY_TEST_MAIN(exact_suite)
