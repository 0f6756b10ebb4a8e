/* graphs.h: enqueues a repeated pass as one graph.
 *
 * Enqueueing an op costs the host some microseconds. If the card needs less time for the op, a
 * small model waits for the host. A pass with the same input as before (same memory, same scale)
 * is captured and then replayed; it runs the same kernels and gives the same bits. */
#pragma once

#include "model/model.h"

typedef hy_status (*hy_pass_function)(hy_batch_plan *plan, const hy_batch_input *input);

/* Enqueues a pass, by replaying its graph if there is one. A plan serves training or evaluation;
 * gradients distinguish the two. */
hy_status hy_run_captured(hy_batch_plan *plan, const hy_batch_input *input, hy_pass_function pass);

/* Whether a pass with this input can be captured and gains by it. */
bool hy_can_capture(const hy_batch_plan *plan, const hy_batch_input *input);

void hy_forget_graphs(hy_batch_plan *plan);
