/* adamw.c: enqueueing norm, clip and update, unit by unit. See adamw.h. */
#include "optim/adamw.h"

#include <math.h>

#include "base/error.h"

static hy_tensor tensor_of(const hy_store *store, int32_t item) {
    if (!store) return (hy_tensor){0};
    return hy_store_tensor(store, item, hy_store_device(store, item));
}

uint64_t hy_adamw_workspace(const hy_params *params, hy_backend *backend, hy_dtype grad_dtype) {
    uint64_t most = 0;
    for (int32_t i = 0; i < params->count; i++) {
        hy_op_call call = {.kind = HY_OP_SQ_NORM};
        call.t[0] = hy_tensor_1d(NULL, grad_dtype, params->list[i].count);
        call.t[1] = hy_tensor_1d(NULL, HY_F64, 1);
        uint64_t bytes = backend->workspace(backend, &call);
        if (bytes > most) most = bytes;
    }
    return most;
}

static hy_status add_square_sum(const hy_params *params, hy_backend *backend, hy_stream *stream,
                                const hy_adamw_state *state, int32_t index, bool is_first) {
    const hy_param *param = &params->list[index];
    hy_op_call call = {
        .kind = HY_OP_SQ_NORM, .attr.accumulate = !is_first, .workspace = state->workspace};
    HY_TRY(hy_store_get(state->grads, stream, param->unit));
    call.t[0] = tensor_of(state->grads, index);
    call.t[1] = hy_tensor_1d(state->square_sum, HY_F64, 1);
    HY_TRY(backend->enqueue(stream, &call));
    return hy_store_release(state->grads, stream, param->unit);
}

hy_status hy_adamw_clip(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                        hy_stream *stream, const hy_adamw_state *state, double grad_scale) {
    bool is_first = true;
    for (int32_t i = 0; i < params->count; i++) {
        if (!params->list[i].is_trainable) continue;
        HY_TRY(add_square_sum(params, backend, stream, state, i, is_first));
        is_first = false;
    }
    hy_op_call call = {
        .kind = HY_OP_CLIP,
        .attr.clip = {.max_norm = (float)adamw->max_norm, .grad_scale = (float)grad_scale}};
    call.t[0] = hy_tensor_1d(state->square_sum, HY_F64, 1);
    call.t[1] = hy_tensor_1d(state->clip, HY_F32, 2);
    return backend->enqueue(stream, &call);
}

static hy_status get_all(const hy_adamw_state *state, hy_stream *stream, int32_t unit) {
    hy_store *stores[] = {state->weights, state->grads, state->m, state->v, state->master};
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        if (stores[i]) HY_TRY(hy_store_get(stores[i], stream, unit));
    }
    return HY_OK;
}

static hy_status release_all(const hy_adamw_state *state, hy_stream *stream, int32_t unit) {
    hy_store *changed[] = {state->weights, state->m, state->v, state->master};
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        if (changed[i]) HY_TRY(hy_store_release_changed(changed[i], stream, unit));
    }
    return hy_store_release(state->grads, stream, unit);
}

static hy_status update_param(const hy_adamw *adamw, const hy_param *param, int32_t index,
                              hy_backend *backend, hy_stream *stream, const hy_adamw_state *state,
                              hy_op_attr attr) {
    hy_op_call call = {.kind = HY_OP_ADAMW, .attr = attr};
    call.attr.adamw.lr *= (float)param->lr_scale;
    call.attr.adamw.weight_decay = param->has_decay ? (float)adamw->weight_decay : 0;
    call.attr.adamw.first = (uint64_t)param->first;
    HY_TRY(get_all(state, stream, param->unit));
    call.t[0] = tensor_of(state->weights, index);
    call.t[1] = tensor_of(state->grads, index);
    call.t[2] = tensor_of(state->m, index);
    call.t[3] = tensor_of(state->v, index);
    call.t[4] = hy_tensor_1d(state->clip, HY_F32, 2);
    call.t[5] = tensor_of(state->master, index);
    HY_TRY(backend->enqueue(stream, &call));
    return release_all(state, stream, param->unit);
}

hy_status hy_adamw_update(const hy_adamw *adamw, const hy_params *params, hy_backend *backend,
                          hy_stream *stream, const hy_adamw_state *state, double lr, int64_t count,
                          uint64_t seed) {
    double t = (double)(count + 1);
    hy_op_attr attr = {.adamw = {.lr = (float)lr,
                                 .beta1 = (float)adamw->beta1,
                                 .beta2 = (float)adamw->beta2,
                                 .eps = (float)adamw->eps,
                                 .correction1 = (float)(1 - pow(adamw->beta1, t)),
                                 .correction2 = (float)(1 - pow(adamw->beta2, t)),
                                 .seed = seed}};
    for (int32_t i = 0; i < params->count; i++) {
        if (!params->list[i].is_trainable) continue;
        HY_TRY(update_param(adamw, &params->list[i], i, backend, stream, state, attr));
    }
    return HY_OK;
}
