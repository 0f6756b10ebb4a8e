/* test_report_ranks.c: the cost of steps on ranks: medians of few and of many steps, of the latest
 * ones, and the slowest rank. */
#include <math.h>

#include "harness.h"
#include "report/rank_figures.h"

#define RANKS 3

/* A step of `seconds` on every rank, of which each waits so long. */
static void add_step(hy_rank_figures *figures, double seconds, const double waited[RANKS]) {
    double steps[RANKS], exchanged[RANKS], bytes[RANKS], memory[RANKS];
    for (int r = 0; r < RANKS; r++) {
        steps[r] = seconds;
        exchanged[r] = seconds / 4;
        bytes[r] = 1000 * seconds + r;
        memory[r] = 100 * r + seconds;
    }
    const double *of_ranks[HY_RANK_FIGURES] = {steps, waited, exchanged, bytes, memory};
    hy_rank_figures_add(figures, of_ranks);
}

static hy_rank_cost cost_of(const hy_rank_figures *figures, int32_t rank) {
    hy_rank_cost cost = {0};
    ck_assert(hy_rank_figures_of(figures, rank, &cost));
    return cost;
}

START_TEST(medians_are_in_the_middle_and_memory_is_the_most) {
    hy_rank_figures figures;
    hy_rank_cost cost;
    must(hy_rank_figures_init(&figures, RANKS, 0));
    ck_assert(!hy_rank_figures_of(&figures, 0, &cost)); /* no step yet */
    add_step(&figures, 8, (double[]){1, 2, 3});
    add_step(&figures, 2, (double[]){1, 0.5, 3});
    add_step(&figures, 4, (double[]){3, 2, 1});
    cost = cost_of(&figures, 1);
    ck_assert(cost.seconds == 4 && cost.waited == 2 && cost.exchanged == 1);
    ck_assert(cost.bytes == 4001 && cost.memory == 108 && cost.steps == 3);
    add_step(&figures, 6, (double[]){1, 1, 1});
    ck_assert(cost_of(&figures, 1).seconds == 5);
    ck_assert(!hy_rank_figures_of(&figures, RANKS, &cost));
    ck_assert(!hy_rank_figures_of(&figures, -1, &cost));
    hy_rank_figures_fini(&figures);
    ck_assert(!hy_rank_figures_of(&figures, 0, &cost));
}
END_TEST

START_TEST(the_slowest_is_who_waits_least) {
    hy_rank_figures figures;
    must(hy_rank_figures_init(&figures, RANKS, 0));
    for (int i = 0; i < 5; i++) add_step(&figures, 1, (double[]){0.5, 0.125, 0.25});
    add_step(&figures, 1, (double[]){0, 0.125, 0.25});
    add_step(&figures, 1, (double[]){0.5, 0.5, NAN}); /* nobody knows of a wait of this one */
    ck_assert_int_eq(cost_of(&figures, 0).slowest, 1);
    ck_assert_int_eq(cost_of(&figures, 1).slowest, 5);
    ck_assert_int_eq(cost_of(&figures, 2).slowest, 1);
    add_step(&figures, NAN, (double[]){0, 0, 0});
    ck_assert_int_eq(cost_of(&figures, 0).slowest, 1);
    ck_assert(cost_of(&figures, 0).seconds == 1);
    hy_rank_figures_fini(&figures);
}
END_TEST

/* Steps become longer and longer: their median is in the middle, of the whole run and of the
 * latest. */
START_TEST(long_runs_keep_their_medians) {
    enum { STEPS = 100000, LATEST = 64 };
    hy_rank_figures all, latest;
    must(hy_rank_figures_init(&all, RANKS, 0));
    must(hy_rank_figures_init(&latest, RANKS, LATEST));
    for (int i = 1; i <= STEPS; i++) {
        double waited[] = {0.5 * i, 0.25 * i, 0.125 * i};
        add_step(&all, i, waited);
        add_step(&latest, i, waited);
    }
    hy_rank_cost cost = cost_of(&all, 2);
    ck_assert_double_eq_tol(cost.seconds, STEPS / 2, STEPS / 200.0);
    ck_assert_double_eq_tol(cost.waited, STEPS / 16, STEPS / 1600.0);
    ck_assert(cost.steps == STEPS && cost.slowest == STEPS && cost.memory == 200 + STEPS);
    ck_assert_int_le(all.rows, all.capacity);
    ck_assert(cost_of(&latest, 0).seconds == STEPS - LATEST / 2 + 0.5);
    ck_assert_int_eq(latest.rows, LATEST);
    hy_rank_figures_fini(&all);
    hy_rank_figures_fini(&latest);
}
END_TEST

static Suite *ranks_suite(void) {
    Suite *suite = suite_create("report_ranks");
    TCase *figures = tcase_create("figures");
    tcase_add_test(figures, medians_are_in_the_middle_and_memory_is_the_most);
    tcase_add_test(figures, the_slowest_is_who_waits_least);
    tcase_add_test(figures, long_runs_keep_their_medians);
    suite_add_tcase(suite, figures);
    return suite;
}

HY_TEST_MAIN(ranks_suite)
