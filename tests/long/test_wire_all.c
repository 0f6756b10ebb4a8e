/* test_wire_all.c: the long form of tests/test_wire.c: every case. */
#define HY_ALL_RANKS
#include "../test_wire.c"
