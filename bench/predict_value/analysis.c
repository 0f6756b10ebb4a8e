/* analysis.c: means, spreads and the compute factor. See analysis.h. */
#include "analysis.h"

#include <math.h>
#include <stdbool.h>

pv_spread pv_spread_of(const double *values, int count) {
    pv_spread s = {.min = INFINITY, .max = -INFINITY};
    double square = 0;
    bool has_all = count > 0;
    for (int i = 0; i < count; i++) {
        has_all = has_all && !isnan(values[i]);
        s.min = fmin(s.min, values[i]);
        s.max = fmax(s.max, values[i]);
        s.mean += values[i] / count;
    }
    if (!has_all) return (pv_spread){NAN, NAN, NAN, NAN};
    for (int i = 0; i < count; i++) square += (values[i] - s.mean) * (values[i] - s.mean);
    s.deviation = count > 1 ? sqrt(square / (count - 1)) : 0;
    return s;
}

int pv_smallest(const double *values, int count) {
    int best = -1;
    for (int i = 0; i < count; i++) {
        if (!isnan(values[i]) && (best < 0 || values[i] < values[best])) best = i;
    }
    return best;
}

/* Replaces rising neighbours by their mean until nothing rises: the nearest falling curve in least
 * squares, with equal weights. A pool is a row of equal values, so pools need no list. */
static void make_falling(const double *losses, int count, double *falling) {
    for (int end = 0; end < count; end++) {
        int begin = end;
        double mean = losses[end];
        while (begin > 0 && falling[begin - 1] < mean) {
            int pool = begin - 1;
            while (pool > 0 && falling[pool - 1] == falling[begin - 1]) pool--;
            double of_pool = falling[begin - 1] * (begin - pool);
            mean = (of_pool + mean * (end + 1 - begin)) / (end + 1 - pool);
            begin = pool;
        }
        for (int i = begin; i <= end; i++) falling[i] = mean;
    }
}

double pv_budget_for(const double *budgets, const double *losses, int count, double loss,
                     double *falling, int *bound) {
    *bound = 0;
    for (int i = 0; i < count; i++) {
        if (isnan(losses[i])) return NAN;
    }
    if (count < 1 || isnan(loss)) return NAN;
    make_falling(losses, count, falling);
    if (loss >= falling[0]) {
        *bound = loss > falling[0] ? -1 : 0;
        return budgets[0];
    }
    for (int i = 1; i < count; i++) {
        if (loss < falling[i]) continue;
        double share = (falling[i - 1] - loss) / (falling[i - 1] - falling[i]);
        return exp(log(budgets[i - 1]) + share * (log(budgets[i]) - log(budgets[i - 1])));
    }
    *bound = 1;
    return budgets[count - 1];
}
