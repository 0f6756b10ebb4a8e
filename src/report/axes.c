/* axes.c: what all charts share: the position of each row of a run, its phase, and the events.
 *
 * Rows are lines of metrics.jsonl. Steps and tokens usually grow by the same amount, so they are
 * written exactly as ranges "ROWS:GROWTH". Time does not; it is written for evenly spaced rows, and
 * the script interpolates between them. A run whose steps grow unevenly is written like time. */
#include <math.h>
#include <string.h>

#include "report/page.h"
#include "report/sample.h"

#define STRETCHES_MAX 12000 /* with more ranges, evenly spaced rows are shorter */
#define KNOTS 2000
#define MARKS_MAX 400 /* more cannot be distinguished in a chart */

/* ---- rows ------------------------------------------------------------------------------------ */

static void add_stretch(hy_text *out, size_t length, double growth) {
    if (length == 0) return;
    if (out->size > 0) hy_text_add(out, ",");
    if (length > 1) hy_text_addf(out, "%zu:", length);
    hy_put_number(out, growth);
}

/* A metric as an axis: {"stretches": ...} or {"every": n, "knots": ...}, with the value of the last
 * row at the end. A missing value is taken from the line before: an axis has no gaps. */
static void put_axis(hy_page *page, const hy_run *run, const char *name, const char *key,
                     bool is_even) {
    hy_text *out = &page->scratch;
    size_t rows = hy_run_points(run), length = 0, stretches = 0;
    double growth = 0, before = 0;
    bool is_known = false;
    hy_column_fill(run, &(hy_column){.key = key}, page->column);
    hy_text_clear(out);
    for (size_t i = 0; i < rows; i++) {
        if (isfinite(page->column[i]))
            is_known = true;
        else
            page->column[i] = before;
        if (page->column[i] - before != growth) {
            if (is_even) add_stretch(out, length, growth);
            growth = page->column[i] - before;
            length = 0;
        }
        stretches += length++ == 0;
        is_even = is_even && stretches <= STRETCHES_MAX;
        before = page->column[i];
    }
    if (!is_known) return;
    hy_json_open_object(page->json, name);
    if (is_even) {
        add_stretch(out, length, growth);
        hy_json_put_string(page->json, "stretches", hy_text_string(out));
    } else {
        size_t every = rows > KNOTS ? rows / KNOTS : 1;
        hy_text_clear(out);
        for (size_t i = 0; i < rows; i += every) {
            hy_put_number(out, page->column[i]);
            hy_text_add(out, ",");
        }
        hy_put_number(out, page->column[rows - 1]);
        hy_json_put_int(page->json, "every", (int64_t)every);
        hy_json_put_string(page->json, "knots", hy_text_string(out));
    }
    hy_json_close_object(page->json);
}

/* ---- phases ---------------------------------------------------------------------------------- */

/* "ROWS:PHASE" ranges; if phases change very often, each range has the length `every`. */
static void put_phases(hy_page *page, const hy_run *run) {
    size_t rows = hy_run_points(run), changes = 0;
    for (size_t i = 1; i < rows; i++)
        changes += hy_run_point_at(run, i)->phase != hy_run_point_at(run, i - 1)->phase;
    size_t every = changes > 2 * STRETCHES_MAX ? rows / STRETCHES_MAX + 1 : 1;
    hy_text_clear(&page->scratch);
    for (size_t i = 0; i < rows;) {
        hy_phase phase = hy_run_point_at(run, i)->phase;
        size_t length = 0;
        while (i < rows && hy_run_point_at(run, i)->phase == phase) {
            size_t step = rows - i < every ? rows - i : every;
            length += step;
            i += step;
        }
        add_stretch(&page->scratch, length, (double)phase);
    }
    hy_json_put_string(page->json, "phases", hy_text_string(&page->scratch));
}

void hy_page_axes(hy_page *page) {
    hy_json_open_array(page->json, "runs");
    for (int r = 0; r < page->count; r++) {
        const hy_run *run = page->runs[r];
        hy_json_open_object(page->json, NULL);
        hy_json_put_string(page->json, "name", hy_run_describe(run)->name);
        hy_json_put_int(page->json, "rows", (int64_t)hy_run_points(run));
        put_axis(page, run, "steps", "step", true);
        put_axis(page, run, "tokens", "tokens", true);
        put_axis(page, run, "time", "elapsed", false);
        put_phases(page, run);
        hy_json_close_object(page->json);
    }
    hy_json_close_array(page->json);
}

/* ---- events ---------------------------------------------------------------------------------- */

void hy_page_events(hy_page *page) {
    hy_json_open_array(page->json, "events");
    for (int r = 0; r < page->count; r++) {
        int left = MARKS_MAX;
        for (size_t i = 0; i < hy_run_events(page->runs[r]) && left > 0; i++) {
            const hy_run_event *event = hy_run_event_at(page->runs[r], i);
            /* A start is an event if the run was resumed, but not at its beginning. */
            if (!(strcmp(event->kind, "start") != 0 || event->points_before > 0)) continue;
            hy_json_open_object(page->json, NULL);
            hy_json_put_int(page->json, "run", r);
            hy_json_put_int(page->json, "row", (int64_t)event->points_before);
            hy_json_put_string(page->json, "kind", event->kind);
            hy_json_put_string(page->json, "text", event->text);
            hy_json_close_object(page->json);
            left--;
        }
    }
    hy_json_close_array(page->json);
}
