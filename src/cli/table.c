/* table.c: figures in a few characters each, and aligned columns of them. See table.h. */
#include "cli/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- figures --------------------------------------------------------------------------------- */

/* Their widths are bounded (31 characters), so tables and the progress line can rely on them. */

/* Three significant digits or so, without an exponent. */
static hy_cli_figure scaled(double value, const char *unit) {
    hy_cli_figure figure;
    int decimals = value < 9.995 ? 2 : value < 999.95 ? 1 : 0;
    snprintf(figure.text, sizeof figure.text, "%.*f%s", decimals, value, unit);
    return figure;
}

hy_cli_figure hy_cli_bytes(uint64_t bytes) {
    static const char *const units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    hy_cli_figure figure;
    double value = (double)bytes;
    size_t unit = 0;
    if (bytes < 1024) {
        snprintf(figure.text, sizeof figure.text, "%" PRIu64 " B", bytes);
        return figure;
    }
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
    hy_cli_figure figure;
    if (!isfinite(count) || count < 0) return (hy_cli_figure){"-"};
    if (count >= 999.95e6) return scaled(count / 1e9, "B");
    if (count >= 999.95e3) return scaled(count / 1e6, "M");
    if (count >= 9999.5) return scaled(count / 1e3, "k");
    snprintf(figure.text, sizeof figure.text, "%.0f", count);
    return figure;
}

hy_cli_figure hy_cli_duration(double seconds) {
    hy_cli_figure figure;
    if (!isfinite(seconds) || seconds < 0 || seconds > 3e9) return (hy_cli_figure){"-"};
    if (seconds < 0.005) return (hy_cli_figure){"0 s"};
    if (seconds < 9.95) {
        snprintf(figure.text, sizeof figure.text, seconds < 0.095 ? "%.2f s" : "%.1f s", seconds);
        return figure;
    }
    int64_t whole = (int64_t)(seconds + 0.5);
    int64_t minutes = whole / 60, hours = minutes / 60, days = hours / 24;
    if (whole < 60)
        snprintf(figure.text, sizeof figure.text, "%" PRId64 " s", whole);
    else if (hours < 1)
        snprintf(figure.text, sizeof figure.text, "%" PRId64 "m %02" PRId64 "s", minutes,
                 whole % 60);
    else if (days < 1)
        snprintf(figure.text, sizeof figure.text, "%" PRId64 "h %02" PRId64 "m", hours,
                 minutes % 60);
    else
        snprintf(figure.text, sizeof figure.text, "%" PRId64 "d %02" PRId64 "h", days, hours % 24);
    return figure;
}

hy_cli_figure hy_cli_loss(double nats) {
    hy_cli_figure figure;
    if (isnan(nats)) return (hy_cli_figure){"-"};
    snprintf(figure.text, sizeof figure.text, fabs(nats) < 1e6 ? "%.4f" : "%.3g", nats);
    return figure;
}

hy_cli_figure hy_cli_learning_rate(double lr) {
    hy_cli_figure figure;
    snprintf(figure.text, sizeof figure.text, "%.2e", lr);
    return figure;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Every column is as wide as its widest cell. Cells hold ASCII only (figures and names), so bytes are
 * columns. */

void hy_cli_table_begin(hy_cli_table *table, const char *alignment) {
    table->alignment = alignment;
    table->rows = 0;
    table->columns = strlen(alignment);
}

void hy_cli_table_row(hy_cli_table *table, ...) {
    va_list texts;
    if (table->rows == HY_CLI_TABLE_ROWS) return;
    char(*row)[HY_CLI_CELL_MAX] = table->cells[table->rows++];
    memset(row, 0, sizeof table->cells[0]);
    va_start(texts, table);
    for (size_t c = 0; c < table->columns; c++) {
        const char *text = va_arg(texts, const char *);
        if (text == NULL) break;
        snprintf(row[c], HY_CLI_CELL_MAX, "%s", text);
    }
    va_end(texts);
}

static size_t column_width(const hy_cli_table *table, size_t column) {
    size_t width = 0;
    for (size_t r = 0; r < table->rows; r++) {
        size_t length = strlen(table->cells[r][column]);
        if (length > width) width = length;
    }
    return width;
}

void hy_cli_table_print(const hy_cli_table *table, const hy_cli_terminal *terminal,
                        bool has_titles) {
    for (size_t r = 0; r < table->rows; r++) {
        bool is_title = has_titles && r == 0;
        /* The last filled cell of a row ends its line: no blanks at the end. */
        size_t filled = table->columns;
        while (filled > 0 && table->cells[r][filled - 1][0] == '\0') filled--;
        if (is_title) fputs(hy_cli_colour_code(terminal, HY_CLI_DIM), terminal->out);
        for (size_t c = 0; c < filled; c++) {
            bool is_left = table->alignment[c] == 'l';
            int width = (int)column_width(table, c);
            if (is_left && c + 1 == filled) width = 0;
            fprintf(terminal->out, is_left ? "  %-*s" : "  %*s", width, table->cells[r][c]);
        }
        if (is_title) fputs(hy_cli_colour_code(terminal, HY_CLI_PLAIN), terminal->out);
        fputc('\n', terminal->out);
    }
}
