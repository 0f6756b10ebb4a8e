/* complete.c: --complete of hybrid-train: all flags for the shells' completion, as completion.h says.
 *
 * The completion files ask the program for this list each time, so they cannot go stale. */
#include <string.h>

#include "cli/flags.h"
#include "cli/inspect.h"

static void write_builtin_names(FILE *out, const char *kind) {
    const char *name;
    for (size_t i = 0; (name = hy_builtin_name(kind, i)) != NULL; i++)
        fprintf(out, "%s%s", i > 0 ? ", " : "", name);
}

/* A choice like cuda:N is a pattern, not a word to offer; it comes last in its list. */
static void write_choices(FILE *out, const char *accepted) {
    const char *pattern = strstr(accepted, ":N");
    size_t length = strlen(accepted);
    while (pattern && length > 0 && accepted[length] != ',') length--;
    fprintf(out, "%.*s", (int)length, accepted);
}

static void write_flag(FILE *out, const hy_cli_flag *flag) {
    fprintf(out, "%s\t%s\t", flag->flag, flag->type);
    if (flag->builtin != NULL)
        write_builtin_names(out, flag->builtin);
    else
        write_choices(out, flag->accepted != NULL ? flag->accepted : "");
    fprintf(out, "\t%s\n", flag->help);
}

int hy_cli_complete(FILE *out) {
    hy_cli_flag flag;
    for (size_t i = 0; hy_cli_flag_at(i, &flag); i++) {
        if (flag.is_hidden) continue;
        write_flag(out, &flag);
        if (strcmp(flag.type, "switch") == 0)
            fprintf(out, "--no-%s\tswitch\t\tNot: %s\n", flag.flag + 2, flag.help);
    }
    return 0;
}
