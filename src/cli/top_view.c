/* top_view.c: figures of a run for people, each from as many lines as it needs.
 *
 * Sums over the whole run are made anew for every page: a million lines take milliseconds, and a run
 * that was resumed and lost lines needs no second way. What is not known is NaN, -1 or 0, never
 * guessed. */
#include "cli/top_view.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/figures.h"
#include "cli/safe_text.h"

#define RECENT 64        /* lines that "lately" means */
#define SMOOTHING 0.9    /* weight of the past in the shown loss, as in progress.c */
#define SMOOTHED 200     /* lines after which the past weighs nothing */
#define LATE_STEPS 8     /* a line is overdue after this many steps' time, */
#define LATE_SECONDS 10  /* but never sooner than this; lines are written once a second */
#define STALLED_STEPS 40 /* and far overdue after these */
#define STALLED_SECONDS 90

static size_t first_recent(size_t points) { return points > RECENT ? points - RECENT : 0; }

static const hy_run_point *at(const hy_top_view *view, size_t i) {
    return hy_run_point_at(view->run, i);
}

/* ---- alive or not ---------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time of a line among the latest. Moves count as well: silence is judged by it. */
static double typical_seconds(const hy_top_view *view) {
    double seconds[RECENT];
    size_t points = hy_run_points(view->run);
    int count = 0;
    for (size_t i = first_recent(points); i < points; i++)
        if (at(view, i)->seconds > 0) seconds[count++] = at(view, i)->seconds;
    if (count == 0) return NAN;
    qsort(seconds, (size_t)count, sizeof seconds[0], by_size);
    return seconds[count / 2];
}

static hy_top_state judge(const hy_top_view *view) {
    double step = isnan(view->step_seconds) ? 0 : view->step_seconds;
    if (view->last == NULL) return view->facts->is_finished ? HY_TOP_STOPPED : HY_TOP_WAITING;
    if (view->facts->is_finished)
        return view->facts->is_complete ? HY_TOP_FINISHED : HY_TOP_STOPPED;
    if (view->age > fmax(STALLED_SECONDS, STALLED_STEPS * step)) return HY_TOP_STALLED;
    return view->age > fmax(LATE_SECONDS, LATE_STEPS * step) ? HY_TOP_LATE : HY_TOP_RUNNING;
}

void hy_top_state_text(const hy_top_view *view, char *text, size_t size) {
    char step[64] = "";
    hy_cli_figure figure = hy_cli_duration(view->age);
    const char *age = figure.text;
    if (!isnan(view->step_seconds))
        snprintf(step, sizeof step, ", a step takes %s", hy_cli_duration(view->step_seconds).text);
    switch (view->state) {
    case HY_TOP_RUNNING: snprintf(text, size, "running, last line %s ago", age); break;
    case HY_TOP_LATE: snprintf(text, size, "quiet for %s%s", age, step); break;
    case HY_TOP_STALLED: snprintf(text, size, "stalled for %s%s", age, step); break;
    case HY_TOP_STOPPED: snprintf(text, size, "stopped %s ago", age); break;
    case HY_TOP_FINISHED: snprintf(text, size, "finished %s ago", age); break;
    default:
        snprintf(text, size, "waiting for the first step%s%s", isnan(view->age) ? "" : ", ",
                 isnan(view->age) ? "" : age);
        break;
    }
}

/* ---- how far --------------------------------------------------------------------------------- */

/* Seconds that a unit of compute takes lately: a predicted step costs none, a fork several. */
static double seconds_per_unit(const hy_top_view *view) {
    size_t points = hy_run_points(view->run);
    const hy_run_point *first = at(view, first_recent(points)), *last = view->last;
    double spent = last->spent - first->spent, elapsed = last->elapsed - first->elapsed;
    if (spent > 0 && elapsed > 0) return elapsed / spent;
    return last->spent > 0 ? last->elapsed / last->spent : NAN;
}

/* Steps are counted as hybrid-train's own line does: those done and those still to be paid for. */
static void measure_progress(hy_top_view *view) {
    const hy_run_point *last = view->last;
    double total = (double)view->facts->steps_total;
    view->elapsed = last->elapsed;
    view->share = view->remaining = NAN;
    if (total <= 0 || isnan(last->spent)) return;
    double left = fmax(0, total - last->spent);
    view->steps = last->step + (int64_t)ceil(left - 0.5);
    view->share = left < 0.5 ? 1 : last->spent / total;
    view->remaining = left * seconds_per_unit(view);
}

/* ---- what was learned, and how --------------------------------------------------------------- */

static void count_line(hy_top_view *view, const hy_run_point *point) {
    if (point->phase == HY_PREDICT) {
        view->rejected += point->was_rejected;
        view->kept += !point->was_rejected;
        if (!point->was_rejected && point->predicted_steps > 0)
            view->predicted_steps += point->predicted_steps;
    }
    view->undone += point->was_rolled_back;
    view->skipped += point->was_skipped;
    if (isnan(point->val_loss)) return;
    view->held_out = point->val_loss;
    view->held_out_step = point->step;
    if (!(view->best_held_out <= point->val_loss)) view->best_held_out = point->val_loss;
}

static void smooth_loss(hy_top_view *view, const hy_run_point *point, double *weight) {
    if (!isfinite(point->loss)) return;
    *weight = SMOOTHING * *weight + (1 - SMOOTHING);
    if (isnan(view->loss)) view->loss = point->loss;
    view->loss += (1 - SMOOTHING) / *weight * (point->loss - view->loss);
}

static void measure_waiting(hy_top_view *view) {
    size_t points = hy_run_points(view->run);
    double waited = 0, worked = 0;
    for (size_t i = first_recent(points); i < points; i++) {
        const hy_run_point *point = at(view, i);
        if (isnan(point->wait_seconds) || isnan(point->seconds)) continue;
        waited += point->wait_seconds;
        worked += point->seconds;
    }
    if (worked > 0) view->wait_share = fmin(1, waited / worked);
}

static void measure_lines(hy_top_view *view) {
    size_t points = hy_run_points(view->run);
    double weight = 0;
    for (size_t i = 0; i < points; i++) {
        count_line(view, at(view, i));
        if (i + SMOOTHED >= points) smooth_loss(view, at(view, i), &weight);
    }
    measure_waiting(view);
    measure_progress(view);
}

static void copy_text(hy_top_view *view, bool is_utf8) {
    const hy_run_facts *facts = view->facts;
    hy_cli_copy_safely(view->name, sizeof view->name, facts->name, is_utf8);
    hy_cli_copy_safely(view->folder, sizeof view->folder, facts->folder, is_utf8);
    hy_cli_copy_safely(view->model, sizeof view->model, facts->model, is_utf8);
    hy_cli_copy_safely(view->device, sizeof view->device, facts->device, is_utf8);
    hy_cli_copy_safely(view->data, sizeof view->data, facts->data, is_utf8);
    hy_cli_copy_safely(view->predictor, sizeof view->predictor, facts->predictor, is_utf8);
}

void hy_top_look(const hy_run *run, double now, bool is_utf8, hy_top_view *out) {
    size_t points = hy_run_points(run);
    *out = (hy_top_view){.run = run,
                         .facts = hy_run_describe(run),
                         .last = points > 0 ? hy_run_point_at(run, points - 1) : NULL,
                         .share = NAN,
                         .elapsed = NAN,
                         .remaining = NAN,
                         .loss = NAN,
                         .held_out = NAN,
                         .best_held_out = NAN,
                         .wait_share = NAN};
    out->age = out->facts->changed > 0 ? fmax(0, now - out->facts->changed) : NAN;
    out->step_seconds = typical_seconds(out);
    copy_text(out, is_utf8);
    if (out->last != NULL) measure_lines(out);
    out->state = judge(out);
}

void hy_top_look_at_nothing(const char *folder, bool is_utf8, hy_top_view *out) {
    const char *slash = strrchr(folder, '/');
    *out = (hy_top_view){.facts = hy_run_describe(NULL),
                         .state = HY_TOP_WAITING,
                         .age = NAN,
                         .step_seconds = NAN,
                         .share = NAN,
                         .loss = NAN};
    hy_cli_copy_safely(out->folder, sizeof out->folder, folder, is_utf8);
    hy_cli_copy_safely(out->name, sizeof out->name, slash && slash[1] ? slash + 1 : folder,
                       is_utf8);
}
