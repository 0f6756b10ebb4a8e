/* visit.h: a pass enters a unit and leaves it; only inside the model module.
 *
 * Entering starts the transfers for the next unit, calls hooks, and holds the unit's weights and
 * gradients; leaving releases them. The calls are the same wherever the data is, and the host
 * only enqueues, it never waits here. */
#pragma once

#include "model/bind.h"

/* Starts the transfers for a unit. Call it for the first unit of a pass; entering a unit does it
 * for the next one. */
hy_status hy_visit_prepare(const hy_frame *frame, int32_t unit);
/* Enters and leaves the unit with the frame's unit_index. `direction` is +1 towards the head, -1
 * towards the embedding. */
hy_status hy_visit_enter(const hy_frame *frame, int direction);
hy_status hy_visit_leave(const hy_frame *frame);

/* ---- passes.c -------------------------------------------------------------------------------- */

/* Enters a unit of the model, runs its ops and leaves it. Sets the frame's unit and scratch. */
hy_status hy_run_unit(hy_frame *frame, int32_t unit, int direction);
/* Forward through embedding and blocks with two residual buffers; ends before the head. The frame
 * has its plan, its input and HY_PASS_EVAL; residual_in becomes the head's input. */
hy_status hy_run_stack(hy_frame *frame);
