/* monitor.h: from shares of a budget to a status that does not flap.
 *
 * Pure: no clock, no files. A gauge rises to a status in the step in which its threshold is
 * reached, and falls one level at a time, once the share has stayed a little below for some
 * steps on end. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

/* Shares of a budget, rising. */
typedef struct hy_memory_thresholds {
    double target, warning, critical, emergency;
} hy_memory_thresholds;

/* The status of a share by itself. A share that was planned (`planned`, 0: none was) is normal:
 * everything is taken before step 0 and does not grow, so a plan that fills its budget is no
 * reason to warn. */
hy_memory_status hy_memory_status_of(const hy_memory_thresholds *thresholds, double share,
                                     double planned);

#define HY_GAUGE_MARGIN 0.02 /* below its threshold before a status may fall */
#define HY_GAUGE_CALM 5      /* looks in a row that must say so */

typedef struct hy_memory_gauge {
    hy_memory_status status;
    int calm; /* looks in a row that would let it fall */
} hy_memory_gauge;

/* Takes one look; true when the status has changed. A look that `may_fall` is false for can only
 * raise it. */
bool hy_gauge_look(hy_memory_gauge *gauge, const hy_memory_thresholds *thresholds, double share,
                   double planned, bool may_fall);

/* bytes / budget; 0 without a budget. */
double hy_memory_share(uint64_t bytes, uint64_t budget);

/* Share of what is reserved that was never live: 0 when all of it was, or nothing is reserved. */
double hy_memory_fragmentation(uint64_t reserved, uint64_t peak);

/* What a card can give this run now: what it gave already and what is free. A small loss since
 * the start is expected (code that is loaded when it first runs): `slack` bytes are set aside
 * for it from the start; only what is lost beyond them counts. */
uint64_t hy_card_budget(uint64_t free_at_start, uint64_t free_now, uint64_t reserved,
                        uint64_t slack);
