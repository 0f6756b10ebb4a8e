/* inspect.h: the actions that show something and stop; the built-in models, smallest first. */
#ifndef HY_CLI_INSPECT_H
#define HY_CLI_INSPECT_H

#include "cli/terminal.h"
#include "hybrid.h"

#define HY_CLI_MODELS_MAX 48 /* as many as a table shows on a screen or two */

typedef struct hy_cli_model {
    const char *name; /* the library's string */
    int64_t parameters;
} hy_cli_model;

/* Fills `models` by size and says how many there are. */
hy_status hy_cli_models_by_size(hy_cli_model models[HY_CLI_MODELS_MAX], size_t *count);

/* Each prints to the terminal's stream and returns the program's exit code. */
int hy_cli_help(const hy_cli_terminal *terminal, const char *topic);
int hy_cli_doctor(const hy_cli_terminal *terminal, const char *folder); /* whose disk is measured */
int hy_cli_selftest(const hy_cli_terminal *terminal, const char *device);
int hy_cli_list_models(const hy_cli_terminal *terminal);
int hy_cli_complete(FILE *out);

#endif
