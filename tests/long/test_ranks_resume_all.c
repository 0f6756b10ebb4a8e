/* test_ranks_resume_all.c: the long form of tests/test_ranks_resume.c: every way of training, and
 * every step. */
#define HY_ALL_RANKS
#include "../test_ranks_resume.c"
