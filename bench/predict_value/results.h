/* results.h: the results of the runs: one row per arm, the checks, and their output.
 *
 * Every arm uses the learning rate with the lowest mean held-out loss of its last weights; the tail
 * averages are from the same runs. AdamW is arm 0; the others are compared with it. */
#ifndef PV_RESULTS_H
#define PV_RESULTS_H

#include "analysis.h"
#include "runs.h"

/* One of the two final losses of a run, over the seeds. */
typedef struct pv_outcome {
    double losses[PV_LIST_MAX];
    double gains[PV_LIST_MAX]; /* the baseline's loss minus ours, same seed: positive is better */
    double factors[PV_LIST_MAX];
    int bounds[PV_LIST_MAX]; /* bound of the factors: -1 at most, 1 at least, 0 measured */
    pv_spread loss, gain, factor;
} pv_outcome;

typedef struct pv_row {
    /* index of the learning rate; -1: it diverged with every one */
    int best;
    bool is_at_edge;                 /* the best learning rate is the first or last of several */
    const pv_run *runs[PV_LIST_MAX]; /* at the best learning rate, by seed */
    double grid[PV_LIST_MAX];        /* mean loss at each learning rate */
    pv_outcome last, average;
    double spent, seconds, true_steps, moves, rejected_moves, predicted_steps; /* means */
} pv_row;

typedef enum pv_verdict { PV_SKIPPED, PV_PASSED, PV_FAILED } pv_verdict;

typedef struct pv_check {
    const char *name;
    pv_verdict verdict;
    char detail[512];
} pv_check;

enum { PV_EQUAL_COMPUTE, PV_SAME_BITS, PV_PAID_WORSE, PV_CHECK_COUNT };

typedef struct pv_results {
    pv_row rows[PV_LIST_MAX]; /* by arm */
    pv_check checks[PV_CHECK_COUNT];
} pv_results;

/* The index of the learning rate with the arm's lowest mean loss, -1 if there is none. `grid` (may
 * be NULL) receives the mean at each. */
int pv_best_lr(const pv_runs *runs, const pv_options *o, int arm, double *grid);
/* The budget of baseline run i of --budgets, in full steps. */
int64_t pv_budget_steps(const pv_options *o, int i);

/* All checks except PV_SAME_BITS, which needs its own runs. */
void pv_results_fill(pv_results *r, const pv_runs *runs, const pv_options *o);
bool pv_results_passed(const pv_results *r);

/* ---- table.c, results_json.c, svg.c ---- */

void pv_table_print(const pv_results *r, const pv_options *o);
hy_status pv_results_write(const pv_results *r, const pv_runs *runs, const pv_options *o);
hy_status pv_svg_write(const pv_results *r, const pv_options *o);

#endif
