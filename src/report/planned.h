/* planned.h: memory by phase and class, as plan.json or summary.json has it. Of this module alone.
 *
 * plan.json is written when a run begins and has planned bytes; summary.json has measured ones beside them. */
#pragma once

#include "report/run.h"

typedef struct hy_planned {
    const hy_json_node *phases;
    const char *bytes_key; /* what the file calls planned bytes */
    bool has_measured;
} hy_planned;

typedef struct hy_planned_cell {
    const char *place, *dtype;
    double planned, measured; /* NaN: not said */
} hy_planned_cell;

bool hy_planned_of_plan(const hy_run *run, hy_planned *out);
bool hy_planned_of_summary(const hy_run *run, hy_planned *out);

/* False where the class takes no bytes in that phase. */
bool hy_planned_read(const hy_planned *from, int phase, int cls, hy_planned_cell *out);
