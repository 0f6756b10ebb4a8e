/* analysis.h: the arithmetic of the comparison: means, spreads and the compute factor.
 *
 * Pure functions over plain numbers; nothing here knows a run. NaN stands for a run that broke. */
#ifndef PV_ANALYSIS_H
#define PV_ANALYSIS_H

typedef struct pv_spread {
    double min, mean, max;
    double deviation; /* of a sample, n - 1; 0 for one value */
} pv_spread;

/* NaN in every field when there is no value or one is NaN. */
pv_spread pv_spread_of(const double *values, int count);

/* Index of the smallest; NaN counts as infinite. -1 when there is none. */
int pv_smallest(const double *values, int count);

/* The budget at which a baseline reaches `loss`, from its losses at `count` budgets in rising
 * order. The losses are made falling first (neighbours that rise are averaged: longer training
 * is not worse, what rises is noise), then interpolated over the logarithm of the budget.
 * Outside of what was measured it is the nearest budget, and *bound says so: -1 at most that, 1
 * at least that, else 0. `falling` is room for `count` numbers. NaN when anything is NaN. */
double pv_budget_for(const double *budgets, const double *losses, int count, double loss,
                     double *falling, int *bound);

#endif
