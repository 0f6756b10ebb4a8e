/* update.c: updates the weights, and keeps the copies that passes read up to date. See update.h.
 *
 * Clipping needs the norm of all gradients, so an update can only follow the last backward pass. If
 * state streams through the device, its copies would then overlap with no compute. Therefore an
 * update may stay pending: the first forward pass of the next step applies it to each unit just
 * before it uses the unit, while other units compute. Units that stay on the device are updated
 * together. The bits are the same either way (optim/optimizer.h). All other code that reads weights
 * or optimizer state finishes the pending update first (hy_update_finish).
 *
 * The weights that are updated are fp32, or bf16 rounded stochastically. A phase in another type
 * computes with a working copy, a derived row. It is made when a pass reads it after the weights
 * changed elsewhere; an update that writes both keeps it current. */
#include <math.h>

#include "base/error.h"
#include "engine/engine.h"

/* ---- derived rows ---------------------------------------------------------------------------- */

hy_status hy_row_cast(hy_engine *e, int from_row, int to_row) {
    hy_store *from = hy_store_of(e, from_row), *to = hy_store_of(e, to_row);
    const hy_params *params = &e->model->params;
    for (int32_t unit = 0, param = 0; unit < params->units; unit++) {
        HY_TRY(hy_store_get(from, e->device.compute, unit));
        HY_TRY(hy_store_get(to, e->device.compute, unit));
        for (; param < params->count && params->list[param].unit == unit; param++) {
            hy_op_call cast = {.kind = HY_OP_CAST};
            cast.t[HY_CAST_SRC] = hy_row_own_slice(e, from_row, param);
            cast.t[HY_CAST_DST] = hy_row_own_slice(e, to_row, param);
            bool is_there = hy_tensor_is_given(&cast.t[HY_CAST_SRC]);
            if (is_there) HY_TRY(e->device.backend->enqueue(e->device.compute, &cast));
        }
        HY_TRY(hy_store_release(from, e->device.compute, unit));
        if (!e->state->rows->row[to_row].is_sharded) {
            HY_TRY(hy_unit_all_gather(e, e->device.compute, to, unit));
        }
        HY_TRY(hy_store_release_changed(to, e->device.compute, unit));
    }
    hy_row_is_made(e->state, HY_ROW_WORKING); /* the copy matches the master now */
    return HY_OK;
}

hy_status hy_engine_weights_pending(hy_engine *e, hy_dtype dtype, hy_store **out) {
    hy_row_id row = hy_weights_row(&e->plan->types, dtype);
    bool is_due = row == HY_ROW_WORKING && hy_row_is_stale(e->state, row);
    if (is_due) HY_TRY(hy_row_cast(e, HY_ROW_MASTER, row));
    *out = hy_weights_for_passes(e, row);
    return HY_OK;
}

hy_status hy_engine_weights(hy_engine *e, hy_dtype dtype, hy_store **out) {
    HY_TRY(hy_update_finish(e));
    return hy_engine_weights_pending(e, dtype, out);
}

/* ---- weights in fp8 -------------------------------------------------------------------------- */

/* Quantises a matrix, with a scale from its largest magnitude. Parameters that stay in 16 bits are
 * copied. */
static hy_status encode_param(hy_engine *e, hy_stream *stream, int32_t index, const hy_store *from,
                              const hy_store *to) {
    const hy_param *param = &e->model->params.list[index];
    int32_t source = hy_store_item_of(from, index), item = hy_store_item_of(to, index);
    if (item < 0) return HY_OK;
    hy_tensor x = hy_store_tensor(from, source, hy_store_device(from, source));
    hy_tensor codes = hy_store_tensor(to, item, hy_store_device(to, item));
    if (codes.dtype == x.dtype) {
        return e->device.backend->copy(stream, codes.data, x.data, hy_tensor_bytes(&x));
    }
    x.ndim = codes.ndim = 2;
    for (int i = 0; i < 2; i++) x.shape[i] = codes.shape[i] = param->shape[i];
    hy_op_call largest = {.kind = HY_OP_LARGEST}, encode = {.kind = HY_OP_TO_FP8};
    largest.t[HY_LARGEST_X] = x;
    largest.t[HY_LARGEST_OUT] = hy_tensor_1d(e->work->buffers.largest, HY_F32, 1);
    encode.t[HY_TO_FP8_X] = x;
    encode.t[HY_TO_FP8_LARGEST] = largest.t[HY_LARGEST_OUT];
    encode.t[HY_TO_FP8_CODES] = codes;
    HY_TRY(e->device.backend->enqueue(stream, &largest));
    return e->device.backend->enqueue(stream, &encode);
}

/* In ZeRO stage 3 no rank has whole matrices before a pass gathers them. */
static bool is_encoded_in_passes(const hy_engine *e) {
    return hy_row_is_exchanged(&e->state->rows->row[HY_ROW_FP8]);
}

/* Computes the fp8 copy of a unit from the store with its weights. */
static hy_status encode_from(hy_engine *e, hy_stream *stream, hy_store *from, int32_t unit) {
    hy_store *to = hy_store_of(e, HY_ROW_FP8);
    const hy_params *params = &e->model->params;
    HY_TRY(hy_store_get_read(from, stream, unit));
    hy_status status = hy_store_get_new(to, stream, unit), changed = status;
    for (int32_t i = 0; i < params->count && status == HY_OK; i++) {
        if (params->list[i].unit == unit) status = encode_param(e, stream, i, from, to);
    }
    hy_status released = hy_store_release(from, stream, unit);
    if (changed == HY_OK) changed = hy_store_release_changed(to, stream, unit);
    return status != HY_OK ? status : released != HY_OK ? released : changed;
}

static hy_status encode_unit(hy_engine *e, hy_stream *stream, int32_t unit) {
    hy_store *from = hy_store_of(e, hy_weights_row(&e->plan->types, HY_E4M3));
    bool is_empty = hy_store_of(e, HY_ROW_FP8)->layout.unit_bytes[unit] == 0;
    if (is_empty || is_encoded_in_passes(e)) return HY_OK;
    HY_TRY(hy_trained_await(e, stream, unit));
    return encode_from(e, stream, from, unit);
}

/* A hook of fp8 passes (hy_unit_hook) that gather weights. */
static hy_status await_and_encode(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    hy_store *codes = hy_store_of(e, HY_ROW_FP8);
    HY_TRY(hy_weights_await(e, stream, unit));
    bool is_empty = codes->layout.unit_bytes[unit] == 0;
    if (is_empty || hy_store_touch(codes, unit)) return HY_OK;
    return encode_from(e, stream, hy_store_of(e, HY_ROW_GATHERED), unit);
}

hy_status hy_engine_fp8_pending(hy_engine *e, hy_dtype dtype, hy_store **out) {
    *out = hy_is_fp8(dtype) ? hy_store_of(e, HY_ROW_FP8) : NULL;
    if (!*out || !hy_row_is_stale(e->state, HY_ROW_FP8)) return HY_OK;
    if (is_encoded_in_passes(e)) {
        hy_store_forget(*out); /* the ring holds copies of older weights */
        hy_row_is_made(e->state, HY_ROW_FP8);
        return HY_OK;
    }
    hy_store *from = hy_store_of(e, hy_weights_row(&e->plan->types, HY_E4M3));
    for (int32_t unit = 0; unit < e->model->params.units; unit++) {
        int32_t next = unit + 1;
        bool has_next = next < e->model->params.units && (*out)->layout.unit_bytes[next] > 0;
        if (has_next) HY_TRY(hy_store_prefetch(from, next));
        HY_TRY(encode_unit(e, e->device.compute, unit));
    }
    hy_row_is_made(e->state, HY_ROW_FP8);
    return HY_OK;
}

/* ---- the update ------------------------------------------------------------------------------ */

static hy_optimizer_state update_state(hy_engine *e, hy_dtype dtype) {
    /* The update writes the row that passes read. */
    hy_row_id read = hy_weights_row(&e->plan->types, dtype);
    bool has_copy = read == HY_ROW_WORKING;
    bool is_shared = e->plan->zero_stage > 0; /* else every rank updates all parameters */
    hy_optimizer_state state = {.optimizer = &e->plan->optimizer,
                                .params = &e->model->params,
                                .shard = is_shared ? hy_rows_shard(e->state->rows) : NULL,
                                .backend = e->device.backend,
                                .weights = hy_store_of(e, read),
                                .weights_go_on = hy_row_is_all_gathered(e, read),
                                .grads = hy_store_of(e, HY_ROW_GRADS),
                                .master = has_copy ? hy_store_of(e, HY_ROW_MASTER) : NULL,
                                .square_sum = e->work->buffers.square_sum,
                                .clip = e->work->buffers.clip,
                                .workspace = e->work->buffers.reduce_workspace};
    for (int i = 0; i < e->state->rows->optim_count; i++)
        state.arrays[i] = hy_store_of(e, HY_ROW_OPTIM + i);
    return state;
}

/* ---- the norm, while gradients are on the device --------------------------------------------- */

/* Gradients in a caller's memory are summed after its passes: their norm takes one more pass. */
static bool sums_norm_in_passes(const hy_engine *e) {
    if (e->custom && e->custom->types.keeps_weights) return true;
    bool is_alone = !hy_engine_exchanges(e); /* else gradients are not summed over ranks yet */
    return hy_model_has_passes(e->model) && is_alone &&
           hy_store_of(e, HY_ROW_GRADS)->place != HY_DEVICE;
}

/* The upload stream is mostly idle during backward. So the optimizer's state of the first units is
 * copied while backward finishes, and the next step can start at once: unit 0 in chunks during the
 * second half if it has its own buffer, unit 1 when backward is at unit 3, unit 2 when it is at
 * unit 2. */
static hy_status prefetch_first(hy_engine *e, int32_t unit) {
    int32_t ahead = unit == 3 ? 1 : unit == 2 ? 2 : -1, units = e->model->params.units;
    bool is_late = unit <= units / 2;
    if (!e->plan->choice.keeps_update_pending || ahead >= units) return HY_OK;
    for (int i = 0; i < e->state->rows->optim_count; i++) {
        hy_store *store = hy_store_of(e, HY_ROW_OPTIM + i);
        bool is_apart = hy_store_has_own_buffer(store, 0);
        if (is_late && is_apart) HY_TRY(hy_store_prefetch_chunk(store, 0));
        if (ahead > 0) HY_TRY(hy_store_prefetch(store, ahead));
    }
    return HY_OK;
}

hy_status hy_update_add_norm(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    hy_optimizer_state state = update_state(e, e->update.dtype);
    bool is_first = unit == e->model->params.units - 1; /* backward begins with the last unit */
    if (is_first) HY_TRY(hy_optimizer_norm_begin(&state, stream));
    HY_TRY(prefetch_first(e, unit));
    return hy_optimizer_norm_add(&state, stream, unit);
}

/* ---- the pending update, as units come ------------------------------------------------------- */

/* Updates the unit at the cursor; after a step in fp8 also its fp8 copy. After a failure it can
 * be called again, except with several ranks, because the others wait. */
static hy_status update_unit(hy_engine *e, const hy_optimizer_state *state, hy_stream *stream) {
    hy_pending_update *u = &e->update;
    int32_t units = e->model->params.units;
    if (u->units_done == u->at.unit) {
        HY_TRY(hy_optimizer_update_unit(state, stream, &u->step, &u->at));
        HY_TRY(hy_unit_updated(e, stream, hy_weights_row(&e->plan->types, u->pending_dtype),
                               u->units_done));
    }
    if (hy_is_fp8(u->pending_dtype)) HY_TRY(encode_unit(e, stream, u->units_done));
    u->units_done++;
    u->is_pending = u->units_done < units;
    return HY_OK;
}

static hy_status update_next(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    hy_pending_update *u = &e->update;
    hy_optimizer_state state = update_state(e, u->pending_dtype);
    /* The unit was updated when it was fetched. */
    if (unit < u->at.unit && hy_engine_exchanges(e)) return HY_OK;
    if (unit != u->at.unit) {
        return hy_fail(HY_ERR_INTERNAL,
                       "the pass reached unit %d, but unit %d must be updated first", unit,
                       u->at.unit);
    }
    return update_unit(e, &state, stream);
}

/* The head is large: its data for the update is copied in chunks, one with each block, after the
 * embedding has left the shared buffers. */
static hy_status prefetch_next(void *context, int32_t unit) {
    hy_engine *e = context;
    hy_optimizer_state state = update_state(e, e->update.pending_dtype);
    int32_t last = e->model->params.units - 1;
    HY_TRY(hy_optimizer_prefetch(&state, unit));
    return unit > last / 4 && unit < last ? hy_optimizer_prefetch_chunk(&state, last) : HY_OK;
}

const hy_unit_hook *hy_update_hook(hy_engine *e, bool is_last) {
    hy_pending_update *u = &e->update;
    u->hook = (hy_unit_hook){.context = e};
    if (u->is_pending) {
        u->hook.before = update_next;
        u->hook.ahead = prefetch_next;
    }
    if (is_last && sums_norm_in_passes(e)) u->hook.after = hy_update_add_norm;
    if (hy_engine_exchanges(e)) {
        u->hook.after = hy_grads_reduce;
        u->hook.fetch = hy_weights_fetch;
        bool is_encoded = hy_is_fp8(u->dtype) && is_encoded_in_passes(e);
        u->hook.await = is_encoded ? await_and_encode : hy_weights_await;
    }
    return u->hook.before || u->hook.after ? &u->hook : NULL;
}

/* ---- a step's update ------------------------------------------------------------------------- */

hy_status hy_update_begin(hy_engine *e, hy_dtype dtype) {
    const hy_pending_update *u = &e->update;
    bool is_begun = u->at.unit > 0 || u->at.param > 0; /* by a pass that failed */
    bool is_carried = u->is_pending && u->pending_dtype == dtype && !is_begun;
    /* With several ranks, updated weights may still be in transfer. This step waits for them unit
     * by unit if it reads the same row. */
    bool is_awaited = u->dtype == dtype;
    e->update.dtype = dtype;
    if (e->work->rings_are_used) HY_TRY(hy_engine_return_rings(e));
    if (u->is_pending && !is_carried) HY_TRY(hy_update_upto(e, e->model->params.units));
    return is_awaited ? HY_OK : hy_weights_await_all(e);
}

/* Copies ahead what an update needs for some units from `first` on: `count` of them, but at least
 * `least`. */
static hy_status prefetch_units(hy_engine *e, hy_dtype dtype, int32_t first, int32_t count,
                                int32_t least) {
    hy_optimizer_state state = update_state(e, dtype);
    int32_t end = first + (count > least ? count : least), units = e->model->params.units;
    for (int32_t unit = first; unit < end && unit < units; unit++) {
        HY_TRY(hy_optimizer_prefetch(&state, unit));
    }
    return HY_OK;
}

hy_status hy_update_prefetch(hy_engine *e) {
    if (e->state->offload.where != HY_OPTIM_HERE || e->update.is_pending) return HY_OK;
    return prefetch_units(e, e->update.dtype, 0, e->plan->choice.ring_depth - 1, 2);
}

/* All units up to `end` together, where everything is on the device. */
static hy_status update_resident(hy_engine *e, const hy_optimizer_state *state, int32_t end) {
    hy_pending_update *u = &e->update;
    hy_row_id row = hy_weights_row(&e->plan->types, u->pending_dtype);
    int32_t unit = u->at.unit;
    HY_TRY(hy_optimizer_update_units(state, e->device.compute, &u->step, &u->at, end));
    for (; unit < end; unit++) HY_TRY(hy_unit_updated(e, e->device.compute, row, unit));
    for (; u->units_done < end; u->units_done++) {
        if (hy_is_fp8(u->pending_dtype)) HY_TRY(encode_unit(e, e->device.compute, u->units_done));
    }
    u->is_pending = end < e->model->params.units;
    return HY_OK;
}

hy_status hy_update_upto(hy_engine *e, int32_t unit) {
    hy_pending_update *u = &e->update;
    hy_optimizer_state state = update_state(e, u->pending_dtype);
    int32_t units = e->model->params.units, end = unit < units ? unit + 1 : units;
    bool is_due = u->is_pending && u->units_done < end;
    if (is_due && hy_optimizer_is_resident(&state)) return update_resident(e, &state, end);
    while (u->is_pending && u->units_done < end) {
        /* As far ahead as the rings have room: one buffer is used, one leaves. */
        HY_TRY(
            prefetch_units(e, u->pending_dtype, u->at.unit + 1, e->plan->choice.ring_depth - 2, 1));
        HY_TRY(update_unit(e, &state, e->device.compute));
    }
    return HY_OK;
}

/* Each rank computes the norm of its shard in every ZeRO stage, so that all stages give the same
 * bits. The loss is summed with it. */
static hy_status sum_over_ranks(hy_engine *e, const hy_optimizer_state *all, double grad_scale) {
    hy_optimizer_state own = *all;
    hy_loss_kind loss = e->model->loss.kind;
    double *numbers[2 + HY_LOSS_STATS] = {all->square_sum, e->work->buffers.loss_sum};
    int32_t count = 2;
    for (int32_t i = 0; i < hy_loss_stats(loss); i++) {
        bool is_sum = loss != HY_LOSS_POLICY || i != HY_POLICY_APART_MOST;
        if (is_sum) numbers[count++] = e->work->buffers.loss_stats + i;
    }
    own.shard = hy_rows_shard(e->state->rows);
    HY_TRY(hy_grads_reduce_end(e));
    HY_TRY(hy_optimizer_norm_begin(&own, e->device.compute));
    for (int32_t unit = e->model->params.units - 1; unit >= 0; unit--) {
        if (unit > 0) HY_TRY(hy_store_prefetch(own.grads, unit - 1));
        HY_TRY(hy_optimizer_norm_add(&own, e->device.compute, unit));
    }
    HY_TRY(hy_all_reduce(&e->collectives->net, e->device.compute, numbers, count));
    return hy_optimizer_norm_end(&own, e->device.compute, grad_scale);
}

hy_status hy_update_clip(hy_engine *e, double grad_scale) {
    hy_optimizer_state state = update_state(e, e->update.dtype);
    e->update.grad_scale = grad_scale;
    hy_status status = hy_engine_exchanges(e) ? sum_over_ranks(e, &state, grad_scale)
                       : sums_norm_in_passes(e)
                           ? hy_optimizer_norm_end(&state, e->device.compute, grad_scale)
                           : hy_optimizer_clip(&state, e->device.compute, grad_scale);
    HY_TRY(status);
    if (!isfinite(grad_scale)) { /* the loss was not finite: a clip factor of 0 skips the update */
        hy_op_call fill = {.kind = HY_OP_FILL};
        fill.t[HY_FILL_DST] = hy_tensor_1d(state.clip, HY_F32, 2);
        HY_TRY(e->device.backend->enqueue(e->device.compute, &fill));
    }
    HY_TRY(hy_offload_await(e->state));
    e->update.is_new = true;
    return HY_OK;
}

hy_status hy_update_enqueue(hy_engine *e, double lr, uint64_t seed) {
    hy_pending_update *u = &e->update;
    if (u->is_new) {
        u->step = (hy_optimizer_step){.lr = lr, .count = e->progress.updates, .seed = seed};
        u->pending_dtype = u->dtype;
        u->at = (hy_optimizer_cursor){0};
        u->units_done = 0;
        u->is_pending = true;
        u->is_new = false;
        hy_row_changed(e->state, HY_ROW_MASTER);
        /* The update also writes these copies. */
        bool has_copy = hy_weights_row(&e->plan->types, u->dtype) == HY_ROW_WORKING;
        if (has_copy) hy_row_is_made(e->state, HY_ROW_WORKING);
        bool has_codes = hy_is_fp8(u->dtype) && !is_encoded_in_passes(e);
        if (has_codes) hy_row_is_made(e->state, HY_ROW_FP8);
    }
    /* hy_update_upto starts all-gathers; later passes wait for them. */
    return e->plan->choice.keeps_update_pending ? HY_OK : hy_update_upto(e, e->model->params.units);
}

hy_status hy_update_finish(hy_engine *e) {
    if (e->update.is_pending) HY_TRY(hy_update_upto(e, e->model->params.units));
    return hy_weights_await_all(e);
}
