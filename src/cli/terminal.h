/* terminal.h: where people read, and what may be written there.
 *
 * Everything the program says to a person goes through one hy_cli_terminal; it knows whether a
 * line may be redrawn, whether colour is wanted and which characters the locale can show. Errors
 * and warnings go to standard error through the two functions at the end. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum hy_cli_colour {
    HY_CLI_PLAIN = 0, /* back to normal */
    HY_CLI_BOLD,
    HY_CLI_DIM,
    HY_CLI_RED,
    HY_CLI_GREEN,
    HY_CLI_YELLOW,
    HY_CLI_BLUE,
    HY_CLI_MAGENTA
} hy_cli_colour;

typedef struct hy_cli_terminal {
    FILE *out;
    bool is_quiet;   /* nothing but errors is said */
    bool is_tty;     /* a line may be drawn again over itself */
    bool has_colour; /* escape codes are used for colour and for nothing else */
    bool is_utf8;
} hy_cli_terminal;

/* Looks at the stream, at NO_COLOR, TERM and the locale's variables. */
void hy_cli_terminal_init(hy_cli_terminal *terminal, FILE *out, bool is_quiet, bool without_colour);

/* Columns of the terminal now: COLUMNS, else what the terminal says, else 80. */
int hy_cli_terminal_columns(const hy_cli_terminal *terminal);

/* The escape code of a colour, or "" where there is no colour. */
const char *hy_cli_colour_code(const hy_cli_terminal *terminal, hy_cli_colour colour);

/* A heading over a table or a list; a section's has an empty line before it. */
void hy_cli_heading(const hy_cli_terminal *terminal, const char *text);
void hy_cli_section(const hy_cli_terminal *terminal, const char *text);

/* What errors and warnings begin with; "hybrid-train" until another program says its name. */
void hy_cli_name_program(const char *name);
const char *hy_cli_program_name(void);

/* "hybrid-train: error: ...", "hybrid-train: warning: ..." and so on, on standard error, one line each. What
 * comes from data, names and files is shown as hy_cli_write_safely shows it. */
void hy_cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void hy_cli_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));
void hy_cli_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* As fprintf, for text with anything in it that is not ours: written by hy_cli_write_safely, so without
 * colours. UTF-8 stays. */
void hy_cli_printf(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hy_cli_vprintf(FILE *out, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

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
