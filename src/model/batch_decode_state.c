/* batch_decode_state.c: states of linear attention in a batched decoder. See batch_decode_parts.h.
 *
 * The layers of a state follow one another, so a state is copied in two pieces: what the
 * convolutions keep, and what the delta rule keeps. An op knows one layer: for it, layer l of state
 * i is number i * layers + l of one long list. */
#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/batch_decode_parts.h"

/* ---- sizes ----------------------------------------------------------------------------------- */

static const hy_unit_op *find_op(const hy_batch_decoder *d, int32_t layer, hy_op_kind kind) {
    const hy_unit *unit = &d->model->kinds[d->model->kind_of[layer + 1]];
    for (int32_t i = 0; i < unit->forward_count; i++) {
        if (unit->forward[i].kind == kind) return &unit->forward[i];
    }
    return NULL;
}

bool hy_decoder_layer_has(const hy_batch_decoder *d, int32_t layer, hy_op_kind kind) {
    return find_op(d, layer, kind) != NULL;
}

static hy_param_kind conv_weight(const hy_batch_decoder *d, int32_t layer, const hy_unit_op *op) {
    const hy_unit *unit = &d->model->kinds[d->model->kind_of[layer + 1]];
    return unit->slots[op->slot[HY_CONV_WEIGHT]].param;
}

/* The shapes of all states; all layers that have one have the same. */
static void shape_states(hy_batch_decoder *d, int32_t layer) {
    const hy_params *params = &d->model->params;
    const hy_unit_op *delta = find_op(d, layer, HY_OP_DELTA), *conv = find_op(d, layer, HY_OP_CONV);
    const hy_delta_attr *a = &delta->attr.delta;
    int64_t all = (int64_t)d->states.count * d->states.layers;
    int32_t weight = hy_params_find(params, layer + 1, conv_weight(d, layer, conv));
    assert(weight >= 0);
    const int64_t *columns = params->list[weight].shape; /* (C,J) */
    d->conv_state = (hy_tensor){
        .shape = {all, columns[1] - 1, columns[0]}, .ndim = 3, .dtype = d->options.dtype};
    d->delta_state =
        (hy_tensor){.shape = {all, a->heads, a->key_dim, a->value_dim}, .ndim = 4, .dtype = HY_F32};
}

hy_status hy_decoder_make_states(hy_batch_decoder *d) {
    const hy_batch_decoder_options *o = &d->options;
    hy_states *s = &d->states;
    int32_t last = -1;
    for (int32_t layer = 0; layer < d->model->shape.layers; layer++) {
        if (!hy_decoder_layer_has(d, layer, HY_OP_DELTA)) continue;
        d->index_of[layer] = s->layers++;
        last = layer;
    }
    if (s->layers == 0) return HY_OK;
    s->snapshots = o->snapshots > 0 ? o->snapshots : 0;
    if (o->snapshots == 0) s->snapshots = o->streams / HY_SNAPSHOT_SHARE + 1;
    s->count = o->streams + s->snapshots;
    shape_states(d, last);
    s->bytes = hy_tensor_bytes(&d->conv_state) + hy_tensor_bytes(&d->delta_state);
    s->each = s->bytes / (uint64_t)s->count;
    d->state_at = calloc((size_t)s->count, sizeof *d->state_at);
    HY_FAIL_IF(!d->state_at, HY_ERR_MEMORY, "not enough memory for a decoder");
    return HY_OK;
}

const hy_states *hy_batch_decoder_states(const hy_batch_decoder *d) { return &d->states; }

void hy_decoder_list_states(const hy_batch_decoder *d, int32_t *slots) {
    for (int32_t layer = 0; layer < d->states.layers; layer++) {
        for (int32_t i = 0; i < d->options.streams; i++) *slots++ = i * d->states.layers + layer;
    }
}

/* ---- ops ------------------------------------------------------------------------------------- */

static hy_tensor states_at(const hy_batch_decoder *d, hy_decoder_part part, hy_tensor states) {
    states.data = d->parts[part];
    return states;
}

static hy_tensor slots_of(const hy_batch_decoder *d, int32_t layer, int64_t rows) {
    int32_t *slots = (int32_t *)(void *)d->parts[HY_DECODER_STATE_SLOTS];
    slots += (int64_t)d->index_of[layer] * d->options.streams + (d->is_step ? 0 : d->slot);
    return hy_tensor_1d(slots, HY_I32, rows);
}

void hy_decoder_use_conv_state(const hy_batch_decoder *d, int32_t layer, const hy_tensor *first,
                               hy_op_call *call) {
    hy_op_call cached = {.kind = HY_OP_CONV_CACHED, .attr = call->attr};
    cached.t[HY_CONV_CACHED_X] = call->t[HY_CONV_X];
    cached.t[HY_CONV_CACHED_WEIGHT] = call->t[HY_CONV_WEIGHT];
    cached.t[HY_CONV_CACHED_STATE] = states_at(d, HY_DECODER_CONV_STATES, d->conv_state);
    cached.t[HY_CONV_CACHED_Y] = call->t[HY_CONV_Y];
    cached.t[HY_CONV_CACHED_FIRST] = *first;
    cached.t[HY_CONV_CACHED_SLOTS] = slots_of(d, layer, first->shape[0]);
    *call = cached;
}

void hy_decoder_use_delta_state(const hy_batch_decoder *d, int32_t layer, const hy_tensor *first,
                                hy_op_call *call) {
    hy_op_call cached = {.kind = HY_OP_DELTA_CACHED, .attr = call->attr};
    cached.t[HY_DELTA_CACHED_QKV] = call->t[HY_DELTA_QKV];
    cached.t[HY_DELTA_CACHED_GATES] = call->t[HY_DELTA_GATES];
    cached.t[HY_DELTA_CACHED_A_LOG] = call->t[HY_DELTA_A_LOG];
    cached.t[HY_DELTA_CACHED_DT_BIAS] = call->t[HY_DELTA_DT_BIAS];
    cached.t[HY_DELTA_CACHED_STATE] = states_at(d, HY_DECODER_DELTA_STATES, d->delta_state);
    cached.t[HY_DELTA_CACHED_OUT] = call->t[HY_DELTA_OUT];
    cached.t[HY_DELTA_CACHED_FIRST] = *first;
    cached.t[HY_DELTA_CACHED_SLOTS] = slots_of(d, layer, first->shape[0]);
    *call = cached;
}

/* ---- positions and copies -------------------------------------------------------------------- */

hy_status hy_decoder_advance(hy_batch_decoder *d, int32_t slot, int32_t first, int32_t count) {
    if (d->states.layers == 0) return HY_OK;
    HY_FAIL_IF(first > 0 && d->state_at[slot] != first, HY_ERR_INTERNAL,
               "slot %d is to continue at position %d, but its state is that of position %d", slot,
               first, d->state_at[slot]);
    d->state_at[slot] = first + count;
    return HY_OK;
}

static hy_status copy_part(hy_batch_decoder *d, hy_decoder_part part, const hy_tensor *states,
                           int32_t from, int32_t to) {
    size_t each = hy_tensor_bytes(states) / (size_t)d->states.count;
    char *begin = d->parts[part];
    return d->backend->copy(d->stream, begin + (size_t)to * each, begin + (size_t)from * each,
                            each);
}

hy_status hy_batch_decoder_copy_state(hy_batch_decoder *d, int32_t from, int32_t to) {
    int32_t count = d->states.count;
    if (d->states.layers == 0 || from == to) return HY_OK;
    HY_FAIL_IF(from < 0 || from >= count || to < 0 || to >= count, HY_ERR_INTERNAL,
               "a copy of state %d to %d in a decoder with %d", from, to, count);
    d->state_at[to] = d->state_at[from];
    HY_TRY(copy_part(d, HY_DECODER_CONV_STATES, &d->conv_state, from, to));
    return copy_part(d, HY_DECODER_DELTA_STATES, &d->delta_state, from, to);
}
