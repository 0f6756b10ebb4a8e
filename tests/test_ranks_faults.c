/* test_ranks_faults.c: one of several ranks is killed, stopped, or refused memory or disk space:
 * the others end, and the run continues when all are started again (ranks_moments.h).
 * tests/long/test_ranks_killed.c and test_ranks_refused.c have 20 random moments for each rank. */
#include "ranks_moments.h"

static void must_end(moment m, double share) {
    char what[160];
    m.at = 1 + (int64_t)(share * (double)total_of(&m));
    describe(&m, what);
    ck_assert_msg(!survive(&m), "%s: all ended well", what);
}

START_TEST(a_killed_rank_ends_the_others_and_the_run_goes_on) {
    must_end((moment){LAUNCH, .victim = 2 * _i, .signal = SIGKILL}, 0.3 + 0.4 * _i);
}
END_TEST

START_TEST(a_rank_killed_while_it_saves_leaves_what_was_saved_before) {
    must_end((moment){WRITE, .victim = _i, .signal = SIGKILL}, 0.3 + 0.3 * _i);
}
END_TEST

START_TEST(a_stopped_rank_is_missed_after_the_timeout) {
    if (_i == 0) must_end((moment){LAUNCH, .victim = 0, .signal = SIGSTOP}, 0.6);
    if (_i == 1) must_end((moment){WRITE, .victim = 1, .signal = SIGSTOP}, 0.5);
}
END_TEST

/* In the middle, in the last validation, and where memory is taken. */
START_TEST(a_rank_without_memory_ends_all) {
    if (_i == 0) must_end((moment){LAUNCH, .victim = 1}, 0.5);
    if (_i == 1) must_end((moment){LAUNCH, .victim = 0}, 0.97);
    if (_i == 2) must_end((moment){ARENA, .victim = 2}, 0.4);
}
END_TEST

/* A save that fails costs that checkpoint; the last one, the run's end. */
START_TEST(a_rank_without_room_for_its_part_costs_the_checkpoint) {
    moment m = {WRITE, .victim = 1 + _i};
    m.at = total_of(&m) / 3;
    ck_assert(survive(&m));
    must_end(m, 0.97);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("ranks_faults");
    TCase *c = tcase_create("faults");
    tcase_set_timeout(c, 580);
    tcase_add_unchecked_fixture(c, make_whole, drop_whole);
    tcase_add_loop_test(c, a_killed_rank_ends_the_others_and_the_run_goes_on, 0, 2);
    tcase_add_loop_test(c, a_rank_killed_while_it_saves_leaves_what_was_saved_before, 0, 2);
    tcase_add_loop_test(c, a_stopped_rank_is_missed_after_the_timeout, 0, 2);
    tcase_add_loop_test(c, a_rank_without_memory_ends_all, 0, 3);
    tcase_add_loop_test(c, a_rank_without_room_for_its_part_costs_the_checkpoint, 0, 1);
    suite_add_tcase(s, c);
    return s;
}

HY_TEST_MAIN(suite)
