/* table.h: many trials of a scenario, several at a time, and what came of them as a line of a
 * table. */
#ifndef HY_TESTS_OOM_TABLE_H
#define HY_TESTS_OOM_TABLE_H

#include "trial.h"

/* Which allocations of a scenario are refused, one in each trial: all of the first ones, every so
 * many of the rest. */
typedef struct refusals {
    const char *what;  /* "allocations", "arenas", "launches" */
    unsigned kinds;    /* FAULT_BIT of those that count */
    int64_t first;     /* all up to this one */
    int64_t every;     /* of those after it; 0: none */
    int64_t most;      /* trials of those after it, further apart then; 0: any number */
    int64_t times;     /* refused in a row; 0 counts as 1 */
    uint64_t shortage; /* instead: from there on only this many more bytes are available */
    bool cannot_save;  /* no memory is left: a checkpoint is not required */
    bool must_go_on;   /* stopping is not enough where a step had been made */
} refusals;

/* Runs them and prints a line; what was wrong is printed in full. Returns how many were. */
int table_run(const scenario *s, const refusals *r);
/* The undisturbed run of a scenario; false, and told, when that fails itself. */
bool table_begin(const scenario *s);
void table_heading(void);

#endif
