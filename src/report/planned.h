/* planned.h: memory by phase and class from plan.json or summary.json, for this module only.
 *
 * plan.json is written when a run starts and has planned bytes; summary.json also has measured
 * bytes. */
#pragma once

#include "report/run.h"

typedef struct hy_planned {
    const hy_json_node *phases;
    const char *bytes_key; /* the file's key for planned bytes */
    bool has_measured;
} hy_planned;

typedef struct hy_planned_cell {
    const char *place, *dtype;
    double planned, measured; /* NaN: not given */
} hy_planned_cell;

bool hy_planned_of_plan(const hy_run *run, hy_planned *out);
bool hy_planned_of_summary(const hy_run *run, hy_planned *out);

/* False: the class has no bytes in that phase. */
bool hy_planned_read(const hy_planned *from, int phase, int cls, hy_planned_cell *out);
