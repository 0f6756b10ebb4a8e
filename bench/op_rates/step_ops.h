/* step_ops.h: the ops of a training step, each timed alone.
 *
 * The model determines the ops of a step: it is planned and enqueued on a backend that only records
 * its calls. Calls with the same op, shapes and types are one row. */
#ifndef BENCH_OP_RATES_STEP_OPS_H
#define BENCH_OP_RATES_STEP_OPS_H

#include "model/model.h"

typedef struct step_work {
    const char *name;
    hy_shape shape;
    int32_t batch, seq, grad_accum;
} step_work;

/* Prints a table of the step's ops on this backend: count, milliseconds, TFLOP/s, GB/s, and share
 * of the step. */
hy_status step_ops_print(const step_work *work, hy_backend *backend);

#endif
