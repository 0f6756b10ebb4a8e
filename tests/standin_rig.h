/* standin_rig.h: the library that stands in for NCCL (standin/nccl.c), for tests. */
#ifndef HY_TESTS_STANDIN_RIG_H
#define HY_TESTS_STANDIN_RIG_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The stand-ins lie beside the test program. */
static inline void use_standin(const char *name) {
    char own[3000], path[3100];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    ck_assert_int_gt(length, 0);
    own[length] = 0;
    *strrchr(own, '/') = 0;
    snprintf(path, sizeof path, "%s/standin/%s", own, name);
    setenv("HYBRID_NCCL", path, 1);
    unsetenv("STANDIN_NCCL_VERSION");
}

#endif
