/* test_ranks_killed.c: each of several ranks is killed and stopped at random moments
 * (ranks_moments.h). */
#include "../ranks_moments.h"

START_TEST(ranks_are_killed_at_any_launch) {
    try_many((moment){LAUNCH, .victim = _i, .signal = SIGKILL}, 20);
}
END_TEST

START_TEST(ranks_are_killed_at_any_time) {
    try_many((moment){.victim = _i, .signal = SIGKILL}, 10);
}
END_TEST

START_TEST(ranks_are_killed_at_any_write) {
    try_many((moment){WRITE, .victim = _i, .signal = SIGKILL}, 10);
}
END_TEST

START_TEST(ranks_are_stopped_at_any_time) {
    try_many((moment){LAUNCH, .victim = _i, .signal = SIGSTOP}, 5);
    try_many((moment){WRITE, .victim = _i, .signal = SIGSTOP}, 2);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_killed");
    TCase *c = tcase_create("killed");
    tcase_set_timeout(c, 580);
    tcase_add_unchecked_fixture(c, make_whole, drop_whole);
    tcase_add_loop_test(c, ranks_are_killed_at_any_launch, 0, RANK_COUNT);
    tcase_add_loop_test(c, ranks_are_killed_at_any_time, 0, RANK_COUNT);
    tcase_add_loop_test(c, ranks_are_killed_at_any_write, 0, RANK_COUNT);
    tcase_add_loop_test(c, ranks_are_stopped_at_any_time, 0, RANK_COUNT);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
