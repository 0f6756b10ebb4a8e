/* exit_code.c: how every program here ends. See exit_code.h. */
#include "cli/exit_code.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/terminal.h"
#include "hybrid.h"

int hy_cli_exit_code(hy_status status) {
    switch (status) {
    case HY_OK: return HY_EXIT_DONE;
    case HY_ERR_INPUT: return HY_EXIT_USAGE;
    case HY_STOPPED: return HY_EXIT_STOPPED;
    default: return HY_EXIT_FAILED;
    }
}

int hy_cli_fail(hy_status status) {
    hy_cli_error("%s", hy_error_message());
    return hy_cli_exit_code(status);
}

int hy_cli_flushed(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (errno == EPIPE || code != HY_EXIT_DONE) return code;
    hy_cli_error("cannot write to standard output: %s", strerror(errno));
    return HY_EXIT_FAILED;
}
