/* flag_names.c: a typed flag among those of a program. See flag_names.h. */
#include "cli/flag_names.h"

#include <string.h>

#include "cli/nearest.h"
#include "cli/terminal.h"

int hy_cli_find_flag(hy_cli_flag_namer *name_of, const char *typed, size_t length) {
    const char *name;
    if (length == 2 && strncmp(typed, "-h", 2) == 0) return hy_cli_find_flag(name_of, "--help", 6);
    for (size_t i = 0; (name = name_of(i).name) != NULL; i++)
        if (strlen(name) == length && strncmp(name, typed, length) == 0) return (int)i;
    return -1;
}

const char *hy_cli_nearest_flag(hy_cli_flag_namer *name_of, const char *typed, size_t length) {
    hy_cli_nearest nearest;
    hy_cli_flag_name flag;
    hy_cli_nearest_begin(&nearest, typed, length);
    for (size_t i = 0; (flag = name_of(i)).name != NULL; i++)
        if (!flag.is_hidden) hy_cli_nearest_try(&nearest, flag.name);
    return hy_cli_nearest_end(&nearest);
}

void hy_cli_unknown_flag(hy_cli_flag_namer *name_of, const char *typed, size_t length,
                         const char *where) {
    const char *nearest = hy_cli_nearest_flag(name_of, typed, length);
    if (nearest != NULL)
        hy_cli_error("unknown flag %.*s; did you mean %s?", (int)length, typed, nearest);
    else
        hy_cli_error("unknown flag %.*s; %s", (int)length, typed, where);
}
