/* scale.h: hybrid-export --scale: how far a finished run goes away from what it began with. */
#pragma once

#include "hybrid.h"

typedef struct hy_cli_scale_request {
    const char *checkpoint, *device; /* device: NULL: the run's setting */
    const char *base;                /* the base model's current folder; NULL: as in the run */
    int64_t eval_batches;            /* 0: all; -1: as in the run */
    const hy_observer *observer;     /* gets progress and warnings */
    bool is_quiet;                   /* prints no table */
} hy_cli_scale_request;

/* Reads "1.5", or for "auto" measures the run's held-out data at several scales and takes the best,
 * with a table. Returns an exit code; HY_EXIT_DONE: *out is the scale. */
int hy_cli_choose_scale(const char *text, const hy_cli_scale_request *request, double *out);
