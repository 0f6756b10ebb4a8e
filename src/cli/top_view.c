/* top_view.c: computes the figures of a run, each from as many lines as it needs.
 *
 * Totals are computed again for every page: a million lines take milliseconds, and a resumed run
 * that lost lines needs no special case. Unknown values are NaN, -1 or 0, and never guessed. */
#include "cli/top_view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/program.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "hybrid.h"

#define RECENT 64        /* lines that count as recent */
#define LATE_STEPS 8     /* a line is overdue after the time of this many steps, */
#define LATE_SECONDS 10  /* but never sooner than this, because lines are written once per second */
#define STALLED_STEPS 40 /* and a run is stalled after these */
#define STALLED_SECONDS 90

static size_t first_recent(size_t points) { return points > RECENT ? points - RECENT : 0; }

static const hy_run_point *at(const hy_top_view *view, size_t i) {
    return hy_run_point_at(view->run, i);
}

/* ---- state of the run ------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median time between recent lines. Jumps count too, because silence is compared with it. */
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

/* ---- progress -------------------------------------------------------------------------------- */

/* Recent seconds per unit of compute: a predicted step costs none, a paired test several. */
static double seconds_per_unit(const hy_top_view *view) {
    const hy_run_point *first = at(view, first_recent(hy_run_points(view->run))),
                       *last = view->last;
    double spent = last->spent - first->spent, elapsed = last->elapsed - first->elapsed;
    if (spent > 0 && elapsed > 0) return elapsed / spent;
    return last->spent > 0 ? last->elapsed / last->spent : NAN;
}

/* ---- losses and prediction ------------------------------------------------------------------- */

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

static void measure_lines(hy_top_view *view) {
    size_t points = hy_run_points(view->run);
    double waited = 0, worked = 0;
    for (size_t i = 0; i < points; i++) {
        const hy_run_point *point = at(view, i);
        count_line(view, point);
        if (isfinite(point->loss)) view->loss = point->loss;
        if (i < first_recent(points) || isnan(point->wait_seconds) || isnan(point->seconds))
            continue;
        waited += point->wait_seconds;
        worked += point->seconds;
    }
    if (worked > 0) view->wait_share = fmin(1, waited / worked);
    const hy_run_point *last = view->last;
    double total = (double)view->facts->steps_total;
    view->elapsed = last->elapsed;
    if (total <= 0 || isnan(last->spent)) return;
    double left = fmax(0, total - last->spent);
    view->steps = hy_steps_at_end(last->step, last->spent, view->facts->steps_total);
    view->share = left < 0.5 ? 1 : last->spent / total;
    view->remaining = left * seconds_per_unit(view);
}

/* `now`: unix seconds. */
static void compute_view(hy_run *run, double now, bool is_utf8, hy_top_view *out) {
    size_t points = hy_run_points(run);
    const hy_run_facts *facts = hy_run_describe(run);
    *out = (hy_top_view){.run = run,
                         .facts = facts,
                         .last = points > 0 ? hy_run_point_at(run, points - 1) : NULL,
                         .age = facts->changed > 0 ? fmax(0, now - facts->changed) : NAN,
                         .share = NAN,
                         .elapsed = NAN,
                         .remaining = NAN,
                         .loss = NAN,
                         .held_out = NAN,
                         .best_held_out = NAN,
                         .wait_share = NAN};
    out->step_seconds = typical_seconds(out);
    hy_cli_copy_safely(out->name, sizeof out->name, facts->name, is_utf8);
    hy_cli_copy_safely(out->folder, sizeof out->folder, facts->folder, is_utf8);
    hy_cli_copy_safely(out->model, sizeof out->model, facts->model, is_utf8);
    hy_cli_copy_safely(out->device, sizeof out->device, facts->device, is_utf8);
    hy_cli_copy_safely(out->data, sizeof out->data, facts->data, is_utf8);
    hy_cli_copy_safely(out->predictor, sizeof out->predictor, facts->predictor, is_utf8);
    hy_cli_copy_safely(out->transport, sizeof out->transport, facts->transport, is_utf8);
    if (out->last != NULL) measure_lines(out);
    out->state = judge(out);
}

/* ---- history --------------------------------------------------------------------------------- */

/* Many lines become few columns: a column of losses is the mean of an equal part of the run; speeds
 * and phases show the latest lines. */

#define STEEP_PART 10      /* the first of this many parts of a run does not affect the scale */
#define LINES_PER_CELL 8   /* most cells of the strip of phases */
#define MOVES_IN_VIEW 2    /* jumps that the strip tries to show */
#define LEAST_RANGE 0.0005 /* smallest range of losses, as a share: less is noise */

/* ---- losses and speeds ----------------------------------------------------------------------- */

int hy_top_losses(const hy_top_view *view, double *values, int columns, double *low, double *high) {
    size_t points = hy_run_points(view->run);
    int count = points < (size_t)columns ? (int)points : columns;
    for (int i = 0; i < count; i++) {
        size_t end = points * ((size_t)i + 1) / (size_t)count, known = 0;
        double sum = 0;
        for (size_t k = points * (size_t)i / (size_t)count; k < end; k++) {
            bool is_known = isfinite(at(view, k)->loss);
            sum += is_known ? at(view, k)->loss : 0;
            known += is_known;
        }
        values[i] = known > 0 ? sum / (double)known : NAN;
    }
    *low = *high = NAN;
    for (int i = count / STEEP_PART; i < count; i++) {
        if (!(*low <= values[i])) *low = isnan(values[i]) ? *low : values[i];
        if (!(*high >= values[i])) *high = isnan(values[i]) ? *high : values[i];
    }
    double least = LEAST_RANGE * fabs(*high);
    if (*high - *low < least) *high = *low + least;
    return count;
}

double hy_top_speed(const hy_top_view *view) {
    if (view->facts->has_tokens) return view->last->tokens_per_second;
    return view->step_seconds > 0 ? 1 / view->step_seconds : NAN;
}

int hy_top_speeds(const hy_top_view *view, double *values, int columns, double *high) {
    size_t points = hy_run_points(view->run);
    size_t count = points < (size_t)columns ? points : (size_t)columns;
    *high = 0;
    for (size_t i = 0; i < count; i++) {
        const hy_run_point *point = at(view, points - count + i);
        bool is_step = point->phase != HY_PREDICT && point->seconds > 0; /* a jump is not a step */
        values[i] = view->facts->has_tokens ? point->tokens_per_second
                    : is_step               ? 1 / point->seconds
                                            : NAN;
        if (values[i] > *high) *high = values[i];
    }
    return (int)count;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* All ranks end a step together; they differ in how long they wait. */
static double worked(const hy_top_rank *rank) { return rank->info.seconds * (1 - rank->waited); }

static int by_work(const void *a, const void *b) {
    const hy_top_rank *x = a, *y = b;
    if (worked(x) != worked(y)) return worked(x) < worked(y) ? 1 : -1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* A figure from a file, limited to a valid range; -1 if it is unknown. */
static double within_reason(double value) { return value >= 0 ? fmin(value, 0x1p53) : -1; }

static double share_of_step(double part, double step) {
    return part > 0 && step > 0 ? fmin(1, part / step) : 0;
}

static bool look_at_rank(const hy_top_view *view, int32_t rank, hy_top_rank *out) {
    hy_rank_cost *info = &out->info;
    *out = (hy_top_rank){.rank = rank, .what = ""};
    if (!hy_run_rank(view->run, rank, true, info)) return false;
    info->seconds = fmax(0, within_reason(info->seconds));
    info->memory = within_reason(info->memory);
    info->bytes = within_reason(info->bytes);
    out->waited = share_of_step(info->waited, info->seconds);
    out->exchanged = isnan(info->exchanged) ? NAN : share_of_step(info->exchanged, info->seconds);
    return true;
}

int hy_top_rank_count(const hy_top_view *view) {
    hy_rank_cost info;
    int count = 0;
    while (count < HY_RANKS_MOST && hy_run_rank(view->run, count, true, &info)) count++;
    return count;
}

int hy_top_ranks(const hy_top_view *view, hy_top_rank *out, int most, hy_top_rank *slowest,
                 double memory[2]) {
    hy_top_rank all[HY_RANKS_MOST];
    double least = NAN, largest = NAN;
    int count = 0;
    for (; count < HY_RANKS_MOST && look_at_rank(view, count, &all[count]); count++) {
        least = fmin(least, all[count].info.memory);
        largest = fmax(largest, all[count].info.memory);
    }
    memory[0] = least;
    memory[1] = largest;
    if (count == 0) return 0;
    qsort(all, (size_t)count, sizeof all[0], by_work);
    all[0].what = "slowest";
    *slowest = all[0];
    if (count <= most) { /* sorted by rank */
        for (int i = 0; i < count; i++) out[all[i].rank] = all[i];
        return count;
    }
    all[count / 2].what = "median";
    all[count - 1].what = "waits most";
    const int places[] = {0, count / 2, count - 1};
    int shown = 0;
    for (; shown < most && shown < 3; shown++) out[shown] = all[places[shown]];
    return shown;
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

/* The number of lines per cell. */
static size_t lines_per_cell(const hy_top_view *view, size_t columns) {
    size_t points = hy_run_points(view->run), each = 1;
    while (each < LINES_PER_CELL && each * columns < points &&
           moves_among(view, smaller(points, each * columns)) < MOVES_IN_VIEW)
        each *= 2;
    /* Without jumps, a longer strip would show nothing more. */
    return moves_among(view, smaller(points, each * columns)) > 0 ? each : 1;
}

int hy_top_phases(const hy_top_view *view, const hy_run_point **cells, int columns,
                  int64_t *lines) {
    size_t points = hy_run_points(view->run);
    size_t each = columns > 0 ? lines_per_cell(view, (size_t)columns) : 1;
    /* Cells start at multiples, so that they do not change while the strip moves. */
    size_t last = (points + each - 1) / each;
    size_t first = last > (size_t)columns ? last - (size_t)columns : 0;
    for (size_t cell = first; cell < last; cell++) {
        const hy_run_point *chosen = at(view, cell * each);
        for (size_t i = cell * each + 1; i < smaller(points, (cell + 1) * each); i++)
            if (notability(at(view, i)) > notability(chosen)) chosen = at(view, i);
        cells[cell - first] = chosen;
    }
    *lines = (int64_t)(points - first * each);
    return (int)(last - first);
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The event in the line of a step; false: an ordinary step. */
static bool describe_step(const hy_run_point *point, hy_top_event *out) {
    static const char *const words[][2] = {
        {"undone", "the step diverged; the last jump was undone"},
        {"rejected", "the guard rejected a jump"},
        {"skipped", "skipped the update, because the gradient was not finite"},
    };
    if (!point->was_rolled_back && !point->was_rejected && !point->was_skipped) return false;
    const char *const *chosen = words[point->was_rolled_back ? 0 : point->was_rejected ? 1 : 2];
    *out = (hy_top_event){.kind = chosen[0], .step = point->step};
    snprintf(out->text, sizeof out->text, "%s", chosen[1]);
    return true;
}

int hy_top_events(const hy_top_view *view, bool is_utf8, hy_top_event *out, int most) {
    size_t points = hy_run_points(view->run), events = hy_run_events(view->run);
    hy_top_event of_step;
    bool has_step = false;
    int count = 0;
    while (count < most) {
        while (!has_step && points > 0) has_step = describe_step(at(view, --points), &of_step);
        const hy_run_event *event = events > 0 ? hy_run_event_at(view->run, events - 1) : NULL;
        if (!has_step && event == NULL) break;
        hy_top_event *next = &out[count++];
        if (event != NULL && !(has_step && points >= event->points_before)) {
            *next = (hy_top_event){.kind = event->kind, .step = event->step};
            hy_cli_copy_safely(next->text, sizeof next->text, event->text, is_utf8);
            events--;
        } else {
            *next = of_step;
            has_step = false;
        }
    }
    return count;
}

/* ---- watched runs ---------------------------------------------------------------------------- */

/* A folder without metrics may be a run that has just started: it is watched until they appear. If
 * a run temporarily cannot be read (a disk is gone), its last figures are kept. */

#define PATH_BYTES 4096

/* ---- opening and updating -------------------------------------------------------------------- */

int hy_top_runs_open(hy_top_runs *runs, const char *const *folders, int count, bool is_utf8) {
    char newest[PATH_BYTES];
    const char *const found[] = {newest};
    *runs = (hy_top_runs){.is_utf8 = is_utf8};
    if (count == 0 && hy_run_newest(HY_CLI_RUNS, newest, sizeof newest) != HY_OK)
        return hy_cli_refuse(HY_EXIT_USAGE, "%s: hybrid-top FOLDER (the --out of hybrid-train)",
                             hy_error_message());
    if (count == 0) folders = found;
    if (count == 0) count = 1;
    runs->views = calloc((size_t)count, sizeof *runs->views);
    if (runs->views == NULL)
        return hy_cli_refuse(HY_EXIT_FAILED, "not enough memory for %d runs", count);
    for (; runs->count < count; runs->count++) {
        hy_status status = hy_run_open(folders[runs->count], &runs->views[runs->count].run);
        if (status != HY_OK) return hy_cli_fail(status);
    }
    return HY_EXIT_DONE;
}

void hy_top_runs_close(hy_top_runs *runs) {
    for (int i = 0; i < runs->count; i++) hy_run_close(runs->views[i].run);
    free(runs->views);
}

void hy_top_runs_refresh(hy_top_runs *runs, double now) {
    runs->problem[0] = '\0';
    for (int i = 0; i < runs->count; i++) {
        hy_run *run = runs->views[i].run;
        if (hy_run_refresh(run, NULL) != HY_OK)
            hy_cli_copy_safely(runs->problem, sizeof runs->problem, hy_error_message(),
                               runs->is_utf8);
        compute_view(run, now, runs->is_utf8, &runs->views[i]);
    }
}
