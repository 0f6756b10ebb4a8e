/* test_engine_exact.c: no choice of the memory engine changes a bit of a run.
 *
 * Each value is tried alone, and every pair of values of different choices occurs in some run, so that a
 * few dozen short runs cover them all. Part of the runs have streams with random delays, part are stopped
 * half-way and go on with the choices of another run. See engine_rows.h. */
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
    hy_trainer *t = small_trainer(models[0].words, "none", NULL, NULL);
    next_losses(t, ENGINE_STEPS, plain.steps);
    hy_trainer_summary(t, &summary);
    ck_assert_int_ge(summary.moves, 2);
    ck_assert_int_gt(t->progress.tail_samples, 1);
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
        const hy_store *stores[] = {&t->low, &t->weights, &t->grads, &t->m, &t->v};
        for (int i = 0; i < 5; i++) ck_assert_int_eq(stores[i]->place, places[v]);
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(t->slots[i].place, v == 2 ? HY_DISK : HY_PINNED);
            ck_assert(t->train_plan[i]->options.recompute != 0);
            ck_assert_int_eq(t->train_plan[i]->options.recompute_layers, v);
            ck_assert_int_eq(t->train_plan[i]->options.offloads, v > 0);
        }
        ck_assert_int_eq(t->updates_on_gather, v > 0);
        ck_assert_int_eq(t->settings.memory.resident_units, v);
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

START_TEST(pairs_of_choices_change_no_bit) {
    row rows[MOST_ROWS];
    int count = make_rows((uint64_t)_i + 1, rows);
    run_plain(_i);
    for (int i = 0; i < count; i++) check_row(_i, &rows[i], &rows[(i + 1) % count]);
}
END_TEST

static Suite *exact_suite(void) {
    Suite *suite = suite_create("memory engine: exact");
    TCase *tests = tcase_create("exact");
    tcase_set_timeout(tests, 300);
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, the_list_of_rows_has_every_pair_of_values);
    tcase_add_loop_test(tests, a_run_makes_moves_and_repeats_itself, 0, MODELS);
    tcase_add_test(tests, choices_are_heeded);
    tcase_add_loop_test(tests, each_choice_alone_changes_no_bit, 0, 2);
    tcase_add_loop_test(tests, pairs_of_choices_change_no_bit, 0, MODELS);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(exact_suite)
