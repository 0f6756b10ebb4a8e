/* card_backend.h: a card that is not present, for planning.
 *
 * It answers the questions of a plan: facts, supported ops, workspace sizes. It has no memory and
 * runs nothing: streams and events are NULL; alloc, copy and enqueue return HY_ERR_STATE. */
#pragma once

#include "kernels/card_list.h"
#include "kernels/kernels.h"

/* HY_ERR_INPUT lists the known cards. */
hy_status hy_card_backend_create(const char *name, hy_backend **out);
