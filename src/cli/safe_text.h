/* safe_text.h: bytes of unknown origin, made safe to show on a terminal. */
#ifndef HY_CLI_SAFE_TEXT_H
#define HY_CLI_SAFE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Writes `size` bytes: newline and tab as they are, other control bytes as \xNN, well-formed
 * UTF-8 as it is where the locale can show it, everything else replaced by U+FFFD (or "?"
 * without UTF-8). */
void hy_cli_write_safely(FILE *out, const char *bytes, size_t size, bool is_utf8);

#endif
