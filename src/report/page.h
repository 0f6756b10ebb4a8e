/* page.h: the parts of the page, for this module only; others use hy_report_write.
 *
 * page.c assembles it; charts.c writes the data for the script and the figure of each chart; axes.c
 * writes what the charts share; tables.c, answers.c and head.c write what can be read without a script.
 * Style and script are separate files (page/) that are compiled into the library. */
#pragma once

#include "base/json.h"
#include "report/html.h"
#include "report/sample.h"
#include "report/totals.h"

/* Compiled into the library; the hashes are base64 of SHA-256, for the security policy of the
 * page. */
extern const char hy_report_style[], hy_report_script[];
extern const char hy_report_style_hash[], hy_report_script_hash[];

typedef struct hy_page {
    const hy_run *const *runs;
    int count;
    hy_run_totals *totals; /* one per run */
    hy_text *html;         /* the page */
    hy_text *data;         /* the JSON for the script */
    hy_json_writer *json;  /* writes into data */
    size_t limit;          /* rows of a column that are kept */
    double *column, *mean; /* buffers with room for the longest run */
    size_t *kept;
    hy_text scratch;
} hy_page;

void hy_page_axes(hy_page *page);   /* "runs": names, rows, steps, tokens, time, phases */
void hy_page_charts(hy_page *page); /* "charts", and their figures in the page */
void hy_page_events(hy_page *page); /* "events" */

void hy_page_head(hy_page *page); /* title, state and the most important figures */
void hy_page_comparison(hy_page *page);
void hy_page_settings(hy_page *page); /* table rows: settings in which the runs differ */
void hy_page_run_tables(hy_page *page, int run);
void hy_page_answers(hy_page *page, int run); /* answers.c: that were generated and rewarded */
