/* adamw.c: enqueueing norm, clip and update, unit by unit. See adamw.h. */
#include "optim/adamw.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

static hy_tensor tensor_of(const hy_store *store, int32_t item) {
    if (!store) return (hy_tensor){0};
    return hy_store_tensor(store, item, hy_store_device(store, item));
}

uint64_t hy_adamw_workspace(const hy_params *params, hy_backend *backend, hy_dtype grad_dtype) {
    uint64_t most = 0;
    for (int32_t i = 0; i < params->count; i++) {
        hy_op_call call = {.kind = HY_OP_SQ_NORM};
        call.t[HY_REDUCE_X] = hy_tensor_1d(NULL, grad_dtype, params->list[i].count);
        call.t[HY_REDUCE_OUT] = hy_tensor_1d(NULL, HY_F64, 1);
        uint64_t bytes = backend->workspace(backend, &call);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Parameters [*first, *end) of a unit. */
static void unit_range(const hy_params *params, int32_t unit, int32_t *first, int32_t *end) {
    int32_t i = 0;
    while (i < params->count && params->list[i].unit < unit) i++;
    *first = i;
    while (i < params->count && params->list[i].unit == unit) i++;
    *end = i;
}

static bool is_trainable(const hy_params *params, int32_t unit) {
    int32_t first, end;
    unit_range(params, unit, &first, &end);
    for (int32_t i = first; i < end; i++) {
        if (params->list[i].is_trainable) return true;
    }
    return false;
}

hy_status hy_adamw_norm_begin(hy_backend *backend, hy_stream *stream, const hy_adamw_state *state) {
    hy_op_call zero = {.kind = HY_OP_FILL};
    zero.t[HY_FILL_DST] = hy_tensor_1d(state->square_sum, HY_F64, 1);
    return backend->enqueue(stream, &zero);
}

hy_status hy_adamw_norm_add(const hy_params *params, hy_backend *backend, hy_stream *stream,
                            const hy_adamw_state *state, int32_t unit) {
    int32_t first, end;
    if (!is_trainable(params, unit)) return HY_OK;
    unit_range(params, unit, &first, &end);
    HY_TRY(hy_store_get_read(state->grads, stream, unit));
    for (int32_t i = first; i < end; i++) {
        if (!params->list[i].is_trainable) continue;
        hy_op_call call = {
            .kind = HY_OP_SQ_NORM, .attr.accumulate = true, .workspace = state->workspace};
        call.t[HY_REDUCE_X] = tensor_of(state->grads, i);
        call.t[HY_REDUCE_OUT] = hy_tensor_1d(state->square_sum, HY_F64, 1);
        HY_TRY(backend->enqueue(stream, &call));
    }
    return hy_store_release(state->grads, stream, unit);
}

hy_status hy_adamw_norm_end(const hy_adamw *adamw, hy_backend *backend, hy_stream *stream,
                            const hy_adamw_state *state, double grad_scale) {
    hy_op_call call = {
        .kind = HY_OP_CLIP,
        .attr.clip = {.max_norm = (float)adamw->max_norm, .grad_scale = (float)grad_scale}};
    call.t[HY_CLIP_TOTAL] = hy_tensor_1d(state->square_sum, HY_F64, 1);
    call.t[HY_CLIP_RESULT] = hy_tensor_1d(state->clip, HY_F32, 2);
    return backend->enqueue(stream, &call);
}

hy_status hy_adamw_clip(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                        hy_stream *stream, const hy_adamw_state *state, double grad_scale) {
    HY_TRY(hy_adamw_norm_begin(backend, stream, state));
    for (int32_t unit = params->units - 1; unit >= 0; unit--) {
        if (unit > 0) HY_TRY(hy_store_gather(state->grads, unit - 1));
        HY_TRY(hy_adamw_norm_add(params, backend, stream, state, unit));
    }
    return hy_adamw_norm_end(adamw, backend, stream, state, grad_scale);
}

/* Stores of a step: weights, m, v and master are changed, gradients only read. */
#define STORES 5

static void list_stores(const hy_adamw_state *state, hy_store *out[STORES]) {
    hy_store *stores[STORES] = {state->weights, state->m, state->v, state->master, state->grads};
    memcpy(out, stores, sizeof stores);
}

hy_status hy_adamw_gather(const hy_adamw_state *state, int32_t unit) {
    hy_store *stores[STORES];
    list_stores(state, stores);
    for (int i = 0; i < STORES; i++) {
        if (stores[i]) HY_TRY(hy_store_gather(stores[i], unit));
    }
    return HY_OK;
}

hy_status hy_adamw_gather_chunk(const hy_adamw_state *state, int32_t unit) {
    hy_store *stores[STORES];
    list_stores(state, stores);
    for (int i = 0; i < STORES; i++) {
        bool is_apart = stores[i] && hy_store_has_own_buffer(stores[i], unit);
        if (is_apart) HY_TRY(hy_store_gather_chunk(stores[i], unit));
    }
    return HY_OK;
}

static hy_status get_unit(const hy_adamw_state *state, hy_stream *stream, int32_t unit) {
    hy_store *stores[STORES];
    list_stores(state, stores);
    for (int i = 0; i < STORES; i++) {
        if (!stores[i]) continue;
        bool is_read = stores[i] == state->grads;
        HY_TRY(is_read ? hy_store_get_read(stores[i], stream, unit)
                       : hy_store_get(stores[i], stream, unit));
    }
    return HY_OK;
}

static hy_status release_unit(const hy_adamw_state *state, hy_stream *stream, int32_t unit) {
    hy_store *stores[STORES];
    list_stores(state, stores);
    hy_status first = HY_OK;
    for (int i = 0; i < STORES; i++) {
        if (!stores[i]) continue;
        bool is_changed = stores[i] != state->grads;
        hy_status status = is_changed ? hy_store_release_changed(stores[i], stream, unit)
                                      : hy_store_release(stores[i], stream, unit);
        if (first == HY_OK) first = status;
    }
    return first;
}

static hy_status update_param(const hy_adamw *adamw, const hy_param *param, int32_t index,
                              hy_backend *backend, hy_stream *stream, const hy_adamw_state *state,
                              hy_op_attr attr) {
    hy_op_call call = {.kind = HY_OP_ADAMW, .attr = attr};
    call.attr.adamw.lr *= (float)param->lr_scale;
    call.attr.adamw.weight_decay = param->has_decay ? (float)adamw->weight_decay : 0;
    call.attr.adamw.first = (uint64_t)param->first;
    call.t[HY_ADAMW_PARAM] = tensor_of(state->weights, index);
    call.t[HY_ADAMW_GRAD] = tensor_of(state->grads, index);
    call.t[HY_ADAMW_M] = tensor_of(state->m, index);
    call.t[HY_ADAMW_V] = tensor_of(state->v, index);
    call.t[HY_ADAMW_CLIP] = hy_tensor_1d(state->clip, HY_F32, 2);
    call.t[HY_ADAMW_MASTER] = tensor_of(state->master, index);
    return backend->enqueue(stream, &call);
}

/* Parameters of the unit from *next on. */
static hy_status update_params(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                               hy_stream *stream, const hy_adamw_state *state,
                               const hy_adamw_step *step, int32_t end, int32_t *next) {
    double t = (double)(step->count + 1);
    hy_op_attr attr = {.adamw = {.lr = (float)step->lr,
                                 .beta1 = (float)adamw->beta1,
                                 .beta2 = (float)adamw->beta2,
                                 .eps = (float)adamw->eps,
                                 .correction1 = (float)(1 - pow(adamw->beta1, t)),
                                 .correction2 = (float)(1 - pow(adamw->beta2, t)),
                                 .seed = step->seed}};
    for (; *next < end; (*next)++) {
        const hy_param *param = &params->list[*next];
        if (!param->is_trainable) continue;
        HY_TRY(update_param(adamw, param, *next, backend, stream, state, attr));
    }
    return HY_OK;
}

hy_status hy_adamw_update_unit(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                               hy_stream *stream, const hy_adamw_state *state,
                               const hy_adamw_step *step, hy_adamw_cursor *at) {
    int32_t first, end;
    unit_range(params, at->unit, &first, &end);
    if (at->param < first) at->param = first;
    if (is_trainable(params, at->unit) && at->param < end) {
        HY_TRY(get_unit(state, stream, at->unit));
        hy_status status =
            update_params(adamw, params, backend, stream, state, step, end, &at->param);
        hy_status released = release_unit(state, stream, at->unit);
        HY_TRY(status);
        HY_TRY(released);
    }
    at->unit++;
    return HY_OK;
}

hy_status hy_adamw_update(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                          hy_stream *stream, const hy_adamw_state *state, const hy_adamw_step *step,
                          hy_adamw_cursor *at) {
    for (bool is_first = true; at->unit < params->units; is_first = false) {
        if (is_first) HY_TRY(hy_adamw_gather(state, at->unit));
        if (at->unit + 1 < params->units) HY_TRY(hy_adamw_gather(state, at->unit + 1));
        HY_TRY(hy_adamw_update_unit(adamw, params, backend, stream, state, step, at));
    }
    return HY_OK;
}
