/* store_backing.c: access by the host to a class in its backing store, between steps. See store.h.
 *
 * Nobody holds a unit meanwhile. Pending changes in the ring are written back first. Data that the
 * host changes is dropped from the ring, so the next get copies it again. A resident unit is read
 * and changed in its buffer. */
#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "memory/store_disk.h"
#include "memory/store_ring.h"

static bool is_on_device(const hy_store *store, int32_t unit) {
    return store->place == HY_DEVICE || hy_ring_owns(store, unit);
}

bool hy_store_is_host(const hy_store *store, int32_t unit) {
    return !is_on_device(store, unit) || !store->backend->facts.is_gpu;
}

hy_status hy_store_open_unit(hy_store *store, int32_t unit, bool is_new, char **bytes) {
    assert(store->place != HY_NOWHERE && unit >= 0 && unit < store->layout.unit_count);
    assert(!store->outside);
    HY_FAIL_IF(store->held > 0, HY_ERR_INTERNAL, "%d units of %s are still in use", store->held,
               hy_class_name(store->cls)); /* a pass that failed may have left some */
    bool travels = !is_on_device(store, unit);
    if (travels) HY_TRY(hy_ring_settle(store));
    if (travels && store->stages) return hy_stages_open(store, unit, is_new, bytes);
    *bytes = hy_ring_backing_of(store, unit);
    return HY_OK;
}

void hy_store_close_unit(hy_store *store, int32_t unit, bool is_changed) {
    if (store->stages && !hy_ring_owns(store, unit)) hy_stages_close(store, unit, is_changed);
    if (is_changed) hy_ring_drop(store, unit);
}

/* ---- by offset in the class ------------------------------------------------------------------ */

/* The other side of a copy: its source or its target. */
typedef struct other_side {
    hy_stream *stream;
    char *bytes;
    bool is_source;
    bool is_host; /* the host can access its bytes, too */
} other_side;

/* Copies between two addresses: `here` is in the class. is_host: the host can access it. */
static hy_status copy_bytes(const hy_store *store, const other_side *other, char *here, char *there,
                            uint64_t bytes, bool is_host) {
    char *to = other->is_source ? here : there, *from = other->is_source ? there : here;
    if (is_host && other->is_host) {
        memcpy(to, from, bytes);
        return HY_OK;
    }
    HY_TRY(store->backend->copy(other->stream, to, from, bytes));
    return store->backend->stream_sync(other->stream);
}

/* Copies bytes of a unit, from `first` on. */
static hy_status copy_part(hy_store *store, int32_t unit, uint64_t first, const other_side *other,
                           char *there, uint64_t bytes) {
    const hy_layout *layout = &store->layout;
    char *backing = NULL;
    bool is_there, is_in = other->is_source, is_whole = bytes == layout->unit_bytes[unit];
    HY_TRY(hy_store_open_unit(store, unit, is_in && is_whole, &backing));
    hy_status status = HY_OK;
    /* Code that reads a unit usually reads the next one after it. */
    bool has_next = unit + 1 < layout->unit_count && layout->unit_bytes[unit + 1] > 0;
    if (store->stages && has_next && !is_in && !hy_ring_owns(store, unit + 1)) {
        status = hy_stages_fetch(store, unit + 1, false, &is_there);
    }
    if (status == HY_OK) {
        bool is_host = hy_store_is_host(store, unit);
        status = copy_bytes(store, other, backing + first, there, bytes, is_host);
    }
    hy_store_close_unit(store, unit, is_in);
    return status;
}

/* For tensors that are not contiguous: the gaps between them are left unchanged. */
static hy_status copy_outside(const hy_store *store, uint64_t offset, const other_side *other,
                              uint64_t bytes) {
    const hy_layout *layout = &store->layout;
    for (int32_t i = 0; i < layout->item_count; i++) {
        const hy_layout_item *item = &layout->items[i];
        uint64_t begin = layout->unit_offset[item->unit] + item->offset;
        uint64_t end = begin + hy_dtype_bytes(item->dtype, item->count);
        uint64_t from = begin > offset ? begin : offset;
        uint64_t upto = end < offset + bytes ? end : offset + bytes;
        if (from >= upto) continue;
        HY_TRY(copy_bytes(store, other, store->outside[i] + (from - begin),
                          other->bytes + (from - offset), upto - from,
                          !store->backend->facts.is_gpu));
    }
    return HY_OK;
}

/* If the layout is cut, this rank may have only some of the bytes. */
static hy_status copy_range(hy_store *store, uint64_t offset, other_side other, uint64_t bytes) {
    const hy_layout *layout = &store->layout;
    uint64_t done = 0;
    assert(layout->part_begin || (offset <= layout->bytes && bytes <= layout->bytes - offset));
    if (store->outside) return copy_outside(store, offset, &other, bytes);
    for (int32_t u = 0; u < layout->unit_count && done < bytes; u++) {
        uint64_t begin = hy_layout_unit_at(layout, u), end = begin + layout->unit_bytes[u];
        uint64_t from = begin > offset ? begin : offset;
        uint64_t upto = end < offset + bytes ? end : offset + bytes;
        if (from >= upto) continue;
        char *there = other.bytes + (from - offset);
        HY_TRY(copy_part(store, u, from - begin, &other, there, upto - from));
        done += upto - from;
    }
    HY_FAIL_IF(!other.is_source && done < bytes, HY_ERR_INTERNAL,
               "another rank has the part of %s that is read", hy_class_name(store->cls));
    return HY_OK;
}

hy_status hy_store_put(hy_store *store, hy_stream *stream, int32_t item, int64_t first,
                       int64_t count, const void *in) {
    const hy_layout_item *entry = &store->layout.items[item];
    int64_t from = first > entry->begin ? first : entry->begin;
    int64_t end = first + count, last = entry->begin + entry->count;
    if (end > last) end = last;
    if (from >= end) return HY_OK;
    const char *at = (const char *)in + hy_dtype_bytes(entry->dtype, from - first);
    uint64_t offset =
        hy_store_offset(store, item) + hy_dtype_bytes(entry->dtype, from - entry->begin);
    return hy_store_write(store, stream, offset, at, hy_dtype_bytes(entry->dtype, end - from));
}

uint64_t hy_store_offset(const hy_store *store, int32_t item) {
    const hy_layout *layout = &store->layout;
    const hy_layout_item *entry = &layout->items[item];
    const uint64_t *units = layout->whole_offset ? layout->whole_offset : layout->unit_offset;
    return units[entry->unit] + entry->offset;
}

bool hy_store_clip(const hy_store *store, uint64_t *offset, uint64_t *bytes) {
    const hy_layout *layout = &store->layout;
    uint64_t last = *offset + *bytes;
    if (!layout->part_begin) return *bytes > 0;
    for (int32_t u = 0; u < layout->unit_count; u++) {
        uint64_t begin = hy_layout_unit_at(layout, u), end = begin + layout->unit_bytes[u];
        uint64_t from = begin > *offset ? begin : *offset, upto = end < last ? end : last;
        if (from >= upto) continue;
        *offset = from;
        *bytes = upto - from;
        return true;
    }
    return false;
}

bool hy_store_has_item(const hy_store *store, int32_t item) {
    uint64_t offset = hy_store_offset(store, item);
    uint64_t bytes = hy_layout_item_bytes(&store->layout.items[item]);
    return hy_store_clip(store, &offset, &bytes);
}

hy_status hy_store_read(hy_store *store, hy_stream *stream, uint64_t offset, void *out,
                        uint64_t bytes) {
    return copy_range(store, offset, (other_side){stream, out, false, true}, bytes);
}

hy_status hy_store_write(hy_store *store, hy_stream *stream, uint64_t offset, const void *in,
                         uint64_t bytes) {
    return copy_range(store, offset, (other_side){stream, (char *)in, true, true}, bytes);
}

/* Copies each tensor from the address the other store has it at. */
static hy_status copy_to_outside(hy_store *to, hy_store *from, hy_stream *stream) {
    bool is_host = !to->backend->facts.is_gpu;
    for (int32_t i = 0; i < to->layout.item_count; i++) {
        const hy_layout_item *item = &to->layout.items[i];
        other_side target = {stream, to->outside[i], false, is_host};
        HY_TRY(copy_range(from, hy_store_offset(to, i), target,
                          hy_dtype_bytes(item->dtype, item->count)));
    }
    return HY_OK;
}

hy_status hy_store_copy(hy_store *to, hy_store *from, hy_stream *stream) {
    const hy_layout *layout = &to->layout;
    assert(layout->bytes == from->layout.bytes);
    if (to->outside) return copy_to_outside(to, from, stream);
    for (int32_t u = 0; u < layout->unit_count; u++) {
        char *backing = NULL;
        uint64_t bytes = layout->unit_bytes[u];
        if (bytes == 0) continue;
        HY_TRY(hy_store_open_unit(to, u, true, &backing));
        other_side target = {stream, backing, false, hy_store_is_host(to, u)};
        hy_status status = copy_range(from, hy_layout_unit_at(layout, u), target, bytes);
        hy_store_close_unit(to, u, true);
        HY_TRY(status);
    }
    return hy_store_settle(to);
}

hy_status hy_store_copy_unit(hy_store *store, hy_stream *stream, int32_t unit, char *other,
                             bool is_out) {
    char *own = hy_ring_backing_of(store, unit);
    uint64_t bytes = store->layout.unit_bytes[unit];
    assert(is_on_device(store, unit) && !store->outside);
    store->bytes_moved += bytes;
    return store->backend->copy(stream, is_out ? other : own, is_out ? own : other, bytes);
}

hy_status hy_store_copy_resident(hy_store *to, const hy_store *from, hy_stream *stream) {
    if (to->ring.own == 0) return HY_OK;
    for (int32_t u = 0; u < to->layout.unit_count; u++) {
        if (!hy_ring_owns(to, u)) continue;
        assert(hy_ring_owns(from, u));
        HY_TRY(to->backend->copy(stream, hy_ring_backing_of(to, u), hy_ring_backing_of(from, u),
                                 to->layout.unit_bytes[u]));
    }
    return to->backend->stream_sync(stream);
}

/* Zero bits are the number zero in every type, also in quantised ones: their scales are zero. */
hy_status hy_store_zero(hy_store *store, hy_stream *stream) {
    for (int32_t i = 0; store->outside && i < store->layout.item_count; i++) {
        hy_op_call fill = {.kind = HY_OP_FILL};
        fill.t[HY_FILL_DST] = hy_store_tensor(store, i, store->outside[i]);
        HY_TRY(store->backend->enqueue(stream, &fill));
    }
    if (store->outside) return HY_OK;
    for (int32_t u = 0; u < store->layout.unit_count; u++) {
        char *backing = NULL;
        uint64_t bytes = store->layout.unit_bytes[u];
        if (bytes == 0) continue;
        if (is_on_device(store, u)) {
            hy_op_call fill = {.kind = HY_OP_FILL};
            fill.t[HY_FILL_DST] =
                hy_tensor_1d(hy_ring_backing_of(store, u), HY_I32, (int64_t)(bytes / 4));
            HY_TRY(store->backend->enqueue(stream, &fill));
            continue;
        }
        HY_TRY(hy_store_open_unit(store, u, true, &backing));
        assert(backing);
        memset(backing, 0, bytes);
        hy_store_close_unit(store, u, true);
    }
    return hy_store_settle(store);
}
