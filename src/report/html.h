/* html.h: text and figures in the page.
 *
 * All text from files goes through hy_html_text: it cannot become markup, and invalid UTF-8 and
 * control characters become U+FFFD. */
#pragma once

#include "base/text.h"

void hy_html_text(hy_text *out, const char *text);
/* The same between two pieces of markup. */
void hy_html_put(hy_text *out, const char *before, const char *text, const char *after);
void hy_html_count(hy_text *out, int64_t count); /* "1,234,567" */

/* The format of a quantity's values; the script of the page uses the same names. */
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
void hy_html_cell(hy_text *out, hy_figure figure, double value);   /* a cell of a table */
/* A table with a title; columns end with NULL, and those before `numbers_from` hold text. */
void hy_html_open_table(hy_text *html, const char *title, const char *const *columns,
                        int numbers_from);
void hy_html_close_table(hy_text *html);
/* Rows of a table begin with this; the name of the row follows. */
#define HY_HTML_ROW "<tr><th scope=\"row\">"
