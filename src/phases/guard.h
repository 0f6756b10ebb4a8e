/* guard.h: may this jump be made?
 *
 * The guard compares the loss before and after a proposed jump on tokens that did not build it. It is
 * not a greedy test: a jump that pays over the next steps often raises the loss a little at first, and
 * asking for a lower one rewards damping (measured: it made training worse). It rejects what is not
 * finite and what stands out from the guard's own history of changes across moves. */
#pragma once

#include "phases/machine.h"

#define HY_GUARD_HISTORY 32

typedef struct hy_guard {
    double change[HY_GUARD_HISTORY]; /* ring of accepted jumps' loss changes */
    int64_t count;
} hy_guard;

/* `noise` is the standard error of the change. */
hy_verdict hy_guard_judge(const hy_guard *guard, double before, double after, double noise);
void hy_guard_remember(hy_guard *guard, double change);
