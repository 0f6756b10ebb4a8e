/* predict_value.c: measures what prediction, or another optimizer, saves at equal compute.
 *
 * Trains the same model in several arms with the same compute budget, on paired seeds and a grid of
 * learning rates. Then trains the baseline (AdamW, or --baseline) with longer and shorter budgets,
 * and compares the held-out losses. Every finished run is stored, so that the work can be stopped
 * and continued. Training uses only hybrid.h. See `predict_value --help`; docs/prediction.md has
 * the results.
 *   build/bench/predict_value [--size smoke|cpu|lab|long] [--out DIR] ... */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "predict_value/results.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_STOPPED = 75 };

/* The progress of the work and its speed. */
typedef struct work {
    const pv_options *o;
    pv_runs runs;
    uint64_t data_hash;
    int total;                       /* all runs, including those still to be planned */
    int done;                        /* done now or before */
    double units_left;               /* of the runs still to do */
    double units_made, seconds_made; /* in this session */
} work;

/* ---- the plan -------------------------------------------------------------------------------- */

static hy_status add_run(work *w, int arm, double lr, int64_t seed, int64_t steps) {
    int index;
    return pv_runs_add(&w->runs, w->o, arm, lr, seed, steps, w->data_hash, &index);
}

/* Seed by seed, so that after a stop there is a complete comparison with fewer seeds. */
static hy_status plan_grid(work *w) {
    const pv_options *o = w->o;
    for (int s = 0; s < o->seed_count; s++) {
        for (int l = 0; l < o->lr_count; l++) {
            for (int a = 0; a < o->arm_count; a++) {
                HY_TRY(add_run(w, a, o->lrs[l], o->seeds[s], o->steps));
            }
        }
    }
    return HY_OK;
}

static hy_status plan_budgets(work *w) {
    const pv_options *o = w->o;
    int best = pv_best_lr(&w->runs, o, 0, NULL);
    if (best < 0) {
        return hy_fail(HY_ERR_NUMERIC, "%s diverged with every learning rate of --lrs",
                       o->arms[0].label);
    }
    for (int s = 0; s < o->seed_count; s++) {
        for (int i = 0; i < o->budget_count; i++) {
            int64_t steps = pv_budget_steps(o, i);
            if (pv_runs_find(&w->runs, 0, o->lrs[best], o->seeds[s], steps)) continue;
            HY_TRY(add_run(w, 0, o->lrs[best], o->seeds[s], steps));
        }
    }
    return HY_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static void expect_budgets(work *w) {
    w->units_left = 0;
    for (int i = 0; i < w->o->budget_count; i++) {
        w->units_left += (double)w->o->seed_count * (double)pv_budget_steps(w->o, i);
    }
}

static void tell(const work *w, const pv_run *run, const char *title) {
    char left[32] = "";
    if (w->units_made > 0) {
        hy_format_duration(w->seconds_made / w->units_made * w->units_left, left, sizeof left);
    }
    if (run->has_diverged) {
        fprintf(stderr, "%s: diverged after %.0f units; %s left\n", title, run->spent, left);
    } else {
        fprintf(stderr, "%s: held-out loss %.4f, %.1f s; about %s left\n", title, run->loss,
                run->seconds, left);
    }
}

static hy_status make_run(work *w, pv_run *run) {
    char title[256];
    double begin = hy_clock();
    snprintf(title, sizeof title, "run %d of %d: %s lr %g seed %lld, %lld units", w->done + 1,
             w->total, w->o->arms[run->arm].label, run->lr, (long long)run->seed,
             (long long)run->steps);
    HY_TRY(pv_run_make(run, w->o, title));
    HY_TRY(pv_journal_add(w->o->out, run, w->o));
    w->done++;
    w->units_made += (double)run->steps;
    w->units_left -= (double)run->steps;
    w->seconds_made += hy_clock() - begin;
    tell(w, run, title);
    return HY_OK;
}

/* Makes the runs that are planned and not in the journal. */
static hy_status make_all(work *w, double units_beyond) {
    HY_TRY(pv_journal_load(w->o->out, &w->runs));
    w->done = 0;
    w->units_left = units_beyond;
    for (int i = 0; i < w->runs.count; i++) {
        w->done += w->runs.list[i].is_done;
        if (!w->runs.list[i].is_done) w->units_left += (double)w->runs.list[i].steps;
    }
    for (int i = 0; i < w->runs.count; i++) {
        if (w->runs.list[i].is_done) continue;
        if (pv_stop_asked()) return hy_fail(HY_STOPPED, "stopped between two runs");
        HY_TRY(make_run(w, &w->runs.list[i]));
    }
    return HY_OK;
}

/* ---- repeating runs -------------------------------------------------------------------------- */

static bool is_same_double(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

static bool is_same(const pv_run *a, const pv_run *b) {
    bool is = is_same_double(a->loss, b->loss) && is_same_double(a->average, b->average) &&
              is_same_double(a->spent, b->spent) && a->points == b->points;
    for (int i = 0; is && i < a->points; i++) {
        is = is_same_double(a->curve[i].spent, b->curve[i].spent) &&
             is_same_double(a->curve[i].loss, b->curve[i].loss);
    }
    return is;
}

/* Repeats the first seed of every arm at its best learning rate. */
static hy_status verify(const work *w, const pv_results *r, pv_check *check) {
    int used = 0, repeated = 0;
    check->verdict = PV_PASSED;
    for (int a = 0; a < w->o->arm_count; a++) {
        char title[256];
        if (r->rows[a].best < 0) continue;
        const pv_run *first = r->rows[a].runs[0];
        pv_run again = {.arm = a, .lr = first->lr, .seed = first->seed, .steps = first->steps};
        snprintf(title, sizeof title, "again: %s lr %g seed %lld", w->o->arms[a].label, again.lr,
                 (long long)again.seed);
        HY_TRY(pv_run_make(&again, w->o, title));
        repeated++;
        bool is = is_same(first, &again);
        fprintf(stderr, "%s: %s\n", title, is ? "equal bits" : "OTHER BITS");
        if (is || (size_t)used >= sizeof check->detail) continue;
        check->verdict = PV_FAILED;
        used +=
            snprintf(check->detail + used, sizeof check->detail - (size_t)used,
                     "%s gave %.17g, then %.17g; ", w->o->arms[a].label, first->loss, again.loss);
    }
    if (check->verdict == PV_PASSED) {
        snprintf(check->detail, sizeof check->detail,
                 "repeated %d runs; all their losses are equal to the bit", repeated);
    }
    return HY_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static hy_status report(const work *w) {
    static pv_results results; /* too large for the stack */
    pv_check *bits = &results.checks[PV_SAME_BITS];
    pv_results_fill(&results, &w->runs, w->o);
    *bits = (pv_check){.name = "same bits", .detail = "skipped: --verify is not set"};
    if (w->o->verifies) HY_TRY(verify(w, &results, bits));
    pv_table_print(&results, w->o);
    HY_TRY(pv_results_write(&results, &w->runs, w->o));
    HY_TRY(pv_svg_write(&results, w->o));
    printf("\n%s: runs.jsonl, results.json, curves.svg\n", w->o->out);
    return pv_results_passed(&results) ? HY_OK : hy_fail(HY_ERR_STATE, "a check failed");
}

static hy_status measure(work *w) {
    const pv_options *o = w->o;
    uint64_t size;
    HY_TRY(hy_dir_make(o->out));
    if (hy_path_exists(o->data) && !hy_path_is_dir(o->data)) {
        HY_TRY(hy_file_hash(o->data, &w->data_hash, &size));
    }
    HY_TRY(plan_grid(w));
    w->total = w->runs.count + o->seed_count * o->budget_count;
    expect_budgets(w);
    HY_TRY(make_all(w, w->units_left));
    HY_TRY(plan_budgets(w));
    w->total = w->runs.count;
    HY_TRY(make_all(w, 0));
    return report(w);
}

int main(int argc, char **argv) {
    static pv_options options; /* too large for the stack */
    work w = {.o = &options};
    if (!pv_options_parse(argc, argv, &options)) return EXIT_USAGE;
    if (options.wants_help) {
        pv_help();
        return EXIT_DONE;
    }
    pv_stop_install();
    hy_status status = measure(&w);
    if (status == HY_STOPPED) {
        fprintf(stderr, "stopped; %d finished runs are in %s; the same command continues\n", w.done,
                options.out);
    } else if (status != HY_OK) {
        fprintf(stderr, "predict_value: %s\n", hy_error_message());
    }
    pv_runs_free(&w.runs);
    if (status == HY_OK) return EXIT_DONE;
    return status == HY_STOPPED ? EXIT_STOPPED : status == HY_ERR_INPUT ? EXIT_USAGE : EXIT_FAILED;
}
