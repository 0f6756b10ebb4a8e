/* terminal.c: asks the surroundings what may be written, once, and formats errors and warnings.
 *
 * No cursor movement is ever used: a drawn line is replaced with a carriage return and spaces, so a
 * terminal without colour receives no escape code at all. */
#include "cli/terminal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define DEFAULT_COLUMNS 80
#define MAX_COLUMNS 500

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value != NULL ? value : "";
}

/* The first of the three that is set decides, as in setlocale(). */
static bool locale_is_utf8(void) {
    const char *value = variable("LC_ALL");
    if (*value == '\0') value = variable("LC_CTYPE");
    if (*value == '\0') value = variable("LANG");
    return strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL;
}

void hy_cli_terminal_init(hy_cli_terminal *terminal, FILE *out, bool is_quiet,
                          bool without_colour) {
    const char *kind = variable("TERM");
    bool can_redraw = *kind != '\0' && strcmp(kind, "dumb") != 0;
    terminal->out = out;
    terminal->is_quiet = is_quiet;
    terminal->is_tty = can_redraw && isatty(fileno(out));
    terminal->has_colour = terminal->is_tty && !without_colour && *variable("NO_COLOR") == '\0';
    terminal->is_utf8 = locale_is_utf8();
}

int hy_cli_terminal_columns(const hy_cli_terminal *terminal) {
    int columns = atoi(variable("COLUMNS"));
    struct winsize size;
    if (columns <= 0 && ioctl(fileno(terminal->out), TIOCGWINSZ, &size) == 0) columns = size.ws_col;
    if (columns <= 0) return DEFAULT_COLUMNS;
    return columns < MAX_COLUMNS ? columns : MAX_COLUMNS;
}

const char *hy_cli_colour_code(const hy_cli_terminal *terminal, hy_cli_colour colour) {
    static const char *const codes[] = {
        [HY_CLI_PLAIN] = "\033[0m", [HY_CLI_BOLD] = "\033[1m",     [HY_CLI_DIM] = "\033[2m",
        [HY_CLI_RED] = "\033[31m",  [HY_CLI_GREEN] = "\033[32m",   [HY_CLI_YELLOW] = "\033[33m",
        [HY_CLI_BLUE] = "\033[34m", [HY_CLI_MAGENTA] = "\033[35m",
    };
    return terminal->has_colour ? codes[colour] : "";
}

void hy_cli_heading(const hy_cli_terminal *terminal, const char *text) {
    fprintf(terminal->out, "%s%s%s\n", hy_cli_colour_code(terminal, HY_CLI_BOLD), text,
            hy_cli_colour_code(terminal, HY_CLI_PLAIN));
}

static const char *program = "hybrid-train";

void hy_cli_name_program(const char *name) { program = name; }
const char *hy_cli_program_name(void) { return program; }

static void complain(const char *kind, const char *format, va_list arguments) {
    fprintf(stderr, "%s: %s: ", program, kind);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
}

void hy_cli_error(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    complain("error", format, arguments);
    va_end(arguments);
}

void hy_cli_warning(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    complain("warning", format, arguments);
    va_end(arguments);
}
