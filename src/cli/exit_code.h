/* exit_code.h: how every program here ends: one set of exit codes, and what is said on the way out. */
#ifndef HY_CLI_EXIT_CODE_H
#define HY_CLI_EXIT_CODE_H

#include "hybrid_types.h"

enum {
    HY_EXIT_DONE = 0,
    HY_EXIT_FAILED = 1,
    HY_EXIT_USAGE = 2,   /* wrong usage or input */
    HY_EXIT_STOPPED = 75 /* by a signal, in order */
};

int hy_cli_exit_code(hy_status status);

/* Says the library's last error; its exit code. */
int hy_cli_fail(hy_status status);

/* What was asked for on standard output must have arrived there: `code`, or HY_EXIT_FAILED with an error
 * where it did not. A reader that left early (head, less) is no error. */
int hy_cli_flushed(int code);

#endif
