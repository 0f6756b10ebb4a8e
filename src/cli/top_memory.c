/* top_memory.c: memory by class, on the device and page-locked on the host, side by side.
 *
 * All bars of a place have one scale, its budget (or the most that is known of it), so that the
 * classes' bars add up to that of the whole. Shaded is what was planned and is not there now; marks
 * are the thresholds. Classes keep their order; where rows are short the largest stay. */
#include <inttypes.h>
#include <math.h>

#include "cli/figures.h"
#include "cli/top_charts.h"
#include "cli/top_panels.h"

#define VALUE_COLUMNS 10
#define SIDE_LEAST 30 /* columns below which a second place is not shown beside the first */
#define SIDE_GAP 3

/* One of the two places. */
typedef struct side {
    hy_place place;
    const int64_t *live; /* by class */
    int64_t total, budget;
    int64_t planned[HY_CLASS_COUNT], planned_total; /* -1: not known */
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
              .colour = HY_CLI_BLUE};
    plan_side(view, &s);
    s.scale = (double)(s.budget > 0 ? s.budget : larger(s.total, s.planned_total));
    return s;
}

static int64_t weight_of(const side *s, int cls) { return larger(s->live[cls], s->planned[cls]); }

/* ---- rows ------------------------------------------------------------------------------------ */

static void draw_value(const hy_top_box *box, int row, int64_t bytes, const hy_top_bar *bar) {
    int columns = box->columns - VALUE_COLUMNS;
    if (columns > 0) hy_top_draw_bar(box, row, 0, columns, bar);
    hy_top_print_right(box, row, HY_CLI_PLAIN, "%s", hy_cli_bytes((uint64_t)bytes).text);
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
    draw_value(box, row, s->total, &bar);
}

static void draw_class(const hy_top_box *box, int row, const side *s, int cls) {
    hy_top_bar bar = {.share = share_of(s, s->live[cls]),
                      .planned = share_of(s, s->planned[cls]),
                      .colour = s->colour};
    if (weight_of(s, cls) <= 0) return;
    draw_value(box, row, s->live[cls], &bar);
}

/* "device 11.2 GiB of 15.0 GiB   75 %   normal   plan 11.4 GiB". */
static void draw_words(const hy_top_box *box, const side *s, const char *name, const char *status) {
    int column = hy_top_print(box, 0, 0, HY_CLI_PLAIN, "%s %s", name,
                              hy_cli_bytes((uint64_t)larger(s->total, 0)).text);
    if (s->budget > 0) {
        column = hy_top_print(box, 0, column, HY_CLI_PLAIN, " of %s",
                              hy_cli_bytes((uint64_t)s->budget).text);
        column =
            hy_top_print(box, 0, column, HY_CLI_PLAIN, ", %.0f %%", 100 * share_of(s, s->total));
    }
    if (status != NULL) {
        column = hy_top_text(box, 0, column, HY_CLI_PLAIN, ", ");
        column = hy_top_text(box, 0, column, s->colour, status);
    }
    if (s->planned_total > 0)
        hy_top_field(box, 0, &column, HY_CLI_DIM, "plan %s",
                     hy_cli_bytes((uint64_t)s->planned_total).text);
}

/* ---- the panel ------------------------------------------------------------------------------- */

static int count_classes(const side *device, const side *pinned) {
    int count = 0;
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++)
        count += weight_of(device, cls) > 0 || weight_of(pinned, cls) > 0;
    return count;
}

int hy_top_memory_rows(const hy_top_view *view) {
    if (view->last == NULL) return 1;
    side device = device_side(view), pinned = pinned_side(view);
    return 2 + count_classes(&device, &pinned);
}

/* The classes that fit into `rows`: the largest, in their usual order. */
static void choose_classes(const side *device, const side *pinned, int rows,
                           bool is_shown[HY_CLASS_COUNT]) {
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) is_shown[cls] = false;
    for (int row = 0; row < rows; row++) {
        int best = -1;
        int64_t most = 0;
        for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
            int64_t weight = larger(weight_of(device, cls), weight_of(pinned, cls));
            if (is_shown[cls] || weight <= most) continue;
            most = weight;
            best = cls;
        }
        if (best < 0) return;
        is_shown[best] = true;
    }
}

void hy_top_panel_memory(const hy_top_box *box, const hy_top_view *view) {
    hy_top_label(box, 0, "Memory");
    if (view->last == NULL) {
        hy_top_text(box, 0, HY_TOP_LABEL, HY_CLI_DIM, "-");
        return;
    }
    side device = device_side(view), pinned = pinned_side(view);
    int status = view->last->memory_status, room = box->columns - HY_TOP_LABEL;
    bool is_shown[HY_CLASS_COUNT];
    bool has_pinned = pinned.total > 0 && (room - SIDE_GAP) / 2 >= SIDE_LEAST;
    int width = has_pinned ? (room - SIDE_GAP) / 2 : room;
    hy_top_box left = hy_top_part(box, 0, HY_TOP_LABEL, box->rows, width);
    hy_top_box right = hy_top_part(box, 0, HY_TOP_LABEL + width + SIDE_GAP, box->rows, width);
    if (!has_pinned) right.columns = 0;
    draw_words(&left, &device, "device", status >= 0 && status < 4 ? statuses[status] : NULL);
    draw_words(&right, &pinned, "pinned", NULL);
    hy_top_text(box, 1, 0, HY_CLI_PLAIN, "all");
    draw_total(&left, 1, &device, view->facts->thresholds);
    draw_total(&right, 1, &pinned, NULL);
    choose_classes(&device, &pinned, box->rows - 2, is_shown);
    for (int cls = 0, row = 2; cls < HY_CLASS_COUNT; cls++) {
        if (!is_shown[cls]) continue;
        hy_top_text(box, row, 0, HY_CLI_PLAIN, hy_class_name((hy_class)cls));
        draw_class(&left, row, &device, cls);
        draw_class(&right, row, &pinned, cls);
        row++;
    }
}
