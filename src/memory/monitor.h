/* monitor.h: derives a stable status from shares of a budget.
 *
 * Pure: no clock, no files. A gauge rises to a status in the step in which its threshold is
 * reached. It falls one level at a time, after the share has stayed a little below the threshold
 * for several steps. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

/* Shares of a budget, in ascending order. */
typedef struct hy_memory_thresholds {
    double target, warning, critical, emergency;
} hy_memory_thresholds;

/* The status of a share alone. A share within the plan (`planned`; 0: none) is normal: all memory
 * is allocated before the first step and does not grow, so a plan that fills its budget is no
 * reason to warn. */
hy_memory_status hy_memory_status_of(const hy_memory_thresholds *thresholds, double share,
                                     double planned);

#define HY_GAUGE_MARGIN 0.02 /* distance below its threshold before a status may fall */
#define HY_GAUGE_CALM 5      /* readings in a row that must agree */

typedef struct hy_memory_gauge {
    hy_memory_status status;
    int calm; /* readings in a row that would let it fall */
} hy_memory_gauge;

/* Adds one reading; true if the status has changed. If may_fall is false, the reading can only
 * raise it. */
bool hy_gauge_look(hy_memory_gauge *gauge, const hy_memory_thresholds *thresholds, double share,
                   double planned, bool may_fall);

/* bytes / budget; 0 without a budget. */
double hy_memory_share(uint64_t bytes, uint64_t budget);

/* Share of the reserved bytes that was never live; 0 if all of them were, or nothing is
 * reserved. */
double hy_memory_fragmentation(uint64_t reserved, uint64_t peak);

/* The memory a card can give this run now: what the run already has plus what is free. A small loss
 * after the start is expected (code that is loaded when it first runs). `slack` bytes are set aside
 * for it from the start; only losses beyond them count. */
uint64_t hy_card_budget(uint64_t free_at_start, uint64_t free_now, uint64_t reserved,
                        uint64_t slack);
