/* tables.c: texts and tables of one run: the same as the summary that the program prints, the
 * events, the command and the configuration. See page.h.
 *
 * Phases come from the totals; memory by class comes from summary.json, or from plan.json before
 * there is one. */
#include <math.h>
#include <string.h>

#include "phases/table.h"
#include "report/page.h"
#include "report/run.h"

#define EVENTS_MAX 500

static void add_text_cell(hy_text *html, const char *text) {
    hy_html_put(html, "<td class=\"text\">", text, "");
}

/* ---- phases ---------------------------------------------------------------------------------- */

static void add_phases(hy_page *page, int r) {
    const hy_run_facts *facts = hy_run_describe(page->runs[r]);
    const hy_run_totals *t = &page->totals[r];
    const char *columns[] = {
        "phase",   "steps", "time",   facts->is_custom ? "steps/s" : "tokens/s",
        "planned", "peak",  "waited", NULL};
    hy_text *html = page->html;
    double per_step = facts->is_custom ? 1 : (double)facts->tokens_per_step;
    hy_html_open_table(html, "Phases", columns, 1);
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        const hy_phase_totals *phase = &t->phases[p];
        if (phase->steps == 0) continue;
        bool trains = hy_phase_trains(&hy_phase_table[p]) && phase->seconds > 0 && per_step > 0;
        hy_text_addf(html, "<tr><th scope=\"row\"><i class=\"swatch phase%d\"></i>%s", p,
                     hy_phase_name((hy_phase)p));
        hy_html_cell(html, HY_FIGURE_COUNT, phase->steps);
        /* Jumps and measurements are not steps. */
        if (p == HY_PREDICT) hy_text_add(html, phase->steps == 1 ? " jump" : " jumps");
        if (p >= HY_EVALUATE) hy_text_add(html, phase->steps == 1 ? " time" : " times");
        hy_html_cell(html, HY_FIGURE_TIME, phase->seconds);
        hy_html_cell(html, HY_FIGURE_SHORT,
                     trains ? phase->steps * per_step / phase->seconds : NAN);
        hy_html_cell(html, HY_FIGURE_BYTES, phase->planned_bytes);
        hy_html_cell(html, HY_FIGURE_BYTES, phase->peak_bytes);
        hy_html_cell(html, HY_FIGURE_TIME, phase->wait_seconds);
        hy_text_add(html, "\n");
    }
    hy_text_add(html, "<tr class=\"all\"><th scope=\"row\">all");
    hy_html_cell(html, HY_FIGURE_COUNT, t->steps);
    hy_html_cell(html, HY_FIGURE_TIME, t->seconds);
    hy_html_cell(html, HY_FIGURE_SHORT,
                 facts->is_custom ? t->steps_per_second : t->tokens_per_second);
    hy_text_add(html, "<td><td><td>\n");
    hy_html_close_table(html);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Seconds of a step, with enough digits to tell ranks apart. */
static void add_seconds(hy_text *html, double seconds) {
    if (isnan(seconds))
        hy_html_cell(html, HY_FIGURE_TIME, seconds);
    else
        hy_text_addf(html, "<td>%.3g s", seconds);
}

#define RANKS_UNFOLDED 16 /* with more ranks, the table starts closed */

static void add_ranks(hy_page *page, int r) {
    static const char *const columns[] = {"rank",          "step",   "waited",     "link in use",
                                          "sent per step", "memory", "slowest in", NULL};
    hy_text *html = page->html;
    const hy_run *run = page->runs[r];
    hy_rank_cost one;
    if (!hy_run_rank(run, 0, false, &one)) return;
    int64_t steps = one.steps;
    bool is_folded = hy_run_rank(run, RANKS_UNFOLDED, false, &one);
    if (is_folded) hy_text_add(html, "<details class=\"listing\"><summary>Ranks</summary>\n");
    hy_html_open_table(html, "Ranks, medians of their steps", columns, 1);
    for (int32_t rank = 0; hy_run_rank(run, rank, false, &one); rank++) {
        hy_text_addf(html, "<tr><th scope=\"row\">%d", rank);
        add_seconds(html, one.seconds);
        add_seconds(html, one.waited);
        add_seconds(html, one.exchanged);
        hy_html_cell(html, HY_FIGURE_BYTES, one.bytes);
        hy_html_cell(html, HY_FIGURE_BYTES, one.memory);
        hy_html_cell(html, HY_FIGURE_COUNT, (double)one.slowest);
        hy_text_add(html, "\n");
    }
    hy_html_close_table(html);
    hy_text_addf(html, "%s<p class=\"note\">", is_folded ? "</details>\n" : "");
    const hy_run_facts *facts = hy_run_describe(run);
    if (facts->zero_stage >= 0) {
        hy_text_addf(html, "ZeRO stage %lld", (long long)facts->zero_stage);
        hy_html_put(html, facts->transport[0] ? ", over " : "", facts->transport, ". ");
    }
    hy_text_add(html, "The slowest rank of a step is the one that waits least; exchanges of other "
                      "ranks include waiting for it. Steps counted: ");
    hy_html_count(html, steps);
    hy_text_add(html, ".</p>\n");
}

/* ---- memory by class ------------------------------------------------------------------------- */

static bool is_same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static bool have_same_cells(const hy_planned *from, int a, int b) {
    for (int c = 0; c < HY_CLASS_COUNT; c++) {
        hy_planned_cell x, y;
        if (hy_planned_read(from, a, c, &x) != hy_planned_read(from, b, c, &y)) return false;
        if (strcmp(x.place, y.place) != 0 || strcmp(x.dtype, y.dtype) != 0) return false;
        if (!is_same_number(x.planned, y.planned)) return false;
        if (!is_same_number(x.measured, y.measured)) return false;
    }
    return true;
}

/* The rows of a phase; the first has the names of all phases that share them. */
static void add_memory_rows(hy_text *html, const hy_planned *from, int phase, const char *names) {
    for (int c = 0; c < HY_CLASS_COUNT; c++) {
        const char *class_name = hy_class_name((hy_class)c);
        hy_planned_cell cell;
        if (!hy_planned_read(from, phase, c, &cell)) continue;
        hy_text_addf(html, "<tr%s><th scope=\"row\">%s", names[0] ? " class=\"first\"" : "", names);
        hy_text_addf(html, "<td class=\"text\"><i class=\"swatch class-%s\"></i>%s", class_name,
                     class_name);
        add_text_cell(html, cell.place);
        add_text_cell(html, cell.dtype);
        hy_html_cell(html, HY_FIGURE_BYTES, cell.planned);
        if (from->has_measured) hy_html_cell(html, HY_FIGURE_BYTES, cell.measured);
        hy_text_add(html, "\n");
        names = "";
    }
}

static void add_memory(hy_page *page, int r, const hy_planned *from) {
    const char *columns[] = {
        "phase", "class", "place", "type", "planned", from->has_measured ? "measured" : NULL, NULL};
    bool is_done[HY_PHASE_COUNT] = {false};
    hy_html_open_table(page->html,
                       from->has_measured ? "Memory, planned and measured" : "Memory, planned",
                       columns, 4);
    for (int p = 0; p < HY_PHASE_COUNT; p++) {
        hy_text *names = &page->scratch;
        hy_text_clear(names);
        for (int other = p; other < HY_PHASE_COUNT && !is_done[p]; other++) {
            bool has_run = page->totals[r].phases[other].steps > 0;
            if (other == p && !has_run) break;
            if (!has_run || !have_same_cells(from, p, other)) continue;
            hy_text_addf(names, "%s%s", other > p ? ", " : "", hy_phase_name((hy_phase)other));
            is_done[other] = other > p;
        }
        if (names->size > 0) add_memory_rows(page->html, from, p, hy_text_string(names));
    }
    hy_html_close_table(page->html);
}

/* ---- memory savings -------------------------------------------------------------------------- */

/* summary.json if it describes the newest line, else NULL. */
static const hy_json_node *summary_of(const hy_run *run) {
    return run->facts.is_finished ? hy_json_root(run->summary) : NULL;
}

static double number_at(const hy_json_node *object, const char *key) {
    double value = NAN;
    hy_json_as_double(hy_json_get(object, key), &value);
    return value;
}

static const char *text_at(const hy_json_node *object, const char *key) {
    const char *text = "";
    hy_json_as_string(hy_json_get(object, key), &text, NULL);
    return text;
}

/* The entries of the summary's list that were on in this run and freed device memory. */
static void add_savings(hy_page *page, int r) {
    static const char *const columns[] = {"",       "as", "device freed", "host memory used",
                                          "figure", NULL};
    hy_text *html = page->html;
    const hy_json_node *list = hy_json_get(summary_of(page->runs[r]), "savings");
    bool is_open = false;
    if (!list || hy_json_type_of(list) != HY_JSON_ARRAY) return;
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        double device = number_at(n, "device_bytes"), host = number_at(n, "host_bytes");
        bool is_on = false, is_measured = false;
        hy_json_as_bool(hy_json_get(n, "on"), &is_on);
        if (!is_on || !(device > 0)) continue;
        if (!is_open) hy_html_open_table(html, "Device memory savings", columns, 2);
        is_open = true;
        hy_json_as_bool(hy_json_get(n, "measured"), &is_measured);
        hy_html_put(html, HY_HTML_ROW, text_at(n, "name"), "");
        add_text_cell(html, text_at(n, "value"));
        hy_html_cell(html, HY_FIGURE_BYTES, device);
        hy_html_cell(html, HY_FIGURE_BYTES, host < 0 ? -host : NAN);
        hy_text_addf(html, "<td>%s\n", is_measured ? "measured" : "planned");
    }
    if (is_open) hy_html_close_table(html);
}

/* ---- prediction and losses ------------------------------------------------------------------- */

static void add_row(hy_text *html, const char *name, hy_figure figure, double value) {
    if (isnan(value)) return;
    hy_text_addf(html, HY_HTML_ROW "%s", name);
    hy_html_cell(html, figure, value);
    hy_text_add(html, "\n");
}

static void add_prediction(hy_page *page, int r) {
    static const char *const columns[] = {"", "", NULL};
    const hy_run_totals *t = &page->totals[r];
    const char *predictor = page->runs[r]->facts.predictor;
    const hy_json_node *summary = summary_of(page->runs[r]);
    hy_text *html = page->html;
    double forks = number_at(summary, "forks");
    if (strcmp(predictor, "none") == 0) return;
    hy_html_open_table(html, "Prediction", columns, 1);
    if (predictor[0]) hy_html_put(html, HY_HTML_ROW "predictor<td>", predictor, "\n");
    add_row(html, "accepted jumps", HY_FIGURE_COUNT, t->moves);
    add_row(html, "rejected jumps", HY_FIGURE_COUNT, t->rejected_moves);
    add_row(html, "predicted steps", HY_FIGURE_COUNT, t->predicted_steps);
    add_row(html, "optimizer steps", HY_FIGURE_COUNT, t->steps);
    add_row(html, "compute spent, in full steps", HY_FIGURE_NUMBER, t->spent);
    add_row(html, "confidence that prediction pays", HY_FIGURE_NUMBER, t->confidence);
    add_row(html, "paired tests", HY_FIGURE_COUNT, forks);
    if (forks > 0) {
        add_row(html, "gain in paired tests, sum in nats", HY_FIGURE_LOSS,
                number_at(summary, "fork_gain"));
        add_row(html, "gain in paired tests, sum in optimizer steps", HY_FIGURE_NUMBER,
                number_at(summary, "fork_gain_steps"));
    }
    hy_html_close_table(html);
}

static void add_losses(hy_page *page, int r) {
    static const char *const columns[] = {"", "nats", NULL};
    const hy_run_totals *t = &page->totals[r];
    const hy_json_node *summary = summary_of(page->runs[r]);
    hy_text *html = page->html;
    double optimum = number_at(summary, "val_optimum");
    hy_html_open_table(html, "Losses", columns, 1);
    add_row(html, "training, mean of the last steps (at most 32)", HY_FIGURE_LOSS, t->final_loss);
    add_row(html, "held-out", HY_FIGURE_LOSS, t->val_loss);
    add_row(html, "held-out, best", HY_FIGURE_LOSS, t->best_val_loss);
    add_row(html, "true entropy of the source", HY_FIGURE_LOSS,
            number_at(summary, "source_entropy"));
    add_row(html, "the source itself on the held-out text", HY_FIGURE_LOSS, optimum);
    add_row(html, "5-gram model counted on the same bytes", HY_FIGURE_LOSS,
            number_at(summary, "ngram_loss"));
    add_row(html, "above the optimum on this text", HY_FIGURE_LOSS, t->val_loss - optimum);
    hy_html_close_table(html);
}

/* ---- exports --------------------------------------------------------------------------------- */

/* The rows of one export; the first has what they share. */
static void add_export(hy_text *html, const hy_json_node *export) {
    const hy_json_node *results = hy_json_get(export, "results");
    int64_t tokens = 0;
    hy_json_as_count(hy_json_get(export, "tokens"), &tokens);
    if (!results || hy_json_type_of(results) != HY_JSON_ARRAY) return;
    for (const hy_json_node *n = hy_json_first(results); n; n = hy_json_next(n)) {
        bool is_written = false, is_first = n == hy_json_first(results);
        double increase = number_at(n, "increase");
        hy_json_as_bool(hy_json_get(n, "written"), &is_written);
        hy_text_addf(html, "<tr%s><th scope=\"row\">", is_first ? " class=\"first\"" : "");
        if (is_first) hy_html_text(html, text_at(export, "file"));
        add_text_cell(html, is_first ? text_at(export, "type") : "");
        hy_text_add(html, "<td class=\"text\">");
        if (is_first) {
            hy_html_count(html, tokens);
            hy_html_put(html, " tokens of ", text_at(export, "data"), "");
        }
        add_text_cell(html, text_at(n, "rounding"));
        add_text_cell(html, is_written ? "written" : "");
        hy_html_cell(html, HY_FIGURE_BYTES, number_at(n, "bytes"));
        hy_html_cell(html, HY_FIGURE_LOSS, number_at(n, "loss"));
        hy_text_add(html, "<td>");
        if (!is_first && isfinite(increase)) hy_text_addf(html, "%+.4f", increase);
        hy_text_add(html, "\n");
    }
}

static void add_exports(hy_page *page, int r) {
    static const char *const columns[] = {"file", "type",          "data",     "rounding", "",
                                          "size", "held-out loss", "increase", NULL};
    const hy_json *exports = page->runs[r]->exports;
    const hy_json_node *list = exports ? hy_json_root(exports) : NULL;
    if (!list || hy_json_type_of(list) != HY_JSON_ARRAY) return;
    hy_html_open_table(page->html, "Exports, measured", columns, 5);
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n))
        add_export(page->html, n);
    hy_html_close_table(page->html);
}

/* ---- events, command, configuration ---------------------------------------------------------- */

static void add_events(hy_page *page, int r) {
    static const char *const columns[] = {"step", "time", "what", "", NULL};
    const hy_run *run = page->runs[r];
    hy_text *html = page->html;
    if (run->event_count == 0) return;
    size_t shown = run->event_count < EVENTS_MAX ? run->event_count : EVENTS_MAX;
    hy_html_open_table(html, "Events", columns, 4);
    for (size_t i = 0; i < shown; i++) {
        const hy_run_event *event = &run->events[i];
        hy_text_add(html, HY_HTML_ROW);
        hy_html_figure(html, HY_FIGURE_COUNT, event->step >= 0 ? (double)event->step : NAN);
        hy_text_add(html, "<td class=\"text\">");
        hy_html_figure(html, HY_FIGURE_TIME, event->elapsed);
        add_text_cell(html, event->kind);
        hy_html_put(html, "<td class=\"text long\">", event->text, "\n");
    }
    hy_html_close_table(html);
    if (shown < run->event_count) {
        hy_text_add(html, "<p class=\"note\">");
        hy_html_count(html, (int64_t)(run->event_count - shown));
        hy_text_add(html, " more are in metrics.jsonl.</p>\n");
    }
}

static void add_listing(hy_text *html, const char *title, const char *text, bool is_open) {
    if (!text[0]) return;
    hy_text_addf(html, "<details class=\"listing\"%s><summary>%s</summary>\n",
                 is_open ? " open" : "", title);
    hy_html_put(html, "<pre>", text, "</pre></details>\n");
}

static void add_sample(hy_page *page, int r) {
    const hy_json_node *root = page->runs[r]->sample ? hy_json_root(page->runs[r]->sample) : NULL;
    const char *prompt = "", *text = "", *reference = "";
    if (!hy_json_as_string(hy_json_get(root, "text"), &text, NULL)) return;
    hy_json_as_string(hy_json_get(root, "prompt"), &prompt, NULL);
    hy_text_clear(&page->scratch);
    hy_text_add(&page->scratch, prompt);
    hy_text_add(&page->scratch, text);
    bool is_row = hy_json_as_string(hy_json_get(root, "reference"), &reference, NULL);
    add_listing(page->html, is_row ? "Answer to a held-out row" : "Sample",
                hy_text_string(&page->scratch), true);
    add_listing(page->html, "Answer in the data", reference, true);
}

static void add_notes(hy_page *page, int r) {
    const hy_run_facts *facts = hy_run_describe(page->runs[r]);
    hy_text *html = page->html;
    if (page->runs[r]->notes[0]) hy_html_put(html, "<p>", page->runs[r]->notes, "</p>\n");
    hy_html_put(html, "<p class=\"note\">Source: ", facts->folder, "");
    if (facts->version[0]) hy_html_put(html, "; written by hybrid-train ", facts->version, "");
    if (facts->lines_unreadable > 0) {
        hy_text_add(html, "; lines that could not be read: ");
        hy_html_count(html, (int64_t)facts->lines_unreadable);
    }
    hy_text_add(html, ".</p>\n");
}

void hy_page_run_tables(hy_page *page, int r) {
    const hy_run_facts *facts = hy_run_describe(page->runs[r]);
    hy_text *html = page->html;
    hy_planned memory;
    /* The summary has measured bytes; without a summary, the plan is used. */
    const hy_run *run = page->runs[r];
    bool has_memory = (run->facts.is_finished && hy_planned_open(run, true, &memory)) ||
                      hy_planned_open(run, false, &memory);
    hy_text_add(html, "<section class=\"tables\">\n<h2>");
    if (page->count > 1) hy_text_addf(html, "<i class=\"swatch run%d\"></i>", r % 8);
    hy_html_text(html, page->count > 1 ? facts->name : "Figures");
    hy_text_add(html, "</h2>\n"
                      "<div class=\"columns\">\n"
                      "<div>\n");
    add_phases(page, r);
    add_ranks(page, r);
    add_losses(page, r);
    if (has_memory) add_prediction(page, r);
    hy_text_add(html, "</div>\n<div>\n");
    if (has_memory) add_memory(page, r, &memory);
    add_savings(page, r);
    if (!has_memory) add_prediction(page, r);
    hy_text_add(html, "</div>\n</div>\n");
    add_exports(page, r);
    hy_page_answers(page, r);
    add_sample(page, r);
    add_events(page, r);
    add_listing(html, "Command", facts->command, true);
    add_listing(html, "Configuration", facts->config, false);
    add_notes(page, r);
    hy_text_add(html, "</section>\n");
}
