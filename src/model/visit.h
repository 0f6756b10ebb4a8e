/* visit.h: a pass enters a unit and leaves it; only inside the model module.
 *
 * Entering starts the transfers for the next unit, calls hooks, and holds the unit's weights and
 * gradients; leaving releases them. The calls are the same wherever the data is, and the host
 * only enqueues, it never waits here. */
#pragma once

#include "model/bind.h"

/* Before the first unit of a pass. */
hy_status hy_visit_begin(const hy_frame *frame, int32_t first);
/* The frame's unit_index selects it; `direction` is +1 towards the head, -1 towards the
 * embedding. */
hy_status hy_visit_enter(const hy_frame *frame, int direction);
hy_status hy_visit_leave(const hy_frame *frame);
