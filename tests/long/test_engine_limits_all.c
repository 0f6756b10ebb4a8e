/* test_engine_limits_all.c: the long form of tests/test_engine_limits.c: every case of its
 * lists. */
#define HY_ALL_CASES
#include "../test_engine_limits.c"
