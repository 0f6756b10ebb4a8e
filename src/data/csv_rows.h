/* csv_rows.h: rows of a CSV file.
 *
 * The first record names the columns; each one after it is a row with these keys, all values strings. What
 * may be quoted, with doubled quotes and line ends inside, is as RFC 4180 says; lines end with or without a
 * carriage return, and a byte order mark is passed over. Columns are parted by commas, semicolons or tabs:
 * the first of these with which the names are those of rows (conversation.h), written small or large. */
#pragma once

#include "data/conversation.h"
#include "data/json_rows.h"

#define HY_CSV_MOST_COLUMNS 1024

struct hy_csv {
    char separator;
    size_t count;
    char **names; /* in small letters; "" for a column without a name, which is left out */
};

/* Whether a text begins with names of columns that are those of rows, in a whole line. */
bool hy_csv_is_header(const char *text, size_t size);

/* Reads the names and sets the scan behind them; *kind is what the rows are. HY_ERR_INPUT says what is wrong
 * with the names, without the file. The header is closed when nothing reads rows any more. */
hy_status hy_csv_begin(hy_row_scan *scan, const char *data, size_t size, hy_csv *csv,
                       hy_row_kind *kind);
void hy_csv_close(hy_csv *csv); /* a zeroed one too */

/* For hy_rows_next: the next record. */
bool hy_csv_next(hy_row_scan *scan, hy_row *row);

/* A row of such a file as the object that JSON would have, appended. HY_ERR_INPUT says what is wrong. */
hy_status hy_csv_to_json(const hy_row *row, hy_text *out);
