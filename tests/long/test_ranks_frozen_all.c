/* test_ranks_frozen_all.c: the long form of tests/test_ranks_frozen.c: all numbers of ranks. */
#define HY_ALL_RANKS
#include "../test_ranks_frozen.c"
