/* launch.h: starts several ranks of one command on this machine and waits for them.
 *
 * Each rank is the same command with HYBRID_RANK and its like (ranks.h) in its environment. What
 * rank 0 prints passes through, and standard input is its alone; lines of the others go to standard
 * error behind "rank 2: ". SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to every rank, once
 * each time they come: ranks are no part of the terminal's group, which would get them a second
 * time. When a rank fails the others have `grace` seconds to end by themselves (the control channel
 * tells them), two where its exit code is 2 (it was asked for something wrong, and may never have
 * met them), then SIGTERM, then SIGKILL. No rank outlives the launcher, however that ends. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_launch_options {
    int32_t count;
    char *const *argv; /* the command, NULL at its end; found in PATH where it has no slash */
    double grace;      /* seconds; 0: 90 */
    double kill_after; /* seconds from SIGTERM to SIGKILL; 0: 20 */
    int errors;        /* descriptor for lines of other ranks and for messages; 0: standard error */
} hy_launch_options;

/* *exit_code: 0 where all ranks ended with 0; what rank 0 ended with, where it ended by itself and
 * not with 0; else 1. A rank that failed first is named in a line on `errors`, but for those that
 * stopped as they were asked to (75). HY_ERR_INPUT, HY_ERR_IO: nothing was started. */
hy_status hy_launch(const hy_launch_options *options, int *exit_code);
