/* test_ranks_same_all.c: the long form of tests/test_ranks_same.c: all ways of training, ranks and
 * stages. */
#define HY_ALL_RANKS
#include "../test_ranks_same.c"
