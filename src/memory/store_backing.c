/* store_backing.c: a class in its backing store, for the host between steps, wherever that is. See
 * store.h.
 *
 * Nobody holds a unit meanwhile. What the ring still has to write back is written back first; what the
 * host changes is dropped from the ring, so the next get brings it. */
#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "memory/store_disk.h"
#include "memory/store_ring.h"

bool hy_store_is_host(const hy_store *store) {
    return store->place != HY_DEVICE || !store->backend->facts.is_gpu;
}

hy_status hy_store_open_unit(hy_store *store, int32_t unit, bool is_new, char **bytes) {
    assert(store->place != HY_NOWHERE && unit >= 0 && unit < store->layout.unit_count);
    HY_FAIL_IF(store->held > 0, HY_ERR_INTERNAL, "%d units of %s are still in use", store->held,
               hy_class_name(store->cls)); /* a pass that failed may have left some */
    HY_TRY(hy_ring_settle(store));
    if (store->stages) return hy_stages_open(store, unit, is_new, bytes);
    *bytes = store->data + store->layout.unit_offset[unit];
    return HY_OK;
}

void hy_store_close_unit(hy_store *store, int32_t unit, bool is_changed) {
    if (store->stages) hy_stages_close(store, unit, is_changed);
    if (is_changed) hy_ring_drop(store, unit);
}

/* ---- by place in the class --------------------------------------------------------------------- */

/* The other side of a copy: out of the class, or into it. */
typedef struct other_side {
    hy_stream *stream;
    char *bytes;
    bool is_source;
    bool is_host; /* its bytes, too, can be touched */
} other_side;

static hy_status copy_some(hy_store *store, char *backing, const other_side *other,
                           uint64_t bytes) {
    hy_backend *b = store->backend;
    char *to = other->is_source ? backing : other->bytes;
    const char *from = other->is_source ? other->bytes : backing;
    if (hy_store_is_host(store) && other->is_host) {
        memcpy(to, from, bytes);
        return HY_OK;
    }
    HY_TRY(b->copy(other->stream, to, from, bytes));
    return b->stream_sync(other->stream);
}

static hy_status copy_part(hy_store *store, int32_t unit, uint64_t first, const other_side *other,
                           uint64_t bytes) {
    const hy_layout *layout = &store->layout;
    char *backing = NULL;
    bool is_there, is_in = other->is_source, is_whole = bytes == layout->unit_bytes[unit];
    HY_TRY(hy_store_open_unit(store, unit, is_in && is_whole, &backing));
    hy_status status = HY_OK;
    /* Whoever reads a unit goes on with the next one. */
    bool has_next = unit + 1 < layout->unit_count && layout->unit_bytes[unit + 1] > 0;
    if (store->stages && has_next && !is_in) {
        status = hy_stages_fetch(store, unit + 1, false, &is_there);
    }
    if (status == HY_OK) status = copy_some(store, backing + first, other, bytes);
    hy_store_close_unit(store, unit, is_in);
    return status;
}

static hy_status copy_range(hy_store *store, uint64_t offset, other_side other, uint64_t bytes) {
    const hy_layout *layout = &store->layout;
    assert(offset <= layout->bytes && bytes <= layout->bytes - offset);
    for (int32_t u = 0; u < layout->unit_count && bytes > 0; u++) {
        uint64_t begin = layout->unit_offset[u], end = begin + layout->unit_bytes[u];
        if (end <= offset) continue;
        uint64_t part = end - offset < bytes ? end - offset : bytes;
        HY_TRY(copy_part(store, u, offset - begin, &other, part));
        offset += part;
        other.bytes += part;
        bytes -= part;
    }
    return HY_OK;
}

uint64_t hy_store_offset(const hy_store *store, int32_t item) {
    const hy_layout_item *entry = &store->layout.items[item];
    return store->layout.unit_offset[entry->unit] + entry->offset;
}

hy_status hy_store_read(hy_store *store, hy_stream *stream, uint64_t offset, void *out,
                        uint64_t bytes) {
    return copy_range(store, offset, (other_side){stream, out, false, true}, bytes);
}

hy_status hy_store_write(hy_store *store, hy_stream *stream, uint64_t offset, const void *in,
                         uint64_t bytes) {
    return copy_range(store, offset, (other_side){stream, (char *)in, true, true}, bytes);
}

hy_status hy_store_copy(hy_store *to, hy_store *from, hy_stream *stream) {
    const hy_layout *layout = &to->layout;
    assert(layout->bytes == from->layout.bytes);
    for (int32_t u = 0; u < layout->unit_count; u++) {
        char *backing = NULL;
        uint64_t bytes = layout->unit_bytes[u];
        if (bytes == 0) continue;
        HY_TRY(hy_store_open_unit(to, u, true, &backing));
        other_side target = {stream, backing, false, hy_store_is_host(to)};
        hy_status status = copy_range(from, layout->unit_offset[u], target, bytes);
        hy_store_close_unit(to, u, true);
        HY_TRY(status);
    }
    return hy_store_settle(to);
}

/* Zero bits are the number zero in every type, quantised ones too: their scales are zero. */
hy_status hy_store_zero(hy_store *store) {
    assert(hy_store_is_host(store));
    for (int32_t u = 0; u < store->layout.unit_count; u++) {
        char *backing = NULL;
        if (store->layout.unit_bytes[u] == 0) continue;
        HY_TRY(hy_store_open_unit(store, u, true, &backing));
        assert(backing);
        memset(backing, 0, store->layout.unit_bytes[u]);
        hy_store_close_unit(store, u, true);
    }
    return hy_store_settle(store);
}
