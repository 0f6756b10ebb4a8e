/* test_steering_all.c: the long form of tests/test_steering.c: every case of its lists. */
#define HY_ALL_CASES
#include "../test_steering.c"
