/* sample.h: reduces a column of numbers for drawing, without losing what stands out.
 *
 * A column has one value per row, NaN if there is none. Of many rows, those with the smallest and
 * the largest value of each bucket are kept, so that a spike of one step is drawn at its full
 * height; the first and the last are always kept. Rows and values are written as short texts for
 * the script of the page. */
#pragma once

#include "base/text.h"
#include "hybrid_report.h"

/* Figures of the whole column, including rows that are not kept. */
typedef struct hy_column_facts {
    size_t count; /* rows with a value */
    double min, max, last;
} hy_column_facts;

void hy_column_look(const double *column, size_t rows, hy_column_facts *out);

/* Keeps at most about `limit` rows (at least 4) of the column in `kept` (room for all), in order;
 * returns their number. */
size_t hy_column_thin(const double *column, size_t rows, size_t limit, size_t *kept);

/* The mean of the `window` values around a row, at about `places` rows; NaN at the others. At the
 * start there are fewer, so that a steep start keeps its shape. At the end it is the mean of the
 * last `window` values. */
void hy_column_smooth(const double *column, size_t rows, size_t window, size_t places, double *out);

/* Rows as differences, the first from 0: "0,1,,,3"; an empty entry repeats the difference
 * before. */
void hy_put_rows(hy_text *out, const size_t *kept, size_t count);
/* Values with seven digits for fractions and all digits for integers; an empty entry repeats the
 * value before. */
void hy_put_values(hy_text *out, const double *column, const size_t *kept, size_t count);
/* One number as above. */
void hy_put_number(hy_text *out, double value);

typedef struct hy_column {
    const char *key;
    bool is_of_steps; /* skips lines of jumps: for the guard's loss, or none */
    hy_class cls;     /* index in "memory" and "pinned", which are bytes by class */
} hy_column;

void hy_column_fill(const hy_run *run, const hy_column *column, double *out);
