/* update_all.h: an optimizer's update of all units, one after the other, wherever they live. */
#ifndef HY_TESTS_UPDATE_ALL_H
#define HY_TESTS_UPDATE_ALL_H

#include "harness.h"
#include "optim/optimizer.h"

static inline void update_all(const hy_optimizer_state *state, hy_stream *stream,
                              hy_optimizer_step step) {
    hy_optimizer_cursor at = {0};
    while (at.unit < state->params->units) {
        must(hy_optimizer_prefetch(state, at.unit));
        must(hy_optimizer_update_unit(state, stream, &step, &at));
    }
}

#endif
