/* top_memory.c: memory by class, on the device and page-locked on the host, side by side.
 *
 * All bars of a place have one scale, its budget (or the most that is known of it), so that the
 * classes' bars add up to that of the whole. Shaded is what was planned and is not there now; marks
 * are the thresholds. Classes keep their order; where rows are short the largest stay. On a narrow
 * page the host has a row of words. */
#include <string.h>

#include "cli/table.h"
#include "cli/top_canvas.h"
#include "cli/top_panels.h"

#define VALUE_COLUMNS 10
#define SIDE_LEAST 30 /* columns below which a second place is not shown beside the first */
#define SIDE_GAP 3
#define WORDS_LEAST 36 /* columns below which words are shortened to leave room for the status */

/* One of the two places. */
typedef struct side {
    hy_place place;
    const int64_t *live; /* by class */
    int64_t total, budget;
    int64_t planned[HY_CLASS_COUNT], planned_total; /* -1: not known */
    int64_t resident;                               /* of the process, on the host */
    double scale;                                   /* bytes of a whole bar */
    hy_cli_colour colour;
} side;

static const char *const statuses[] = {"normal", "warning", "critical", "emergency"};

static hy_cli_colour status_colour(int status) {
    if (status < 0) return HY_CLI_BLUE; /* not told */
    return status == 0 ? HY_CLI_GREEN : status == 1 ? HY_CLI_YELLOW : HY_CLI_RED;
}

/* ---- what there is --------------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static void plan_side(const hy_top_view *view, side *s) {
    s->planned_total = 0;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        s->planned[cls] =
            hy_run_planned_bytes(view->run, view->last->phase, s->place, (hy_class)cls);
        if (s->planned[cls] < 0)
            s->planned_total = -1;
        else if (s->planned_total >= 0)
            s->planned_total += s->planned[cls];
    }
}

static side device_side(const hy_top_view *view) {
    const hy_run_point *last = view->last;
    side s = {.place = HY_DEVICE,
              .live = last->device,
              .total = last->vram_bytes,
              .budget = view->facts->vram_budget_bytes,
              .colour = status_colour(last->memory_status)};
    plan_side(view, &s);
    if (last->vram_planned_bytes > 0) s.planned_total = last->vram_planned_bytes;
    s.scale = (double)(s.budget > 0 ? s.budget : larger(last->vram_peak_bytes, s.planned_total));
    return s;
}

static side pinned_side(const hy_top_view *view) {
    const hy_run_point *last = view->last;
    side s = {.place = HY_PINNED,
              .live = last->pinned,
              .total = last->host_pinned_bytes,
              .budget = view->facts->host_budget_bytes,
              .resident = last->host_resident_bytes,
              .colour = HY_CLI_BLUE};
    plan_side(view, &s);
    s.scale = (double)(s.budget > 0 ? s.budget : larger(s.total, s.planned_total));
    return s;
}

static int64_t weight_of(const side *s, int cls) { return larger(s->live[cls], s->planned[cls]); }

/* ---- rows ------------------------------------------------------------------------------------ */

static void draw_value(const hy_top_box *box, int row, int64_t live, int64_t planned,
                       const hy_top_bar *bar) {
    int columns = box->columns - VALUE_COLUMNS;
    /* Beyond what a plan may be off by: three per cent and 128 MiB. */
    double more = (double)live - (double)planned;
    bool is_marked = planned > 0 && more > 0.03 * (double)planned && more > 128 * 0x1p20;
    if (columns > 0) hy_top_draw_bar(box, row, 0, columns, bar);
    hy_top_print_right(box, row, is_marked ? HY_CLI_YELLOW : HY_CLI_PLAIN, "%s%s",
                       is_marked ? "!" : "", hy_cli_bytes((uint64_t)larger(live, 0)).text);
}

static double share_of(const side *s, int64_t bytes) {
    return bytes > 0 && s->scale > 0 ? (double)bytes / s->scale : 0;
}

static void draw_total(const hy_top_box *box, int row, const side *s, const double *thresholds) {
    static const hy_cli_colour colours[] = {HY_CLI_GREEN, HY_CLI_YELLOW, HY_CLI_RED, HY_CLI_RED};
    hy_top_bar bar = {.share = share_of(s, s->total),
                      .planned = share_of(s, s->planned_total),
                      .colour = s->colour};
    for (int i = 0; thresholds != NULL && s->budget > 0 && i < HY_TOP_MARKS_MAX; i++) {
        bar.marks[i] = thresholds[i];
        bar.mark_colours[i] = colours[i];
    }
    draw_value(box, row, s->total, s->planned_total, &bar);
}

static void draw_class(const hy_top_box *box, int row, const side *s, int cls) {
    hy_top_bar bar = {.share = share_of(s, s->live[cls]),
                      .planned = share_of(s, s->planned[cls]),
                      .colour = s->colour};
    if (weight_of(s, cls) <= 0) return;
    draw_value(box, row, s->live[cls], s->planned[cls], &bar);
}

/* "device 9.00 of 12.0 GiB, normal, 75 %, plan 11.0 GiB", as much of it as fits. */
static void draw_words(const hy_top_box *box, const side *s, const char *status) {
    int column = hy_top_print(box, 0, 0, HY_CLI_PLAIN, "%s ", hy_place_name(s->place));
    /* "9.00 of 12.0 GiB": the unit is named once where it is the same. */
    hy_cli_figure now = hy_cli_bytes((uint64_t)larger(s->total, 0));
    hy_cli_figure budget = hy_cli_bytes((uint64_t)larger(s->budget, 0));
    char *unit = strchr(now.text, ' '), *other = strchr(budget.text, ' ');
    if (s->budget > 0 && unit != NULL && other != NULL && strcmp(unit, other) == 0) *unit = '\0';
    hy_top_add(box, 0, &column, HY_CLI_PLAIN, "%s", now.text);
    if (s->budget > 0)
        hy_top_add(box, 0, &column, HY_CLI_PLAIN, "%s%s", box->columns < WORDS_LEAST ? "/" : " of ",
                   budget.text);
    if (status != NULL && column + 2 + hy_top_width(status) <= box->columns) {
        hy_top_add(box, 0, &column, HY_CLI_PLAIN, ", ");
        hy_top_add(box, 0, &column, s->colour, "%s", status);
    }
    if (s->budget > 0)
        hy_top_add(box, 0, &column, HY_CLI_PLAIN, ", %.0f %%", 100 * share_of(s, s->total));
    if (s->planned_total > 0)
        hy_top_add(box, 0, &column, HY_CLI_DIM, ", plan %s",
                   hy_cli_bytes((uint64_t)s->planned_total).text);
    if (s->resident > 0)
        hy_top_add(box, 0, &column, HY_CLI_DIM, ", process %s",
                   hy_cli_bytes((uint64_t)s->resident).text);
}

/* ---- the panel ------------------------------------------------------------------------------- */

/* What a panel shows: both places where there is room for both side by side, else the device. */
typedef struct layout {
    side device, pinned;
    bool is_beside; /* the pinned side stands beside the device's */
    bool is_below;  /* or as a row of words under it */
    int columns;    /* of a side */
} layout;

static layout lay_out(const hy_top_box *box, const hy_top_view *view) {
    layout l = {.device = device_side(view), .pinned = pinned_side(view)};
    int room = box->columns - hy_top_label_columns(box), half = (room - SIDE_GAP) / 2;
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

/* The classes that fit into `rows`: the largest, in their usual order. */
static void choose_classes(const layout *l, int rows, bool is_shown[HY_CLASS_COUNT]) {
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) is_shown[cls] = false;
    for (int row = 0; row < rows; row++) {
        int best = -1;
        int64_t most = 0;
        for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
            if (is_shown[cls] || shown_weight(l, cls) <= most) continue;
            most = shown_weight(l, cls);
            best = cls;
        }
        if (best < 0) return;
        is_shown[best] = true;
    }
}

void hy_top_panel_memory(const hy_top_box *box, const hy_top_view *view) {
    hy_top_label(box, 0, HY_CLI_BOLD, "Memory");
    if (view->last == NULL) {
        hy_top_text(box, 0, hy_top_label_columns(box), HY_CLI_DIM, "-");
        return;
    }
    layout l = lay_out(box, view);
    int status = view->last->memory_status;
    hy_top_box left = hy_top_part(box, 0, hy_top_label_columns(box), box->rows, l.columns);
    hy_top_box right =
        hy_top_part(box, 0, hy_top_label_columns(box) + l.columns + SIDE_GAP, box->rows, l.columns);
    draw_words(&left, &l.device, status >= 0 && status < 4 ? statuses[status] : NULL);
    hy_top_label(box, 1, HY_CLI_PLAIN, "all");
    draw_total(&left, 1, &l.device, view->facts->thresholds);
    if (l.is_beside) {
        draw_words(&right, &l.pinned, NULL);
        draw_total(&right, 1, &l.pinned, NULL);
    }
    bool is_shown[HY_CLASS_COUNT];
    int row = 2;
    choose_classes(&l, box->rows - 2 - l.is_below, is_shown);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        if (!is_shown[cls]) continue;
        hy_top_label(box, row, HY_CLI_PLAIN, hy_class_name((hy_class)cls));
        draw_class(&left, row, &l.device, cls);
        if (l.is_beside) draw_class(&right, row, &l.pinned, cls);
        row++;
    }
    hy_top_box below = hy_top_part(box, row, hy_top_label_columns(box), 1, l.columns);
    if (l.is_below) draw_words(&below, &l.pinned, NULL);
}
