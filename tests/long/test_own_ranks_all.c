/* test_own_ranks_all.c: the long form of tests/test_own_ranks.c: every case of its lists. */
#define HY_ALL_CASES
#include "../test_own_ranks.c"
