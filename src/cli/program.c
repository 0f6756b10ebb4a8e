/* program.c: what every small program answers, takes and complains of in the same way. See program.h. */
#include "cli/program.h"

#include <stdio.h>
#include <string.h>

#include "cli/exit_code.h"
#include "cli/terminal.h"
#include "hybrid.h"

bool hy_cli_answers(const hy_cli_program *program, const char *argument) {
    if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0)
        fputs(program->help, stdout);
    else if (strcmp(argument, "--version") == 0)
        printf("%s " HYBRID_VERSION "\n", program->name);
    else if (strcmp(argument, "--complete") == 0)
        hy_cli_complete_rows(stdout, program->rows, program->row_count);
    else
        return false;
    return true;
}

const char *hy_cli_value_of(const char *name, int argc, char *const *argv, int *i) {
    size_t length = strlen(name);
    const char *argument = argv[*i];
    if (strncmp(argument, name, length) != 0) return NULL;
    if (argument[length] == '=') return argument + length + 1;
    if (argument[length] != '\0') return NULL;
    if (*i + 1 >= argc || argv[*i + 1] == NULL) return "";
    return argv[++*i];
}

int hy_cli_wrong_usage(const char *what, const char *value) {
    hy_cli_error("%s%s; \"%s --help\" tells more", what, value, hy_cli_program_name());
    return HY_EXIT_USAGE;
}
