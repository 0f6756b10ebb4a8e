/* run_report.h: OUT/report.html, written when a run is over. */
#ifndef HY_CLI_RUN_REPORT_H
#define HY_CLI_RUN_REPORT_H

#include "cli/terminal.h"

/* Writes the page about the run in `folder` ("" does nothing) and says where it is. The run is done and
 * saved by then: a page that cannot be written is a warning. */
void hy_cli_write_report(const hy_cli_terminal *terminal, const char *folder);

#endif
