/* card_backend.h: a card that is not here, for planning.
 *
 * It answers what a plan asks of a backend: facts, which ops it supports, what workspace they need. It
 * has no memory and runs nothing: streams and events are NULL; alloc, copy and enqueue are HY_ERR_STATE. */
#pragma once

#include "kernels/card_list.h"
#include "kernels/kernels.h"

/* HY_ERR_INPUT names the cards that are known. */
hy_status hy_card_backend_create(const char *name, hy_backend **out);
