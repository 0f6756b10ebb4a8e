/* terminal.h: the abilities of the terminal, and safe output to it.
 *
 * All output for people goes through one hy_cli_terminal. It knows whether a line may be redrawn,
 * whether colour is wanted and which characters the locale can show. Errors and warnings go to
 * standard error through hy_cli_report. */
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
    bool is_quiet;   /* print only errors */
    bool is_tty;     /* a line may be redrawn */
    bool has_colour; /* use colours; there are no other escape codes */
    bool is_utf8;
} hy_cli_terminal;

/* Reads the stream's properties, NO_COLOR, TERM and the locale variables. */
void hy_cli_terminal_init(hy_cli_terminal *terminal, FILE *out, bool is_quiet, bool without_colour);

/* The current width of the terminal: COLUMNS, else the terminal's own value, else 80. */
int hy_cli_terminal_columns(const hy_cli_terminal *terminal);

/* The escape code of a colour, or "" without colours. */
const char *hy_cli_colour_code(const hy_cli_terminal *terminal, hy_cli_colour colour);

/* Prints the heading of a table or list; a section has an empty line before it. */
void hy_cli_heading(const hy_cli_terminal *terminal, const char *text);
void hy_cli_section(const hy_cli_terminal *terminal, const char *text);

/* The prefix of errors and warnings: "hybrid-train", unless another program sets its name. */
void hy_cli_name_program(const char *name);
const char *hy_cli_program_name(void);

/* Prints one line to standard error: "hybrid-train: error: ...". Control characters and line ends
 * in names are replaced, so that a name cannot look like a second message. */
void hy_cli_report(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define hy_cli_error(...) hy_cli_report("error", __VA_ARGS__)
#define hy_cli_warning(...) hy_cli_report("warning", __VA_ARGS__)
#define hy_cli_note(...) hy_cli_report("note", __VA_ARGS__)
/* Prints an error and has the value `code`: return hy_cli_refuse(HY_EXIT_USAGE, "..."). */
#define hy_cli_refuse(code, ...) (hy_cli_error(__VA_ARGS__), (code))

/* Like fprintf, for text that contains foreign bytes: uses hy_cli_write_safely, so without colours.
 * Keeps UTF-8. */
void hy_cli_printf(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hy_cli_vprintf(FILE *out, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* Writes `size` bytes: newline and tab unchanged, other control bytes as \xNN, valid UTF-8
 * unchanged if the locale can show it, everything else as U+FFFD (or "?" without UTF-8). */
void hy_cli_write_safely(FILE *out, const char *bytes, size_t size, bool is_utf8);

/* As above for one line, into `to` of `size` bytes. Cuts after a whole character; newline and tab
 * become blanks. Returns the number of bytes before the terminating zero. */
size_t hy_cli_copy_safely(char *to, size_t size, const char *text, bool is_utf8);

/* Decodes the character at `bytes`: returns its number of bytes (0: invalid) and sets *value.
 * `size` is at least 1. */
size_t hy_cli_decode(const char *bytes, size_t size, uint32_t *value);
