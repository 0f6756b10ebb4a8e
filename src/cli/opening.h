/* opening.h: what a run is, said before its first step. */
#ifndef HY_CLI_OPENING_H
#define HY_CLI_OPENING_H

#include "cli/terminal.h"
#include "hybrid.h"

/* Model, device, data, length and where the run writes. */
void hy_cli_opening(const hy_cli_terminal *terminal, const hy_summary *summary);

#endif
