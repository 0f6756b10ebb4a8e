/* top_panels.c: step, phase, loss, speed, rate, card and events.
 *
 * Figures stand at the left, charts take what is left of a row. A figure that is not known is left
 * out or shown as "-". */
#include "cli/top_panels.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/progress.h"
#include "cli/table.h"
#include "cli/top_canvas.h"
#include "cli/top_view.h"

#define WIDE_COLUMNS 50 /* of a page on which names have their full width */
#define WIDE_LABEL 12
#define NARROW_LABEL 7
#define FIELD_GAP 3
#define FIELD_BYTES 256
#define CHART_COLUMN 41 /* charts of losses and speeds begin here */
#define CHART_LEAST 10  /* columns below which no chart is drawn */
#define SCALE_COLUMNS 8 /* the figures at a chart's right */
#define EVENTS_MOST 64

/* ---- rows of fields -------------------------------------------------------------------------- */

int hy_top_label_columns(const hy_top_box *box) {
    return box->canvas->columns >= WIDE_COLUMNS ? WIDE_LABEL : NARROW_LABEL;
}

void hy_top_label(const hy_top_box *box, int row, hy_cli_colour colour, const char *text) {
    hy_top_box left = hy_top_part(box, 0, 0, box->rows, hy_top_label_columns(box) - 1);
    hy_top_text(&left, row, 0, colour, text);
}

static bool add_words(const hy_top_box *box, int row, int *column, hy_cli_colour colour,
                      const char *format, va_list arguments) {
    char text[FIELD_BYTES];
    vsnprintf(text, sizeof text, format, arguments);
    if (row >= box->rows || *column + hy_top_width(text) > box->columns) return false;
    *column = hy_top_text(box, row, *column, colour, text);
    return true;
}

bool hy_top_add(const hy_top_box *box, int row, int *column, hy_cli_colour colour,
                const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    bool fits = add_words(box, row, column, colour, format, arguments);
    va_end(arguments);
    return fits;
}

/* The same, apart from the field before; where one does not fit the row is closed to further ones. */
static bool hy_top_field(const hy_top_box *box, int row, int *column, hy_cli_colour colour,
                         const char *format, ...) {
    va_list arguments;
    if (*column > hy_top_label_columns(box)) *column += FIELD_GAP;
    va_start(arguments, format);
    bool fits = add_words(box, row, column, colour, format, arguments);
    va_end(arguments);
    if (!fits) *column = box->columns;
    return fits;
}

/* The panel's name; false: there is no step yet, and that is all there is to show. */
static bool begin_panel(const hy_top_box *box, const hy_top_view *view, const char *name) {
    hy_top_label(box, 0, HY_CLI_BOLD, name);
    if (view->last == NULL) hy_top_text(box, 0, hy_top_label_columns(box), HY_CLI_DIM, "-");
    return view->last != NULL;
}

/* ---- step ------------------------------------------------------------------------------------ */

static void draw_times(const hy_top_box *box, const hy_top_view *view) {
    int column = hy_top_label_columns(box);
    bool is_over = view->state == HY_TOP_FINISHED || view->state == HY_TOP_STOPPED;
    hy_top_field(box, 1, &column, HY_CLI_PLAIN, is_over ? "took %s" : "%s so far",
                 hy_cli_duration(view->elapsed).text);
    if (view->state <= HY_TOP_LATE && !isnan(view->remaining))
        hy_top_field(box, 1, &column, HY_CLI_PLAIN, "%s left",
                     hy_cli_duration(view->remaining).text);
    if (!isnan(view->step_seconds))
        hy_top_field(box, 1, &column, HY_CLI_PLAIN, "%s a step",
                     hy_cli_duration(view->step_seconds).text);
    if (view->last->tokens > 0)
        hy_top_field(box, 1, &column, HY_CLI_PLAIN, "%s tokens",
                     hy_cli_short_count((double)view->last->tokens).text);
    if (view->skipped > 0)
        hy_top_field(box, 1, &column, HY_CLI_YELLOW, "%" PRId64 " skipped", view->skipped);
}

/* The line of progress and per cent, where they fit. Not rounded up: 100 % is the end. */
static void draw_share(const hy_top_box *box, const hy_top_view *view) {
    char percent[16];
    snprintf(percent, sizeof percent, "%5.1f %%", floor(1000 * view->share) / 10);
    int end = box->columns - hy_top_width(percent);
    if (end < 0) return;
    hy_top_text(box, 0, end, HY_CLI_PLAIN, percent);
    if (end - 2 < CHART_LEAST) return;
    hy_top_draw_progress(box, 0, 1, end - 2, view->share, hy_cli_phase_colour(view->last->phase));
}

void hy_top_panel_step(const hy_top_box *box, const hy_top_view *view) {
    int column = hy_top_label_columns(box);
    if (!begin_panel(box, view, "Step")) return;
    hy_top_add(box, 0, &column, HY_CLI_BOLD, "%s", hy_cli_count(view->last->step).text);
    if (view->steps > 0)
        hy_top_add(box, 0, &column, HY_CLI_PLAIN, " / %s", hy_cli_count(view->steps).text);
    hy_top_box right = hy_top_part(box, 0, column + 1, 1, box->columns);
    if (!isnan(view->share)) draw_share(&right, view);
    draw_times(box, view);
}

/* ---- phase ----------------------------------------------------------------------------------- */

static bool predicts(const hy_top_view *view) {
    return view->kept + view->rejected > 0 ||
           (view->predictor[0] != '\0' && strcmp(view->predictor, "none") != 0);
}

static void draw_moves(const hy_top_box *box, const hy_top_view *view, int column) {
    int64_t moves = view->kept + view->rejected;
    if (!predicts(view)) {
        if (view->predictor[0] != '\0')
            hy_top_field(box, 0, &column, HY_CLI_DIM, "nothing is predicted");
        return;
    }
    if (!isnan(view->last->confidence))
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "confidence %.2f", view->last->confidence);
    if (moves == 0) {
        hy_top_field(box, 0, &column, HY_CLI_DIM, "no move yet");
        return;
    }
    hy_top_field(box, 0, &column, HY_CLI_PLAIN, "moves: %s kept", hy_cli_count(view->kept).text);
    hy_top_field(box, 0, &column, view->rejected > 0 ? HY_CLI_RED : HY_CLI_PLAIN, "%s rejected",
                 hy_cli_count(view->rejected).text);
    if (view->undone > 0)
        hy_top_field(box, 0, &column, HY_CLI_YELLOW, "%s undone", hy_cli_count(view->undone).text);
    hy_top_field(box, 0, &column, HY_CLI_PLAIN, "%s steps predicted",
                 hy_cli_count((int64_t)(view->predicted_steps + 0.5)).text);
    if (view->predictor[0] != '\0')
        hy_top_field(box, 0, &column, HY_CLI_DIM, "(%s)", view->predictor);
}

void hy_top_panel_phase(const hy_top_box *box, const hy_top_view *view, bool has_colour) {
    if (!begin_panel(box, view, "Phase")) return;
    hy_phase phase = view->last->phase;
    hy_top_text(box, 0, hy_top_label_columns(box), hy_cli_phase_colour(phase),
                hy_phase_name(phase));
    draw_moves(box, view, hy_top_label_columns(box) + (int)sizeof "predict" - 1);
    hy_top_phase_cell cells[HY_TOP_COLUMNS_MAX];
    char caption[48];
    int64_t lines;
    int room = box->columns - hy_top_label_columns(box) - (int)sizeof "  last 9,999 lines" + 1;
    if (box->rows < 2 || room < CHART_LEAST) return;
    int count = hy_top_phases(view, cells, room, &lines);
    for (int i = 0; i < count; i++)
        hy_top_draw_phase(box, 1, hy_top_label_columns(box) + i, cells[i].phase,
                          cells[i].was_rejected, has_colour);
    snprintf(caption, sizeof caption, "last %s lines", hy_cli_count(lines).text);
    hy_top_text(box, 1, hy_top_label_columns(box) + count + 2, HY_CLI_DIM, caption);
}

/* ---- loss and speed -------------------------------------------------------------------------- */

static hy_top_box left_box(const hy_top_box *box) {
    return hy_top_part(box, 0, 0, box->rows, CHART_COLUMN - 1);
}

/* The part of a panel where its chart goes; no columns where there is no room for one. */
static hy_top_box chart_box(const hy_top_box *box) {
    int columns = box->columns - CHART_COLUMN - SCALE_COLUMNS;
    return hy_top_part(box, 0, CHART_COLUMN, box->rows, columns < CHART_LEAST ? 0 : columns);
}

static void draw_scale(const hy_top_box *box, const char *high, const char *low) {
    hy_top_box scale = hy_top_part(box, 0, box->columns - SCALE_COLUMNS, box->rows, SCALE_COLUMNS);
    if (box->columns < CHART_COLUMN + SCALE_COLUMNS + CHART_LEAST) return;
    hy_top_print_right(&scale, 0, HY_CLI_DIM, "%s", high);
    if (box->rows > 1) hy_top_print_right(&scale, box->rows - 1, HY_CLI_DIM, "%s", low);
}

/* A loss and what it is of. */
static void draw_loss(const hy_top_box *box, int row, hy_cli_colour colour, double loss,
                      const char *what) {
    int column = hy_top_label_columns(box);
    hy_top_add(box, row, &column, colour, "%s", hy_cli_loss(loss).text);
    hy_top_add(box, row, &column, HY_CLI_PLAIN, " %s", what);
}

void hy_top_panel_loss(const hy_top_box *box, const hy_top_view *view) {
    char what[64];
    hy_top_box left = left_box(box);
    hy_top_label(box, 0, HY_CLI_BOLD, "Loss");
    draw_loss(&left, 0, HY_CLI_BOLD, view->loss, view->last != NULL ? "training" : "");
    if (view->last == NULL) return;
    if (!isnan(view->held_out)) {
        snprintf(what, sizeof what, "held out at %s", hy_cli_count(view->held_out_step).text);
        draw_loss(&left, 1, HY_CLI_BOLD, view->held_out, what);
        draw_loss(&left, 2, HY_CLI_PLAIN, view->best_held_out, "the best so far");
    } else {
        hy_top_text(&left, 1, hy_top_label_columns(box), HY_CLI_DIM, "nothing held out yet");
    }
    double values[HY_TOP_COLUMNS_MAX], low, high;
    hy_top_box chart = chart_box(box);
    int count = hy_top_losses(view, values, chart.columns, &low, &high);
    if (count == 0 || isnan(low)) return;
    hy_top_draw_chart(&chart, values, count, low, high, HY_CLI_BLUE);
    draw_scale(box, hy_cli_loss(high).text, hy_cli_loss(low).text);
}

/* The next round figure above a value: the scale stands still while the value moves a little. */
static double round_above(double value) {
    static const double steps[] = {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10};
    double unit = pow(10, floor(log10(value)));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * unit >= 1.05 * value) return steps[i] * unit;
    return 12 * unit;
}

void hy_top_panel_speed(const hy_top_box *box, const hy_top_view *view) {
    hy_top_box left = left_box(box);
    int column = hy_top_label_columns(box);
    hy_top_label(box, 0, HY_CLI_BOLD, "Speed");
    double speed = view->last != NULL ? view->last->tokens_per_second : NAN;
    hy_top_add(&left, 0, &column, HY_CLI_BOLD, "%s", hy_cli_short_count(speed).text);
    if (view->last == NULL) return;
    hy_top_add(&left, 0, &column, HY_CLI_PLAIN, " tokens/s");
    column = hy_top_label_columns(box);
    if (view->last->mfu > 0)
        hy_top_field(&left, 1, &column, HY_CLI_PLAIN, "mfu %.1f %%", 100 * view->last->mfu);
    if (!isnan(view->wait_share))
        hy_top_field(&left, 1, &column, view->wait_share > 0.2 ? HY_CLI_YELLOW : HY_CLI_PLAIN,
                     "waiting %.1f %%", 100 * view->wait_share);
    if (view->last->bytes_moved > 0)
        hy_top_print(&left, 2, hy_top_label_columns(box), HY_CLI_PLAIN, "%s moved in a step",
                     hy_cli_bytes((uint64_t)view->last->bytes_moved).text);
    double values[HY_TOP_COLUMNS_MAX], high;
    hy_top_box chart = chart_box(box);
    int count = hy_top_speeds(view, values, chart.columns, &high);
    if (count == 0 || !(high > 0)) return;
    high = round_above(high);
    hy_top_draw_chart(&chart, values, count, 0, high, HY_CLI_GREEN);
    draw_scale(box, hy_cli_short_count(high).text, "0");
}

/* ---- rate and card --------------------------------------------------------------------------- */

/* The latest gradient norm: a move has none. */
static double gradient_norm(const hy_top_view *view) {
    for (size_t i = hy_run_points(view->run); i > 0; i--) {
        const hy_run_point *point = hy_run_point_at(view->run, i - 1);
        if (!isnan(point->grad_norm)) return point->grad_norm;
    }
    return NAN;
}

void hy_top_panel_rate(const hy_top_box *box, const hy_top_view *view) {
    const hy_run_point *last = view->last;
    int column = hy_top_label_columns(box);
    if (!begin_panel(box, view, "Rate")) return;
    hy_top_field(box, 0, &column, HY_CLI_PLAIN, "%s",
                 isnan(last->lr) ? "-" : hy_cli_learning_rate(last->lr).text);
    if (!isnan(gradient_norm(view)))
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "gradient norm %.3g", gradient_norm(view));
    if (last->batch_size > 0 && last->grad_accum > 0)
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "micro-batch %" PRId64 " x %" PRId64,
                     last->batch_size, last->grad_accum);
    if (view->facts->tokens_per_step > 0)
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "%s tokens a step",
                     hy_cli_count(view->facts->tokens_per_step).text);
}

bool hy_top_knows_gpu(const hy_top_view *view) {
    const hy_run_point *last = view->last;
    return last != NULL && (!isnan(last->gpu_power_watts) || !isnan(last->gpu_temperature_c) ||
                            !isnan(last->gpu_utilization) || last->vram_free_bytes >= 0);
}

void hy_top_panel_gpu(const hy_top_box *box, const hy_top_view *view) {
    const hy_run_point *last = view->last;
    int column = hy_top_label_columns(box);
    hy_top_label(box, 0, HY_CLI_BOLD, "GPU");
    if (!isnan(last->gpu_utilization))
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "%.0f %% busy", 100 * last->gpu_utilization);
    if (!isnan(last->gpu_power_watts))
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "%.0f W", last->gpu_power_watts);
    if (!isnan(last->gpu_temperature_c))
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "%.0f %s", last->gpu_temperature_c,
                     box->canvas->is_utf8 ? "\u00b0C" : "C");
    if (last->vram_reserved_bytes > 0)
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "%s reserved",
                     hy_cli_bytes((uint64_t)last->vram_reserved_bytes).text);
    if (last->vram_free_bytes >= 0)
        hy_top_field(box, 0, &column, HY_CLI_PLAIN, "%s free on the card",
                     hy_cli_bytes((uint64_t)last->vram_free_bytes).text);
}

/* ---- events ---------------------------------------------------------------------------------- */

static hy_cli_colour colour_of_kind(const char *kind) {
    static const struct {
        const char *kind;
        hy_cli_colour colour;
    } colours[] = {{"start", HY_CLI_DIM},     {"batch", HY_CLI_BLUE},    {"memory", HY_CLI_YELLOW},
                   {"plan", HY_CLI_BLUE},     {"recovery", HY_CLI_RED},  {"rejected", HY_CLI_RED},
                   {"undone", HY_CLI_YELLOW}, {"skipped", HY_CLI_YELLOW}};
    for (size_t i = 0; i < sizeof colours / sizeof colours[0]; i++)
        if (strcmp(colours[i].kind, kind) == 0) return colours[i].colour;
    return HY_CLI_PLAIN;
}

void hy_top_panel_events(const hy_top_box *box, const hy_top_view *view) {
    hy_top_happening found[EVENTS_MOST];
    int most = box->rows < EVENTS_MOST ? box->rows : EVENTS_MOST;
    int count = hy_top_happenings(view, box->canvas->is_utf8, found, most);
    hy_top_label(box, 0, HY_CLI_BOLD, "Events");
    if (count == 0) hy_top_text(box, 0, hy_top_label_columns(box), HY_CLI_DIM, "none yet");
    for (int i = 0; i < count; i++) {
        char kind[16];
        hy_top_box step = hy_top_part(box, i, hy_top_label_columns(box), 1, 12);
        hy_top_box rest = hy_top_part(box, i, hy_top_label_columns(box) + 14, 1, box->columns);
        hy_top_print(&step, 0, 0, HY_CLI_DIM, "step %s", hy_cli_count(found[i].step).text);
        snprintf(kind, sizeof kind, "%.10s", found[i].kind);
        hy_top_text(&rest, 0, 0, colour_of_kind(found[i].kind), kind);
        hy_top_sentence(&rest, 0, 10, HY_CLI_PLAIN, found[i].text);
    }
}
