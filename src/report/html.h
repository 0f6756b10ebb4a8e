/* html.h: text and figures as they stand in the page.
 *
 * Everything that comes from a file goes through hy_html_text: nothing in it can become markup, and what is
 * no UTF-8 or a control character becomes U+FFFD. */
#pragma once

#include "base/text.h"

void hy_html_text(hy_text *out, const char *text);
void hy_html_count(hy_text *out, int64_t count); /* "1,234,567" */

/* How values of a quantity are written; the page's script knows the same words. */
typedef enum hy_figure {
    HY_FIGURE_LOSS,    /* "2.0248" */
    HY_FIGURE_SMALL,   /* "3.00e-04" */
    HY_FIGURE_COUNT,   /* "1,234,567" */
    HY_FIGURE_SHORT,   /* "124.4M" */
    HY_FIGURE_BYTES,   /* "1.9 GiB" */
    HY_FIGURE_PERCENT, /* "4.1 %" */
    HY_FIGURE_NUMBER,  /* "0.80" */
    HY_FIGURE_TIME,    /* "2 h 05 m" */
    HY_FIGURE_COUNT_OF
} hy_figure;

const char *hy_figure_name(hy_figure figure);
void hy_html_figure(hy_text *out, hy_figure figure, double value); /* a dash for NaN */
void hy_html_cell(hy_text *out, hy_figure figure, double value);   /* of a table */
