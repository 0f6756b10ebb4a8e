/* test_engine_growth.c: two thousand steps of a streamed run take no more than the first hundred
 * did. */
#include "engine_growth.h"

START_TEST(two_thousand_streamed_steps_do_not_grow) { check_growth(2000); }
END_TEST

static Suite *growth_suite(void) {
    Suite *suite = suite_create("memory engine: growth");
    TCase *tests = tcase_create("growth");
    tcase_set_timeout(tests, 600);
    tcase_add_test(tests, two_thousand_streamed_steps_do_not_grow);
    suite_add_tcase(suite, tests);
    return suite;
}

HY_TEST_MAIN(growth_suite)
