/* top_history.c: many lines become few columns.
 *
 * A column of losses is a mean over equal parts of the run; speeds and phases are the latest lines.
 * Nothing is drawn here. */
#include "cli/top_history.h"

#include <math.h>
#include <stdio.h>

#include "cli/safe_text.h"

#define STEEP_PART 10      /* the first of this many parts of a run does not set the scale */
#define LINES_PER_CELL 8   /* of the strip of phases, at most */
#define MOVES_IN_VIEW 2    /* that the strip tries to show */
#define LEAST_RANGE 0.0005 /* of losses, as a share: less is noise, not a slope */

static const hy_run_point *at(const hy_top_view *view, size_t i) {
    return hy_run_point_at(view->run, i);
}

/* ---- losses and speeds ----------------------------------------------------------------------- */

static double mean_loss(const hy_top_view *view, size_t begin, size_t end) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = begin; i < end; i++) {
        double loss = at(view, i)->loss;
        if (!isfinite(loss)) continue;
        sum += loss;
        count++;
    }
    return count > 0 ? sum / (double)count : NAN;
}

static void find_range(const double *values, int count, double *low, double *high) {
    *low = *high = NAN;
    for (int i = count / STEEP_PART; i < count; i++) {
        if (!(*low <= values[i])) *low = isnan(values[i]) ? *low : values[i];
        if (!(*high >= values[i])) *high = isnan(values[i]) ? *high : values[i];
    }
    double least = LEAST_RANGE * fabs(*high);
    if (*high - *low < least) *high = *low + least;
}

int hy_top_losses(const hy_top_view *view, double *values, int columns, double *low, double *high) {
    size_t points = hy_run_points(view->run);
    int count = points < (size_t)columns ? (int)points : columns;
    for (int i = 0; i < count; i++) {
        size_t begin = points * (size_t)i / (size_t)count;
        values[i] = mean_loss(view, begin, points * ((size_t)i + 1) / (size_t)count);
    }
    find_range(values, count, low, high);
    return count;
}

int hy_top_speeds(const hy_top_view *view, double *values, int columns, double *high) {
    size_t points = hy_run_points(view->run);
    size_t count = points < (size_t)columns ? points : (size_t)columns;
    *high = 0;
    for (size_t i = 0; i < count; i++) {
        values[i] = at(view, points - count + i)->tokens_per_second;
        if (values[i] > *high) *high = values[i];
    }
    return (int)count;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static int notability(const hy_run_point *point) {
    switch (point->phase) {
    case HY_PREDICT: return point->was_rejected ? 4 : 3;
    case HY_CORRECT: return 2;
    case HY_WARMUP: return 1;
    default: return 0;
    }
}

static size_t moves_among(const hy_top_view *view, size_t lines) {
    size_t points = hy_run_points(view->run), moves = 0;
    for (size_t i = points - lines; i < points; i++) moves += at(view, i)->phase == HY_PREDICT;
    return moves;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* How many lines share a cell. */
static size_t lines_per_cell(const hy_top_view *view, size_t columns) {
    size_t points = hy_run_points(view->run), each = 1;
    while (each < LINES_PER_CELL && each * columns < points &&
           moves_among(view, smaller(points, each * columns)) < MOVES_IN_VIEW)
        each *= 2;
    /* Without any move a longer strip shows nothing more. */
    return moves_among(view, smaller(points, each * columns)) > 0 ? each : 1;
}

int hy_top_phases(const hy_top_view *view, hy_top_phase_cell *cells, int columns, int64_t *lines) {
    size_t points = hy_run_points(view->run);
    size_t each = columns > 0 ? lines_per_cell(view, (size_t)columns) : 1;
    /* Cells begin at multiples, so that they do not change while the strip moves on. */
    size_t last = (points + each - 1) / each;
    size_t first = last > (size_t)columns ? last - (size_t)columns : 0;
    for (size_t cell = first; cell < last; cell++) {
        const hy_run_point *chosen = at(view, cell * each);
        for (size_t i = cell * each + 1; i < smaller(points, (cell + 1) * each); i++)
            if (notability(at(view, i)) > notability(chosen)) chosen = at(view, i);
        cells[cell - first] = (hy_top_phase_cell){chosen->phase, chosen->was_rejected};
    }
    *lines = (int64_t)(points - first * each);
    return (int)(last - first);
}

/* ---- what happened --------------------------------------------------------------------------- */

/* What a step itself tells; false: nothing out of the ordinary. */
static bool tell_of_step(const hy_run_point *point, hy_top_happening *out) {
    out->step = point->step;
    out->elapsed = point->elapsed;
    if (point->was_rolled_back) {
        out->kind = "undone";
        snprintf(out->text, sizeof out->text, "the step diverged: the last move was undone");
    } else if (point->was_rejected) {
        out->kind = "rejected";
        snprintf(out->text, sizeof out->text, "the guard refused a move");
    } else if (point->was_skipped) {
        out->kind = "skipped";
        snprintf(out->text, sizeof out->text, "the gradient was not finite: nothing was updated");
    } else {
        return false;
    }
    return true;
}

static void tell_of_event(const hy_run_event *event, bool is_utf8, hy_top_happening *out) {
    out->kind = event->kind;
    out->step = event->step;
    out->elapsed = event->elapsed;
    hy_cli_copy_safely(out->text, sizeof out->text, event->text, is_utf8);
}

int hy_top_happenings(const hy_top_view *view, bool is_utf8, hy_top_happening *out, int most) {
    if (view->run == NULL) return 0;
    size_t points = hy_run_points(view->run), events = hy_run_events(view->run);
    hy_top_happening of_step;
    bool has_step = false;
    int count = 0;
    while (count < most) {
        while (!has_step && points > 0) has_step = tell_of_step(at(view, --points), &of_step);
        const hy_run_event *event = events > 0 ? hy_run_event_at(view->run, events - 1) : NULL;
        if (!has_step && event == NULL) break;
        if (event != NULL && !(has_step && points >= event->points_before)) {
            tell_of_event(event, is_utf8, &out[count++]);
            events--;
        } else {
            out[count++] = of_step;
            has_step = false;
        }
    }
    return count;
}
