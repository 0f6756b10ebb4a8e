/* recorded.h: a pass that comes again and again is enqueued as one piece.
 *
 * Enqueueing an op costs the host some microseconds. Where the card needs less than that for the op, the
 * host is what a small model waits for. A pass whose input is the same as before (same memory, same
 * scale) is recorded and played from then on; it runs the same kernels and gives the same bits. */
#ifndef HY_MODEL_RECORDED_H
#define HY_MODEL_RECORDED_H

#include "model/model.h"

typedef hy_status (*hy_pass_function)(hy_batch_plan *plan, const hy_batch_input *input);

/* Enqueues a pass: by playing its recording where there is one. A plan serves training or evaluation;
 * gradients tell the two apart. */
hy_status hy_run_recorded(hy_batch_plan *plan, const hy_batch_input *input, hy_pass_function pass);

void hy_forget_recordings(hy_batch_plan *plan);

#endif
