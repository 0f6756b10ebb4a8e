/* visit.h: a pass comes to a unit and leaves it again: inside the model module only.
 *
 * Coming means: what the next unit needs begins to travel, hooks are called, and the unit's weights
 * and gradients are held; leaving gives them back. The calls are the same whatever lies where, and
 * the host only enqueues, it never waits here. */
#pragma once

#include "model/bind.h"

/* Before the first unit of a pass. */
hy_status hy_visit_begin(const hy_frame *frame, int32_t first);
/* The frame's unit_index says which; `direction` is +1 towards the head, -1 towards the embedding.
 * */
hy_status hy_visit_enter(const hy_frame *frame, int direction);
hy_status hy_visit_leave(const hy_frame *frame);
