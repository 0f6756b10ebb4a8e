/* flag_names.h: looks a typed flag up among those of a program, and says when there is none of that name.
 *
 * A program has its flags in a table of its own shape; a function that tells their names is all that is
 * needed of it. */
#ifndef HY_CLI_FLAG_NAMES_H
#define HY_CLI_FLAG_NAMES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct hy_cli_flag_name {
    const char *name; /* "--once"; NULL: past the last */
    bool is_hidden;   /* for programs, not for people */
} hy_cli_flag_name;

typedef hy_cli_flag_name hy_cli_flag_namer(size_t i);

/* The number of the flag whose name these `length` bytes are (-h is --help), or -1. */
int hy_cli_find_flag(hy_cli_flag_namer *name_of, const char *typed, size_t length);

/* The name nearest to what was typed, or NULL when none is near. */
const char *hy_cli_nearest_flag(hy_cli_flag_namer *name_of, const char *typed, size_t length);

/* "unknown flag ..." with the nearest name, or else with `where` they can be read. */
void hy_cli_unknown_flag(hy_cli_flag_namer *name_of, const char *typed, size_t length,
                         const char *where);

#endif
