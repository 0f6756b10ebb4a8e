/* store.c: per-unit tensors at home on the device, or passing through a ring. See store.h.
 *
 * The ring's order of events, for one buffer:
 *   up:      wait is_free, and is_home if its content was changed | copy home -> buffer | record is_here
 *   compute: wait is_here | ... | record is_free
 *   down (when changed): wait is_free | copy buffer -> home | record is_home
 * A unit is not fetched while its last changes are still on their way home: up waits for is_home of the
 * buffer they left from. Once that buffer holds another unit, up has waited for it already. */
#include "memory/store.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

hy_status hy_store_init(hy_store *store, hy_arena *arena, hy_class cls, const hy_layout *layout) {
    *store = (hy_store){.cls = cls, .place = arena->place, .backend = arena->backend};
    HY_TRY(hy_layout_init(&store->layout, layout->items, layout->item_count, layout->unit_count));
    void *data = NULL;
    hy_status status = hy_arena_push(arena, cls, layout->bytes, &data);
    if (status != HY_OK) hy_layout_fini(&store->layout);
    store->data = data;
    return status;
}

static uint64_t largest_unit(const hy_layout *layout) {
    uint64_t largest = 0;
    for (int32_t u = 0; u < layout->unit_count; u++) {
        if (layout->unit_bytes[u] > largest) largest = layout->unit_bytes[u];
    }
    return largest;
}

uint64_t hy_store_ring_bytes(const hy_layout *layout, int32_t depth) {
    return (uint64_t)depth * hy_align(largest_unit(layout));
}

static hy_status make_slot(hy_store *store, hy_arena *device, hy_ring_slot *slot) {
    hy_backend *b = store->backend;
    void *data;
    slot->unit = slot->returning = -1;
    HY_TRY(hy_arena_push(device, store->cls, largest_unit(&store->layout), &data));
    slot->data = data;
    HY_TRY(b->event_create(b, &slot->is_here));
    HY_TRY(b->event_create(b, &slot->is_free));
    return b->event_create(b, &slot->is_home);
}

hy_status hy_store_init_streamed(hy_store *store, hy_arena *home, hy_arena *device, hy_class cls,
                                 const hy_layout *layout, int32_t depth, const hy_copies *copies) {
    assert(depth >= 2 && depth <= HY_RING_MAX && home->place != HY_DEVICE);
    HY_TRY(hy_store_init(store, home, cls, layout));
    store->copies = *copies;
    store->ring_depth = depth;
    for (int32_t i = 0; i < depth; i++) {
        hy_status status = make_slot(store, device, &store->ring[i]);
        if (status != HY_OK) {
            hy_store_fini(store);
            return status;
        }
    }
    return HY_OK;
}

hy_status hy_store_init_made(hy_store *store, hy_arena *device, hy_class cls,
                             const hy_layout *layout, int32_t depth, hy_store_maker maker,
                             void *context) {
    assert(depth >= 2 && depth <= HY_RING_MAX);
    *store = (hy_store){.cls = cls,
                        .backend = device->backend,
                        .ring_depth = depth,
                        .maker = maker,
                        .maker_context = context};
    HY_TRY(hy_layout_init(&store->layout, layout->items, layout->item_count, layout->unit_count));
    for (int32_t i = 0; i < depth; i++) {
        void *data;
        hy_status status = hy_arena_push(device, cls, largest_unit(layout), &data);
        if (status != HY_OK) {
            hy_store_fini(store);
            return status;
        }
        store->ring[i] = (hy_ring_slot){.data = data, .unit = -1, .returning = -1};
    }
    return HY_OK;
}

void hy_store_fini(hy_store *store) {
    (void)hy_store_settle(store); /* a failed copy was told, or will be, to whoever waits for it */
    for (int32_t i = 0; i < store->ring_depth; i++) {
        hy_event *events[] = {store->ring[i].is_here, store->ring[i].is_free,
                              store->ring[i].is_home};
        for (int e = 0; e < 3; e++) {
            if (events[e]) store->backend->event_destroy(events[e]);
        }
    }
    hy_layout_fini(&store->layout);
    *store = (hy_store){0};
}

static hy_ring_slot *slot_of(const hy_store *store, int32_t unit) {
    for (int32_t i = 0; i < store->ring_depth; i++) {
        if (store->ring[i].unit == unit) return (hy_ring_slot *)&store->ring[i];
    }
    return NULL;
}

/* The buffer that was asked for longest ago and is not held. */
static hy_ring_slot *oldest_free_slot(hy_store *store) {
    hy_ring_slot *oldest = NULL;
    for (int32_t i = 0; i < store->ring_depth; i++) {
        hy_ring_slot *slot = &store->ring[i];
        if (slot->holders == 0 && (!oldest || slot->used_at < oldest->used_at)) oldest = slot;
    }
    return oldest;
}

/* Before `unit` is copied into `slot`: what was changed there, and the unit's own changes, are home. */
static hy_status await_returns(hy_store *store, const hy_ring_slot *slot, int32_t unit) {
    for (int32_t i = 0; i < store->ring_depth; i++) {
        const hy_ring_slot *other = &store->ring[i];
        bool matters = other->returning == unit || (other == slot && other->returning >= 0);
        if (matters) HY_TRY(store->backend->stream_wait(store->copies.up, other->is_home));
    }
    return HY_OK;
}

static hy_status fetch(hy_store *store, hy_ring_slot *slot, int32_t unit) {
    hy_backend *b = store->backend;
    uint64_t bytes = store->layout.unit_bytes[unit];
    char *home = store->data + store->layout.unit_offset[unit];
    HY_TRY(b->stream_wait(store->copies.up, slot->is_free));
    HY_TRY(await_returns(store, slot, unit));
    HY_TRY(b->copy(store->copies.up, slot->data, home, bytes));
    HY_TRY(b->event_record(slot->is_here, store->copies.up));
    slot->unit = unit;
    slot->returning = -1;
    store->bytes_moved += bytes;
    return HY_OK;
}

hy_status hy_store_gather(hy_store *store, int32_t unit) {
    assert(unit >= 0 && unit < store->layout.unit_count);
    if (!store->copies.up) return HY_OK;
    hy_ring_slot *slot = slot_of(store, unit);
    if (!slot) {
        slot = oldest_free_slot(store);
        if (!slot) return HY_OK; /* all are in use: get will bring it */
        HY_TRY(fetch(store, slot, unit));
    }
    slot->used_at = ++store->clock;
    return HY_OK;
}

static hy_status no_slot(const hy_store *store, int32_t unit) {
    return hy_fail(HY_ERR_INTERNAL, "all %d ring buffers of %s are in use, unit %d has none",
                   store->ring_depth, hy_class_name(store->cls), unit);
}

/* All users of a made store are on one stream, so its order is all the order there need be. */
static hy_status get_made(hy_store *store, hy_stream *stream, int32_t unit) {
    hy_ring_slot *slot = slot_of(store, unit);
    if (!slot) {
        slot = oldest_free_slot(store);
        if (!slot) return no_slot(store, unit);
        HY_TRY(store->maker(store->maker_context, stream, unit, slot->data));
        slot->unit = unit;
    }
    slot->used_at = ++store->clock;
    slot->holders++;
    return HY_OK;
}

hy_status hy_store_get(hy_store *store, hy_stream *stream, int32_t unit) {
    assert(unit >= 0 && unit < store->layout.unit_count);
    store->held++;
    if (store->maker) return get_made(store, stream, unit);
    if (!store->copies.up) return HY_OK;
    HY_TRY(hy_store_gather(store, unit));
    hy_ring_slot *slot = slot_of(store, unit);
    if (!slot) return no_slot(store, unit);
    slot->holders++;
    return store->backend->stream_wait(stream, slot->is_here);
}

static hy_status release(hy_store *store, hy_stream *stream, int32_t unit, bool is_changed) {
    assert(store->held > 0 && unit >= 0 && unit < store->layout.unit_count);
    store->held--;
    if (!store->copies.up && !store->maker) return HY_OK;
    hy_backend *b = store->backend;
    hy_ring_slot *slot = slot_of(store, unit);
    assert(slot && slot->holders > 0);
    slot->holders--;
    if (store->maker) return HY_OK;
    HY_TRY(b->event_record(slot->is_free, stream));
    if (!is_changed) return HY_OK;
    uint64_t bytes = store->layout.unit_bytes[unit];
    char *home = store->data + store->layout.unit_offset[unit];
    HY_TRY(b->stream_wait(store->copies.down, slot->is_free));
    HY_TRY(b->copy(store->copies.down, home, slot->data, bytes));
    store->bytes_moved += bytes;
    slot->returning = unit;
    return b->event_record(slot->is_home, store->copies.down);
}

hy_status hy_store_release(hy_store *store, hy_stream *stream, int32_t unit) {
    return release(store, stream, unit, false);
}

hy_status hy_store_release_changed(hy_store *store, hy_stream *stream, int32_t unit) {
    return release(store, stream, unit, true);
}

hy_status hy_store_settle(hy_store *store) {
    if (!store->copies.up) return HY_OK;
    HY_TRY(store->backend->stream_sync(store->copies.up));
    return store->backend->stream_sync(store->copies.down);
}

void hy_store_forget(hy_store *store) {
    for (int32_t i = 0; i < store->ring_depth; i++) {
        assert(store->ring[i].holders == 0);
        store->ring[i].unit = -1;
    }
}

void *hy_store_device(const hy_store *store, int32_t item) {
    if (!store->ring_depth) return hy_store_home(store, item);
    const hy_layout_item *entry = &store->layout.items[item];
    const hy_ring_slot *slot = slot_of(store, entry->unit);
    assert(slot && slot->holders > 0);
    return slot->data + entry->offset;
}

void *hy_store_home(const hy_store *store, int32_t item) {
    const hy_layout_item *entry = &store->layout.items[item];
    return store->data + store->layout.unit_offset[entry->unit] + entry->offset;
}

hy_tensor hy_store_tensor(const hy_store *store, int32_t item, void *at) {
    const hy_layout_item *entry = &store->layout.items[item];
    hy_tensor tensor = hy_tensor_1d(at, entry->dtype, entry->count);
    if (!entry->block) return tensor;
    tensor.quant.block = entry->block;
    tensor.quant.scale = (float *)(void *)((char *)at + hy_layout_scales_at(entry));
    return tensor;
}
