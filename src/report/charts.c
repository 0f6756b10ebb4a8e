/* charts.c: the charts of the page and their numbers. See page.h.
 *
 * A chart is a row of a table: its title, the format of its values, and its curves. A curve is a
 * column of each run, with fewer rows (sample.h); noisy curves get their mean as well. Curves
 * without values and charts without curves are left out. Each chart is a figure with a table of its
 * curves, which can be read without a script. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/page.h"
#include "report/sample.h"

#define MEAN_ROWS 60    /* with fewer rows, all are shown */
#define MEAN_PLACES 500 /* points of the mean's curve */

typedef enum curve_style {
    IS_LINE,
    IS_NOISY, /* faint, with its mean */
    IS_DOTS,  /* a line through few values, each marked */
    IS_STAIR, /* holds its value until the next */
    IS_DASHED,
    IS_LAYER, /* a layer of a stack */
    IS_SUM,   /* the total of the layers: drawn as a step line if there are none */
    IS_MARK,  /* marks of events */
} curve_style;

typedef struct curve {
    hy_column column;
    const char *name;
    curve_style style;
    const char *error; /* key of its standard error, a band around the curve; NULL: none */
} curve;

#define CURVES_MAX 16

typedef struct chart {
    const char *id, *title, *unit;
    hy_figure figure;
    bool is_wide, is_log, is_from_zero;
    enum { NO_LIMITS, DEVICE_LIMITS, HOST_LIMITS } limits;
    curve curves[CURVES_MAX];
} chart;

#define ALL(key)                                                                                   \
    { key, false, 0 }
#define STEPS(key)                                                                                 \
    { key, true, 0 }
#define LAYER(key, cls, name)                                                                      \
    { {key, false, cls}, name, IS_LAYER }
#define LAYERS(key)                                                                                \
    LAYER(key, HY_WEIGHTS, "weights"), LAYER(key, HY_MASTER, "master"),                            \
        LAYER(key, HY_GRADS, "grads"), LAYER(key, HY_OPTIM, "optim"),                              \
        LAYER(key, HY_PREDICTOR, "predictor"), LAYER(key, HY_SNAPSHOT, "snapshot"),                \
        LAYER(key, HY_ACTIVATIONS, "activations"), LAYER(key, HY_WORKSPACE, "workspace"),          \
        LAYER(key, HY_QUANTS, "quants"), LAYER(key, HY_DATA, "data")

static const chart charts[] = {
    {"loss", "Loss", "nats per token; of pairs of answers, per pair", HY_FIGURE_LOSS,
     .is_wide = true,
     .curves = {{STEPS("loss"), "training", IS_NOISY}, {ALL("val_loss"), "held-out", IS_DOTS}}},
    {"accuracy", "Accuracy on rows", "% of the rows, with its standard error", HY_FIGURE_PERCENT,
     .curves = {{ALL("accuracy"), "accuracy", IS_DOTS, "accuracy_error"},
                {ALL("accuracy_norm"), "by length", IS_DOTS, "accuracy_norm_error"},
                {ALL("greedy_accuracy"), "greedy", IS_DOTS, "greedy_accuracy_error"}}},
    {"pairs", "Accuracy on pairs", "% of the pairs whose chosen answer has the larger reward",
     HY_FIGURE_PERCENT,
     .curves = {{STEPS("train_pair_accuracy"), "training", IS_NOISY},
                {ALL("pair_accuracy"), "held-out", IS_DOTS, "pair_accuracy_error"}}},
    {"rewards", "Rewards", "means over the pairs of a step", HY_FIGURE_NUMBER,
     .curves = {{STEPS("train_reward_chosen"), "chosen answers", IS_NOISY},
                {STEPS("train_reward_rejected"), "rejected answers", IS_NOISY},
                {ALL("reward_margin"), "held-out, chosen minus rejected", IS_DOTS}}},
    {"reward", "Reward", "mean over the answers of a step, and of held-out rows", HY_FIGURE_NUMBER,
     .is_wide = true,
     .curves = {{STEPS("reward"), "training", IS_NOISY},
                {ALL("val_reward"), "held-out", IS_DOTS, "val_reward_error"}}},
    {"answers", "Answers", "mean tokens", HY_FIGURE_NUMBER, .is_from_zero = true,
     .curves = {{STEPS("answer_tokens"), "tokens of an answer", IS_NOISY}}},
    {"ended", "Answers that ended, rows without a difference", "%", HY_FIGURE_PERCENT,
     .curves = {{STEPS("answers_ended"), "ended by the model", IS_NOISY},
                {STEPS("groups_equal"), "rows with equal rewards", IS_NOISY},
                {STEPS("clipped"), "tokens clipped", IS_NOISY}}},
    {"kl", "Divergence and entropy", "nats per token", HY_FIGURE_NUMBER,
     .curves = {{STEPS("kl"), "from the model before training", IS_NOISY},
                {STEPS("entropy"), "entropy", IS_NOISY},
                {STEPS("apart"), "decoder against training", IS_NOISY}}},
    {"lr", "Learning rate", "per step", HY_FIGURE_SMALL, .is_from_zero = true,
     .curves = {{ALL("lr"), "learning rate", IS_LINE}}},
    {"grad_norm", "Gradient norm", "before clipping", HY_FIGURE_NUMBER, .is_log = true,
     .curves = {{STEPS("grad_norm"), "gradient norm", IS_NOISY}}},
    {"confidence", "Confidence that prediction pays", "probability", HY_FIGURE_NUMBER,
     .is_from_zero = true,
     .curves = {{ALL("confidence"), "confidence", IS_LINE},
                {ALL("undone"), "jump rejected", IS_MARK}}},
    {"predicted", "Predicted steps so far", "steps of accepted jumps", HY_FIGURE_NUMBER,
     .is_from_zero = true, .curves = {{ALL("predicted"), "predicted steps", IS_STAIR}}},
    {"speed", "Speed", "tokens per second", HY_FIGURE_SHORT, .is_wide = true, .is_from_zero = true,
     .curves = {{STEPS("tokens_per_second"), "speed", IS_NOISY}}},
    {"steps", "Speed", "steps per second", HY_FIGURE_SHORT, .is_wide = true, .is_from_zero = true,
     .curves = {{STEPS("steps_per_second"), "speed", IS_NOISY}}},
    {"memory", "Device memory", "bytes in use by class", HY_FIGURE_BYTES, .is_wide = true,
     .is_from_zero = true, .limits = DEVICE_LIMITS,
     .curves = {LAYERS("memory"),
                {ALL("vram_bytes"), "in use at the end of the step", IS_SUM},
                {ALL("vram_peak_bytes"), "peak within the step", IS_STAIR},
                {ALL("vram_planned_bytes"), "plan of the phase", IS_DASHED}}},
    {"host", "Host memory", "pinned bytes by class", HY_FIGURE_BYTES, .is_wide = true,
     .is_from_zero = true, .limits = HOST_LIMITS,
     .curves = {LAYERS("pinned"),
                {ALL("host_pinned_bytes"), "pinned", IS_SUM},
                {ALL("host_resident_bytes"), "resident, whole process", IS_DASHED}}},
    {"wait", "Waiting for copies", "% of the step's time", HY_FIGURE_PERCENT, .is_from_zero = true,
     .curves = {{ALL("waited"), "waited", IS_NOISY}}},
    {"moved", "Bytes copied", "per step", HY_FIGURE_BYTES, .is_from_zero = true,
     .curves = {{ALL("bytes_moved"), "copied", IS_NOISY}}},
    {"batch", "Micro-batch", "sequences", HY_FIGURE_COUNT, .is_from_zero = true,
     .curves = {{STEPS("batch_size"), "micro-batch", IS_STAIR}}},
    {"mfu", "Model FLOP utilisation", "% of the card's data sheet", HY_FIGURE_PERCENT,
     .is_from_zero = true, .curves = {{ALL("mfu"), "utilisation", IS_NOISY}}},
    {"power", "Power", "watts", HY_FIGURE_COUNT, .is_from_zero = true,
     .curves = {{ALL("gpu_power_watts"), "power", IS_NOISY}}},
    {"temperature", "Temperature",
     "\xC2\xB0"
     "C",
     HY_FIGURE_COUNT, .curves = {{ALL("gpu_temperature_c"), "temperature", IS_NOISY}}},
};

static const char *const style_names[] = {"line",   "noisy", "dots",  "stair",
                                          "dashed", "layer", "stair", "mark"};

/* ---- numbers --------------------------------------------------------------------------------- */

/* Describes a curve (name, run, quantity of the chart, style) and writes the rows of `column` in
 * page->kept. With several runs, detail curves start hidden; a click on their name shows them. */
static void put_curve(hy_page *page, const chart *it, const curve *c, int r, const char *name,
                      const char *style, const double *column, size_t kept) {
    hy_json_writer *json = page->json;
    hy_json_open_object(json, NULL);
    hy_json_put_string(json, "name", name);
    hy_json_put_int(json, "run", r);
    hy_json_put_int(json, "kind", c - it->curves);
    hy_json_put_string(json, "style", style);
    bool is_detail =
        strcmp(style, "noisy") == 0 || (c->style == IS_SUM && it->limits == DEVICE_LIMITS);
    if (page->count > 1 && is_detail) hy_json_put_bool(json, "hidden", true);
    if (c->style == IS_LAYER) hy_json_put_string(json, "tone", c->name);
    hy_text_clear(&page->scratch);
    hy_put_rows(&page->scratch, page->kept, kept);
    hy_json_put_string(json, "rows", hy_text_string(&page->scratch));
    hy_text_clear(&page->scratch);
    hy_put_values(&page->scratch, column, page->kept, kept);
    hy_json_put_string(json, "values", hy_text_string(&page->scratch));
    if (c->error) {
        hy_column_fill(page->runs[r], &(hy_column){.key = c->error}, page->mean);
        hy_text_clear(&page->scratch);
        hy_put_values(&page->scratch, page->mean, page->kept, kept);
        hy_json_put_string(json, "errors", hy_text_string(&page->scratch));
    }
    hy_json_close_object(json);
}

/* Fills page->column; false: there is no value in this run. */
static bool fill_column(hy_page *page, const curve *c, int r, hy_column_facts *facts) {
    hy_column_fill(page->runs[r], &c->column, page->column);
    hy_column_look(page->column, hy_run_points(page->runs[r]), facts);
    return facts->count > 0;
}

static void put_figure_row(hy_page *page, const chart *it, int r, const char *name,
                           const hy_column_facts *facts) {
    hy_text *html = page->html;
    hy_text_add(html, HY_HTML_ROW);
    if (page->count > 1) hy_html_put(html, "", hy_run_describe(page->runs[r])->name, ": ");
    hy_html_text(html, name);
    hy_html_cell(html, it->figure, facts->last);
    hy_html_cell(html, it->figure, facts->min);
    hy_html_cell(html, it->figure, facts->max);
    hy_html_cell(html, HY_FIGURE_COUNT, (double)facts->count);
    hy_text_add(html, "\n");
}

static void put_one(hy_page *page, const chart *it, const curve *c, int r) {
    size_t rows = hy_run_points(page->runs[r]);
    bool has_mean = c->style == IS_NOISY && rows >= MEAN_ROWS;
    curve_style style = c->style == IS_NOISY && !has_mean ? IS_LINE : c->style;
    hy_column_facts facts;
    if (!fill_column(page, c, r, &facts)) return;
    put_curve(page, it, c, r, c->name, style_names[style], page->column,
              hy_column_thin(page->column, rows, page->limit, page->kept));
    if (c->style != IS_MARK) put_figure_row(page, it, r, c->name, &facts);
    if (!has_mean) return;
    char name[64];
    size_t window = rows / 100 > HY_LAST_STEPS ? rows / 100 : HY_LAST_STEPS;
    hy_column_smooth(page->column, rows, window, MEAN_PLACES, page->mean);
    snprintf(name, sizeof name, "%s, mean of %zu steps", c->name, window);
    put_curve(page, it, c, r, name, "line", page->mean,
              hy_column_thin(page->mean, rows, 2 * MEAN_PLACES, page->kept));
}

/* The layers of a stack, all for the same rows: those where their sum is smallest and largest.
 * False: there are none, or several runs are drawn. */
static bool put_layers(hy_page *page, const chart *it, int r) {
    size_t rows = hy_run_points(page->runs[r]);
    hy_column_facts facts;
    if (it->curves[0].style != IS_LAYER || page->count > 1) return false;
    for (size_t i = 0; i < rows; i++) page->mean[i] = 0;
    for (const curve *c = it->curves; c->style == IS_LAYER; c++) {
        fill_column(page, c, r, &facts);
        for (size_t i = 0; i < rows; i++) page->mean[i] += page->column[i];
    }
    size_t kept = hy_column_thin(page->mean, rows, page->limit, page->kept);
    for (const curve *c = it->curves; c->style == IS_LAYER && kept > 0; c++) {
        if (!fill_column(page, c, r, &facts) || facts.max == 0) continue;
        put_curve(page, it, c, r, c->name, "layer", page->column, kept);
        put_figure_row(page, it, r, c->name, &facts);
    }
    return kept > 0;
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void put_limit(hy_page *page, const char *name, double value) {
    if (!(value > 0)) return;
    hy_json_open_object(page->json, NULL);
    hy_json_put_string(page->json, "name", name);
    hy_json_put_double(page->json, "value", round(value));
    hy_json_close_object(page->json);
}

/* With several runs, limits are drawn only if they are equal. */
static bool have_same_budgets(const hy_page *page) {
    for (int r = 1; r < page->count; r++) {
        const hy_run_facts *a = hy_run_describe(page->runs[0]), *b = hy_run_describe(page->runs[r]);
        if (a->vram_budget_bytes != b->vram_budget_bytes) return false;
        if (a->host_budget_bytes != b->host_budget_bytes) return false;
        for (int i = 0; i < 4; i++) {
            double x = a->thresholds[i], y = b->thresholds[i];
            if (x != y && !(isnan(x) && isnan(y))) return false;
        }
    }
    return true;
}

/* ---- figures --------------------------------------------------------------------------------- */

/* A constant micro-batch gets no chart; neither do copies or predictions that never happened, or
 * the confidence in prediction if no run predicts. */
static bool is_worth_drawing(hy_page *page, const chart *it) {
    bool is_used = strcmp(it->id, "confidence") != 0;
    for (int r = 0; r < page->count; r++)
        is_used |= strcmp(hy_run_describe(page->runs[r])->predictor, "none") != 0;
    if (!is_used) return false;
    double least = NAN, most = NAN; /* largest known value */
    for (const curve *c = it->curves; c->name; c++) {
        for (int r = 0; r < page->count && c->style != IS_MARK; r++) {
            hy_column_facts facts;
            fill_column(page, c, r, &facts);
            least = fmin(least, facts.min);
            most = fmax(most, facts.max);
        }
    }
    return strcmp(it->id, "batch") == 0 ? least < most : most > 0 || least < 0;
}

static void put_chart(hy_page *page, const chart *it) {
    hy_text *html = page->html;
    hy_text_addf(
        html,
        "<figure class=\"chart%s\" id=\"chart-%s\" data-chart=\"%s\">\n"
        "<figcaption><h3>%s</h3> <span class=\"unit\">%s</span></figcaption>\n"
        "<div class=\"plot\"></div>\n"
        "<div class=\"legend\"></div>\n"
        "<details class=\"figures\"><summary>Figures</summary><div "
        "class=\"scroll\"><table><thead><tr><th scope=\"col\">curve<th scope=\"col\">last<th "
        "scope=\"col\">least<th scope=\"col\">most<th scope=\"col\">values</thead>\n"
        "<tbody>",
        it->is_wide ? " wide" : "", it->id, it->id, it->title, it->unit);
    hy_json_open_object(page->json, NULL);
    hy_json_put_string(page->json, "id", it->id);
    hy_json_put_string(page->json, "title", it->title);
    hy_json_put_string(page->json, "unit", it->unit);
    hy_json_put_string(page->json, "figure", hy_figure_name(it->figure));
    hy_json_put_bool(page->json, "log", it->is_log);
    hy_json_put_bool(page->json, "zero", it->is_from_zero);
    static const char *const names[] = {"target", "warning", "critical", "emergency"};
    const hy_run_facts *facts = hy_run_describe(page->runs[0]);
    if (it->limits != NO_LIMITS && have_same_budgets(page)) {
        double budget = (double)(it->limits == DEVICE_LIMITS ? facts->vram_budget_bytes
                                                             : facts->host_budget_bytes);
        hy_json_open_array(page->json, "limits");
        put_limit(page, "budget", budget);
        for (int i = 0; i < 4 && it->limits == DEVICE_LIMITS; i++)
            put_limit(page, names[i], budget * facts->thresholds[i]);
        hy_json_close_array(page->json);
    }
    hy_json_open_array(page->json, "curves");
    for (int r = 0; r < page->count; r++) {
        bool is_stack = put_layers(page, it, r);
        for (const curve *c = it->curves; c->name; c++) {
            if (c->style == IS_LAYER || (c->style == IS_SUM && is_stack)) continue;
            put_one(page, it, c, r);
        }
    }
    hy_json_close_array(page->json);
    hy_json_close_object(page->json);
    hy_text_add(html, "</tbody></table></div></details>\n</figure>\n");
}

void hy_page_charts(hy_page *page) {
    hy_json_open_array(page->json, "charts");
    for (size_t i = 0; i < sizeof charts / sizeof charts[0]; i++)
        if (is_worth_drawing(page, &charts[i])) put_chart(page, &charts[i]);
    hy_json_close_array(page->json);
}
