/* table.h: readable sizes, counts, times and losses, and aligned columns of short text.
 *
 * Rows are added first; the column widths follow from them. A table is a value on the stack; texts
 * are copied and cut to HY_CLI_CELL_MAX. */
#pragma once

#include "cli/terminal.h"

typedef struct hy_cli_figure {
    char text[32];
} hy_cli_figure;

hy_cli_figure hy_cli_bytes(uint64_t bytes);     /* "812 B", "34.2 MiB", "1.46 TiB" */
hy_cli_figure hy_cli_count(int64_t count);      /* "1,234,567" */
hy_cli_figure hy_cli_short_count(double count); /* "812", "12.3k", "124.4M", "7.62B" */
hy_cli_figure hy_cli_duration(double seconds);  /* "0.8 s", "42 s", "3m 12s", "5h 07m", "2d 03h" */
hy_cli_figure hy_cli_loss(double nats);         /* "1.2345"; "-" if not known */
hy_cli_figure hy_cli_learning_rate(double lr);  /* "3.00e-04" */
/* "73.50 % +- 3.12": a share and its standard error; without the error if it is not known. */
hy_cli_figure hy_cli_share(double share, double error);

#define HY_CLI_TABLE_COLUMNS 11
#define HY_CLI_TABLE_ROWS 64
#define HY_CLI_CELL_MAX 96

typedef struct hy_cli_table {
    const char *alignment; /* one letter per column: 'l' or 'r' */
    size_t rows, columns;
    size_t filled; /* cells in the last row */
    char cells[HY_CLI_TABLE_ROWS][HY_CLI_TABLE_COLUMNS][HY_CLI_CELL_MAX];
} hy_cli_table;

/* Begins an empty table with as many columns as `alignment` has letters. */
void hy_cli_table_begin(hy_cli_table *table, const char *alignment);

/* Adds a row of texts that ends with NULL; missing cells are empty. Rows beyond the last are
 * dropped. */
void hy_cli_table_row(hy_cli_table *table, ...) __attribute__((sentinel));

/* Adds a cell to the last row if there is room. */
void hy_cli_table_add(hy_cli_table *table, const char *text);

/* Prints all rows; with has_titles, the first row is the header. */
void hy_cli_table_print(const hy_cli_table *table, const hy_cli_terminal *terminal,
                        bool has_titles);
