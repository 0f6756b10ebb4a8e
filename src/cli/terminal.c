/* terminal.c: detects the abilities of the terminal once, and prints errors and warnings.
 *
 * There is no cursor movement: a progress line is overwritten with a carriage return and spaces, so
 * a terminal without colour receives no escape codes at all. */
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

void hy_cli_terminal_init(hy_cli_terminal *terminal, FILE *out, bool is_quiet,
                          bool without_colour) {
    const char *kind = variable("TERM");
    bool can_redraw = *kind != '\0' && strcmp(kind, "dumb") != 0;
    terminal->out = out;
    terminal->is_quiet = is_quiet;
    terminal->is_tty = can_redraw && isatty(fileno(out));
    terminal->has_colour = terminal->is_tty && !without_colour && *variable("NO_COLOR") == '\0';
    /* The first of the three variables that is set counts, as in setlocale(). */
    const char *value = variable("LC_ALL");
    if (*value == '\0') value = variable("LC_CTYPE");
    if (*value == '\0') value = variable("LANG");
    terminal->is_utf8 = strcasestr(value, "utf-8") != NULL || strcasestr(value, "utf8") != NULL;
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

void hy_cli_section(const hy_cli_terminal *terminal, const char *text) {
    fputc('\n', terminal->out);
    hy_cli_heading(terminal, text);
}

static const char *program = "hybrid-train";

void hy_cli_name_program(const char *name) { program = name; }
const char *hy_cli_program_name(void) { return program; }

/* ---- bytes of unknown origin ----------------------------------------------------------------- */

/* An untrained model can produce any byte, including escape codes. Only printable ASCII, newline,
 * tab and whole UTF-8 characters outside the control range reach the terminal. */

/* The smallest value for each length of a sequence; a longer encoding of a smaller value is
 * invalid. */
static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};

size_t hy_cli_decode(const char *bytes, size_t size, uint32_t *value) {
    const unsigned char *at = (const unsigned char *)bytes;
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xC2 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : 4;
    if (length == 0 || at[0] > 0xF4 || length > size) return 0;
    *value = length == 1 ? at[0] : at[0] & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80) return 0;
        *value = *value << 6 | (at[i] & 0x3Fu);
    }
    bool is_surrogate = *value >= 0xD800 && *value <= 0xDFFF;
    return *value < smallest[length] || *value > 0x10FFFF || is_surrogate ? 0 : length;
}

/* C0 and C1 control characters, and marks that reorder text. */
static bool is_control(uint32_t value) {
    return value < 0x20 || (value >= 0x7F && value < 0xA0) ||
           (value >= 0x202A && value <= 0x202E) || (value >= 0x2066 && value <= 0x2069);
}

/* The text to print for the character at `at`, and the number of bytes it replaces. */
static size_t show(const char *at, size_t size, bool is_utf8, char shown[8]) {
    uint32_t value;
    size_t length = hy_cli_decode(at, size, &value);
    if (length == 0)
        snprintf(shown, 8, "%s", is_utf8 ? "\xEF\xBF\xBD" : "?");
    else if (value == '\n' || value == '\t')
        snprintf(shown, 8, "%c", (int)value);
    else if (is_control(value))
        snprintf(shown, 8, value < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)value & 0xFFFF);
    else if (length > 1 && !is_utf8)
        snprintf(shown, 8, "?");
    else
        snprintf(shown, 8, "%.*s", (int)length, at);
    return length > 0 ? length : 1;
}

void hy_cli_write_safely(FILE *out, const char *bytes, size_t size, bool is_utf8) {
    const char *end = bytes + size;
    char shown[8];
    while (bytes < end) {
        bytes += show(bytes, (size_t)(end - bytes), is_utf8, shown);
        fputs(shown, out);
    }
}

size_t hy_cli_copy_safely(char *to, size_t size, const char *text, bool is_utf8) {
    size_t written = 0;
    char shown[8];
    while (*text != '\0') {
        text += show(text, strlen(text), is_utf8, shown);
        if (shown[0] == '\n' || shown[0] == '\t') shown[0] = ' ';
        if (written + strlen(shown) >= size) break;
        memcpy(to + written, shown, strlen(shown));
        written += strlen(shown);
    }
    to[written] = '\0';
    return written;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* longer than any message of the library; longer messages are cut */
enum { PRINT_MAX = 8192 };

void hy_cli_vprintf(FILE *out, const char *format, va_list arguments) {
    char text[PRINT_MAX];
    if (vsnprintf(text, sizeof text, format, arguments) > 0)
        hy_cli_write_safely(out, text, strlen(text), true);
}

void hy_cli_printf(FILE *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    hy_cli_vprintf(out, format, arguments);
    va_end(arguments);
}

void hy_cli_report(const char *kind, const char *format, ...) {
    char text[PRINT_MAX], line[4 * PRINT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    /* Further lines are indented, so that none can pass for a message of its own. */
    size_t used = 0;
    for (char *rest = text, *part; (part = strsep(&rest, "\n")) != NULL;) {
        used += hy_cli_copy_safely(line + used, sizeof line - used - 4, part, true);
        if (rest != NULL) used += (size_t)sprintf(line + used, "\n  ");
        if (used + 8 > sizeof line) break;
    }
    fprintf(stderr, "%s: %s: %s\n", program, kind, line);
}
