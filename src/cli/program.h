/* program.h: how a small program takes its arguments: what it tells of itself, values of its flags, and
 * its complaint about a wrong one. Programs with a table of flags have more of their own. */
#ifndef HY_CLI_PROGRAM_H
#define HY_CLI_PROGRAM_H

#include <stdbool.h>

#include "cli/completion.h"

typedef struct hy_cli_program {
    const char *name, *help;
    const hy_cli_completion *rows; /* for --complete */
    size_t row_count;
} hy_cli_program;

/* Whether the argument asks about the program: --help, -h, --version or --complete; then standard output
 * has the answer. */
bool hy_cli_answers(const hy_cli_program *program, const char *argument);

/* The value of "--name value" or "--name=value"; NULL when argv[*i] is another argument. *i goes on over
 * it; "" where the value is missing. */
const char *hy_cli_value_of(const char *name, int argc, char *const *argv, int *i);

/* Says what is wrong, with the value it was found in behind it, and where to read on. HY_EXIT_USAGE. */
int hy_cli_wrong_usage(const char *what, const char *value);

#endif
