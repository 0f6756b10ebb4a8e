/* table.c: prints rows of text with every column as wide as its widest cell.
 *
 * Cells hold ASCII only (figures and names), so bytes are columns. */
#include "cli/table.h"

#include <stdarg.h>
#include <string.h>

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

/* The last filled cell of a row ends its line: no blanks at the end. */
static size_t filled_columns(const hy_cli_table *table, size_t row) {
    size_t filled = table->columns;
    while (filled > 0 && table->cells[row][filled - 1][0] == '\0') filled--;
    return filled;
}

void hy_cli_table_print(const hy_cli_table *table, const hy_cli_terminal *terminal,
                        bool has_titles) {
    for (size_t r = 0; r < table->rows; r++) {
        bool is_title = has_titles && r == 0;
        size_t filled = filled_columns(table, r);
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
