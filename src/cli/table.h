/* table.h: aligned columns of short text.
 *
 * Rows are added first, widths follow from what was added. A table is a value on the stack; text is
 * copied and cut to HY_CLI_CELL_MAX. The first column is aligned left, the others as asked. */
#ifndef HY_CLI_TABLE_H
#define HY_CLI_TABLE_H

#include <stddef.h>

#include "cli/terminal.h"

#define HY_CLI_TABLE_COLUMNS 8
#define HY_CLI_TABLE_ROWS 64
#define HY_CLI_CELL_MAX 64

typedef struct hy_cli_table {
    const char *alignment; /* one letter per column: 'l' or 'r' */
    size_t rows, columns;
    char cells[HY_CLI_TABLE_ROWS][HY_CLI_TABLE_COLUMNS][HY_CLI_CELL_MAX];
} hy_cli_table;

/* Begins an empty table with as many columns as `alignment` has letters. */
void hy_cli_table_begin(hy_cli_table *table, const char *alignment);

/* Adds a row of texts, NULL after the last; missing cells stay empty. A row beyond the last is
 * dropped. */
void hy_cli_table_row(hy_cli_table *table, ...) __attribute__((sentinel));

/* Prints all rows, the first as column titles when has_titles. */
void hy_cli_table_print(const hy_cli_table *table, const hy_cli_terminal *terminal,
                        bool has_titles);

#endif
