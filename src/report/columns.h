/* columns.h: the quantities of a run that are drawn, one column each. See sample.h.
 *
 * A column is filled for all rows of a run at once, because some add up over the rows. */
#ifndef HY_REPORT_COLUMNS_H
#define HY_REPORT_COLUMNS_H

#include "hybrid_report.h"

typedef enum hy_column {
    HY_COLUMN_LOSS, /* of true steps; a move's line has the guard's loss */
    HY_COLUMN_VAL_LOSS,
    HY_COLUMN_LR,
    HY_COLUMN_GRAD_NORM,
    HY_COLUMN_CONFIDENCE,
    HY_COLUMN_PREDICTED,       /* predicted steps so far, of moves that were kept */
    HY_COLUMN_REJECTED,        /* 1 where a move was rejected or rolled back */
    HY_COLUMN_SPEED,           /* tokens per second; none for moves, which train on nothing */
    HY_COLUMN_WAIT,            /* percent of the step's time */
    HY_COLUMN_MOVED,           /* bytes copied in the step */
    HY_COLUMN_BATCH,           /* sequences in a micro-batch */
    HY_COLUMN_DEVICE_TOTAL,    /* live bytes */
    HY_COLUMN_DEVICE_PEAK,     /* most bytes within the step */
    HY_COLUMN_DEVICE_PLANNED,  /* of the phase */
    HY_COLUMN_DEVICE_RESERVED, /* taken from the driver */
    HY_COLUMN_PINNED_TOTAL,
    HY_COLUMN_RESIDENT, /* of the process */
    HY_COLUMN_POWER,
    HY_COLUMN_TEMPERATURE,
    HY_COLUMN_UTILIZATION, /* percent */
    HY_COLUMN_MFU,         /* percent */
    HY_COLUMN_DEVICE_CLASS,
    HY_COLUMN_PINNED_CLASS = HY_COLUMN_DEVICE_CLASS + HY_CLASS_COUNT,
    HY_COLUMN_COUNT = HY_COLUMN_PINNED_CLASS + HY_CLASS_COUNT
} hy_column;

void hy_column_fill(const hy_run *run, hy_column column, double *out);

#endif
