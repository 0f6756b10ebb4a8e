/* test_ranks_refused.c: each of several ranks is refused memory and room at random moments
 * (ranks_moments.h). */
#include "../ranks_moments.h"

START_TEST(ranks_are_refused_any_launch) { try_many((moment){LAUNCH, .victim = _i}, 20); }
END_TEST

START_TEST(ranks_are_refused_any_write) { try_many((moment){WRITE, .victim = _i}, 10); }
END_TEST

START_TEST(ranks_are_refused_any_allocation) {
    try_many((moment){HEAP, .victim = _i}, 20);
    try_many((moment){ARENA, .victim = _i}, 10);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_refused");
    TCase *c = tcase_create("refused");
    tcase_set_timeout(c, 580);
    tcase_add_unchecked_fixture(c, make_whole, drop_whole);
    tcase_add_loop_test(c, ranks_are_refused_any_launch, 0, RANK_COUNT);
    tcase_add_loop_test(c, ranks_are_refused_any_write, 0, RANK_COUNT);
    tcase_add_loop_test(c, ranks_are_refused_any_allocation, 0, RANK_COUNT);
    suite_add_tcase(s, c);
    TCase *forks = tcase_create("forks");
    tcase_set_timeout(forks, 580);
    tcase_add_unchecked_fixture(forks, make_whole_with_forks, drop_whole);
    tcase_add_loop_test(forks, ranks_are_refused_any_launch, 0, RANK_COUNT);
    suite_add_tcase(s, forks);
    return s;
}

HY_TEST_MAIN(suite)
