/* json_rows.h: where the rows of a JSON file begin and end, and those of CSV (csv_rows.h).
 *
 * A file holds one object a line (JSONL), or one array of them. Finding the rows needs no tree: an array
 * is cut at the commas between its elements, so a file of any size costs no memory. Whether a row is
 * JSON is seen when it is parsed; what breaks the cutting itself is a row with a reason. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_ROW_MOST ((size_t)16 << 20) /* bytes; a larger row is a broken file */

typedef struct hy_csv hy_csv;

typedef struct hy_row {
    const char *data;
    size_t size;
    uint64_t line;      /* where it begins, from 1 */
    const char *broken; /* why it is no row, or NULL */
    const hy_csv *csv;  /* the names of its columns; NULL: it is JSON */
} hy_row;

typedef struct hy_row_scan {
    const char *at, *end;
    uint64_t line;
    bool is_array, is_over;
    const hy_csv *csv; /* or NULL */
} hy_row_scan;

/* Whether a text begins like rows of JSON: a line that is an object, or an array of objects. For what has no
 * name that says it. */
bool hy_rows_are_there(const char *text, size_t size);

/* Bytes in memory or mapped; they must stay while rows are read. */
void hy_rows_begin(hy_row_scan *scan, const char *data, size_t size);
/* The next row; false when there is none left. Blank lines are none. */
bool hy_rows_next(hy_row_scan *scan, hy_row *row);
