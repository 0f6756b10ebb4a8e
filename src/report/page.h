/* page.h: the parts of the page. Of this module alone; others see hy_report_write.
 *
 * page.c puts it together; charts.c writes what the script draws and the figure around each drawing;
 * axes.c writes what the drawings share; tables.c and head.c write what reads without a script. The
 * style and the script are files of their own (page/), carried in the library. */
#pragma once

#include "base/json.h"
#include "report/html.h"
#include "report/sample.h"
#include "report/totals.h"

/* Carried in the library; the hashes are base64 of their SHA-256, for the page's security policy. */
extern const char hy_report_style[], hy_report_script[];
extern const char hy_report_style_hash[], hy_report_script_hash[];

typedef struct hy_page {
    const hy_run *const *runs;
    int count;
    hy_run_totals *totals; /* a run each */
    hy_text *html;         /* the page */
    hy_text *data;         /* the JSON that the script reads */
    hy_json_writer *json;  /* into data */
    size_t limit;          /* rows kept of a column */
    double *column, *mean; /* scratch for the longest run */
    size_t *kept;
    hy_text scratch;
} hy_page;

void hy_page_axes(hy_page *page);   /* "runs": names, rows, steps, tokens, time, phases */
void hy_page_charts(hy_page *page); /* "charts", and their figures in the page */
void hy_page_events(hy_page *page); /* "events" */

void hy_page_head(hy_page *page); /* title, state and the few figures that people ask for first */
void hy_page_comparison(hy_page *page);
void hy_page_settings(hy_page *page); /* rows of it: settings in which the runs differ */
void hy_page_run_tables(hy_page *page, int run);
