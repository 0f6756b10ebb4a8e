/* safe_text.h: bytes of unknown origin, made safe to show on a terminal. */
#ifndef HY_CLI_SAFE_TEXT_H
#define HY_CLI_SAFE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Writes `size` bytes: newline and tab as they are, other control bytes as \xNN, well-formed
 * UTF-8 as it is where the locale can show it, everything else replaced by U+FFFD (or "?"
 * without UTF-8). */
void hy_cli_write_safely(FILE *out, const char *bytes, size_t size, bool is_utf8);

/* The same for one line: into `to`, which holds `size` bytes, cut after a whole character; newline
 * and tab become blanks. Returns the bytes written before the closing zero. */
size_t hy_cli_copy_safely(char *to, size_t size, const char *text, bool is_utf8);

/* The character at `bytes`: how many of its bytes there are (0: it is not well-formed) and, in
 * *value, which it is. `size` is at least 1. */
size_t hy_cli_decode(const char *bytes, size_t size, uint32_t *value);

#endif
