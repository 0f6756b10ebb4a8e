/* gather.c: gathers whole units from the parts of all ranks. See gather.h. */
#include "state/gather.h"

#include "base/error.h"

void hy_unit_parts(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                   int32_t unit, hy_comm_part *out) {
    for (int32_t r = 0; r < shard->count; r++) {
        hy_shard_span(shard, params, whole, unit, r, &out[r].begin, &out[r].bytes);
    }
}

static void parts_of(const hy_gather *g, int32_t unit, hy_comm_part *out) {
    const hy_layout *whole = &g->whole->layout;
    if (!g->is_cut) {
        hy_unit_parts(g->shard, g->params, whole, unit, out);
        return;
    }
    for (int32_t r = 0; r < g->shard->count; r++) {
        uint64_t begin = hy_layout_cut_at(whole->unit_bytes[unit], r, g->shard->count);
        uint64_t end = hy_layout_cut_at(whole->unit_bytes[unit], r + 1, g->shard->count);
        out[r] = (hy_comm_part){begin, end - begin};
    }
}

/* Copies this rank's part to the ring. The part is not held during the transfer, because its own
 * ring may be small. */
static hy_status copy_own(const hy_gather *g, hy_stream *stream, int32_t unit, char *to,
                          uint64_t bytes) {
    if (!g->from || bytes == 0) return HY_OK;
    HY_TRY(hy_store_get_read(g->from, stream, unit));
    HY_TRY(g->whole->backend->copy(stream, to, hy_store_unit(g->from, unit), bytes));
    return hy_store_release(g->from, stream, unit);
}

hy_status hy_gather_fetch(const hy_gather *g, hy_stream *stream, int32_t unit, bool *has_begun) {
    hy_gathering *it = &g->units[unit];
    hy_comm_part parts[HY_RANKS_MOST], own;
    bool is_here =
        g->whole->layout.unit_bytes[unit] == 0 || it->is_begun || hy_store_touch(g->whole, unit);
    if (has_begun) *has_begun = !is_here;
    if (is_here) return HY_OK;
    HY_TRY(hy_store_get_new(g->whole, stream, unit));
    parts_of(g, unit, parts);
    own = parts[g->shard->rank];
    char *whole = hy_store_unit(g->whole, unit);
    HY_TRY(copy_own(g, stream, unit, whole + own.begin, own.bytes));
    *it = (hy_gathering){.is_begun = true, .held = g->whole};
    return hy_all_gather(g->net, stream, whole + own.begin, whole, parts, &it->op);
}

hy_status hy_gathering_end(hy_gathering *on_its_way, hy_stream *stream, int32_t unit) {
    hy_gathering it = *on_its_way;
    *on_its_way = (hy_gathering){0};
    HY_TRY(hy_comm_wait(it.op, stream));
    return it.held ? hy_store_release_changed(it.held, stream, unit) : HY_OK;
}

hy_status hy_gather_await(const hy_gather *g, hy_stream *stream, int32_t unit) {
    HY_TRY(hy_gather_fetch(g, stream, unit, NULL));
    return hy_gathering_end(&g->units[unit], stream, unit);
}
