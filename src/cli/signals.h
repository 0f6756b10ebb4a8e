/* signals.h: SIGINT and SIGTERM end a run in order; a second one ends it at once.
 *
 * The one place with global state in the program: a signal handler can reach nothing else. */
#ifndef HY_CLI_SIGNALS_H
#define HY_CLI_SIGNALS_H

#include <stdbool.h>

#include "hybrid.h"

/* From now on the first signal asks for a stop and says so (not when is_quiet), the next ends
 * the program with 128 + its number. SIGPIPE is ignored: a run outlives whoever reads its
 * output. */
void hy_cli_signals_install(bool is_quiet);

/* The trainer that is asked to stop; at once, when the signal came before there was one. */
void hy_cli_signals_guard(hy_trainer *trainer);

/* The run is over: every signal ends the program. Must come before the trainer is destroyed. */
void hy_cli_signals_release(void);

#endif
