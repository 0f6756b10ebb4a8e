/* json_rows.h: finds where the rows of a JSON or CSV file (csv_rows.h) begin and end.
 *
 * A JSON file has one object per line (JSONL), or one array of objects. Finding the rows needs no
 * tree: an array is cut at the commas between its elements, so a file of any size needs no memory.
 * The parser later decides whether a row is valid JSON. If the cut itself fails, the row carries a
 * reason. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_ROW_MOST ((size_t)16 << 20) /* bytes; a file with a larger row is malformed */

typedef struct hy_csv hy_csv;

typedef struct hy_row {
    const char *data;
    size_t size;
    uint64_t line;      /* line of the file where it begins, from 1 */
    const char *broken; /* why the row is malformed, or NULL */
    const hy_csv *csv;  /* the column names; NULL: the row is JSON */
} hy_row;

typedef struct hy_row_scan {
    const char *at, *end;
    uint64_t line;
    bool is_array, is_over;
    const hy_csv *csv; /* or NULL */
} hy_row_scan;

/* Whether a text begins with rows of JSON: a line with an object, or an array of objects. Used if
 * the name of the file does not show its kind. */
bool hy_rows_are_there(const char *text, size_t size);

/* `data` is in memory or mapped, and must stay there while rows are read. */
void hy_rows_begin(hy_row_scan *scan, const char *data, size_t size);
/* Finds the next row; false at the end. Blank lines are skipped. */
bool hy_rows_next(hy_row_scan *scan, hy_row *row);
