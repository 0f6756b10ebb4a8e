/* columns.h: the quantities of a run that are drawn, one column each. See sample.h.
 *
 * A column is a metric by its key (formats/metrics.h), or one of these, which follow from several:
 * "predicted" are the predicted steps so far, of jumps that were kept; "undone" is 1 where a jump was
 * rejected or rolled back; "waited" is the share of the step's time. Shares are given in percent. A column is
 * filled for all rows of a run at once, because some add up over the rows. */
#ifndef HY_REPORT_COLUMNS_H
#define HY_REPORT_COLUMNS_H

#include "hybrid_report.h"

typedef struct hy_column {
    const char *key;
    bool is_of_steps; /* what a jump's line says is left out: of the guard's loss, or of nothing */
    hy_class cls;     /* of "memory" and "pinned", which are bytes by class */
} hy_column;

void hy_column_fill(const hy_run *run, const hy_column *column, double *out);

#endif
