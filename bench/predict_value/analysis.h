/* analysis.h: the arithmetic of the comparison: means, spreads and the compute factor.
 *
 * Pure functions on plain numbers, independent of runs. NaN marks a run that diverged. */
#ifndef PV_ANALYSIS_H
#define PV_ANALYSIS_H

typedef struct pv_spread {
    double min, mean, max;
    double deviation; /* of a sample, n - 1; 0 for one value */
} pv_spread;

/* NaN in every field if there is no value or one is NaN. */
pv_spread pv_spread_of(const double *values, int count);

/* The index of the smallest; NaN counts as infinite. -1 if there is none. */
int pv_smallest(const double *values, int count);

/* The budget at which a baseline reaches `loss`, from its losses at `count` budgets in rising
 * order. The losses are first made falling (rising neighbours are averaged, because longer training
 * is not worse and a rise is noise), then interpolated over the logarithm of the budget. Outside
 * the measured range it is the nearest budget, and *bound says so: -1 at most, 1 at least, else 0.
 * `falling` has room for `count` numbers. NaN if anything is NaN. */
double pv_budget_for(const double *budgets, const double *losses, int count, double loss,
                     double *falling, int *bound);

#endif
