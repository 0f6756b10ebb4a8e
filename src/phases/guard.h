/* guard.h: decides whether a jump is accepted.
 *
 * The guard compares the loss before and after a proposed jump on tokens that did not contribute to
 * it. It is not a greedy test: a jump that pays over the next steps often raises the loss a little
 * at first, and requiring a lower loss rewards damping (measured: it made training worse). The
 * guard rejects losses that are not finite, and outliers among the loss changes of earlier
 * jumps. */
#pragma once

#include "phases/machine.h"

#define HY_GUARD_HISTORY 32

typedef struct hy_guard {
    double change[HY_GUARD_HISTORY]; /* ring of loss changes of accepted jumps */
    int64_t count;
} hy_guard;

/* `noise` is the standard error of the change. */
hy_verdict hy_guard_judge(const hy_guard *guard, double before, double after, double noise);
void hy_guard_remember(hy_guard *guard, double change);
