/* shard.c: divides units into ranges, and layouts into shards. See shard.h. */
#include "model/shard.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

/* ---- cutting --------------------------------------------------------------------------------- */

/* Parameters [first, end) of a unit, and the number of their trained elements. */
typedef struct unit_params {
    int32_t first, end;
    int64_t elements;
} unit_params;

/* The first parameter of a unit: parameters are listed in the order of units. */
static int32_t first_of(const hy_params *params, int32_t unit) {
    int32_t low = 0, high = params->count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (params->list[middle].unit < unit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static unit_params params_of(const hy_params *params, int32_t unit) {
    unit_params u = {.first = first_of(params, unit)};
    for (u.end = u.first; u.end < params->count && params->list[u.end].unit == unit; u.end++) {
        if (params->list[u.end].is_trainable) u.elements += params->list[u.end].count;
    }
    return u;
}

/* The allowed cut that is nearest to an element of the unit. */
static int64_t cut_near(const hy_params *params, const bool *is_whole, const unit_params *u,
                        int64_t wanted) {
    int64_t at = 0;
    for (int32_t i = u->first; i < u->end; i++) {
        const hy_param *p = &params->list[i];
        if (!p->is_trainable) continue;
        int64_t inside = wanted - at, grain = is_whole[i] ? p->count : HY_QUANT_BLOCK;
        if (inside < p->count) {
            int64_t cut = (inside + grain / 2) / grain * grain;
            return at + (cut < p->count ? cut : p->count);
        }
        at += p->count;
    }
    return at;
}

/* Turns elements [begin, end) of the unit into slices of its parameters. */
static void give(hy_shard *shard, const hy_params *params, const unit_params *u, int32_t rank,
                 int64_t begin, int64_t end) {
    int64_t at = 0;
    for (int32_t i = u->first; i < u->end; i++) {
        const hy_param *p = &params->list[i];
        if (!p->is_trainable) continue;
        int64_t from = begin > at ? begin - at : 0, to = end - at < p->count ? end - at : p->count;
        if (from < to) {
            shard->slices[(int64_t)i * shard->count + rank] =
                (hy_slice){.begin = from, .count = to - from};
        }
        at += p->count;
    }
}

static void cut_unit(hy_shard *shard, const hy_params *params, const bool *is_whole,
                     const unit_params *u, int32_t unit) {
    int64_t begin = 0;
    for (int32_t k = 0; k < shard->count; k++) {
        int64_t wanted = u->elements / shard->count * (k + 1);
        int64_t end = k == shard->count - 1 ? u->elements : cut_near(params, is_whole, u, wanted);
        if (end < begin) end = begin;
        give(shard, params, u, (k + unit) % shard->count, begin, end);
        begin = end;
    }
}

hy_status hy_shard_init(hy_shard *shard, const hy_params *params, const bool *is_whole,
                        int32_t rank, int32_t count) {
    assert(count >= 1 && rank >= 0 && rank < count);
    *shard = (hy_shard){.rank = rank, .count = count, .params = params->count};
    shard->slices = calloc((size_t)params->count * (size_t)count, sizeof *shard->slices);
    HY_FAIL_IF(!shard->slices, HY_ERR_MEMORY, "no memory for the shards of %d ranks", count);
    for (int32_t unit = 0; unit < params->units; unit++) {
        unit_params u = params_of(params, unit);
        cut_unit(shard, params, is_whole, &u, unit);
    }
    return HY_OK;
}

void hy_shard_fini(hy_shard *shard) {
    free(shard->slices);
    *shard = (hy_shard){0};
}

/* ---- layouts --------------------------------------------------------------------------------- */

static hy_status cut_layout(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                            hy_layout_item *items, int32_t *of, hy_layout *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < params->count; i++) {
        int32_t item = hy_layout_item_of(whole, i);
        hy_slice own = hy_shard_of(shard, i, shard->rank);
        of[i] = -1;
        if (item < 0 || own.count == 0) continue;
        items[count] = whole->items[item];
        bool is_like_param = whole->items[item].count == params->list[i].count;
        assert(is_like_param || own.count == params->list[i].count);
        if (is_like_param) items[count].count = own.count;
        if (is_like_param) items[count].begin = own.begin;
        of[i] = count++;
    }
    HY_TRY(hy_layout_init(out, items, count, whole->unit_count));
    out->is_even = whole->is_even;
    hy_status status = hy_layout_set_items(out, of, params->count);
    if (status != HY_OK) hy_layout_fini(out);
    return status;
}

hy_status hy_shard_layout(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                          hy_layout *out) {
    hy_layout_item *items = calloc((size_t)whole->item_count + 1, sizeof *items);
    int32_t *of = calloc((size_t)params->count, sizeof *of);
    hy_status status = items && of ? cut_layout(shard, params, whole, items, of, out)
                                   : hy_fail(HY_ERR_MEMORY, "no memory for a layout of shards");
    free(items);
    free(of);
    return status;
}

/* ---- a rank's part in the whole -------------------------------------------------------------- */

void hy_shard_span(const hy_shard *shard, const hy_params *params, const hy_layout *whole,
                   int32_t unit, int32_t rank, uint64_t *begin, uint64_t *bytes) {
    uint64_t from = UINT64_MAX, to = 0;
    for (int32_t i = first_of(params, unit); i < params->count; i++) {
        if (params->list[i].unit != unit) break;
        int32_t item = hy_layout_item_of(whole, i);
        hy_slice s = hy_shard_of(shard, i, rank);
        if (item < 0 || s.count == 0) continue;
        const hy_layout_item *entry = &whole->items[item];
        assert(!entry->block && entry->count == params->list[i].count);
        uint64_t at = entry->offset + hy_dtype_bytes(entry->dtype, s.begin);
        uint64_t end = entry->offset + hy_align(hy_dtype_bytes(entry->dtype, s.begin + s.count));
        if (at < from) from = at;
        if (end > to) to = end;
    }
    *begin = to > 0 ? from : 0;
    *bytes = to > 0 ? to - from : 0;
}

uint64_t hy_shard_largest(const hy_shard *shard, const hy_params *params, const hy_layout *whole) {
    uint64_t most = 0;
    for (int32_t unit = 0; unit < whole->unit_count; unit++) {
        uint64_t begin, bytes;
        hy_shard_span(shard, params, whole, unit, shard->rank, &begin, &bytes);
        if (bytes > most) most = bytes;
    }
    return most;
}
