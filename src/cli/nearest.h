/* nearest.h: which of several names a mistyped one was probably meant to be. */
#ifndef HY_CLI_NEAREST_H
#define HY_CLI_NEAREST_H

#include <stddef.h>

typedef struct hy_cli_nearest {
    const char *typed;
    size_t length;
    const char *best;
    size_t distance;
} hy_cli_nearest;

/* Begin with what was typed, try each name, end with the nearest: NULL when none is near enough
 * to be worth suggesting. Names must outlive the search. */
void hy_cli_nearest_begin(hy_cli_nearest *nearest, const char *typed, size_t length);
void hy_cli_nearest_try(hy_cli_nearest *nearest, const char *name);
const char *hy_cli_nearest_end(const hy_cli_nearest *nearest);

#endif
