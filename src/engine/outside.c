/* outside.c: several ranks and weights in a caller's memory. See engine.h.
 *
 * Where a unit's tensors lie apart, no rank's part of it is one piece of memory. On its way between ranks a unit lies in
 * a buffer of its own in one piece (HY_ROW_GATHERED): a rank copies its part in, parts go as those of any unit do, and
 * the others' are copied out when they have come. One unit is on its way while the next is updated. */
#include "base/error.h"
#include "engine/engine.h"

/* What a copy does to a parameter of the unit. */
typedef enum way { OWN_IN, ALL_IN, OTHERS_OUT, ALL_OUT } way;

static hy_status copy_slice(hy_engine *e, hy_stream *stream, const hy_store *outside, int32_t param,
                            hy_slice slice, bool is_out) {
    const hy_store *transit = hy_store_of(e, HY_ROW_GATHERED);
    int32_t item = hy_store_item_of(outside, param);
    if (slice.count == 0) return HY_OK;
    hy_tensor theirs = hy_store_tensor(outside, item, hy_store_device(outside, item));
    hy_tensor ours = hy_store_tensor(transit, item, hy_store_device(transit, item));
    theirs = hy_tensor_rows(&theirs, slice.begin, slice.count);
    ours = hy_tensor_rows(&ours, slice.begin, slice.count);
    const hy_tensor *to = is_out ? &theirs : &ours, *from = is_out ? &ours : &theirs;
    return e->backend->copy(stream, to->data, from->data, hy_tensor_bytes(to));
}

static hy_status copy_unit(hy_engine *e, hy_stream *stream, const hy_store *outside, int32_t unit,
                           way how) {
    const hy_params *params = &e->model->params;
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].unit != unit) continue;
        hy_slice own = hy_shard_own(&e->rows.shard, params, i), all = {0, params->list[i].count};
        hy_slice before = {0, own.begin}, behind = {own.begin + own.count, 0};
        behind.count = all.count - behind.begin;
        bool is_out = how == OTHERS_OUT || how == ALL_OUT;
        hy_slice first = how == OWN_IN ? own : how == OTHERS_OUT ? before : all;
        HY_TRY(copy_slice(e, stream, outside, i, first, is_out));
        if (how == OTHERS_OUT) HY_TRY(copy_slice(e, stream, outside, i, behind, true));
    }
    return HY_OK;
}

/* The row that the caller sees. */
static hy_store *seen(const hy_engine *e) {
    return hy_store_of(e, e->plan.types.has_low ? HY_ROW_WORKING : HY_ROW_MASTER);
}

hy_status hy_outside_arrive(hy_engine *e, hy_stream *stream, int32_t unit) {
    HY_TRY(copy_unit(e, stream, seen(e), unit, OTHERS_OUT));
    return hy_store_release_changed(hy_store_of(e, HY_ROW_GATHERED), stream, unit);
}

hy_status hy_outside_depart(hy_engine *e, hy_stream *stream, int32_t unit) {
    hy_store *transit = hy_store_of(e, HY_ROW_GATHERED);
    HY_TRY(hy_store_get_new(transit, stream, unit));
    return copy_unit(e, stream, seen(e), unit, OWN_IN);
}

/* ---- weights to begin with ------------------------------------------------------------------------------ */

static hy_status tell_unit(hy_engine *e, int32_t unit) {
    hy_store *transit = hy_store_of(e, HY_ROW_GATHERED);
    const hy_shard *shard = &e->rows.shard;
    uint64_t bytes = transit->layout.unit_bytes[unit];
    hy_job *job;
    HY_TRY(hy_store_get_new(transit, e->compute, unit));
    if (shard->rank == 0) HY_TRY(copy_unit(e, e->compute, seen(e), unit, ALL_IN));
    char *whole = hy_store_unit(transit, unit);
    HY_TRY(hy_job_begin(&e->shards.net, &job));
    for (int32_t to = 1; shard->rank == 0 && to < shard->count; to++) {
        hy_job_send(job, to, whole, bytes);
    }
    if (shard->rank > 0) hy_job_receive(job, 0, whole, bytes);
    HY_TRY(hy_job_go(job, e->compute));
    HY_TRY(hy_job_await(job, e->compute));
    if (shard->rank > 0) HY_TRY(copy_unit(e, e->compute, seen(e), unit, ALL_OUT));
    return hy_store_release_changed(transit, e->compute, unit);
}

hy_status hy_outside_tell_first(hy_engine *e) {
    if (!hy_engine_has_ranks(e)) return HY_OK;
    for (int32_t unit = 0; unit < e->model->params.units; unit++) HY_TRY(tell_unit(e, unit));
    return HY_OK;
}
