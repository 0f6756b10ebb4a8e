/* head.c: the top of the page: the run, its state and the most important figures. See page.h.
 *
 * With several runs, the page begins with the table that compares them instead. Figures come from
 * the totals; those that are not known are left out. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "report/page.h"

/* ---- state ----------------------------------------------------------------------------------- */

static const char *state_of(const hy_run_facts *facts) {
    if (facts->is_complete) return "finished";
    return facts->is_finished ? "stopped" : "in progress";
}

/* Empty facts are left out. */
static void add_fact(hy_text *out, const char *text) {
    if (text[0]) hy_html_put(out, "<span>", text, "</span>");
}

static void add_number_fact(hy_text *out, hy_figure figure, double value, const char *what) {
    if (!(value > 0)) return;
    hy_text_add(out, "<span>");
    hy_html_figure(out, figure, value);
    hy_text_addf(out, " %s</span>", what);
}

static void add_state(hy_page *page, int r) {
    hy_text *html = page->html;
    const hy_run_facts *facts = hy_run_describe(page->runs[r]);
    hy_text_addf(html, "<p class=\"facts\"><span class=\"state\">%s</span>", state_of(facts));
    add_fact(html, facts->model);
    add_number_fact(html, HY_FIGURE_SHORT, (double)facts->parameters, "parameters");
    add_fact(html, facts->device);
    add_number_fact(html, HY_FIGURE_COUNT, (double)facts->ranks, "ranks");
    add_fact(html, facts->data);
    add_fact(html, facts->row_format);
    add_fact(html, facts->row_losses);
    if (facts->began >= 0 && facts->began < 253402300800) { /* the year 10000 */
        char text[48] = "";
        struct tm parts;
        time_t seconds = (time_t)facts->began;
        if (gmtime_r(&seconds, &parts))
            strftime(text, sizeof text, "started %Y-%m-%d %H:%M UTC", &parts);
        add_fact(html, text);
    }
    hy_text_add(html, "</p>\n");
}

/* ---- the most important figures -------------------------------------------------------------- */

/* `note` may be "". */
static void add_card(hy_text *out, const char *name, hy_figure figure, double value,
                     const char *note) {
    if (!isfinite(value)) return;
    hy_text_addf(out, "<div class=\"card\"><dt>%s</dt><dd>", name);
    hy_html_figure(out, figure, value);
    if (note[0]) hy_html_put(out, "<small>", note, "</small>");
    hy_text_add(out, "</dd></div>\n");
}

static const char *noted(hy_text *note, const char *before, hy_figure figure, double value) {
    hy_text_clear(note);
    if (isfinite(value) && value > 0) {
        hy_text_add(note, before);
        hy_html_figure(note, figure, value);
    }
    return hy_text_string(note);
}

/* NaN: not known. */
static double steps_at_end(const hy_run_totals *t, const hy_run_facts *facts) {
    if (!(t->steps >= 0) || facts->steps_total <= 0) return NAN;
    double spent = isnan(t->spent) ? t->steps : t->spent;
    return (double)hy_steps_at_end((int64_t)t->steps, spent, facts->steps_total);
}

static void add_cards(hy_page *page) {
    const hy_run_totals *t = &page->totals[0];
    const hy_run_facts *facts = hy_run_describe(page->runs[0]);
    hy_text *html = page->html, *note = &page->scratch;
    double predicted = t->moves > 0 ? t->predicted_steps : NAN;
    hy_text_add(html, "<dl class=\"cards\">\n");
    add_card(html, "Held-out loss", HY_FIGURE_LOSS, t->val_loss, "");
    add_card(html, "Accuracy", HY_FIGURE_PERCENT, t->accuracy,
             noted(note, "standard error ", HY_FIGURE_PERCENT, t->accuracy_error));
    add_card(html, "Greedy accuracy", HY_FIGURE_PERCENT, t->greedy_accuracy,
             noted(note, "standard error ", HY_FIGURE_PERCENT, t->greedy_error));
    add_card(html, "Accuracy on pairs", HY_FIGURE_PERCENT, t->pair_accuracy,
             noted(note, "standard error ", HY_FIGURE_PERCENT, t->pair_error));
    add_card(html, "Training loss", HY_FIGURE_LOSS, t->final_loss,
             noted(note, "mean of the last steps (at most 32); began at ", HY_FIGURE_LOSS,
                   t->first_loss));
    add_card(html, "Steps", HY_FIGURE_COUNT, t->steps,
             noted(note, "of ", HY_FIGURE_COUNT, steps_at_end(t, facts)));
    add_card(html, "Predicted steps", HY_FIGURE_COUNT, predicted,
             noted(note, "in accepted jumps: ", HY_FIGURE_COUNT, t->moves));
    add_card(html, "Tokens", HY_FIGURE_SHORT, t->tokens, "");
    add_card(html, "Tokens per second", HY_FIGURE_SHORT, t->tokens_per_second, "");
    add_card(html, "Steps per second", HY_FIGURE_NUMBER, t->steps_per_second, "");
    add_card(html, "Time", HY_FIGURE_TIME, t->seconds, "");
    add_card(html, "Peak device memory", HY_FIGURE_BYTES, t->peak_bytes,
             noted(note, "planned ", HY_FIGURE_BYTES, t->planned_bytes));
    hy_text_add(html, "</dl>\n");
}

/* ---- several runs ---------------------------------------------------------------------------- */

typedef struct compared {
    const char *name;
    hy_figure figure;
    size_t at; /* offset of a double in the totals */
} compared;

#define OF(member) offsetof(hy_run_totals, member)

static const compared rows[] = {
    {"held-out loss", HY_FIGURE_LOSS, OF(val_loss)},
    {"best held-out loss", HY_FIGURE_LOSS, OF(best_val_loss)},
    {"accuracy on rows", HY_FIGURE_PERCENT, OF(accuracy)},
    {"accuracy on rows, by length", HY_FIGURE_PERCENT, OF(accuracy_norm)},
    {"greedy accuracy on rows", HY_FIGURE_PERCENT, OF(greedy_accuracy)},
    {"accuracy on pairs", HY_FIGURE_PERCENT, OF(pair_accuracy)},
    {"reward margin", HY_FIGURE_NUMBER, OF(reward_margin)},
    {"held-out reward", HY_FIGURE_NUMBER, OF(val_reward)},
    {"training loss, mean of the last steps (at most 32)", HY_FIGURE_LOSS, OF(final_loss)},
    {"steps", HY_FIGURE_COUNT, OF(steps)},
    {"predicted steps", HY_FIGURE_COUNT, OF(predicted_steps)},
    {"accepted jumps", HY_FIGURE_COUNT, OF(moves)},
    {"rejected jumps", HY_FIGURE_COUNT, OF(rejected_moves)},
    {"compute spent, full steps", HY_FIGURE_NUMBER, OF(spent)},
    {"tokens", HY_FIGURE_COUNT, OF(tokens)},
    {"tokens per second", HY_FIGURE_COUNT, OF(tokens_per_second)},
    {"steps per second", HY_FIGURE_NUMBER, OF(steps_per_second)},
    {"time", HY_FIGURE_TIME, OF(seconds)},
    {"planned device memory", HY_FIGURE_BYTES, OF(planned_bytes)},
    {"peak device memory", HY_FIGURE_BYTES, OF(peak_bytes)},
    {"pinned memory", HY_FIGURE_BYTES, OF(pinned_bytes)},
    {"resident memory", HY_FIGURE_BYTES, OF(resident_bytes)},
};

static double value_of(const compared *row, const hy_run_totals *t) {
    return *(const double *)(const void *)((const char *)t + row->at);
}

void hy_page_comparison(hy_page *page) {
    hy_text *html = page->html;
    if (page->count < 2) return;
    hy_text_add(html, "<section>\n"
                      "<h2>Side by side</h2>\n"
                      "<div class=\"scroll\"><table class=\"compare\">\n"
                      "<thead><tr><th scope=\"col\">");
    for (int r = 0; r < page->count; r++) {
        hy_text_addf(html, "<th scope=\"col\"><i class=\"swatch run%d\"></i>", r % 8);
        hy_html_text(html, hy_run_describe(page->runs[r])->name);
    }
    hy_text_add(html, "</thead>\n<tbody>\n");
    static const char *const texts[] = {"model", "device", "predictor", "state"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        hy_text_addf(html, HY_HTML_ROW "%s", texts[i]);
        for (int r = 0; r < page->count; r++) {
            const hy_run_facts *f = hy_run_describe(page->runs[r]);
            const char *const values[] = {f->model, f->device, f->predictor, state_of(f)};
            hy_html_put(html, "<td>", values[i], "");
        }
        hy_text_add(html, "\n");
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool is_known = false;
        for (int r = 0; r < page->count; r++)
            is_known |= isfinite(value_of(&rows[i], &page->totals[r]));
        if (!is_known) continue;
        hy_text_addf(html, HY_HTML_ROW "%s", rows[i].name);
        for (int r = 0; r < page->count; r++)
            hy_html_cell(html, rows[i].figure, value_of(&rows[i], &page->totals[r]));
        hy_text_add(html, "\n");
    }
    hy_page_settings(page);
    hy_text_add(html, "</tbody></table></div>\n</section>\n");
}

void hy_page_head(hy_page *page) {
    hy_text *html = page->html;
    hy_text_add(html, "<header>\n<p class=\"kind\">Training report</p>\n<h1>");
    for (int r = 0; r < page->count; r++)
        hy_html_put(html, r > 0 ? "<span class=\"versus\">, </span>" : "",
                    hy_run_describe(page->runs[r])->name, "");
    hy_text_add(html, "</h1>\n");
    if (page->count == 1) add_state(page, 0);
    hy_text_add(html, "</header>\n");
    if (page->count == 1) add_cards(page);
}
