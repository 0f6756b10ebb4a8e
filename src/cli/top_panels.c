/* top_panels.c: panels for step, phase, loss, speed, rate, card, ranks, events and memory.
 *
 * Figures are on the left; charts use the rest of a row. An unknown figure is left out or shown as
 * "-". */
#include "cli/top_panels.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "cli/progress.h"
#include "cli/table.h"
#include "cli/top_canvas.h"
#include "cli/top_view.h"

#define WIDE_COLUMNS 50 /* width of a page on which names are not shortened */
#define WIDE_LABEL 12
#define NARROW_LABEL 7
#define FIELD_GAP 3
#define FIELD_BYTES 256
#define CHART_COLUMN 41 /* first column of the charts of losses and speeds */
#define CHART_LEAST 10  /* no chart is drawn with fewer columns */
#define SCALE_COLUMNS 8 /* width of the figures to the right of a chart */
#define EVENTS_MOST 64

/* ---- rows of fields -------------------------------------------------------------------------- */

/* The width of the names on the left, and printing such a name. */
static int label_columns(const hy_top_box *box) {
    return box->canvas->columns >= WIDE_COLUMNS ? WIDE_LABEL : NARROW_LABEL;
}

static void label(const hy_top_box *box, int row, hy_cli_colour colour, const char *text) {
    hy_top_box left = hy_top_part(box, 0, 0, box->rows, label_columns(box) - 1);
    hy_top_text(&left, row, 0, colour, text);
}

/* A row that is filled from the left. */
typedef struct line {
    const hy_top_box *box;
    int row, column;
} line;

static line line_of(const hy_top_box *box, int row) { return (line){box, row, label_columns(box)}; }

/* Adds words if they fit completely. With a gap they start a new field; if a field does not fit,
 * the row accepts no further fields. */
__attribute__((format(printf, 4, 5))) static void put(line *to, int gap, hy_cli_colour colour,
                                                      const char *format, ...) {
    char text[FIELD_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (to->column > label_columns(to->box)) to->column += gap;
    if (to->row < to->box->rows && to->column + hy_top_width(text) <= to->box->columns)
        to->column = hy_top_text(to->box, to->row, to->column, colour, text);
    else if (gap > 0)
        to->column = to->box->columns;
}

#define PUT_FIELD(to, ...) put(to, FIELD_GAP, HY_CLI_PLAIN, __VA_ARGS__)
#define PUT_WORDS(to, ...) put(to, 0, HY_CLI_PLAIN, __VA_ARGS__)

/* Prints the name of the panel. False: there is no step yet, so nothing else to show. */
static bool begin_panel(const hy_top_box *box, const hy_top_view *view, const char *name) {
    label(box, 0, HY_CLI_BOLD, name);
    if (view->last == NULL) hy_top_text(box, 0, label_columns(box), HY_CLI_DIM, "-");
    return view->last != NULL;
}

/* ---- step ------------------------------------------------------------------------------------ */

/* The progress bar and percentage, if they fit. Rounded down: 100 % means the end. */
static void draw_share(const hy_top_box *box, const hy_top_view *view) {
    enum { PERCENT_COLUMNS = sizeof "100.0 %" - 1 };
    int end = box->columns - PERCENT_COLUMNS;
    if (end < 0) return;
    hy_top_print(box, 0, end, HY_CLI_PLAIN, "%5.1f %%", floor(1000 * view->share) / 10);
    if (end - 2 < CHART_LEAST) return;
    hy_top_draw_progress(box, 0, 1, end - 2, view->share, hy_cli_phase_colour(view->last->phase));
}

void hy_top_panel_step(const hy_top_box *box, const hy_top_view *view) {
    line at = line_of(box, 0);
    if (!begin_panel(box, view, "Step")) return;
    put(&at, 0, HY_CLI_BOLD, "%s", hy_cli_count(view->last->step).text);
    if (view->steps > 0) PUT_WORDS(&at, " / %s", hy_cli_count(view->steps).text);
    hy_top_box right = hy_top_part(box, 0, at.column + 1, 1, box->columns);
    if (!isnan(view->share)) draw_share(&right, view);
    at = line_of(box, 1);
    bool is_over = view->state == HY_TOP_FINISHED || view->state == HY_TOP_STOPPED;
    PUT_FIELD(&at, is_over ? "took %s" : "%s so far", hy_cli_duration(view->elapsed).text);
    if (view->state <= HY_TOP_LATE && !isnan(view->remaining))
        PUT_FIELD(&at, "%s left", hy_cli_duration(view->remaining).text);
    if (!isnan(view->step_seconds))
        PUT_FIELD(&at, "%s per step", hy_cli_duration(view->step_seconds).text);
    if (view->last->tokens > 0 && view->facts->has_tokens)
        PUT_FIELD(&at, "%s tokens", hy_cli_short_count((double)view->last->tokens).text);
    if (view->skipped > 0) put(&at, FIELD_GAP, HY_CLI_YELLOW, "%" PRId64 " skipped", view->skipped);
}

/* ---- phase ----------------------------------------------------------------------------------- */

static void draw_moves(const hy_top_box *box, const hy_top_view *view, int column) {
    line at = {box, 0, column};
    int64_t moves = view->kept + view->rejected;
    bool is_known = view->predictor[0] != '\0', is_none = strcmp(view->predictor, "none") == 0;
    if (moves == 0 && (!is_known || is_none)) return;
    if (!isnan(view->last->confidence)) PUT_FIELD(&at, "confidence %.2f", view->last->confidence);
    if (moves == 0) {
        put(&at, FIELD_GAP, HY_CLI_DIM, "no jump yet");
        return;
    }
    PUT_FIELD(&at, "jumps: %s accepted", hy_cli_count(view->kept).text);
    put(&at, FIELD_GAP, view->rejected > 0 ? HY_CLI_RED : HY_CLI_PLAIN, "%s rejected",
        hy_cli_count(view->rejected).text);
    if (view->undone > 0)
        put(&at, FIELD_GAP, HY_CLI_YELLOW, "%s undone", hy_cli_count(view->undone).text);
    PUT_FIELD(&at, "%s steps predicted",
              hy_cli_count((int64_t)fmin(view->predicted_steps + 0.5, 0x1p53)).text);
    if (is_known) put(&at, FIELD_GAP, HY_CLI_DIM, "(%s)", view->predictor);
}

void hy_top_panel_phase(const hy_top_box *box, const hy_top_view *view) {
    if (!begin_panel(box, view, "Phase")) return;
    hy_phase phase = view->last->phase;
    hy_top_text(box, 0, label_columns(box), hy_cli_phase_colour(phase), hy_phase_name(phase));
    draw_moves(box, view, label_columns(box) + (int)sizeof "predict" - 1);
    const hy_run_point *cells[HY_TOP_COLUMNS_MAX];
    int64_t lines;
    int room = box->columns - label_columns(box) - (int)sizeof "  last 9,999 lines" + 1;
    if (box->rows < 2 || room < CHART_LEAST) return;
    int count = hy_top_phases(view, cells, room, &lines);
    for (int i = 0; i < count; i++)
        hy_top_draw_phase(box, 1, label_columns(box) + i, cells[i]->phase, cells[i]->was_rejected);
    hy_top_print(box, 1, label_columns(box) + count + 2, HY_CLI_DIM, "last %s lines",
                 hy_cli_count(lines).text);
}

/* ---- loss and speed -------------------------------------------------------------------------- */

static hy_top_box left_box(const hy_top_box *box) {
    return hy_top_part(box, 0, 0, box->rows, CHART_COLUMN - 1);
}

/* The part of a panel for its chart; it has no columns if there is no room. */
static hy_top_box chart_box(const hy_top_box *box) {
    int columns = box->columns - CHART_COLUMN - SCALE_COLUMNS;
    return hy_top_part(box, 0, CHART_COLUMN, box->rows, columns < CHART_LEAST ? 0 : columns);
}

static void draw_scale(const hy_top_box *box, const char *high, const char *low) {
    hy_top_box scale = hy_top_part(box, 0, box->columns - SCALE_COLUMNS, box->rows, SCALE_COLUMNS);
    if (box->columns < CHART_COLUMN + SCALE_COLUMNS + CHART_LEAST) return;
    hy_top_text(&scale, 0, HY_TOP_RIGHT, HY_CLI_DIM, high);
    if (box->rows > 1) hy_top_text(&scale, box->rows - 1, HY_TOP_RIGHT, HY_CLI_DIM, low);
}

/* A loss and a word about it. */
static void draw_loss(const hy_top_box *box, int row, hy_cli_colour colour, double loss,
                      const char *what) {
    line at = line_of(box, row);
    put(&at, 0, colour, "%s", hy_cli_loss(loss).text);
    PUT_WORDS(&at, " %s", what);
}

void hy_top_panel_loss(const hy_top_box *box, const hy_top_view *view) {
    char what[64];
    hy_top_box left = left_box(box);
    label(box, 0, HY_CLI_BOLD, "Loss");
    draw_loss(&left, 0, HY_CLI_BOLD, view->loss, view->last != NULL ? "training" : "");
    if (view->last == NULL) return;
    if (!isnan(view->held_out)) {
        snprintf(what, sizeof what, "held out at %s", hy_cli_count(view->held_out_step).text);
        draw_loss(&left, 1, HY_CLI_BOLD, view->held_out, what);
        draw_loss(&left, 2, HY_CLI_PLAIN, view->best_held_out, "the best so far");
    } else {
        hy_top_text(&left, 1, label_columns(box), HY_CLI_DIM, "no held-out loss yet");
    }
    double values[HY_TOP_COLUMNS_MAX], low, high;
    hy_top_box chart = chart_box(box);
    int count = hy_top_losses(view, values, chart.columns, &low, &high);
    if (count == 0 || isnan(low)) return;
    hy_top_draw_chart(&chart, values, count, low, high, HY_CLI_BLUE);
    draw_scale(box, hy_cli_loss(high).text, hy_cli_loss(low).text);
}

/* The next round number above a value, so that the scale stays still while the value changes a
 * little. */
static double round_above(double value) {
    static const double steps[] = {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10};
    double unit = pow(10, floor(log10(value)));
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i] * unit >= 1.05 * value) return steps[i] * unit;
    return 12 * unit;
}

void hy_top_panel_speed(const hy_top_box *box, const hy_top_view *view) {
    hy_top_box left = left_box(box);
    line at = line_of(&left, 0);
    label(box, 0, HY_CLI_BOLD, "Speed");
    double speed = view->last != NULL ? hy_top_speed(view) : NAN;
    put(&at, 0, HY_CLI_BOLD, "%s", hy_cli_short_count(speed).text);
    if (view->last == NULL) return;
    PUT_WORDS(&at, view->facts->has_tokens ? " tokens/s" : " steps/s");
    at = line_of(&left, 1);
    if (view->last->mfu > 0) PUT_FIELD(&at, "mfu %.1f %%", 100 * view->last->mfu);
    if (!isnan(view->wait_share))
        put(&at, FIELD_GAP, view->wait_share > 0.2 ? HY_CLI_YELLOW : HY_CLI_PLAIN,
            "waiting %.1f %%", 100 * view->wait_share);
    if (view->last->bytes_moved > 0)
        hy_top_print(&left, 2, label_columns(box), HY_CLI_PLAIN, "%s copied per step",
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

/* The latest gradient norm; a jump has none. */
static double gradient_norm(const hy_top_view *view) {
    for (size_t i = hy_run_points(view->run); i > 0; i--) {
        const hy_run_point *point = hy_run_point_at(view->run, i - 1);
        if (!isnan(point->grad_norm)) return point->grad_norm;
    }
    return NAN;
}

void hy_top_panel_rate(const hy_top_box *box, const hy_top_view *view) {
    const hy_run_point *last = view->last;
    line at = line_of(box, 0);
    if (!begin_panel(box, view, "Rate")) return;
    PUT_FIELD(&at, "%s", isnan(last->lr) ? "-" : hy_cli_learning_rate(last->lr).text);
    if (!isnan(gradient_norm(view))) PUT_FIELD(&at, "gradient norm %.3g", gradient_norm(view));
    bool is_custom = view->facts->is_custom;
    if (is_custom && last->grad_accum > 1)
        PUT_FIELD(&at, "%" PRId64 " micro-batches per step", last->grad_accum);
    if (!is_custom && last->batch_size > 0 && last->grad_accum > 0)
        PUT_FIELD(&at, "micro-batch %" PRId64 " x %" PRId64, last->batch_size, last->grad_accum);
    if (view->facts->tokens_per_step > 0)
        PUT_FIELD(&at, "%s tokens per step", hy_cli_count(view->facts->tokens_per_step).text);
}

bool hy_top_knows_gpu(const hy_top_view *view) {
    const hy_run_point *last = view->last;
    return last != NULL && (!isnan(last->gpu_power_watts) || !isnan(last->gpu_temperature_c) ||
                            !isnan(last->gpu_utilization) || last->vram_free_bytes >= 0);
}

void hy_top_panel_gpu(const hy_top_box *box, const hy_top_view *view) {
    const hy_run_point *last = view->last;
    line at = line_of(box, 0);
    label(box, 0, HY_CLI_BOLD, "GPU");
    if (!isnan(last->gpu_utilization)) PUT_FIELD(&at, "%.0f %% busy", 100 * last->gpu_utilization);
    if (!isnan(last->gpu_power_watts)) PUT_FIELD(&at, "%.0f W", last->gpu_power_watts);
    if (!isnan(last->gpu_temperature_c))
        PUT_FIELD(&at, "%.0f %s", last->gpu_temperature_c,
                  box->canvas->terminal->is_utf8 ? "\u00b0C" : "C");
    if (last->vram_reserved_bytes > 0)
        PUT_FIELD(&at, "%s reserved", hy_cli_bytes((uint64_t)last->vram_reserved_bytes).text);
    if (last->vram_free_bytes >= 0)
        PUT_FIELD(&at, "%s free on the card", hy_cli_bytes((uint64_t)last->vram_free_bytes).text);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

int hy_top_ranks_rows(const hy_top_view *view) {
    int count = hy_top_rank_count(view);
    return count == 0 ? 0 : 1 + (count > HY_TOP_RANKS_ALL ? 3 : count);
}

static void draw_rank(const hy_top_box *box, int row, const hy_top_rank *rank) {
    char name[16];
    line at = line_of(box, row);
    bool is_slowest = strcmp(rank->what, "slowest") == 0;
    snprintf(name, sizeof name, "rank %d", rank->rank);
    label(box, row, is_slowest ? HY_CLI_YELLOW : HY_CLI_PLAIN, name);
    PUT_FIELD(&at, "%.3g s per step", rank->info.seconds);
    PUT_FIELD(&at, "waited %3.0f %%", 100 * rank->waited);
    if (!isnan(rank->exchanged)) PUT_FIELD(&at, "link %3.0f %%", 100 * rank->exchanged);
    if (rank->info.memory >= 0)
        PUT_FIELD(&at, "%s", hy_cli_bytes((uint64_t)rank->info.memory).text);
    if (rank->info.bytes >= 0)
        PUT_FIELD(&at, "%s sent", hy_cli_bytes((uint64_t)rank->info.bytes).text);
    if (rank->what[0] != '\0')
        put(&at, FIELD_GAP, is_slowest ? HY_CLI_YELLOW : HY_CLI_DIM, "%s", rank->what);
}

void hy_top_panel_ranks(const hy_top_box *box, const hy_top_view *view) {
    hy_top_rank shown[HY_TOP_RANKS_ALL], slowest;
    double memory[2];
    const hy_run_facts *facts = view->facts;
    int count = hy_top_rank_count(view), room = box->rows - 1;
    if (room > HY_TOP_RANKS_ALL) room = HY_TOP_RANKS_ALL;
    line at = line_of(box, 0);
    label(box, 0, HY_CLI_BOLD, "Ranks");
    int rows = hy_top_ranks(view, shown, room, &slowest, memory);
    put(&at, 0, HY_CLI_BOLD, "%d", count);
    PUT_FIELD(&at, "slowest %d: %.3g s per step, waited %.0f %%", slowest.rank,
              slowest.info.seconds, 100 * slowest.waited);
    if (memory[0] >= 0 && count > rows)
        PUT_FIELD(&at, "memory %s to %s", hy_cli_bytes((uint64_t)memory[0]).text,
                  hy_cli_bytes((uint64_t)memory[1]).text);
    if (facts->zero_stage >= 0)
        put(&at, FIELD_GAP, HY_CLI_DIM, "ZeRO stage %" PRId64, facts->zero_stage);
    if (view->transport[0] != '\0') put(&at, FIELD_GAP, HY_CLI_DIM, "over %s", view->transport);
    for (int i = 0; i < rows; i++) draw_rank(box, i + 1, &shown[i]);
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
    hy_top_event found[EVENTS_MOST];
    int most = box->rows < EVENTS_MOST ? box->rows : EVENTS_MOST;
    int count = hy_top_events(view, box->canvas->terminal->is_utf8, found, most);
    label(box, 0, HY_CLI_BOLD, "Events");
    if (count == 0) hy_top_text(box, 0, label_columns(box), HY_CLI_DIM, "none yet");
    for (int i = 0; i < count; i++) {
        hy_top_box step = hy_top_part(box, i, label_columns(box), 1, 12);
        hy_top_box rest = hy_top_part(box, i, label_columns(box) + 14, 1, box->columns);
        hy_top_print(&step, 0, 0, HY_CLI_DIM, "step %s", hy_cli_count(found[i].step).text);
        hy_top_print(&rest, 0, 0, colour_of_kind(found[i].kind), "%.10s", found[i].kind);
        hy_top_sentence(&rest, 0, 10, HY_CLI_PLAIN, found[i].text);
    }
}

/* ---- memory by class, on the device and pinned on the host, side by side --------------------- */

/* All bars of a place have the same scale, its budget (or the largest known value), so that the
 * bars of the classes add up to the bar of the total. The shaded part was planned and is not in
 * use; marks are the thresholds. Classes keep their order; if there are few rows, the largest are
 * shown. On a narrow page the host gets one row of text. */

#define VALUE_COLUMNS 10
#define SIDE_LEAST 30 /* with fewer columns, no second place is shown beside the first */
#define SIDE_GAP 3
#define WORDS_LEAST 36 /* with fewer columns, words are shortened to make room for the status */

/* One of the two places. */
typedef struct side {
    hy_place place;
    const int64_t *live; /* by class */
    int64_t total, budget;
    int64_t planned[HY_CLASS_COUNT], planned_total; /* -1: not known */
    int64_t resident;                               /* of the process, in host memory */
    double scale;                                   /* bytes of a full bar */
    hy_cli_colour colour;
} side;

/* ---- reading the figures --------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static side side_of(const hy_top_view *view, hy_place place) {
    /* The colour for memory_status, which may be unknown. */
    static const hy_cli_colour colours[] = {HY_CLI_BLUE, HY_CLI_GREEN, HY_CLI_YELLOW, HY_CLI_RED,
                                            HY_CLI_RED};
    const hy_run_point *last = view->last;
    side s = {.place = place,
              .live = last->pinned,
              .total = last->host_pinned_bytes,
              .budget = view->facts->host_budget_bytes,
              .resident = last->host_resident_bytes,
              .colour = HY_CLI_BLUE};
    if (place == HY_DEVICE)
        s = (side){.place = place,
                   .live = last->device,
                   .total = last->vram_bytes,
                   .budget = view->facts->vram_budget_bytes,
                   .colour = colours[last->memory_status + 1]};
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        s.planned[cls] = hy_run_planned_bytes(view->run, last->phase, place, (hy_class)cls);
        bool is_known = s.planned[cls] >= 0 && s.planned_total >= 0;
        s.planned_total = is_known ? s.planned_total + s.planned[cls] : -1;
    }
    if (place == HY_DEVICE && last->vram_planned_bytes > 0)
        s.planned_total = last->vram_planned_bytes;
    int64_t most = place == HY_DEVICE ? last->vram_peak_bytes : s.total;
    s.scale = (double)(s.budget > 0 ? s.budget : larger(most, s.planned_total));
    return s;
}

static int64_t weight_of(const side *s, int cls) { return larger(s->live[cls], s->planned[cls]); }

/* ---- rows ------------------------------------------------------------------------------------ */

static double share_of(const side *s, int64_t bytes) {
    return bytes > 0 && s->scale > 0 ? (double)bytes / s->scale : 0;
}

/* A bar and its figure. `marks`: thresholds for the total of the device, else NULL. */
static void draw_bytes(const hy_top_box *box, int row, const side *s, int64_t live, int64_t planned,
                       const double *thresholds) {
    static const hy_cli_colour colours[] = {HY_CLI_GREEN, HY_CLI_YELLOW, HY_CLI_RED, HY_CLI_RED};
    hy_top_bar bar = {
        .share = share_of(s, live), .planned = share_of(s, planned), .colour = s->colour};
    for (int i = 0; thresholds != NULL && s->budget > 0 && i < HY_TOP_MARKS_MAX; i++) {
        bar.marks[i] = thresholds[i];
        bar.mark_colours[i] = colours[i];
    }
    int columns = box->columns - VALUE_COLUMNS;
    /* More than a plan may be wrong: three per cent and 128 MiB. */
    double more = (double)live - (double)planned;
    bool is_marked = planned > 0 && more > 0.03 * (double)planned && more > 128 * 0x1p20;
    if (columns > 0) hy_top_draw_bar(box, row, 0, columns, &bar);
    hy_top_print(box, row, HY_TOP_RIGHT, is_marked ? HY_CLI_YELLOW : HY_CLI_PLAIN, "%s%s",
                 is_marked ? "!" : "", hy_cli_bytes((uint64_t)larger(live, 0)).text);
}

static void draw_class(const hy_top_box *box, int row, const side *s, int cls) {
    if (weight_of(s, cls) > 0) draw_bytes(box, row, s, s->live[cls], s->planned[cls], NULL);
}

/* "device 9.00 of 12.0 GiB, normal, 75 %, plan 11.0 GiB", as much of it as fits. */
static void draw_words(const hy_top_box *box, const side *s, const char *status) {
    line at = {box, 0, hy_top_print(box, 0, 0, HY_CLI_PLAIN, "%s ", hy_place_name(s->place))};
    /* "9.00 of 12.0 GiB": a common unit is printed once. */
    hy_cli_figure now = hy_cli_bytes((uint64_t)larger(s->total, 0));
    hy_cli_figure budget = hy_cli_bytes((uint64_t)larger(s->budget, 0));
    char *unit = strchr(now.text, ' '), *other = strchr(budget.text, ' ');
    if (s->budget > 0 && unit != NULL && other != NULL && strcmp(unit, other) == 0) *unit = '\0';
    PUT_WORDS(&at, "%s", now.text);
    if (s->budget > 0)
        PUT_WORDS(&at, "%s%s", box->columns < WORDS_LEAST ? "/" : " of ", budget.text);
    if (status != NULL && at.column + 2 + hy_top_width(status) <= box->columns) {
        PUT_WORDS(&at, ", ");
        put(&at, 0, s->colour, "%s", status);
    }
    if (s->budget > 0) PUT_WORDS(&at, ", %.0f %%", 100 * share_of(s, s->total));
    if (s->planned_total > 0)
        put(&at, 0, HY_CLI_DIM, ", plan %s", hy_cli_bytes((uint64_t)s->planned_total).text);
    if (s->resident > 0)
        put(&at, 0, HY_CLI_DIM, ", process %s", hy_cli_bytes((uint64_t)s->resident).text);
}

/* ---- the panel ------------------------------------------------------------------------------- */

/* What a panel shows: both places if they fit side by side, else the device. */
typedef struct layout {
    side device, pinned;
    bool is_beside; /* the host is shown beside the device */
    bool is_below;  /* or as one row of text below it */
    int columns;    /* columns of one side */
} layout;

static layout lay_out(const hy_top_box *box, const hy_top_view *view) {
    layout l = {.device = side_of(view, HY_DEVICE), .pinned = side_of(view, HY_PINNED)};
    int room = box->columns - label_columns(box), half = (room - SIDE_GAP) / 2;
    l.is_beside = l.pinned.total > 0 && half >= SIDE_LEAST;
    l.is_below = l.pinned.total > 0 && !l.is_beside;
    l.columns = l.is_beside ? half : room;
    return l;
}

static int64_t shown_weight(const layout *l, int cls) {
    int64_t weight = weight_of(&l->device, cls);
    return l->is_beside ? larger(weight, weight_of(&l->pinned, cls)) : weight;
}

int hy_top_memory_rows(const hy_top_box *box, const hy_top_view *view) {
    if (view->last == NULL) return 1;
    layout l = lay_out(box, view);
    int rows = 2 + l.is_below;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) rows += shown_weight(&l, cls) > 0;
    return rows;
}

/* Whether a class is among the `rows` classes with the most bytes. Of equal classes the first
 * count. */
static bool is_among_largest(const layout *l, int cls, int rows) {
    int64_t weight = shown_weight(l, cls);
    for (int other = 0; other < HY_CLASS_COUNT; other++)
        rows -=
            shown_weight(l, other) > weight || (shown_weight(l, other) == weight && other < cls);
    return weight > 0 && rows > 0;
}

void hy_top_panel_memory(const hy_top_box *box, const hy_top_view *view) {
    if (!begin_panel(box, view, "Memory")) return;
    layout l = lay_out(box, view);
    int status = view->last->memory_status;
    hy_top_box left = hy_top_part(box, 0, label_columns(box), box->rows, l.columns);
    hy_top_box right =
        hy_top_part(box, 0, label_columns(box) + l.columns + SIDE_GAP, box->rows, l.columns);
    draw_words(&left, &l.device,
               status >= 0 ? hy_memory_status_name((hy_memory_status)status) : NULL);
    label(box, 1, HY_CLI_PLAIN, "all");
    draw_bytes(&left, 1, &l.device, l.device.total, l.device.planned_total,
               view->facts->thresholds);
    if (l.is_beside) {
        draw_words(&right, &l.pinned, NULL);
        draw_bytes(&right, 1, &l.pinned, l.pinned.total, l.pinned.planned_total, NULL);
    }
    int row = 2;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        if (!is_among_largest(&l, cls, box->rows - 2 - l.is_below)) continue;
        label(box, row, HY_CLI_PLAIN, hy_class_name((hy_class)cls));
        draw_class(&left, row, &l.device, cls);
        if (l.is_beside) draw_class(&right, row, &l.pinned, cls);
        row++;
    }
    hy_top_box below = hy_top_part(box, row, label_columns(box), 1, l.columns);
    if (l.is_below) draw_words(&below, &l.pinned, NULL);
}
