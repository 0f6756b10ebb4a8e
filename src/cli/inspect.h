/* inspect.h: the actions that show something and stop. */
#ifndef HY_CLI_INSPECT_H
#define HY_CLI_INSPECT_H

#include "cli/terminal.h"

/* Each prints to the terminal's stream and returns the program's exit code. */
int hy_cli_help(const hy_cli_terminal *terminal, const char *topic);
int hy_cli_doctor(const hy_cli_terminal *terminal, const char *folder); /* whose disk is measured */
int hy_cli_selftest(const hy_cli_terminal *terminal, const char *device);
int hy_cli_list_models(const hy_cli_terminal *terminal);
int hy_cli_complete(FILE *out);

#endif
