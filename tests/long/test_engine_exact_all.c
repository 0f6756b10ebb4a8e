/* test_engine_exact_all.c: the long form of tests/test_engine_exact.c: every row with every
 * model. */
#define HY_ALL_CASES
#include "../test_engine_exact.c"
