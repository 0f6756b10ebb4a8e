/* guard.c: detects outliers among the loss changes of jumps. See guard.h. */
#include "phases/guard.h"

#include <math.h>

#define ENOUGH_HISTORY 5
#define OUTLIER_SIGMA 6.0
/* The share of the loss that the first jumps may cost. While a model still learns fast, a good jump
 * can raise the loss by a tenth for a few steps; a jump that breaks the model raises it far
 * more. */
#define FIRST_MOVES_MARGIN 0.2

hy_verdict hy_guard_judge(const hy_guard *guard, double before, double after, double noise) {
    double change = after - before;
    if (!isfinite(change)) return HY_REJECTED;
    double first_limit = FIRST_MOVES_MARGIN * before + OUTLIER_SIGMA * noise;
    if (guard->count < ENOUGH_HISTORY) return change > first_limit ? HY_REJECTED : HY_ACCEPTED;
    int64_t kept = guard->count < HY_GUARD_HISTORY ? guard->count : HY_GUARD_HISTORY;
    double mean = 0, square = 0;
    for (int64_t i = 0; i < kept; i++) mean += guard->change[i] / (double)kept;
    for (int64_t i = 0; i < kept; i++) {
        double off = guard->change[i] - mean;
        square += off * off / (double)(kept - 1);
    }
    double deviation = sqrt(square + noise * noise);
    return change > mean + OUTLIER_SIGMA * deviation ? HY_REJECTED : HY_ACCEPTED;
}

void hy_guard_remember(hy_guard *guard, double change) {
    guard->change[guard->count++ % HY_GUARD_HISTORY] = change;
}
