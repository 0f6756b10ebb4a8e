/* loop_units.c: units of a loop, with weights that the library keeps. See hybrid.h.
 *
 * Like hy_loop_use, these calls use the engine from the caller's thread, while the run's thread
 * waits for an answer. */
#include "custom/loop.h"

static hy_status enter_kept(hy_loop *loop, const char *call) {
    HY_TRY(hy_loop_enter(loop, call, false));
    if (loop->custom.side.unit_of) return HY_OK;
    return hy_loop_leave(
        loop,
        hy_fail(HY_ERR_STATE, "%s is for loops with units (unit_of); this one has none", call));
}

static hy_status enter_unit(hy_loop *loop, const char *call, int32_t unit) {
    HY_TRY(enter_kept(loop, call));
    const hy_custom_side *side = &loop->custom.side;
    hy_status status = HY_OK;
    if (loop->units.is_broken) {
        status = hy_fail(HY_ERR_STATE,
                         "%s was called after a unit could not be used, so gradients are missing; "
                         "stop the loop, and resume it from its last checkpoint",
                         call);
    } else if (unit < 0 || unit > side->unit_of[side->count - 1]) {
        status = hy_fail(HY_ERR_INPUT, "unit %d does not exist; there are %d, numbered from 0",
                         (int)unit, (int)side->unit_of[side->count - 1] + 1);
    }
    return status == HY_OK ? HY_OK : hy_loop_leave(loop, status);
}

/* After a failure that is not the caller's: nothing is held any more, so that the weights can be
 * read and saved, but the pass cannot go on. */
static hy_status after(hy_loop *loop, hy_status status) {
    hy_engine *e = loop->trainer->engine;
    hy_error error;
    if (status == HY_OK || status == HY_ERR_STATE || status == HY_ERR_INPUT) return status;
    hy_error_save(&error, status);
    (void)hy_engine_settle_again(e);
    for (int32_t i = 0; loop->units.holds && i < e->model->params.units; i++)
        loop->units.holds[i] = 0;
    loop->units.held = 0;
    loop->units.is_broken = true;
    return hy_error_restore(&error);
}

hy_status hy_loop_hold(hy_loop *loop, int32_t unit, void **weights) {
    HY_FAIL_IF(!weights, HY_ERR_INPUT, "hy_loop_hold needs memory for addresses; it is NULL");
    HY_TRY(enter_unit(loop, "hy_loop_hold", unit));
    hy_status status = after(loop, hy_custom_hold(loop->trainer->engine, unit, weights));
    loop->units.held += status == HY_OK;
    loop->units.holds[unit] += status == HY_OK;
    return hy_loop_leave(loop, status);
}

hy_status hy_loop_release(hy_loop *loop, int32_t unit) {
    HY_TRY(enter_unit(loop, "hy_loop_release", unit));
    hy_status status = hy_fail(HY_ERR_STATE, "unit %d is released, but not held", (int)unit);
    if (loop->units.holds[unit] > 0) {
        loop->units.holds[unit]--;
        loop->units.held--;
        status = after(loop, hy_custom_release(loop->trainer->engine, unit));
    }
    return hy_loop_leave(loop, status);
}

hy_status hy_loop_fetch(hy_loop *loop, int32_t unit) {
    HY_TRY(enter_unit(loop, "hy_loop_fetch", unit));
    return hy_loop_leave(loop, after(loop, hy_custom_fetch(loop->trainer->engine, unit)));
}

bool hy_loop_stays(hy_loop *loop, int32_t unit) {
    if (enter_unit(loop, "hy_loop_stays", unit) != HY_OK) return false;
    bool stays = hy_custom_stays(loop->trainer->engine, unit);
    hy_loop_leave(loop, HY_OK);
    return stays;
}

static hy_status add_gradients(hy_loop *loop, int32_t unit, int64_t tokens, void *const *grads) {
    HY_FAIL_IF(!grads, HY_ERR_INPUT, "hy_loop_add_gradients needs a list of gradients; it is NULL");
    HY_FAIL_IF(loop->is_over || loop->request->todo != HY_DO_GRADIENTS, HY_ERR_STATE,
               "gradients were given, but %s",
               loop->is_over ? "the run is over" : "the question asks for a loss");
    HY_FAIL_IF(tokens < 1 || (loop->units.tokens && loop->units.tokens != tokens), HY_ERR_INPUT,
               "gradients of a mean over %lld tokens were given after those of %lld; all units of "
               "a micro-batch have the same number, at least 1",
               (long long)tokens, (long long)loop->units.tokens);
    bool is_weighed = loop->trainer->settings->train.normalize;
    HY_TRY(hy_custom_add_unit(loop->trainer->engine, unit, grads, is_weighed ? (double)tokens : 1));
    loop->units.tokens = tokens;
    return HY_OK;
}

hy_status hy_loop_add_gradients(hy_loop *loop, int32_t unit, int64_t tokens, void *const *grads) {
    HY_TRY(enter_unit(loop, "hy_loop_add_gradients", unit));
    return hy_loop_leave(loop, after(loop, add_gradients(loop, unit, tokens, grads)));
}

/* The run may be over: the weights are still there. */
static hy_status enter_parameter(hy_loop *loop, const char *call, int32_t parameter,
                                 const void *memory) {
    HY_FAIL_IF(!memory, HY_ERR_INPUT, "%s needs memory for the weights; it is NULL", call);
    HY_TRY(enter_kept(loop, call));
    if (parameter >= 0 && parameter < loop->custom.side.count) return HY_OK;
    return hy_loop_leave(loop, hy_loop_no_parameter(loop, parameter));
}

static hy_status check_range(const hy_loop *loop, int32_t parameter, int64_t first, int64_t count) {
    const hy_param *p = &loop->trainer->engine->model->params.list[parameter];
    HY_FAIL_IF(loop->units.held > 0, HY_ERR_STATE,
               "weights of %s are read or written while a unit is held; release it before",
               p->name);
    HY_FAIL_IF(first < 0 || count < 1 || first > p->count - count, HY_ERR_INPUT,
               "elements %lld to %lld of parameter %s do not exist; it has %lld", (long long)first,
               (long long)(first + count), p->name, (long long)p->count);
    return HY_OK;
}

hy_status hy_loop_write_weights(hy_loop *loop, int32_t parameter, int64_t first, int64_t count,
                                const void *from) {
    HY_TRY(enter_parameter(loop, "hy_loop_write_weights", parameter, from));
    hy_status status = check_range(loop, parameter, first, count);
    if (status == HY_OK)
        status = hy_custom_write(loop->trainer->engine, parameter, first, count, from);
    loop->custom.has_written |= status == HY_OK;
    return hy_loop_leave(loop, status);
}

hy_status hy_loop_read_weights(hy_loop *loop, int32_t parameter, int64_t first, int64_t count,
                               void *to) {
    HY_TRY(enter_parameter(loop, "hy_loop_read_weights", parameter, to));
    hy_status status = check_range(loop, parameter, first, count);
    if (status == HY_OK)
        status = after(loop, hy_custom_read(loop->trainer->engine, parameter, first, count, to));
    return hy_loop_leave(loop, status);
}

bool hy_loop_is_resumed(hy_loop *loop) {
    if (hy_loop_enter(loop, "hy_loop_is_resumed", false) != HY_OK) return false;
    bool is_resumed =
        loop->trainer && (loop->trainer->resumed[0] || loop->trainer->settings->init_from[0]);
    hy_loop_leave(loop, HY_OK);
    return is_resumed;
}
