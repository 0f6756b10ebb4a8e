/* table.c: the results on standard output. See results.h. */
#include <math.h>
#include <stdio.h>

#include "results.h"

static int label_width(const pv_options *o) {
    int width = 6;
    for (int a = 0; a < o->arm_count; a++) {
        int length = snprintf(NULL, 0, "%s", o->arms[a].label);
        if (length > width) width = length;
    }
    return width;
}

static const char *bound_mark(int bound) { return bound < 0 ? "<" : bound > 0 ? ">" : ""; }

/* min / mean / max; a mark if a seed is outside the measured range of the baseline. */
static void print_factor(const pv_outcome *x, int seeds) {
    int low = 0, high = 0;
    for (int s = 0; s < seeds; s++) {
        low += x->bounds[s] < 0;
        high += x->bounds[s] > 0;
    }
    const char *least = bound_mark(low ? -1 : high == seeds);
    const char *mean = low && high ? "~" : bound_mark(high ? 1 : -(low > 0));
    const char *most = bound_mark(high ? 1 : -(low == seeds));
    printf("  %s%.3f / %s%.3f / %s%.3f", least, x->factor.min, mean, x->factor.mean, most,
           x->factor.max);
}

static void print_outcome(const pv_outcome *x, int seeds, bool is_baseline) {
    if (isnan(x->loss.mean)) {
        printf("  %18s", "-");
        return;
    }
    printf("  %.4f +- %.4f", x->loss.mean, x->loss.deviation);
    if (is_baseline) {
        printf("  %s", "-");
        return;
    }
    printf("  %+.4f (", x->gain.mean);
    for (int s = 0; s < seeds; s++) printf("%s%+.4f", s ? " " : "", x->gains[s]);
    printf(")");
    print_factor(x, seeds);
}

static void print_block(const pv_results *r, const pv_options *o, int width, bool is_average) {
    printf("\n%s\n", is_average ? "Held-out loss of the tail average, same runs"
                                : "Held-out loss of the last weights");
    printf("  %-*s  %-7s  loss +- spread     gain on %s (each seed)   compute factor min / mean / "
           "max\n",
           width, "arm", "lr", o->arms[0].label);
    for (int a = 0; a < o->arm_count; a++) {
        const pv_row *row = &r->rows[a];
        printf("  %-*s", width, o->arms[a].label);
        if (row->best < 0) {
            printf("  diverged with every learning rate\n");
            continue;
        }
        printf("  %-7g", o->lrs[row->best]);
        print_outcome(is_average ? &row->average : &row->last, o->seed_count, a == 0);
        printf("%s\n", row->is_at_edge ? "  (lr at the edge of the grid)" : "");
    }
}

static void print_costs(const pv_results *r, const pv_options *o, int width) {
    printf("\nCompute spent, means over seeds (budget %lld)\n", (long long)o->steps);
    printf("  %-*s  %8s %8s %11s %6s %9s %15s\n", width, "arm", "spent", "seconds", "opt. steps",
           "moves", "rejected", "predicted steps");
    for (int a = 0; a < o->arm_count; a++) {
        const pv_row *row = &r->rows[a];
        if (row->best < 0) continue;
        printf("  %-*s  %8.2f %8.2f %11.1f %6.1f %9.1f %15.1f\n", width, o->arms[a].label,
               row->spent, row->seconds, row->true_steps, row->moves, row->rejected_moves,
               row->predicted_steps);
    }
}

static void print_grid(const pv_results *r, const pv_options *o, int width) {
    printf("\nMean held-out loss by learning rate, last weights\n  %-*s", width, "arm");
    for (int l = 0; l < o->lr_count; l++) printf("  %8g", o->lrs[l]);
    for (int a = 0; a < o->arm_count; a++) {
        printf("\n  %-*s", width, o->arms[a].label);
        for (int l = 0; l < o->lr_count; l++) {
            if (isnan(r->rows[a].grid[l])) {
                printf("  %8s", "diverged");
            } else {
                printf("  %8.4f", r->rows[a].grid[l]);
            }
        }
    }
    printf("\n");
}

void pv_table_print(const pv_results *r, const pv_options *o) {
    static const char *const words[] = {
        [PV_SKIPPED] = "SKIP", [PV_PASSED] = "PASS", [PV_FAILED] = "FAIL"};
    int width = label_width(o);
    const pv_row *baseline = &r->rows[0];
    printf("size %s, budget %lld full steps, %d seed%s, data %s; %s\n", o->size->name,
           (long long)o->steps, o->seed_count, o->seed_count == 1 ? "" : "s", o->data,
           baseline->best < 0 ? "" : baseline->runs[0]->device);
    print_block(r, o, width, false);
    if (baseline->best >= 0 && !isnan(baseline->runs[0]->average)) print_block(r, o, width, true);
    print_costs(r, o, width);
    print_grid(r, o, width);
    printf("\n");
    for (int i = 0; i < PV_CHECK_COUNT; i++) {
        printf("%s  %s: %s\n", words[r->checks[i].verdict], r->checks[i].name, r->checks[i].detail);
    }
}
