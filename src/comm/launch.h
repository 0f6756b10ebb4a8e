/* launch.h: starts several ranks of one command on this machine and waits for them.
 *
 * Each rank is the same command with HYBRID_RANK etc. (ranks.h) in its environment. Rank 0's
 * output passes through, and only rank 0 gets standard input; lines of the others go to standard
 * error with the prefix "rank 2: ". SIGINT, SIGTERM, SIGHUP and SIGUSR1 are forwarded to every
 * rank once: ranks are not in the terminal's process group, which would deliver them twice. When
 * a rank fails, the others have `grace` seconds to end by themselves (the control channel
 * informs them), or two seconds if its exit code is 2 (wrong arguments: it may never have
 * connected). Then follow SIGTERM and SIGKILL. No rank outlives the launcher, however that ends. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_launch_options {
    int32_t count;
    char *const *argv; /* the command, NULL at its end; searched in PATH if it has no slash */
    double grace;      /* seconds for the other ranks to end after a failure; 0: 90 */
    double kill_after; /* seconds from SIGTERM to SIGKILL; 0: 20 */
    int errors;        /* descriptor for other ranks' lines and for messages; 0: standard error */
} hy_launch_options;

/* exit_code: 0 if all ranks ended with 0; rank 0's code if it ended by itself with another code;
 * else 1. A line on `errors` names the rank that failed first, except for ranks that stopped on
 * request (75). HY_ERR_INPUT, HY_ERR_IO: nothing was started. */
hy_status hy_launch(const hy_launch_options *options, int *exit_code);
