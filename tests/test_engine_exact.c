/* test_engine_exact.c: no memory choice changes a bit of a run.
 *
 * Each value is tried alone, and every pair of values of different choices occurs in some run, so a
 * few dozen short runs cover all pairs. Some runs have streams with random delays; some are stopped
 * half-way and continue with the choices of another run. See engine_rows.h. */
#include "engine_rows.h"

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
    hy_trainer *t = small_trainer(models[0].words, folder, NULL, NULL);
    next_losses(t, ENGINE_STEPS, plain.steps);
    hy_trainer_summary(t, &summary);
    ck_assert_int_ge(summary.moves, 2);
    must(hy_trainer_save(t));
    ck_assert_double_gt(saved_number(folder, "tail_samples"), 1);
    hy_trainer_destroy(t);
    run_plain(_i);
    check_row(_i, &first, &first);
}
END_TEST

/* A choice that is not heeded changes no bit either. */
START_TEST(choices_are_heeded) {
    static const hy_class classes[] = {HY_WEIGHTS, HY_MASTER, HY_GRADS, HY_OPTIM};
    static const hy_place places[] = {HY_DEVICE, HY_PINNED, HY_DISK};
    const char *pairs[ENGINE_WORDS];
    for (int v = 0; v < 3; v++) {
        row r = {{v, v, v, v, v > 0, v == 2, v, v, v > 0, 4, v, v > 0, 0, 0, 0}};
        words_of(&r, pairs);
        hy_trainer *t = small_trainer(models[2].words, "none", NULL, pairs);
        hy_memory_state memory;
        must(hy_trainer_memory(t, &memory));
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(memory.classes[classes[i]].place, places[v]);
            ck_assert_uint_gt(memory.classes[classes[i]].live[places[v]], 0);
        }
        ck_assert_int_eq(memory.classes[HY_PREDICTOR].place, v == 2 ? HY_DISK : HY_PINNED);
        ck_assert_int_eq(memory.classes[HY_ACTIVATIONS].place, v > 0 ? HY_PINNED : HY_DEVICE);
        must_plan(t, "choices.recompute", "all");
        must_plan(t, "choices.update", v > 0 ? "gather" : "now");
        ck_assert_int_eq(plan_number(t, "choices.recompute_layers"), v);
        ck_assert_int_eq(plan_number(t, "choices.resident_units"), v);
        ck_assert_int_eq(plan_number(t, "choices.ring_depth"), atoi(choices[6].values[v]));
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

/* The long form has every row with every model (tests/long/test_engine_exact_all.c). Here the first
 * two models have every fifth, others every tenth, each beginning at another one. */
static int row_step(int model) { return model < 2 ? EVERY(5) : EVERY(10); }

START_TEST(pairs_of_choices_change_no_bit) {
    row rows[MOST_ROWS];
    int count = make_rows((uint64_t)_i + 1, rows);
    run_plain(_i);
    for (int i = _i % row_step(_i); i < count; i += row_step(_i)) {
        check_row(_i, &rows[i], &rows[(i + 1) % count]);
    }
}
END_TEST

/* ---- what rarely happens --------------------------------------------------------------------- */

/* Called before each step with what the one before came to; true when what it is about has
 * happened. */
typedef bool (*trouble)(const hy_step_info *before, int step);

/* The gradients of this step are not finite. */
static void overflow_op(hy_op_call *call) {
    if (call->kind == HY_OP_CROSS_ENTROPY) call->attr.loss.scale = INFINITY;
}

/* A Correct step that diverges: the move is undone. */
static bool diverge(const hy_step_info *before, int step) {
    bool is_move = before->phase == HY_PREDICT && !before->was_rejected;
    engine_on_op = step > 6 && is_move ? overflow_op : NULL;
    return before->was_rolled_back;
}

/* Gradients that are not finite: nothing is updated. */
static bool overflow(const hy_step_info *before, int step) {
    engine_on_op = step == 6 || step == 7 ? overflow_op : NULL;
    return before->was_skipped;
}

static bool wait_for_moves(const hy_step_info *before, int step) {
    (void)step;
    return before->phase == HY_PREDICT;
}

static const struct {
    const char *name, *words;
    trouble trouble; /* NULL: an arm with moves is tried and thrown away */
} rare[] = {
    {"a divergence", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA "precision bf16 ", diverge},
    {"a fork",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 "precision fp32 regime fine-tuning fork_budget 0.5 "
                                         "fork_steps 3 schedule constant steps 40 ",
     NULL},
    {"skipped steps", ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA "precision bf16 ", overflow},
    {"line", ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 "precision bf16 predictor line ", wait_for_moves},
    {"windows of one step",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 "precision fp32 full_steps 0 correct_steps 1 ",
     wait_for_moves},
    {"a divergence with the predictor in 8 bits",
     ENGINE_RUN ENGINE_MOVES ENGINE_LLAMA ALL_BF16 "master_dtype bf16 predictor_dtype 8bit ",
     diverge},
    {"a fork with the predictor in 8 bits",
     ENGINE_RUN ENGINE_MOVES ENGINE_GPT2 ALL_BF16
     "master_dtype bf16 predictor_dtype 8bit regime fine-tuning fork_budget 0.5 fork_steps 3 "
     "schedule constant steps 40 ",
     NULL},
};
enum { RARE = sizeof rare / sizeof rare[0], RARE_STEPS = 20 };

/* Forks are made by whole runs. */
typedef struct forked {
    hy_trainer *trainer;
    double *losses;
    int steps;
} forked;

static void note_loss(void *user, const hy_step_info *info) {
    forked *f = user;
    if (f->steps < RARE_STEPS) f->losses[f->steps++] = info->loss;
    if (f->steps == RARE_STEPS) hy_trainer_request_stop(f->trainer);
}

static void fork_losses(int kind, const row *r, const char *out, const char *const *pairs,
                        double losses[RARE_STEPS]) {
    forked f = {.losses = losses};
    hy_observer observer = {.user = &f, .on_step = note_loss};
    hy_config *config = small_run(rare[kind].words, out, pairs);
    must(hy_trainer_create(config, &observer, &f.trainer));
    hy_config_destroy(config);
    engine_delay(atoi(choices[DELAYS].values[r->value[DELAYS]]));
    ck_assert_int_eq(hy_trainer_run(f.trainer), HY_STOPPED);
    ck_assert_int_eq(f.steps, RARE_STEPS);
    ck_assert_double_gt(saved_number(out, "fork_spent"), 0);
    hy_trainer_destroy(f.trainer);
}

static void rare_losses(int kind, const row *r, const char *out, double losses[RARE_STEPS]) {
    const char *pairs[ENGINE_WORDS];
    bool has_happened = false;
    hy_step_info info = {0};
    words_of(r, pairs);
    if (!rare[kind].trouble) {
        fork_losses(kind, r, out, pairs, losses);
        return;
    }
    hy_trainer *t = small_trainer(rare[kind].words, out, NULL, pairs);
    engine_delay(atoi(choices[DELAYS].values[r->value[DELAYS]]));
    for (int i = 0; i < RARE_STEPS; i++) {
        has_happened |= rare[kind].trouble(&info, i);
        must(hy_trainer_step(t, &info));
        losses[i] = info.loss;
    }
    engine_on_op = NULL;
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
    for (int i = 0; i < count; i += 3 * EVERY(2)) {
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
    tcase_add_loop_test(tests, each_choice_alone_changes_no_bit, 0, COUNT_EVERY(2, 2));
    tcase_add_loop_test(tests, pairs_of_choices_change_no_bit, 0, MODELS);
    tcase_add_loop_test(last, what_rarely_happens_is_the_same_everywhere, 0, RARE);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, last);
    return suite;
}

HY_TEST_MAIN(exact_suite)
