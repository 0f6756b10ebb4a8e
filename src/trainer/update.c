/* update.c: the optimizer's update: at the end of a step, or pending until the next one. See trainer.h.
 *
 * Clipping needs the norm of all gradients, so an update can only follow the last backward pass, and
 * where state passes through the device its copies would then be all there is to wait for. A pending
 * update is applied to each unit as the next step first comes to it, while other units compute: the same
 * ops on the same numbers, so the same bits. Whoever else looks at weights or
 * optimizer state finishes it first. */
#include "base/error.h"
#include "base/rng.h"
#include "trainer/trainer.h"

static hy_optimizer_state update_state(hy_trainer *t, hy_dtype dtype) {
    hy_engine *e = &t->engine;
    bool has_copy = dtype != e->types.master;
    hy_optimizer_state state = {.optimizer = &e->update.optimizer,
                                .params = &e->model->params,
                                .backend = e->backend,
                                .weights =
                                    hy_store_of(e, has_copy ? HY_ROW_WORKING : HY_ROW_MASTER),
                                .grads = hy_store_of(e, HY_ROW_GRADS),
                                .master = has_copy ? hy_store_of(e, HY_ROW_MASTER) : NULL,
                                .square_sum = e->work.buffers.square_sum,
                                .clip = e->work.buffers.clip,
                                .workspace = e->work.buffers.reduce_workspace};
    for (int i = 0; i < hy_optim_arrays(e); i++) state.arrays[i] = hy_store_of(e, HY_ROW_OPTIM + i);
    return state;
}

/* ---- the norm, while gradients are on the device ------------------------------------------------- */

static bool sums_norm_in_passes(const hy_trainer *t) {
    return hy_store_of(&t->engine, HY_ROW_GRADS)->place != HY_DEVICE;
}

/* The optimizer's state is idle while passes go backward, and so, mostly, is the way up: that of the first
 * units comes while the last ones are left, so that the next step can begin at once. */
static hy_status gather_first(hy_trainer *t, int32_t unit) {
    int32_t ahead = unit == 3 ? 1 : unit == 2 ? 2 : -1;
    bool is_late = unit <= t->engine.model->params.units / 2;
    if (!t->engine.update.is_on_gather || ahead >= t->engine.model->params.units) return HY_OK;
    for (int i = 0; i < hy_optim_arrays(&t->engine); i++) {
        hy_store *store = hy_store_of(&t->engine, HY_ROW_OPTIM + i);
        bool is_apart = hy_store_has_own_buffer(store, 0);
        if (is_late && is_apart) HY_TRY(hy_store_gather_chunk(store, 0));
        if (ahead > 0) HY_TRY(hy_store_gather(store, ahead));
    }
    return HY_OK;
}

static hy_status add_norm(void *context, hy_stream *stream, int32_t unit) {
    hy_trainer *t = context;
    hy_optimizer_state state = update_state(t, t->engine.update.dtype);
    if (unit == t->engine.model->params.units - 1) {
        HY_TRY(hy_optimizer_norm_begin(&state, stream));
    }
    HY_TRY(gather_first(t, unit));
    return hy_optimizer_norm_add(&state, stream, unit);
}

/* ---- the pending update, as units come ----------------------------------------------------------- */

static hy_status update_next(void *context, hy_stream *stream, int32_t unit) {
    hy_trainer *t = context;
    hy_pending_update *u = &t->engine.update;
    hy_optimizer_state state = update_state(t, u->pending_dtype);
    if (unit != u->at.unit) {
        return hy_fail(HY_ERR_INTERNAL, "unit %d comes before the update of unit %d", unit,
                       u->at.unit);
    }
    HY_TRY(hy_optimizer_update_unit(&state, stream, &u->step, &u->at));
    u->is_pending = u->at.unit < t->engine.model->params.units;
    return HY_OK;
}

/* The head is large: what its update needs comes along with the blocks, once the embedding's has had time
 * to leave the buffers they share. */
static hy_status gather_next(void *context, int32_t unit) {
    hy_trainer *t = context;
    hy_optimizer_state state = update_state(t, t->engine.update.pending_dtype);
    int32_t last = t->engine.model->params.units - 1;
    HY_TRY(hy_optimizer_gather(&state, unit));
    return unit > last / 4 && unit < last ? hy_optimizer_gather_chunk(&state, last) : HY_OK;
}

const hy_unit_hook *hy_trainer_unit_hook(hy_trainer *t, int32_t micro_batch) {
    hy_pending_update *u = &t->engine.update;
    bool is_last = micro_batch == (int32_t)t->settings.train.grad_accum_steps - 1;
    u->hook = (hy_unit_hook){.context = t};
    if (u->is_pending) {
        u->hook.before = update_next;
        u->hook.ahead = gather_next;
    }
    if (is_last && sums_norm_in_passes(t)) u->hook.after = add_norm;
    return u->hook.before || u->hook.after ? &u->hook : NULL;
}

/* ---- a step's update ----------------------------------------------------------------------------- */

hy_status hy_trainer_begin_update(hy_trainer *t, hy_dtype dtype) {
    const hy_pending_update *u = &t->engine.update;
    bool is_begun = u->at.unit > 0 || u->at.param > 0; /* by a pass that broke off */
    bool is_carried = u->is_pending && u->pending_dtype == dtype && !is_begun;
    t->engine.update.dtype = dtype;
    HY_TRY(hy_trainer_return_rings(t));
    return is_carried ? HY_OK : hy_trainer_finish_update(t);
}

hy_status hy_trainer_sum_gradients(hy_trainer *t) {
    hy_optimizer_state state = update_state(t, t->engine.update.dtype);
    double grad_scale = 1 / t->progress.loss_scale.scale;
    HY_TRY(sums_norm_in_passes(t) ? hy_optimizer_norm_end(&state, t->engine.compute, grad_scale)
                                  : hy_optimizer_clip(&state, t->engine.compute, grad_scale));
    HY_TRY(hy_trainer_await_optimizer(t));
    t->engine.update.is_new = true;
    return HY_OK;
}

static void begin_pending(hy_trainer *t, double lr) {
    hy_pending_update *u = &t->engine.update;
    if (t->engine.types.has_low && u->dtype == t->engine.types.master)
        t->engine.is_low_current = false;
    u->step = (hy_optimizer_step){.lr = lr,
                                  .count = t->progress.updates,
                                  .seed = hy_rng_u64((uint64_t)t->settings.seed, HY_RNG_ROUNDING,
                                                     (uint64_t)t->progress.step)};
    u->pending_dtype = u->dtype;
    u->at = (hy_optimizer_cursor){0};
    u->is_pending = true;
    u->is_new = false;
}

hy_status hy_trainer_enqueue_update(hy_trainer *t, double lr) {
    if (t->engine.update.is_new) begin_pending(t, lr);
    return t->engine.update.is_on_gather ? HY_OK : hy_trainer_finish_update(t);
}

hy_status hy_trainer_finish_update(hy_trainer *t) {
    hy_pending_update *u = &t->engine.update;
    if (!u->is_pending) return HY_OK;
    hy_optimizer_state state = update_state(t, u->pending_dtype);
    HY_TRY(hy_optimizer_update(&state, t->engine.compute, &u->step, &u->at));
    u->is_pending = false;
    return HY_OK;
}
