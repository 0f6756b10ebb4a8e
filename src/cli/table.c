/* table.c: short figures and aligned columns. See table.h.
 *
 * Figures are returned by value, so that several fit in one argument list. A value that is not
 * known becomes "-". */
#include "cli/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- figures --------------------------------------------------------------------------------- */

/* A figure has at most 31 characters, so tables and the progress line can rely on its width. */

__attribute__((format(printf, 1, 2))) static hy_cli_figure written(const char *format, ...) {
    hy_cli_figure figure;
    va_list values;
    va_start(values, format);
    vsnprintf(figure.text, sizeof figure.text, format, values);
    va_end(values);
    return figure;
}

/* About three significant digits, without an exponent. */
static hy_cli_figure scaled(double value, const char *unit) {
    return written("%.*f%s", value < 9.995 ? 2 : value < 999.95 ? 1 : 0, value, unit);
}

hy_cli_figure hy_cli_bytes(uint64_t bytes) {
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    if (bytes < 1024) return written("%" PRIu64 " B", bytes);
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    return scaled(value, units[unit]);
}

hy_cli_figure hy_cli_count(int64_t count) {
    hy_cli_figure figure;
    char digits[24];
    uint64_t magnitude = count < 0 ? 0 - (uint64_t)count : (uint64_t)count;
    int length = snprintf(digits, sizeof digits, "%" PRIu64, magnitude);
    char *to = figure.text;
    if (count < 0) *to++ = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return figure;
}

hy_cli_figure hy_cli_short_count(double count) {
    if (!isfinite(count) || count < 0) return (hy_cli_figure){"-"};
    if (count >= 999.95e6) return scaled(count / 1e9, "B");
    if (count >= 999.95e3) return scaled(count / 1e6, "M");
    if (count >= 9999.5) return scaled(count / 1e3, "k");
    return written("%.0f", count);
}

hy_cli_figure hy_cli_duration(double seconds) {
    if (!isfinite(seconds) || seconds < 0 || seconds > 3e9) return (hy_cli_figure){"-"};
    if (seconds < 0.005) return (hy_cli_figure){"0 s"};
    if (seconds < 9.95) return written(seconds < 0.095 ? "%.2f s" : "%.1f s", seconds);
    long long whole = (long long)(seconds + 0.5), minutes = whole / 60, hours = minutes / 60;
    if (whole < 60) return written("%lld s", whole);
    if (hours < 1) return written("%lldm %02llds", minutes, whole % 60);
    if (hours < 24) return written("%lldh %02lldm", hours, minutes % 60);
    return written("%lldd %02lldh", hours / 24, hours % 24);
}

hy_cli_figure hy_cli_share(double share, double error) {
    hy_cli_figure out;
    int used = snprintf(out.text, sizeof out.text, "%.2f %%", 100 * share);
    if (!isnan(error))
        snprintf(out.text + used, sizeof out.text - (size_t)used, " +- %.2f", 100 * error);
    return out;
}

hy_cli_figure hy_cli_loss(double nats) {
    if (isnan(nats)) return (hy_cli_figure){"-"};
    return written(fabs(nats) < 1e6 ? "%.4f" : "%.3g", nats);
}

hy_cli_figure hy_cli_learning_rate(double lr) { return written("%.2e", lr); }

/* ---- tables ---------------------------------------------------------------------------------- */

/* Every column is as wide as its widest cell. Cells contain only ASCII (figures and names), so
 * bytes equal columns. */

void hy_cli_table_begin(hy_cli_table *table, const char *alignment) {
    table->alignment = alignment;
    table->rows = table->filled = 0;
    table->columns = strlen(alignment);
}

void hy_cli_table_add(hy_cli_table *table, const char *text) {
    if (table->rows == 0 || table->filled == table->columns) return;
    snprintf(table->cells[table->rows - 1][table->filled++], HY_CLI_CELL_MAX, "%s", text);
}

void hy_cli_table_row(hy_cli_table *table, ...) {
    va_list texts;
    table->filled = table->columns; /* of a row that is dropped */
    if (table->rows == HY_CLI_TABLE_ROWS) return;
    memset(table->cells[table->rows++], 0, sizeof table->cells[0]);
    table->filled = 0;
    va_start(texts, table);
    while (table->filled < table->columns) {
        const char *text = va_arg(texts, const char *);
        if (text == NULL) break;
        hy_cli_table_add(table, text);
    }
    va_end(texts);
}

void hy_cli_table_print(const hy_cli_table *table, const hy_cli_terminal *terminal,
                        bool has_titles) {
    int widths[HY_CLI_TABLE_COLUMNS] = {0};
    for (size_t r = 0; r < table->rows; r++)
        for (size_t c = 0; c < table->columns; c++) {
            int length = (int)strlen(table->cells[r][c]);
            if (length > widths[c]) widths[c] = length;
        }
    for (size_t r = 0; r < table->rows; r++) {
        bool is_title = has_titles && r == 0;
        /* A line ends after the last filled cell, without trailing blanks. */
        size_t filled = table->columns;
        while (filled > 0 && table->cells[r][filled - 1][0] == '\0') filled--;
        if (is_title) fputs(hy_cli_colour_code(terminal, HY_CLI_DIM), terminal->out);
        for (size_t c = 0; c < filled; c++) {
            bool is_left = table->alignment[c] == 'l';
            int width = is_left && c + 1 == filled ? 0 : widths[c];
            fprintf(terminal->out, is_left ? "  %-*s" : "  %*s", width, table->cells[r][c]);
        }
        if (is_title) fputs(hy_cli_colour_code(terminal, HY_CLI_PLAIN), terminal->out);
        fputc('\n', terminal->out);
    }
}
