/* monitor.h: what the memory monitor comes to on a screen. */
#ifndef HY_CLI_MONITOR_H
#define HY_CLI_MONITOR_H

#include "cli/terminal.h"
#include "hybrid.h"

/* Plain while all is well, yellow for a warning, red beyond. */
hy_cli_colour hy_cli_memory_colour(hy_memory_status status);

/* Memory of a micro-batch's passes at each level of recomputation. */
void hy_cli_planned_activations(const hy_cli_terminal *terminal, const hy_trainer *trainer);

/* What saved memory on the run, a row each, and in one line what else would. */
void hy_cli_closing_savings(const hy_cli_terminal *terminal, const hy_trainer *trainer);

#endif
