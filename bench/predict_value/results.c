/* results.c: computes rows and checks from the runs. See results.h. */
#include "results.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int64_t pv_budget_steps(const pv_options *o, int i) {
    return (int64_t)fmax(1, round(o->budgets[i] * (double)o->steps));
}

int pv_best_lr(const pv_runs *runs, const pv_options *o, int arm, double *grid) {
    double means[PV_LIST_MAX];
    for (int l = 0; l < o->lr_count; l++) {
        double losses[PV_LIST_MAX];
        for (int s = 0; s < o->seed_count; s++) {
            losses[s] = pv_runs_find(runs, arm, o->lrs[l], o->seeds[s], o->steps)->loss;
        }
        means[l] = pv_spread_of(losses, o->seed_count).mean;
    }
    if (grid) memcpy(grid, means, (size_t)o->lr_count * sizeof *grid);
    return pv_smallest(means, o->lr_count);
}

/* ---- the compute factor ---------------------------------------------------------------------- */

/* AdamW's losses at every budget for one seed, by rising budget. */
typedef struct baseline {
    double budgets[PV_LIST_MAX + 1], losses[PV_LIST_MAX + 1];
    int count;
} baseline;

static void insert(baseline *b, double budget, double loss) {
    int at = b->count++;
    for (; at > 0 && b->budgets[at - 1] > budget; at--) {
        b->budgets[at] = b->budgets[at - 1];
        b->losses[at] = b->losses[at - 1];
    }
    b->budgets[at] = budget;
    b->losses[at] = loss;
}

static double loss_of(const pv_run *run, bool is_average) {
    return is_average ? run->average : run->loss;
}

static baseline baseline_of(const pv_runs *runs, const pv_options *o, double lr, int64_t seed,
                            bool is_average) {
    baseline b = {.count = 0};
    const pv_run *own = pv_runs_find(runs, 0, lr, seed, o->steps);
    insert(&b, own->spent, loss_of(own, is_average));
    for (int i = 0; i < o->budget_count; i++) {
        const pv_run *run = pv_runs_find(runs, 0, lr, seed, pv_budget_steps(o, i));
        if (run && run != own) insert(&b, run->spent, loss_of(run, is_average));
    }
    return b;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void fill_outcome(pv_outcome *out, const pv_row *row, const pv_runs *runs,
                         const pv_options *o, double base_lr, bool is_average) {
    for (int s = 0; s < o->seed_count; s++) {
        double falling[PV_LIST_MAX + 1];
        baseline b = baseline_of(runs, o, base_lr, o->seeds[s], is_average);
        const pv_run *first = pv_runs_find(runs, 0, base_lr, o->seeds[s], o->steps);
        out->losses[s] = loss_of(row->runs[s], is_average);
        out->gains[s] = loss_of(first, is_average) - out->losses[s];
        double budget =
            pv_budget_for(b.budgets, b.losses, b.count, out->losses[s], falling, &out->bounds[s]);
        out->factors[s] = budget / row->runs[s]->spent;
    }
    out->loss = pv_spread_of(out->losses, o->seed_count);
    out->gain = pv_spread_of(out->gains, o->seed_count);
    out->factor = pv_spread_of(out->factors, o->seed_count);
}

static void fill_row(pv_row *row, const pv_runs *runs, const pv_options *o, int arm,
                     double base_lr) {
    *row = (pv_row){.spent = 0};
    row->best = pv_best_lr(runs, o, arm, row->grid);
    if (row->best < 0) return;
    row->is_at_edge = o->lr_count > 1 && (row->best == 0 || row->best == o->lr_count - 1);
    for (int s = 0; s < o->seed_count; s++) {
        const pv_run *run = pv_runs_find(runs, arm, o->lrs[row->best], o->seeds[s], o->steps);
        row->runs[s] = run;
        row->spent += run->spent / o->seed_count;
        row->seconds += run->seconds / o->seed_count;
        row->true_steps += (double)run->true_steps / o->seed_count;
        row->moves += (double)run->moves / o->seed_count;
        row->rejected_moves += (double)run->rejected_moves / o->seed_count;
        row->predicted_steps += (double)run->predicted_steps / o->seed_count;
    }
    fill_outcome(&row->last, row, runs, o, base_lr, false);
    fill_outcome(&row->average, row, runs, o, base_lr, true);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* An optimizer step cannot be divided, so a run may miss its budget by one step even if that is
 * more than 1 %. */
static pv_check check_compute(const pv_runs *runs) {
    pv_check check = {.name = "equal compute", .verdict = PV_PASSED};
    double worst = 0;
    int broken = 0;
    for (int i = 0; i < runs->count; i++) {
        const pv_run *r = &runs->list[i];
        double budget = (double)r->steps, off = fabs(r->spent - budget);
        if (r->has_diverged) {
            broken++;
            continue;
        }
        if (off > fmax(0.01 * budget, 1)) check.verdict = PV_FAILED;
        worst = fmax(worst, off / budget);
    }
    snprintf(check.detail, sizeof check.detail,
             "%d runs, at most %.2f %% off the budget (allowed: 1 %%, or one step)",
             runs->count - broken, 100 * worst);
    if (broken) {
        size_t used = strlen(check.detail);
        snprintf(check.detail + used, sizeof check.detail - used, "; %d runs diverged", broken);
    }
    return check;
}

static int find_arm(const pv_options *o, const char *label) {
    for (int a = 0; a < o->arm_count; a++) {
        if (strcmp(o->arms[a].label, label) == 0) return a;
    }
    return -1;
}

/* The control at outer's best learning rate on every seed. A run that diverged is worse. */
static pv_check check_paid(const pv_results *r, const pv_runs *runs, const pv_options *o) {
    pv_check check = {.name = "paid worse than outer", .verdict = PV_PASSED};
    int outer = find_arm(o, "outer"), other = find_arm(o, "paid");
    if (outer < 0 || other < 0 || r->rows[outer].best < 0) {
        check.verdict = PV_SKIPPED;
        snprintf(check.detail, sizeof check.detail, "needs the arms outer and paid");
        return check;
    }
    double lr = o->lrs[r->rows[outer].best];
    int used = snprintf(check.detail, sizeof check.detail, "at lr %g, paid minus outer:", lr);
    for (int s = 0; s < o->seed_count; s++) {
        double ours = pv_runs_find(runs, outer, lr, o->seeds[s], o->steps)->loss;
        double theirs = pv_runs_find(runs, other, lr, o->seeds[s], o->steps)->loss;
        if (theirs <= ours) check.verdict = PV_FAILED;
        if ((size_t)used >= sizeof check.detail) break;
        used += snprintf(check.detail + used, sizeof check.detail - (size_t)used, " %+.4f",
                         theirs - ours);
    }
    return check;
}

void pv_results_fill(pv_results *r, const pv_runs *runs, const pv_options *o) {
    int base = pv_best_lr(runs, o, 0, NULL);
    for (int a = 0; a < o->arm_count; a++) {
        fill_row(&r->rows[a], runs, o, a, o->lrs[base < 0 ? 0 : base]);
    }
    r->checks[PV_EQUAL_COMPUTE] = check_compute(runs);
    r->checks[PV_PAID_WORSE] = check_paid(r, runs, o);
}

bool pv_results_passed(const pv_results *r) {
    for (int i = 0; i < PV_CHECK_COUNT; i++) {
        if (r->checks[i].verdict == PV_FAILED) return false;
    }
    return true;
}
