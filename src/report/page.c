/* page.c: hy_report_write: one HTML page that needs no other file. See hybrid_report.h and page.h.
 *
 * The security policy of the page allows only its own style and script, identified by their hashes.
 * The page cannot send any request, whatever a run's files contain. The data for the script is in a
 * block that is not executed, with every '<' escaped. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "report/page.h"

#define ROWS_IN_ALL 6000 /* points of one column, over all runs; see sample.h */
#define ROWS_MAX 3000
#define ROWS_MIN 200

/* ---- data ------------------------------------------------------------------------------------ */

static void add_body(hy_page *page) {
    hy_text *html = page->html;
    hy_json_writer writer;
    page->json = &writer;
    hy_json_begin(&writer, page->data, false);
    hy_json_open_object(&writer, NULL);
    hy_page_axes(page);
    hy_page_events(page);
    hy_text_add(html, "<section class=\"drawings\">\n"
                      "<div class=\"bar\" id=\"bar\"></div>\n"
                      "<noscript><p class=\"note\">The charts need JavaScript, which is off; the "
                      "tables show the same values.</p></noscript>\n"
                      "<div class=\"grid\">\n");
    hy_page_charts(page);
    hy_text_add(html, "</div>\n</section>\n");
    hy_json_close_object(&writer);
    for (int r = 0; r < page->count; r++) hy_page_run_tables(page, r);
}

/* ---- page ------------------------------------------------------------------------------------ */

static void add_page(hy_page *page) {
    hy_text *html = page->html;
    hy_text_addf(html,
                 "<!DOCTYPE html>\n"
                 "<html lang=\"en\">\n"
                 "<head>\n"
                 "<meta charset=\"utf-8\">\n"
                 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                 "script-src 'sha256-%s'; style-src 'sha256-%s'; img-src data:; base-uri 'none'; "
                 "form-action 'none'\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                 "<meta name=\"color-scheme\" content=\"light dark\">\n"
                 "<meta name=\"referrer\" content=\"no-referrer\">\n"
                 "<link rel=\"icon\" href=\"data:,\">\n",
                 hy_report_script_hash, hy_report_style_hash);
    for (int r = 0; r < page->count; r++)
        hy_html_put(html, r > 0 ? ", " : "<title>", hy_run_describe(page->runs[r])->name, "");
    hy_text_add(html, " \xC2\xB7 training report</title>\n<style>");
    hy_text_add(html, hy_report_style);
    hy_text_add(html, "</style>\n"
                      "</head>\n"
                      "<body>\n"
                      "<main>\n");
    hy_page_head(page);
    hy_page_comparison(page);
    add_body(page);
    hy_text_add(html, "</main>\n<script type=\"application/json\" id=\"data\">");
    /* In JSON, '<' occurs only inside strings, where it can be escaped. */
    for (const char *at = hy_text_string(page->data); *at; at++) {
        size_t plain = strcspn(at, "<");
        hy_text_add_bytes(html, at, plain);
        at += plain;
        if (!*at) break;
        hy_text_add(html, "\\u003c");
    }
    hy_text_add(html, "</script>\n<script>");
    hy_text_add(html, hy_report_script);
    hy_text_add(html, "</script>\n"
                      "</body>\n"
                      "</html>\n");
}

static hy_status make_page(const hy_run *const *runs, int count, hy_text *html) {
    hy_text data = {0};
    size_t rows = 1 /* rows of the longest run */, limit = ROWS_IN_ALL / (size_t)count;
    for (int r = 0; r < count; r++)
        if (hy_run_points(runs[r]) > rows) rows = hy_run_points(runs[r]);
    hy_page page = {.runs = runs, .count = count, .html = html, .data = &data};
    page.limit = limit > ROWS_MAX ? ROWS_MAX : limit < ROWS_MIN ? ROWS_MIN : limit;
    page.totals = calloc((size_t)count, sizeof *page.totals);
    page.column = calloc(rows, sizeof *page.column);
    page.mean = calloc(rows, sizeof *page.mean);
    page.kept = calloc(rows, sizeof *page.kept);
    bool is_made = page.totals && page.column && page.mean && page.kept;
    if (is_made) {
        for (int r = 0; r < count; r++) hy_run_total(runs[r], &page.totals[r]);
        add_page(&page);
        is_made = !html->has_failed && !data.has_failed && !page.scratch.has_failed;
    }
    hy_text_free(&data);
    hy_text_free(&page.scratch);
    free(page.totals);
    free(page.column);
    free(page.mean);
    free(page.kept);
    HY_FAIL_IF(!is_made, HY_ERR_MEMORY, "out of memory for a report of %zu lines", rows);
    return HY_OK;
}

hy_status hy_report_write(const hy_run *const *runs, int count, const char *path) {
    hy_text html = {0};
    if (count < 1) return hy_fail(HY_ERR_INPUT, "a report needs at least one run");
    hy_status status = make_page(runs, count, &html);
    if (status == HY_OK) status = hy_file_write_atomic(path, html.data, html.size);
    hy_text_free(&html);
    return status;
}
