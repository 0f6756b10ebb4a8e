/* test_optimizer_run_all.c: the long form of tests/test_optimizer_run.c: every case of its
 * lists. */
#define HY_ALL_CASES
#include "../test_optimizer_run.c"
