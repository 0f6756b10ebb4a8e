/* test_ranks_steering_all.c: the long form of tests/test_ranks_steering.c: every case of its
 * lists. */
#define HY_ALL_CASES
#include "../test_ranks_steering.c"
