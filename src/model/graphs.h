/* graphs.h: a pass that comes again and again is enqueued as one graph.
 *
 * Enqueueing an op costs the host some microseconds. Where the card needs less than that for the
 * op, the host is what a small model waits for. A pass whose input is the same as before (same
 * memory, same scale) is captured and replayed from then on; it runs the same kernels and gives the
 * same bits. */
#pragma once

#include "model/model.h"

typedef hy_status (*hy_pass_function)(hy_batch_plan *plan, const hy_batch_input *input);

/* Enqueues a pass: by replaying its graph where there is one. A plan serves training or evaluation;
 * gradients tell the two apart. */
hy_status hy_run_captured(hy_batch_plan *plan, const hy_batch_input *input, hy_pass_function pass);

void hy_forget_graphs(hy_batch_plan *plan);
