/* collectives.c: what ranks exchange in a step, unit by unit. See collectives.h.
 *
 * Gradients. Backward leaves a unit's gradients of one micro-batch in a separate buffer
 * (HY_ROW_PARTIAL). A reduce-scatter runs while the next unit is computed; then the sum over ranks
 * is added to that of the earlier micro-batches. All stages do this, so the sums have the same
 * bits. If ranks keep whole gradients (stage 0), an all-gather of the sums follows.
 *
 * Weights. If passes read whole rows (stages 1 and 2), the ranks all-gather a unit as soon as each
 * has updated its part. If ranks keep parts (stage 3, also frozen weights), a unit is gathered into
 * a ring when a pass reaches the unit before it. Passes wait for either when they need the unit. A
 * pending update is applied to a unit before it is gathered. tests/long/test_ranks_overlap.c
 * measures how much of this overlaps with compute.
 *
 * A caller's weights are separate tensors, so no part of a unit is contiguous: a unit is copied
 * through a buffer of HY_ROW_GATHERED. */
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"

/* ---- memory ---------------------------------------------------------------------------------- */

hy_status hy_collectives_take(hy_engine *e) {
    hy_collectives *s = e->collectives;
    const hy_rows *rows = e->state->rows;
    hy_ledger *ledger = &e->state->ledger;
    hy_backend *b = e->device.backend;
    if (!hy_engine_exchanges(e)) return HY_OK;
    int32_t units = e->model->params.units;
    s->fetched = calloc((size_t)units, sizeof *s->fetched);
    s->frozen = calloc((size_t)units, sizeof *s->frozen);
    HY_FAIL_IF(!s->fetched || !s->frozen, HY_ERR_MEMORY,
               "not enough memory for exchanges between ranks");
    s->source = s->fetching = -1;
    HY_TRY(hy_exchange_open(&s->net, e->team, b, 4 * units + 16));
    if (rows->wire_staging > 0) {
        HY_TRY(hy_arena_init(&s->staging, b, ledger, HY_PINNED, rows->wire_staging,
                             "exchanges between ranks"));
        HY_TRY(
            hy_arena_push(&s->staging, HY_WORKSPACE, rows->wire_staging, (void **)&s->net.staging));
        s->net.staging_bytes = rows->wire_staging;
    }
    HY_TRY(
        hy_arena_init(&s->arena, b, ledger, HY_DEVICE, rows->arriving, "gradients of other ranks"));
    for (int i = 0; i < 2 && rows->arriving > 0; i++) {
        HY_TRY(
            hy_arena_push(&s->arena, HY_WORKSPACE, rows->arriving / 2, (void **)&s->arriving[i]));
    }
    return HY_OK;
}

void hy_collectives_release(hy_engine *e) {
    hy_collectives *s = e->collectives;
    if (s->net.backend) hy_exchange_close(&s->net);
    hy_arena_fini(&s->arena);
    hy_arena_fini(&s->staging);
    free(s->fetched);
    free(s->frozen);
    *s = (hy_collectives){0};
}

void hy_collectives_abandon(hy_engine *e) {
    hy_collectives *s = e->collectives;
    s->reducing.is_begun = false;
    for (int32_t u = 0; s->fetched && u < e->model->params.units; u++) {
        s->fetched[u] = s->frozen[u] = (hy_gathering){0};
    }
}

/* ---- a caller's weights ---------------------------------------------------------------------- */

/* The weights in the caller's memory: the row that passes of a custom model read. */
static hy_store *callers_weights(const hy_engine *e) {
    return hy_store_of(e, hy_weights_row(&e->plan->types, e->plan->types.of[HY_FULL]));
}

/* Which slices of a unit are copied between the caller's memory and the buffer, and where to. */
typedef enum copy_way { OWN_IN, ALL_IN, OTHERS_OUT, ALL_OUT } copy_way;

static hy_status copy_slice(hy_engine *e, hy_stream *stream, int32_t param, hy_slice slice,
                            bool is_out) {
    const hy_store *buffer = hy_store_of(e, HY_ROW_GATHERED), *callers = callers_weights(e);
    int32_t item = hy_store_item_of(callers, param);
    if (slice.count == 0) return HY_OK;
    hy_tensor theirs = hy_store_tensor(callers, item, hy_store_device(callers, item));
    hy_tensor ours = hy_store_tensor(buffer, item, hy_store_device(buffer, item));
    theirs = hy_tensor_rows(&theirs, slice.begin, slice.count);
    ours = hy_tensor_rows(&ours, slice.begin, slice.count);
    const hy_tensor *to = is_out ? &theirs : &ours, *from = is_out ? &ours : &theirs;
    return e->device.backend->copy(stream, to->data, from->data, hy_tensor_bytes(to));
}

static hy_status copy_unit(hy_engine *e, hy_stream *stream, int32_t unit, copy_way how) {
    const hy_params *params = &e->model->params;
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].unit != unit) continue;
        hy_slice own = hy_shard_own(&e->state->rows->shard, params, i);
        int64_t count = params->list[i].count, end = own.begin + own.count;
        hy_slice all = {0, count}, before = {0, own.begin}, behind = {end, count - end};
        hy_slice first = how == OWN_IN ? own : how == OTHERS_OUT ? before : all;
        HY_TRY(copy_slice(e, stream, i, first, how == OTHERS_OUT || how == ALL_OUT));
        if (how == OTHERS_OUT) HY_TRY(copy_slice(e, stream, i, behind, true));
    }
    return HY_OK;
}

hy_status hy_weights_broadcast(hy_engine *e) {
    hy_store *buffer = hy_store_of(e, HY_ROW_GATHERED);
    hy_stream *stream = e->device.compute;
    hy_exchange *net = &e->collectives->net;
    for (int32_t unit = 0; net->count > 1 && unit < e->model->params.units; unit++) {
        hy_comm_op *op;
        HY_TRY(hy_store_get_new(buffer, stream, unit));
        if (net->rank == 0) HY_TRY(copy_unit(e, stream, unit, ALL_IN));
        HY_TRY(hy_broadcast(net, stream, 0, hy_store_unit(buffer, unit),
                            buffer->layout.unit_bytes[unit], &op));
        HY_TRY(hy_comm_wait(op, stream));
        if (net->rank > 0) HY_TRY(copy_unit(e, stream, unit, ALL_OUT));
        HY_TRY(hy_store_release_changed(buffer, stream, unit));
    }
    return HY_OK;
}

/* ---- all-gather ------------------------------------------------------------------------------ */

static bool has_bytes(const hy_store *store, int32_t unit) {
    return store->layout.unit_bytes[unit] > 0;
}

/* Starts the all-gather of a unit that has this rank's part in place. A unit in the caller's memory
 * is copied through a buffer, which is held until the other parts have arrived. */
static hy_status begin_all_gather(hy_engine *e, hy_stream *stream, hy_store *store, int32_t unit,
                                  hy_gathering *out) {
    hy_comm_part parts[HY_RANKS_MOST];
    *out = (hy_gathering){.is_begun = true};
    if (store->outside) {
        out->held = hy_store_of(e, HY_ROW_GATHERED);
        HY_TRY(hy_store_get_new(out->held, stream, unit));
        HY_TRY(copy_unit(e, stream, unit, OWN_IN));
        store = out->held;
    }
    char *whole = hy_store_unit(store, unit);
    hy_unit_parts(&e->state->rows->shard, &e->model->params, &store->layout, unit, parts);
    return hy_all_gather(&e->collectives->net, stream,
                         whole + parts[e->state->rows->shard.rank].begin, whole, parts, &out->op);
}

static hy_status end_all_gather(hy_engine *e, hy_stream *stream, int32_t unit, hy_gathering *it) {
    if (!it->is_begun) return HY_OK;
    bool is_callers = it->held && callers_weights(e)->outside;
    if (is_callers) {
        HY_TRY(hy_comm_wait(it->op, stream));
        HY_TRY(copy_unit(e, stream, unit, OTHERS_OUT));
    }
    return hy_gathering_end(it, stream, unit);
}

hy_status hy_unit_all_gather(hy_engine *e, hy_stream *stream, hy_store *store, int32_t unit) {
    hy_gathering it;
    if (!hy_engine_exchanges(e) || !has_bytes(store, unit)) return HY_OK;
    HY_TRY(begin_all_gather(e, stream, store, unit, &it));
    return end_all_gather(e, stream, unit, &it);
}

hy_status hy_row_all_gather(hy_engine *e, int row) {
    hy_store *store = hy_store_of(e, row);
    if (!hy_engine_exchanges(e) || e->state->rows->row[row].is_sharded) return HY_OK;
    for (int32_t unit = 0; unit < store->layout.unit_count; unit++) {
        HY_TRY(hy_store_get(store, e->device.compute, unit));
        HY_TRY(hy_unit_all_gather(e, e->device.compute, store, unit));
        HY_TRY(hy_store_release_changed(store, e->device.compute, unit));
    }
    return HY_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The store that passes write gradients to: the sum itself, or a separate buffer until they are
 * summed over ranks. */
static hy_store *grads_of_pass(const hy_engine *e) {
    return hy_store_of(e, hy_has_row(e, HY_ROW_PARTIAL) ? HY_ROW_PARTIAL : HY_ROW_GRADS);
}

/* Waits for the reduce-scatter that was begun last, and adds its sum to the row of gradients. */
static hy_status end_reduction(hy_engine *e, hy_stream *stream) {
    hy_reducing it = e->collectives->reducing;
    hy_store *grads = hy_store_of(e, HY_ROW_GRADS);
    bool is_whole = !e->state->rows->row[HY_ROW_GRADS].is_sharded;
    if (!it.is_begun) return HY_OK;
    e->collectives->reducing.is_begun = false;
    HY_TRY(it.is_first ? hy_store_get_new(grads, stream, it.unit)
                       : hy_store_get(grads, stream, it.unit));
    char *out = NULL; /* this rank may have no part of it */
    if (it.reduction.bytes > 0) {
        out = hy_store_unit(grads, it.unit) + (is_whole ? it.own_begin : 0);
    }
    HY_TRY(hy_reduce_scatter_end(&it.reduction, stream, e->plan->types.grads, !it.is_first, out));
    if (it.is_last && is_whole) HY_TRY(hy_unit_all_gather(e, stream, grads, it.unit));
    return hy_store_release_changed(grads, stream, it.unit);
}

hy_status hy_grads_reduce(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    hy_collectives *s = e->collectives;
    const hy_store *from = grads_of_pass(e);
    hy_comm_part parts[HY_RANKS_MOST];
    hy_reducing next = {
        .is_begun = true, .unit = unit, .is_first = s->is_first, .is_last = s->is_last};
    if (!hy_engine_exchanges(e) || !has_bytes(from, unit)) return HY_OK;
    char *data = hy_store_unit(from, unit);
    hy_unit_parts(&e->state->rows->shard, &e->model->params, &from->layout, unit, parts);
    next.own_begin = parts[e->state->rows->shard.rank].begin;
    HY_TRY(hy_reduce_scatter(&s->net, stream, data, parts, s->arriving[s->turn], &next.reduction));
    s->turn ^= 1;
    if (!hy_has_row(e, HY_ROW_PARTIAL)) { /* there is no other rank: the sum is in place */
        return hy_reduce_scatter_end(&next.reduction, stream, e->plan->types.grads, true,
                                     data + next.own_begin);
    }
    if (!next.is_first) HY_TRY(hy_store_prefetch(hy_store_of(e, HY_ROW_GRADS), unit));
    HY_TRY(end_reduction(e, stream)); /* of the unit before, which has arrived meanwhile */
    s->reducing = next;
    return HY_OK;
}

hy_status hy_grads_reduce_end(hy_engine *e) { return end_reduction(e, e->device.compute); }

hy_store *hy_grads_begin_pass(hy_engine *e, bool is_first, bool is_last, bool *accumulates) {
    *accumulates = !is_first && !hy_has_row(e, HY_ROW_PARTIAL);
    e->collectives->is_first = is_first;
    e->collectives->is_last = is_last;
    return grads_of_pass(e);
}

/* ---- weights --------------------------------------------------------------------------------- */

bool hy_row_is_all_gathered(const hy_engine *e, int row) {
    return hy_engine_exchanges(e) && e->plan->zero_stage > 0 &&
           !e->state->rows->row[row].is_sharded;
}

hy_status hy_unit_updated(hy_engine *e, hy_stream *stream, int row, int32_t unit) {
    hy_store *store = hy_store_of(e, row);
    if (!hy_row_is_all_gathered(e, row) || !has_bytes(store, unit)) return HY_OK;
    hy_gathering *it = &e->collectives->fetched[unit];
    if (store->outside) {
        HY_TRY(begin_all_gather(e, stream, store, unit, it));
        if (unit == 0) return HY_OK;
        return end_all_gather(e, stream, unit - 1, it - 1); /* this frees its buffer */
    }
    HY_TRY(hy_store_get(store, stream, unit));
    HY_TRY(begin_all_gather(e, stream, store, unit, it));
    if (store->place == HY_DEVICE) return hy_store_release_changed(store, stream, unit);
    /* If the pass needs this unit next, its buffer stays held; for other units the ring has no
     * room. */
    it->held = store;
    return e->collectives->fetching == unit ? HY_OK : end_all_gather(e, stream, unit, it);
}

hy_store *hy_weights_for_passes(hy_engine *e, int row) {
    hy_collectives *s = e->collectives;
    hy_row *gathered = &e->state->rows->row[HY_ROW_GATHERED];
    const hy_row *source = &e->state->rows->row[row];
    bool is_gathered = hy_engine_exchanges(e) && source->is_sharded, is_other = s->source != row;
    s->source = is_gathered ? row : -1;
    if (!is_gathered) return hy_store_of(e, row);
    if (is_other || gathered->made_of != e->state->rows->row[HY_ROW_MASTER].version) {
        hy_store_abandon(&gathered->store);
        hy_layout_retype(&gathered->store.layout, source->dtype);
        gathered->made_of = e->state->rows->row[HY_ROW_MASTER].version;
    }
    return &gathered->store;
}

static hy_gather gather_of(hy_engine *e, bool is_frozen) {
    hy_collectives *s = e->collectives;
    return (hy_gather){.net = &s->net,
                       .params = &e->model->params,
                       .shard = &e->state->rows->shard,
                       .is_cut = is_frozen,
                       .from = hy_store_of(e, is_frozen ? HY_ROW_FROZEN : s->source),
                       .whole =
                           hy_store_of(e, is_frozen ? HY_ROW_GATHERED_FROZEN : HY_ROW_GATHERED),
                       .units = is_frozen ? s->frozen : s->fetched};
}

static hy_status fetch_trained(hy_engine *e, hy_stream *stream, int32_t unit) {
    e->collectives->fetching = unit;
    hy_status status = hy_update_upto(e, unit);
    e->collectives->fetching = -1;
    HY_TRY(status);
    if (e->collectives->source < 0) return HY_OK;
    hy_gather gather = gather_of(e, false);
    return hy_gather_fetch(&gather, stream, unit, NULL);
}

hy_status hy_trained_await(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    if (!hy_engine_exchanges(e)) return HY_OK;
    /* The unit may have left the ring since it was fetched. */
    if (e->collectives->source >= 0) HY_TRY(fetch_trained(e, stream, unit));
    /* Backward begins at the head. By then the gradients of the pass before have had time to
     * arrive. */
    if (unit == e->model->params.units - 1) HY_TRY(end_reduction(e, stream));
    return end_all_gather(e, stream, unit, &e->collectives->fetched[unit]);
}

hy_status hy_weights_await_all(hy_engine *e) {
    if (!e->collectives->fetched || e->collectives->source >= 0) return HY_OK;
    for (int32_t unit = 0; unit < e->model->params.units; unit++) {
        HY_TRY(hy_trained_await(e, e->device.compute, unit));
    }
    return HY_OK;
}

/* ---- frozen weights -------------------------------------------------------------------------- */

/* If this rank's parts are not on the device, the part of the next unit is fetched ahead. Passes
 * visit units in order, upwards or downwards. */
static hy_status bring_next(hy_engine *e, int32_t unit) {
    const hy_store *whole = hy_store_of(e, HY_ROW_GATHERED_FROZEN);
    int32_t way = unit - e->collectives->frozen_last, next = unit + way;
    /* The lowest unit that a pass in this direction reaches. */
    int32_t lowest = way < 0 ? e->state->rows->lowest_trained : 0;
    bool goes_on = (way == 1 || way == -1) && next >= lowest && next < e->model->params.units;
    e->collectives->frozen_last = unit;
    if (!goes_on || hy_store_holds(whole, next)) return HY_OK;
    return hy_store_prefetch(hy_store_of(e, HY_ROW_FROZEN), next);
}

hy_status hy_frozen_fetch(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    bool has_begun;
    if (!hy_has_row(e, HY_ROW_GATHERED_FROZEN)) return HY_OK;
    hy_gather gather = gather_of(e, true);
    HY_TRY(hy_gather_fetch(&gather, stream, unit, &has_begun));
    return has_begun ? bring_next(e, unit) : HY_OK;
}

hy_status hy_frozen_await(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    if (!hy_has_row(e, HY_ROW_GATHERED_FROZEN)) return HY_OK;
    hy_gather gather = gather_of(e, true);
    return hy_gather_await(&gather, stream, unit);
}

/* ---- all weights of a pass ------------------------------------------------------------------- */

hy_status hy_weights_fetch(void *context, hy_stream *stream, int32_t unit) {
    if (!hy_engine_exchanges(context)) return HY_OK;
    HY_TRY(fetch_trained(context, stream, unit));
    return hy_frozen_fetch(context, stream, unit);
}

hy_status hy_weights_await(void *context, hy_stream *stream, int32_t unit) {
    HY_TRY(hy_trained_await(context, stream, unit));
    return hy_frozen_await(context, stream, unit);
}

/* ---- slices ---------------------------------------------------------------------------------- */

hy_tensor hy_row_own_slice(const hy_engine *e, int row, int32_t param) {
    const hy_store *store = hy_store_of(e, row);
    const hy_params *params = &e->model->params;
    int32_t item = hy_store_item_of(store, param);
    hy_slice own = hy_shard_own(hy_rows_shard(e->state->rows), params, param);
    if (item < 0 || own.count == 0) return (hy_tensor){0};
    hy_tensor all = hy_store_tensor(store, item, hy_store_device(store, item));
    bool is_cut = own.count < params->list[param].count && !e->state->rows->row[row].is_sharded;
    return is_cut ? hy_tensor_rows(&all, own.begin, own.count) : all;
}
