/* rank_variables.h: the variables that our launcher sets for a rank, for processes of
 * comm_rig.h. */
#ifndef HY_TESTS_RANK_VARIABLES_H
#define HY_TESTS_RANK_VARIABLES_H

#include "comm_rig.h"

static inline void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    require(setenv(name, text, 1) == 0);
}

static inline void set_rank_variables(const hy_ranks *ranks) {
    char address[64], job[24];
    snprintf(address, sizeof address, "127.0.0.1:%d", ranks->port);
    snprintf(job, sizeof job, "%llx", (unsigned long long)ranks->job);
    set_number("HYBRID_RANK", ranks->rank);
    set_number("HYBRID_RANKS", ranks->count);
    set_number("HYBRID_LOCAL_RANK", ranks->local_rank);
    set_number("HYBRID_LOCAL_RANKS", ranks->local_count);
    require(setenv("HYBRID_ADDRESS", address, 1) == 0 && setenv("HYBRID_JOB", job, 1) == 0);
}

#endif
