/* sample.h: a column of numbers made small enough to be drawn, without losing what stands out.
 *
 * A column has one value a row, NaN where there is none. Of many rows those are kept that hold the least and
 * the greatest value of each bucket, so that a spike of one step is still drawn at its full height; the
 * first and the last are kept always. Rows and values are written as short texts for the page's script. */
#pragma once

#include "base/text.h"
#include "hybrid_report.h"

/* What is known of a whole column, kept rows or not. */
typedef struct hy_column_facts {
    size_t count; /* rows with a value */
    double min, max, last;
} hy_column_facts;

void hy_column_look(const double *column, size_t rows, hy_column_facts *out);

/* At most about `limit` rows (at least 4) of the column into `kept` (room for all), in order; returns how
 * many. */
size_t hy_column_thin(const double *column, size_t rows, size_t limit, size_t *kept);

/* The mean of the values at most `reach` rows away, at about `places` rows; NaN at the others. Near the
 * ends the reach is shorter, so that a steep beginning is not bent. */
void hy_column_smooth(const double *column, size_t rows, size_t reach, size_t places, double *out);

/* Rows as differences, the first from 0: "0,1,,,3"; nothing between commas repeats the difference. */
void hy_put_rows(hy_text *out, const size_t *kept, size_t count);
/* Values, seven digits of fractions and all digits of whole numbers; nothing repeats the value before. */
void hy_put_values(hy_text *out, const double *column, const size_t *kept, size_t count);
/* One number as above. */
void hy_put_number(hy_text *out, double value);

typedef struct hy_column {
    const char *key;
    bool is_of_steps; /* what a jump's line says is left out: of the guard's loss, or of nothing */
    hy_class cls;     /* of "memory" and "pinned", which are bytes by class */
} hy_column;

void hy_column_fill(const hy_run *run, const hy_column *column, double *out);
