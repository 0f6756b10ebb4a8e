/* store_home.c: a class at home, for the host between steps, wherever home is. See store.h.
 *
 * Nobody holds a unit meanwhile. What the ring still has to bring home goes home first; what the host
 * changes is dropped from the ring, so the next get brings it. */
#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "memory/store_disk.h"
#include "memory/store_ring.h"

bool hy_store_is_host(const hy_store *store) {
    return store->place != HY_DEVICE || !store->backend->facts.is_gpu;
}

hy_status hy_store_open_home(hy_store *store, int32_t unit, bool is_new, char **bytes) {
    assert(store->held == 0 && !store->maker && unit >= 0 && unit < store->layout.unit_count);
    HY_TRY(hy_ring_settle(store));
    if (store->stages) return hy_stages_open(store, unit, is_new, bytes);
    *bytes = store->data + store->layout.unit_offset[unit];
    return HY_OK;
}

void hy_store_close_home(hy_store *store, int32_t unit, bool is_changed) {
    if (store->stages) hy_stages_close(store, unit, is_changed);
    if (is_changed) hy_ring_drop(store, unit);
}

/* ---- by place in the class --------------------------------------------------------------------- */

/* Some bytes of an open unit, to or from `host`. */
static hy_status copy_some(hy_store *store, hy_stream *stream, char *home, char *host,
                           uint64_t bytes, bool is_in) {
    hy_backend *b = store->backend;
    if (hy_store_is_host(store)) {
        memcpy(is_in ? home : host, is_in ? host : home, bytes);
        return HY_OK;
    }
    HY_TRY(b->copy(stream, is_in ? home : host, is_in ? host : home, bytes));
    return b->stream_sync(stream);
}

static hy_status copy_part(hy_store *store, hy_stream *stream, int32_t unit, uint64_t first,
                           char *host, uint64_t bytes, bool is_in) {
    char *home;
    bool is_whole = bytes == store->layout.unit_bytes[unit];
    HY_TRY(hy_store_open_home(store, unit, is_in && is_whole, &home));
    hy_status status = copy_some(store, stream, home + first, host, bytes, is_in);
    hy_store_close_home(store, unit, is_in);
    return status;
}

static hy_status copy_range(hy_store *store, hy_stream *stream, uint64_t offset, char *host,
                            uint64_t bytes, bool is_in) {
    const hy_layout *layout = &store->layout;
    assert(offset <= layout->bytes && bytes <= layout->bytes - offset);
    for (int32_t u = 0; u < layout->unit_count && bytes > 0; u++) {
        uint64_t begin = layout->unit_offset[u], end = begin + layout->unit_bytes[u];
        if (end <= offset) continue;
        uint64_t part = end - offset < bytes ? end - offset : bytes;
        HY_TRY(copy_part(store, stream, u, offset - begin, host, part, is_in));
        offset += part;
        host += part;
        bytes -= part;
    }
    return HY_OK;
}

uint64_t hy_store_offset(const hy_store *store, int32_t item) {
    const hy_layout_item *entry = &store->layout.items[item];
    return store->layout.unit_offset[entry->unit] + entry->offset;
}

hy_status hy_store_read_home(hy_store *store, hy_stream *stream, uint64_t offset, void *out,
                             uint64_t bytes) {
    return copy_range(store, stream, offset, out, bytes, false);
}

hy_status hy_store_write_home(hy_store *store, hy_stream *stream, uint64_t offset, const void *in,
                              uint64_t bytes) {
    return copy_range(store, stream, offset, (char *)in, bytes, true);
}

/* Zero bits are the number zero in every type, quantised ones too: their scales are zero. */
hy_status hy_store_zero_home(hy_store *store) {
    assert(hy_store_is_host(store));
    for (int32_t u = 0; u < store->layout.unit_count; u++) {
        char *home;
        if (store->layout.unit_bytes[u] == 0) continue;
        HY_TRY(hy_store_open_home(store, u, true, &home));
        memset(home, 0, store->layout.unit_bytes[u]);
        hy_store_close_home(store, u, true);
    }
    return hy_store_settle(store);
}
