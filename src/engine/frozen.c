/* frozen.c: weights that are not trained, of several ranks in stage 3: parts that passes gather. See engine.h.
 *
 * Nobody updates them, so a rank's part is a range of a unit's bytes, whatever types and tensors lie there
 * (memory/layout.h): all parts one behind the other are the unit, and codes with their scales need nothing of their
 * own. A pass gathers a unit into a buffer (HY_ROW_GATHERED_FROZEN) when it comes to the one before, and waits for it
 * when it needs it. What the buffers hold stays true from step to step. */
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"

static bool is_shared(const hy_engine *e) { return hy_has_row(e, HY_ROW_GATHERED_FROZEN); }

hy_status hy_frozen_take(hy_engine *e) {
    if (!is_shared(e)) return HY_OK;
    e->shards.frozen = calloc((size_t)e->model->params.units, sizeof *e->shards.frozen);
    HY_FAIL_IF(!e->shards.frozen, HY_ERR_MEMORY, "no memory for exchanges between ranks");
    return HY_OK;
}

/* Everybody gets everybody's part of a unit; own part lies at its place. */
static hy_status send_parts(hy_engine *e, hy_stream *stream, char *whole, uint64_t bytes,
                            hy_job **out) {
    const hy_shard *shard = &e->state.rows.shard;
    int32_t rank = shard->rank, count = shard->count;
    uint64_t begin = hy_layout_cut_at(bytes, rank, count);
    hy_job *job;
    HY_TRY(hy_job_begin(&e->shards.net, &job));
    for (int32_t i = 1; i <= hy_shard_peers(shard); i++) {
        hy_job_send(job, (rank + i) % count, whole + begin,
                    hy_layout_cut_at(bytes, rank + 1, count) - begin);
    }
    for (int32_t i = 1; i <= hy_shard_peers(shard); i++) {
        int32_t from = (rank + count - i) % count;
        uint64_t at = hy_layout_cut_at(bytes, from, count);
        hy_job_receive(job, from, whole + at, hy_layout_cut_at(bytes, from + 1, count) - at);
    }
    *out = job;
    return hy_job_go(job, stream);
}

/* A part that lives elsewhere is on its way before its unit is gathered: passes go over units one after the other. */
static hy_status bring_next(hy_engine *e, int32_t unit) {
    const hy_store *whole = hy_store_of(e, HY_ROW_GATHERED_FROZEN);
    int32_t way = unit - e->shards.frozen_last, next = unit + way;
    int32_t lowest = way < 0 ? e->state.rows.lowest_trained : 0; /* that a pass this way comes to */
    bool goes_on = (way == 1 || way == -1) && next >= lowest && next < e->model->params.units;
    e->shards.frozen_last = unit;
    if (!goes_on || hy_store_holds(whole, next)) return HY_OK;
    return hy_store_gather(hy_store_of(e, HY_ROW_FROZEN), next);
}

hy_status hy_frozen_fetch(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    if (!is_shared(e)) return HY_OK;
    hy_store *whole = hy_store_of(e, HY_ROW_GATHERED_FROZEN);
    hy_store *from = hy_store_of(e, HY_ROW_FROZEN);
    uint64_t bytes = whole->layout.unit_bytes[unit], own = from->layout.unit_bytes[unit];
    bool is_here = e->shards.frozen[unit] || hy_store_touch(whole, unit);
    if (bytes == 0 || is_here) return HY_OK;
    HY_TRY(hy_store_get_new(whole, stream, unit));
    char *to = hy_store_unit(whole, unit);
    if (own > 0) { /* the part is not held meanwhile: its ring may be small */
        HY_TRY(hy_store_get_read(from, stream, unit));
        HY_TRY(e->device.backend->copy(stream, to + from->layout.part_begin[unit],
                                       hy_store_unit(from, unit), own));
        HY_TRY(hy_store_release(from, stream, unit));
    }
    HY_TRY(send_parts(e, stream, to, bytes, &e->shards.frozen[unit]));
    return bring_next(e, unit);
}

hy_status hy_frozen_await(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    if (!is_shared(e)) return HY_OK;
    HY_TRY(hy_frozen_fetch(e, stream, unit)); /* it may have left again */
    hy_job *job = e->shards.frozen[unit];
    if (!job) return HY_OK;
    e->shards.frozen[unit] = NULL;
    HY_TRY(hy_job_await(job, stream));
    return hy_store_release_changed(hy_store_of(e, HY_ROW_GATHERED_FROZEN), stream, unit);
}

void hy_frozen_abandon(hy_engine *e) {
    hy_job **jobs = e->shards.frozen;
    for (int32_t u = 0; jobs && u < e->model->params.units; u++) jobs[u] = NULL;
}

hy_status hy_weights_fetch(void *context, hy_stream *stream, int32_t unit) {
    HY_TRY(hy_shards_fetch(context, stream, unit));
    return hy_frozen_fetch(context, stream, unit);
}

hy_status hy_weights_await(void *context, hy_stream *stream, int32_t unit) {
    HY_TRY(hy_shards_await(context, stream, unit));
    return hy_frozen_await(context, stream, unit);
}
