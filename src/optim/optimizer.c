/* optimizer.c: the table of optimizers; norm, clip and update, unit by unit. See optimizer.h. */
#include "optim/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* ---- the table ------------------------------------------------------------------------------- */

extern const hy_optimizer_kind hy_optimizer_adamw, hy_optimizer_sgd, hy_optimizer_muon,
    hy_optimizer_lion, hy_optimizer_adafactor;

static const hy_optimizer_kind *const kinds[HY_OPTIMIZER_COUNT] = {
    [HY_ADAMW] = &hy_optimizer_adamw,         [HY_SGD] = &hy_optimizer_sgd,
    [HY_MUON] = &hy_optimizer_muon,           [HY_LION] = &hy_optimizer_lion,
    [HY_ADAFACTOR] = &hy_optimizer_adafactor,
};

const hy_optimizer_kind *hy_optimizer_kind_of(hy_optimizer_id id) { return kinds[id]; }

const hy_optimizer_kind *hy_optimizer_kind_for(const hy_optimizer *o, const hy_param *param) {
    const hy_optimizer_kind *kind =
        param->own_optimizer ? kinds[param->own_optimizer - 1] : o->kind;
    return kind->delegate ? kind->delegate(o, param) : kind;
}

/* ---- arrays of state ------------------------------------------------------------------------- */

static hy_param_extent extent_of(const hy_optimizer *o, const hy_param *param, int array) {
    const hy_optimizer_kind *kind = hy_optimizer_kind_for(o, param);
    if (!param->is_trainable || !kind->arrays[array]) return (hy_param_extent){0};
    return kind->extent ? kind->extent(o, param, array) : (hy_param_extent){.count = param->count};
}

int hy_optimizer_arrays(const hy_optimizer *o, const hy_params *params) {
    int count = 0;
    for (int32_t i = 0; i < params->count; i++) {
        for (int k = count; k < HY_OPTIM_ARRAYS_MAX; k++) {
            if (extent_of(o, &params->list[i], k).count > 0) count = k + 1;
        }
    }
    return count;
}

/* If the only array of an optimizer is called v, the second array of a group's AdamW needs another
 * name. */
const char *hy_optimizer_array_name(const hy_optimizer *o, int array) {
    const char *own = o->kind->arrays[array], *other = kinds[HY_ADAMW]->arrays[array];
    if (own) return own;
    bool is_taken = array > 0 && o->kind->arrays[0] && strcmp(o->kind->arrays[0], other) == 0;
    return is_taken ? "v2" : other;
}

hy_status hy_optimizer_layout(const hy_optimizer *o, const hy_params *params, int array,
                              hy_dtype dtype, hy_layout *out) {
    hy_param_extent *extents = calloc((size_t)params->count, sizeof *extents);
    HY_FAIL_IF(!extents, HY_ERR_MEMORY, "not enough memory for a layout");
    for (int32_t i = 0; i < params->count; i++) {
        extents[i] = extent_of(o, &params->list[i], array);
    }
    hy_status status = hy_params_extents_layout(params, extents, dtype, out);
    free(extents);
    return status;
}

void hy_optimizer_mark_whole(const hy_optimizer *o, const hy_params *params, bool *is_whole) {
    for (int32_t i = 0; i < params->count; i++) {
        is_whole[i] = hy_optimizer_kind_for(o, &params->list[i])->is_whole;
    }
}

/* ---- costs ----------------------------------------------------------------------------------- */

double hy_optimizer_flops(const hy_optimizer *o, const hy_params *params) {
    double flops = 0;
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *param = &params->list[i];
        const hy_optimizer_kind *kind = hy_optimizer_kind_for(o, param);
        if (param->is_trainable && kind->flops) flops += kind->flops(o, param);
    }
    return flops;
}

double hy_optimizer_share(const hy_optimizer *o, const hy_params *params, int64_t tokens) {
    double elements = 0;
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].is_trainable) elements += (double)params->list[i].count;
    }
    return tokens > 0 ? hy_optimizer_flops(o, params) / (6 * elements * (double)tokens) : 0;
}

/* ---- parameters of a unit -------------------------------------------------------------------- */

/* The slice of a parameter that this rank updates. */
static bool is_updated(const hy_param *param) { return param->is_trainable && !param->is_skipped; }

static hy_slice slice_of(const hy_optimizer_state *state, int32_t param) {
    if (!is_updated(&state->params->list[param])) return (hy_slice){0};
    return hy_shard_own(state->shard, state->params, param);
}

/* The tensor in a store: the store has the whole parameter or this slice, or an array of another
 * size for a whole parameter. */
static hy_tensor tensor_of(const hy_optimizer_state *state, const hy_store *store, int32_t param) {
    int32_t item = store ? hy_store_item_of(store, param) : -1;
    hy_slice own = slice_of(state, param);
    if (item < 0 || own.count == 0) return (hy_tensor){0};
    hy_tensor all = hy_store_tensor(store, item, hy_store_device(store, item));
    bool is_whole = store->layout.items[item].count == state->params->list[param].count;
    bool is_cut = own.count < state->params->list[param].count;
    return is_whole && is_cut ? hy_tensor_rows(&all, own.begin, own.count) : all;
}

/* Parameters [*first, *end) of a unit; returns whether any of them is trained. */
static bool unit_range(const hy_params *params, int32_t unit, int32_t *first, int32_t *end) {
    bool is_trained = false;
    int32_t i = 0;
    while (i < params->count && params->list[i].unit < unit) i++;
    *first = i;
    for (; i < params->count && params->list[i].unit == unit; i++) {
        is_trained = is_trained || params->list[i].is_trainable;
    }
    *end = i;
    return is_trained;
}

/* ---- norm and clipping ----------------------------------------------------------------------- */

static hy_op_call norm_call(hy_tensor grad, double *square_sum) {
    hy_op_call call = {.kind = HY_OP_SQ_NORM, .attr.accumulate = true};
    call.t[HY_REDUCE_X] = grad;
    call.t[HY_REDUCE_OUT] = hy_tensor_1d(square_sum, HY_F64, 1);
    return call;
}

/* ---- windows --------------------------------------------------------------------------------- */

/* The first window among the parameters [first, end) that are worked on ahead, and where it ends;
 * all have the same optimizer. A parameter that needs the whole workspace is a window of its
 * own. */
typedef struct window {
    int32_t params[HY_WINDOW_PARAMS];
    int count;
    int32_t end;
} window;

static window window_at(const hy_optimizer *o, const hy_params *params, const hy_shard *shard,
                        int32_t first, int32_t end) {
    window w = {.end = first};
    int64_t elements = 0;
    for (; w.end < end; w.end++) {
        const hy_param *param = &params->list[w.end];
        if (!is_updated(param) || hy_shard_own(shard, params, w.end).count == 0) continue;
        const hy_optimizer_kind *kind = hy_optimizer_kind_for(o, param);
        if (kind->workspace && !kind->work_ahead) {
            if (w.end == first) w.end++;
            break;
        }
        if (!kind->work_ahead) continue;
        elements += param->count;
        bool is_full = elements > HY_WINDOW_ELEMENTS || w.count == HY_WINDOW_PARAMS;
        if (is_full && w.count > 0) break;
        w.params[w.count++] = w.end;
    }
    return w;
}

/* Lists the updates from `first` on that form a window. An update may resume at any parameter, so
 * any parameter may be the first. */
static int list_together(const hy_optimizer *o, const hy_params *params, int32_t first,
                         const hy_param *out[HY_WINDOW_PARAMS]) {
    out[0] = &params->list[first];
    if (!hy_optimizer_kind_for(o, out[0])->work_ahead) return 1;
    window w = window_at(o, params, NULL, first, params->count);
    for (int i = 0; i < w.count; i++) out[i] = &params->list[w.params[i]];
    return w.count;
}

uint64_t hy_optimizer_workspace(const hy_optimizer *optimizer, const hy_params *params,
                                hy_backend *backend, hy_dtype grad_dtype) {
    uint64_t most = 0;
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *param = &params->list[i];
        if (!param->is_trainable) continue;
        hy_op_call norm = norm_call(hy_tensor_1d(NULL, grad_dtype, param->count), NULL);
        const hy_optimizer_kind *kind = hy_optimizer_kind_for(optimizer, param);
        const hy_param *list[HY_WINDOW_PARAMS];
        int count = list_together(optimizer, params, i, list);
        uint64_t bytes = backend->workspace(backend, &norm);
        uint64_t own = kind->workspace ? kind->workspace(optimizer, list, count, backend) : 0;
        if (bytes > most) most = bytes;
        if (own > most) most = own;
    }
    return most;
}

/* The algorithms chosen for a parameter's matmuls do not depend on the others in its window. */
hy_status hy_optimizer_prepare(const hy_optimizer *optimizer, const hy_params *params,
                               hy_backend *backend) {
    for (int32_t i = 0; i < params->count; i++) {
        const hy_param *param = &params->list[i];
        const hy_optimizer_kind *kind = hy_optimizer_kind_for(optimizer, param);
        if (param->is_trainable && kind->prepare) {
            HY_TRY(kind->prepare(optimizer, &param, 1, backend));
        }
    }
    return HY_OK;
}

hy_status hy_optimizer_norm_begin(const hy_optimizer_state *state, hy_stream *stream) {
    hy_op_call zero = {.kind = HY_OP_FILL};
    zero.t[HY_FILL_DST] = hy_tensor_1d(state->square_sum, HY_F64, 1);
    return state->backend->enqueue(stream, &zero);
}

hy_status hy_optimizer_norm_add(const hy_optimizer_state *state, hy_stream *stream, int32_t unit) {
    int32_t first, end;
    if (!unit_range(state->params, unit, &first, &end)) return HY_OK;
    HY_TRY(hy_store_get_read(state->grads, stream, unit));
    for (int32_t i = first; i < end; i++) {
        if (slice_of(state, i).count == 0) continue;
        hy_op_call call = norm_call(tensor_of(state, state->grads, i), state->square_sum);
        call.workspace = state->workspace;
        HY_TRY(state->backend->enqueue(stream, &call));
    }
    return hy_store_release(state->grads, stream, unit);
}

hy_status hy_optimizer_norm_end(const hy_optimizer_state *state, hy_stream *stream,
                                double grad_scale) {
    hy_op_call call = {.kind = HY_OP_CLIP,
                       .attr.clip = {.max_norm = (float)state->optimizer->max_norm,
                                     .grad_scale = (float)grad_scale}};
    call.t[HY_CLIP_TOTAL] = hy_tensor_1d(state->square_sum, HY_F64, 1);
    call.t[HY_CLIP_RESULT] = hy_tensor_1d(state->clip, HY_F32, 2);
    return state->backend->enqueue(stream, &call);
}

hy_status hy_optimizer_clip(const hy_optimizer_state *state, hy_stream *stream, double grad_scale) {
    HY_TRY(hy_optimizer_norm_begin(state, stream));
    for (int32_t unit = state->params->units - 1; unit >= 0; unit--) {
        if (unit > 0) HY_TRY(hy_store_prefetch(state->grads, unit - 1));
        HY_TRY(hy_optimizer_norm_add(state, stream, unit));
    }
    return hy_optimizer_norm_end(state, stream, grad_scale);
}

/* ---- the update ------------------------------------------------------------------------------ */

/* Stores of a step, NULL if missing: gradients (the last) are only read, the others change. */
#define STORES (3 + HY_OPTIM_ARRAYS_MAX)
#define WEIGHTS 0
#define GRADS (STORES - 1)

static void list_stores(const hy_optimizer_state *state, hy_store *out[STORES]) {
    out[WEIGHTS] = state->weights;
    memcpy(out + 1, state->arrays, sizeof state->arrays);
    out[GRADS - 1] = state->master;
    out[GRADS] = state->grads;
}

hy_status hy_optimizer_prefetch(const hy_optimizer_state *state, int32_t unit) {
    hy_store *stores[STORES];
    list_stores(state, stores);
    for (int i = 0; i < STORES; i++) {
        if (stores[i]) HY_TRY(hy_store_prefetch(stores[i], unit));
    }
    return HY_OK;
}

hy_status hy_optimizer_prefetch_chunk(const hy_optimizer_state *state, int32_t unit) {
    hy_store *stores[STORES];
    list_stores(state, stores);
    for (int i = 0; i < STORES; i++) {
        bool is_apart = stores[i] && hy_store_has_own_buffer(stores[i], unit);
        if (is_apart) HY_TRY(hy_store_prefetch_chunk(stores[i], unit));
    }
    return HY_OK;
}

static hy_status get_unit(hy_store *const stores[STORES], hy_stream *stream, int32_t unit) {
    for (int i = 0; i < STORES; i++) {
        if (!stores[i]) continue;
        HY_TRY(i == GRADS ? hy_store_get_read(stores[i], stream, unit)
                          : hy_store_get(stores[i], stream, unit));
    }
    return HY_OK;
}

static hy_status release_unit(const hy_optimizer_state *state, hy_store *const stores[STORES],
                              hy_stream *stream, int32_t unit) {
    hy_status first = HY_OK;
    for (int i = 0; i < STORES; i++) {
        if (!stores[i]) continue;
        bool is_left = i != GRADS && !(i == WEIGHTS && state->weights_go_on);
        hy_status status = is_left ? hy_store_release_changed(stores[i], stream, unit)
                                   : hy_store_release(stores[i], stream, unit);
        if (first == HY_OK) first = status;
    }
    return first;
}

/* Parameters that an optimizer delegates to another may have another rate. */
static double lr_share(const hy_optimizer *o, const hy_param *param) {
    const hy_optimizer_kind *asked =
        param->own_optimizer ? kinds[param->own_optimizer - 1] : o->kind;
    bool is_delegated = hy_optimizer_kind_for(o, param) != asked;
    return param->lr_scale * (is_delegated && o->delegated_lr > 0 ? o->delegated_lr : 1);
}

static hy_param_update update_of(const hy_optimizer_state *state, const hy_optimizer_step *step,
                                 int32_t index) {
    const hy_optimizer *optimizer = state->optimizer;
    const hy_param *param = &state->params->list[index];
    hy_param_update update = {
        .optimizer = optimizer,
        .param = param,
        .weight = tensor_of(state, state->weights, index),
        .master = tensor_of(state, state->master, index),
        .grad = tensor_of(state, state->grads, index),
        .clip = hy_tensor_1d(state->clip, HY_F32, 2),
        .workspace = state->workspace,
        .lr = (float)(step->lr * lr_share(optimizer, param)),
        .weight_decay = (float)(param->own_decay >= 0 ? param->own_decay
                                : param->has_decay    ? optimizer->weight_decay
                                                      : 0),
        .count = step->count - param->missed,
        .seed = step->seed,
        .first = param->first + slice_of(state, index).begin,
    };
    for (int i = 0; i < HY_OPTIM_ARRAYS_MAX; i++) {
        update.arrays[i] = tensor_of(state, state->arrays[i], index);
    }
    return update;
}

hy_op_call hy_optimizer_call(const hy_param_update *u, hy_op_kind kind) {
    return (hy_op_call){.kind = kind,
                        .attr = {.seed = u->seed, .first = (uint64_t)u->first},
                        .t = {[HY_UPDATE_PARAM] = u->weight,
                              [HY_UPDATE_GRAD] = u->grad,
                              [HY_UPDATE_CLIP] = u->clip,
                              [HY_UPDATE_MASTER] = u->master,
                              [HY_UPDATE_M] = u->arrays[0],
                              [HY_UPDATE_V] = u->arrays[1]}};
}

/* Updates the window at the cursor: first the work ahead, then its parameters in order. The work
 * ahead changes no state, so a failed window can be restarted after the parameters it has
 * updated. */
static hy_status update_window(const hy_optimizer_state *state, hy_stream *stream,
                               const hy_optimizer_step *step, int32_t end, int32_t *at) {
    const hy_optimizer *optimizer = state->optimizer;
    window w = window_at(optimizer, state->params, state->shard, *at, end);
    hy_param_update ahead[HY_WINDOW_PARAMS];
    int next = 0;
    for (int i = 0; i < w.count; i++) ahead[i] = update_of(state, step, w.params[i]);
    if (w.count > 0) {
        const hy_optimizer_kind *kind = hy_optimizer_kind_for(optimizer, ahead[0].param);
        HY_TRY(kind->work_ahead(ahead, w.count, state->backend, stream));
    }
    for (; *at < w.end; (*at)++) {
        const hy_param *param = &state->params->list[*at];
        if (slice_of(state, *at).count == 0) continue;
        bool is_ahead = next < w.count && w.params[next] == *at;
        hy_param_update own = is_ahead ? ahead[next++] : update_of(state, step, *at);
        HY_TRY(hy_optimizer_kind_for(optimizer, param)->update(&own, state->backend, stream));
    }
    return HY_OK;
}

static hy_status update_params(const hy_optimizer_state *state, hy_stream *stream,
                               const hy_optimizer_step *step, int32_t end, int32_t *at) {
    while (*at < end) HY_TRY(update_window(state, stream, step, end, at));
    return HY_OK;
}

hy_status hy_optimizer_update_unit(const hy_optimizer_state *state, hy_stream *stream,
                                   const hy_optimizer_step *step, hy_optimizer_cursor *at) {
    hy_store *stores[STORES];
    int32_t first, end;
    bool is_trained = unit_range(state->params, at->unit, &first, &end);
    if (at->param < first) at->param = first;
    if (is_trained && at->param < end) {
        list_stores(state, stores);
        HY_TRY(get_unit(stores, stream, at->unit));
        hy_status status = update_params(state, stream, step, end, &at->param);
        hy_status released = release_unit(state, stores, stream, at->unit);
        HY_TRY(status);
        HY_TRY(released);
    }
    at->unit++;
    return HY_OK;
}

bool hy_optimizer_is_resident(const hy_optimizer_state *state) {
    hy_store *stores[STORES];
    list_stores(state, stores);
    for (int i = 0; i < STORES; i++) {
        if (stores[i] && stores[i]->place != HY_DEVICE) return false;
    }
    return true;
}

/* Units that stay on the device need no gather and no release. */
hy_status hy_optimizer_update_units(const hy_optimizer_state *state, hy_stream *stream,
                                    const hy_optimizer_step *step, hy_optimizer_cursor *at,
                                    int32_t end) {
    const hy_params *params = state->params;
    int32_t last = at->param;
    while (last < params->count && params->list[last].unit < end) last++;
    hy_status status = update_params(state, stream, step, last, &at->param);
    while (at->unit < end &&
           (at->param == params->count || params->list[at->param].unit > at->unit))
        at->unit++;
    return status;
}
