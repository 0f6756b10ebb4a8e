/* csv_rows.h: rows of a CSV file.
 *
 * The first record names the columns; each later record is a row with these keys and string values.
 * Quoting follows RFC 4180, with doubled quotes and line ends inside quotes. Lines may end with a
 * carriage return, and a byte order mark is skipped. The separator is the first of comma, semicolon
 * and tab with which the column names are the keys of a kind of row (conversation.h). Upper and
 * lower case do not matter. */
#pragma once

#include "data/conversation.h"
#include "data/json_rows.h"

#define HY_CSV_MOST_COLUMNS 1024

struct hy_csv {
    char separator;
    size_t count;
    char **names; /* in lower case; "": a column without a name, which is ignored */
};

/* Whether a text begins with a complete line of column names that are the keys of a kind of row. */
bool hy_csv_is_header(const char *text, size_t size);

/* Reads the column names and moves the scan after them; *kind is the kind of the rows. HY_ERR_INPUT
 * says what is wrong with the names, without the file. Close the header after the last row was
 * read. */
hy_status hy_csv_begin(hy_row_scan *scan, const char *data, size_t size, const hy_columns *columns,
                       hy_csv *csv, hy_row_kind *kind);
void hy_csv_close(hy_csv *csv); /* accepts all zeros */

/* The next record, for hy_rows_next. */
bool hy_csv_next(hy_row_scan *scan, hy_row *row);

/* Appends a row as a JSON object. HY_ERR_INPUT says what is wrong. */
hy_status hy_csv_to_json(const hy_row *row, hy_text *out);
