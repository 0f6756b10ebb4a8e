/* store.c: per-unit tensors on the device, or passing through a ring. See store.h.
 *
 * The order of events, for one buffer and one unit:
 *     up:      wait for the buffer's is_free, and is_written_back of the unit that left it
 *              | copy to buffer | record is_here
 *     compute: wait for is_here, and the unit's own is_written_back unless it is only read
 *              | ... | record is_free
 *     down (if changed): wait for is_free | copy buffer back | record the unit's is_written_back
 * A unit is not fetched while its last changes are being written back: up waits once for its
 * is_written_back. A unit from get_new skips up: compute waits for the buffer instead. Waits refer
 * only to work enqueued earlier, so there is no deadlock, whatever the sizes of buffers.
 *
 * The depth of a ring. The host enqueues far ahead, so copies begin as soon as their buffer allows.
 *     Unchanged units: with 2, unit l+1 is copied while l computes, into the buffer that l-1 left:
 *     full overlap if every copy is shorter than the compute before it. With 3, copies run one unit
 *     ahead and only the sums count. When a walk turns, the last `depth` units are still here.
 *     Changed units: l-1 is written back while l computes, so with 2 both copies must fit into the
 *     time of l. With 3, one is copied in, one is used, one is copied out: full overlap if each
 *     copy alone is shorter; 4 runs one ahead.
 * Up is a single queue: a store that waits there delays those after it. So stores that are changed
 * in a walk need one buffer more than those that are only read. */
#include "memory/store.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "memory/store_disk.h"
#include "memory/store_ring.h"

/* gather_chunk copies this part of an ordinary buffer at a time, so the next block is not delayed
 * for long; if all blocks are resident and buffers are small, this part of the unit. */
#define CHUNKS_PER_BUFFER 4
#define MOST_CHUNKS 16

/* ---- opening and closing --------------------------------------------------------------------- */

hy_status hy_store_init(hy_store *store, hy_arena *arena, hy_class cls, const hy_layout *layout) {
    *store = (hy_store){.cls = cls, .place = arena->place, .backend = arena->backend};
    HY_TRY(hy_layout_copy(&store->layout, layout));
    void *data = NULL;
    hy_status status = hy_arena_push(arena, cls, layout->bytes, &data);
    if (status != HY_OK) hy_layout_fini(&store->layout);
    store->data = data;
    return status;
}

hy_status hy_store_init_outside(hy_store *store, hy_backend *backend, hy_class cls,
                                const hy_layout *layout) {
    *store = (hy_store){.cls = cls, .place = HY_DEVICE, .backend = backend};
    HY_TRY(hy_layout_copy(&store->layout, layout));
    store->outside = calloc((size_t)layout->item_count, sizeof *store->outside);
    if (store->outside) return HY_OK;
    hy_layout_fini(&store->layout);
    return hy_fail(HY_ERR_MEMORY, "not enough memory for the addresses of %d tensors",
                   layout->item_count);
}

static hy_status add_ring(hy_store *store, hy_arena *device, int32_t depth, int32_t resident) {
    hy_status status = hy_ring_init(store, device, depth, resident);
    if (status != HY_OK) hy_store_fini(store);
    return status;
}

hy_status hy_store_init_ring(hy_store *store, hy_arena *backing, hy_arena *device, hy_class cls,
                             const hy_layout *layout, const hy_ring_options *ring) {
    assert(backing->place != HY_DEVICE && ring->copies.up && ring->copies.down);
    *store = (hy_store){
        .cls = cls, .place = backing->place, .backend = backing->backend, .copies = ring->copies};
    HY_TRY(hy_layout_copy(&store->layout, layout));
    HY_TRY(add_ring(store, device, ring->depth, ring->resident));
    void *data = NULL;
    uint64_t bytes = store->ring.backing_bytes;
    hy_status status = bytes ? hy_arena_push(backing, cls, bytes, &data) : HY_OK;
    store->data = data;
    if (status != HY_OK) hy_store_fini(store);
    return status;
}

hy_status hy_store_init_streamed(hy_store *store, hy_arena *backing, hy_arena *device, hy_class cls,
                                 const hy_layout *layout, int32_t depth, const hy_copies *copies) {
    hy_ring_options ring = {.depth = depth, .copies = *copies};
    return hy_store_init_ring(store, backing, device, cls, layout, &ring);
}

hy_status hy_store_init_disk(hy_store *store, const hy_disk_backing *backing, hy_arena *device,
                             hy_class cls, const hy_layout *layout, const hy_ring_options *ring) {
    assert(backing->staging->place != HY_DEVICE && ring->copies.up && ring->copies.down);
    *store = (hy_store){
        .cls = cls, .place = HY_DISK, .backend = device->backend, .copies = ring->copies};
    HY_TRY(hy_layout_copy(&store->layout, layout));
    hy_status status = hy_ring_init(store, device, ring->depth, ring->resident);
    if (status == HY_OK) status = hy_stages_create(store, backing);
    if (status != HY_OK) hy_store_fini(store);
    return status;
}

hy_status hy_store_init_made(hy_store *store, hy_arena *device, hy_class cls,
                             const hy_layout *layout, int32_t depth) {
    *store = (hy_store){.cls = cls, .place = HY_NOWHERE, .backend = device->backend};
    HY_TRY(hy_layout_copy(&store->layout, layout));
    return add_ring(store, device, depth, 0);
}

void hy_store_fini(hy_store *store) {
    bool is_settled = hy_store_settle(store) == HY_OK;
    /* The failure was reported, or the next wait reports it. */
    if (!is_settled && store->copies.up) {
        (void)store->backend->stream_sync(store->copies.up);
        (void)store->backend->stream_sync(store->copies.down);
    }
    hy_stages_destroy(store);
    hy_ring_fini(store);
    hy_layout_fini(&store->layout);
    free(store->outside);
    *store = (hy_store){0};
}

/* ---- copying to the device ------------------------------------------------------------------- */

static bool is_on_device(const hy_store *store) { return store->ring_depth == 0; }

static bool is_backed(const hy_store *store) { return store->place != HY_NOWHERE; }

bool hy_store_touch(hy_store *store, int32_t unit) {
    hy_ring_slot *slot = hy_ring_slot_of(store, unit);
    if (slot) hy_ring_touch(store, slot);
    return slot;
}

/* Whether there is nothing to copy, hold or write back. */
bool hy_store_stays(const hy_store *store, int32_t unit) {
    return is_on_device(store) || hy_ring_owns(store, unit) || store->layout.unit_bytes[unit] == 0;
}

/* Makes the stream wait until nobody computes with the buffer, and its changes are written back. */
static hy_status await_buffer(hy_store *store, hy_stream *stream, const hy_ring_slot *slot) {
    hy_backend *b = store->backend;
    HY_TRY(b->stream_wait(stream, slot->is_free));
    if (slot->leaving < 0) return HY_OK;
    hy_ring_unit *left = &store->units[slot->leaving];
    if (stream == store->copies.up) left->is_returning = false;
    return b->stream_wait(stream, left->is_written_back);
}

/* Enqueues copies until `upto` bytes of the unit are in flight. */
static hy_status bring(hy_store *store, hy_ring_slot *slot, uint64_t upto) {
    hy_backend *b = store->backend;
    if (slot->brought >= upto) return HY_OK;
    uint64_t bytes = upto - slot->brought;
    const char *backing =
        store->stages ? hy_stages_source(store, slot->unit) : hy_ring_backing_of(store, slot->unit);
    HY_TRY(b->copy(store->copies.up, slot->data + slot->brought, backing + slot->brought, bytes));
    HY_TRY(b->event_record(slot->is_here, store->copies.up));
    if (store->stages) HY_TRY(hy_stages_note_copy(store, slot->unit));
    slot->brought = upto;
    store->units[slot->unit].brought_to = (int32_t)(slot - store->slots);
    store->bytes_up += bytes;
    store->bytes_moved += bytes;
    return HY_OK;
}

/* Whether copies up may be enqueued: a unit on disk must be read first; `waits`: wait for that. */
static hy_status prepare_source(hy_store *store, int32_t unit, bool waits, bool *is_there) {
    const hy_ring_slot *slot = hy_ring_slot_of(store, unit);
    uint64_t bytes = store->layout.unit_bytes[unit];
    if (store->stages) HY_TRY(hy_stages_failure(store));
    *is_there = !store->stages || (slot && slot->brought == bytes);
    return *is_there ? HY_OK : hy_stages_fetch(store, unit, waits, is_there);
}

/* Copies the unit to the device, at most `bytes` more of it with this call. */
static hy_status gather(hy_store *store, int32_t unit, uint64_t bytes, bool waits) {
    assert(unit >= 0 && unit < store->layout.unit_count);
    bool is_there;
    if (!store->copies.up || hy_store_stays(store, unit)) return HY_OK;
    HY_TRY(prepare_source(store, unit, waits, &is_there));
    if (!is_there) return HY_OK;
    hy_ring_slot *slot = hy_ring_slot_of(store, unit);
    if (!slot) {
        slot = hy_ring_choose(store, unit);
        if (!slot) return HY_OK; /* all are in use: get will copy it */
        HY_TRY(await_buffer(store, store->copies.up, slot));
        hy_ring_unit *known = &store->units[unit];
        if (known->is_returning) {
            known->is_returning = false;
            HY_TRY(store->backend->stream_wait(store->copies.up, known->is_written_back));
        }
        hy_ring_assign(store, slot, unit);
    }
    hy_ring_touch(store, slot);
    uint64_t left = store->layout.unit_bytes[unit] - slot->brought;
    return bring(store, slot, slot->brought + (left < bytes ? left : bytes));
}

hy_status hy_store_prefetch(hy_store *store, int32_t unit) {
    return gather(store, unit, UINT64_MAX, false);
}

hy_status hy_store_prefetch_chunk(hy_store *store, int32_t unit) {
    bool comes_whole =
        !store->copies.up || store->stages || store->units[unit].kind != HY_BUFFER_LARGE;
    if (comes_whole) return hy_store_prefetch(store, unit);
    uint64_t chunk = store->ring.buffer_bytes / CHUNKS_PER_BUFFER;
    uint64_t least = store->layout.unit_bytes[unit] / MOST_CHUNKS;
    return gather(store, unit, hy_align(chunk > least ? chunk : least), false);
}

bool hy_store_has_own_buffer(const hy_store *store, int32_t unit) {
    return hy_store_stays(store, unit) || store->units[unit].kind != HY_BUFFER_ORDINARY;
}

/* ---- using units ----------------------------------------------------------------------------- */

bool hy_store_can_hold(hy_store *store, int32_t unit) {
    return hy_store_stays(store, unit) || hy_ring_slot_of(store, unit) ||
           hy_ring_choose(store, unit);
}

static hy_status no_slot(const hy_store *store, int32_t unit) {
    return hy_fail(HY_ERR_INTERNAL,
                   "all %d ring buffers of %s are in use; none is left for unit %d",
                   store->slot_count, hy_class_name(store->cls), unit);
}

/* Makes the stream wait until it may use the buffer; to change it, copies out of it must be done,
 * too. */
static hy_status hold(hy_store *store, hy_stream *stream, hy_ring_slot *slot, bool is_read_only) {
    hy_backend *b = store->backend;
    slot->holders++;
    store->units[slot->unit].brought_to = -1;
    HY_TRY(b->stream_wait(stream, slot->is_here));
    if (is_read_only || slot->leaving < 0) return HY_OK;
    return b->stream_wait(stream, store->units[slot->leaving].is_written_back);
}

static hy_status get(hy_store *store, hy_stream *stream, int32_t unit, bool is_read_only) {
    assert(unit >= 0 && unit < store->layout.unit_count);
    store->held++;
    if (hy_store_stays(store, unit)) return HY_OK;
    HY_TRY(gather(store, unit, UINT64_MAX, true));
    hy_ring_slot *slot = hy_ring_slot_of(store, unit);
    if (!slot) return no_slot(store, unit);
    return hold(store, stream, slot, is_read_only);
}

hy_status hy_store_get(hy_store *store, hy_stream *stream, int32_t unit) {
    return get(store, stream, unit, false);
}

hy_status hy_store_get_read(hy_store *store, hy_stream *stream, int32_t unit) {
    return get(store, stream, unit, true);
}

/* Debug builds: fills a buffer that must be overwritten with NaN, to expose reads. */
static hy_status spoil(hy_store *store, hy_stream *stream, hy_ring_slot *slot) {
#ifdef HY_POISON
    hy_op_call fill = {.kind = HY_OP_FILL, .attr.fill.value = NAN};
    int64_t count = (int64_t)(store->layout.unit_bytes[slot->unit] / sizeof(float));
    fill.t[HY_FILL_DST] = hy_tensor_1d(slot->data, HY_F32, count);
    if (count && !store->backend->facts.is_gpu) return store->backend->enqueue(stream, &fill);
#endif
    (void)store, (void)stream, (void)slot;
    return HY_OK;
}

hy_status hy_store_get_new(hy_store *store, hy_stream *stream, int32_t unit) {
    assert(unit >= 0 && unit < store->layout.unit_count);
    store->held++;
    if (hy_store_stays(store, unit)) return HY_OK;
    hy_ring_slot *slot = hy_ring_slot_of(store, unit);
    if (!slot) {
        slot = hy_ring_choose(store, unit);
        if (!slot) return no_slot(store, unit);
        HY_TRY(await_buffer(store, stream, slot));
        /* A copy that nobody waited for may still read the backing store; it must not see
         * changes. */
        int32_t reads = store->units[unit].brought_to;
        if (reads >= 0) HY_TRY(store->backend->stream_wait(stream, store->slots[reads].is_here));
        hy_ring_assign(store, slot, unit);
    }
    slot->brought = store->layout.unit_bytes[unit];
    slot->is_new = true;
    hy_ring_touch(store, slot);
    HY_TRY(hold(store, stream, slot, false)); /* a copy of another unit may still be arriving */
    return spoil(store, stream, slot);
}

/* ---- releasing and writing back -------------------------------------------------------------- */

static hy_status write_back(hy_store *store, hy_ring_slot *slot) {
    hy_backend *b = store->backend;
    hy_ring_unit *known = &store->units[slot->unit];
    uint64_t bytes = store->layout.unit_bytes[slot->unit];
    char *backing = store->stages ? NULL : hy_ring_backing_of(store, slot->unit);
    if (store->stages) HY_TRY(hy_stages_return(store, slot->unit, &backing));
    HY_TRY(b->stream_wait(store->copies.down, slot->is_free));
    HY_TRY(b->copy(store->copies.down, backing, slot->data, bytes));
    HY_TRY(b->event_record(known->is_written_back, store->copies.down));
    known->is_returning = true;
    slot->leaving = slot->unit;
    slot->is_dirty = false;
    store->bytes_down += bytes;
    store->bytes_moved += bytes;
    return HY_OK;
}

static hy_status release(hy_store *store, hy_stream *stream, int32_t unit, bool is_changed) {
    assert(store->held > 0 && unit >= 0 && unit < store->layout.unit_count);
    store->held--;
    if (hy_store_stays(store, unit)) return HY_OK;
    hy_ring_slot *slot = hy_ring_slot_of(store, unit);
    assert(slot && slot->holders > 0);
    slot->holders--;
    if (is_changed) slot->is_new = false;
    /* first, so that a failure now loses no change */
    if (is_changed) slot->is_dirty = is_backed(store);
    assert(slot->holders > 0 || !slot->is_new); /* the last holder must release it as changed */
    HY_TRY(store->backend->event_record(slot->is_free, stream));
    return slot->is_dirty && is_changed ? write_back(store, slot) : HY_OK;
}

hy_status hy_store_release(hy_store *store, hy_stream *stream, int32_t unit) {
    return release(store, stream, unit, false);
}

hy_status hy_store_release_changed(hy_store *store, hy_stream *stream, int32_t unit) {
    return release(store, stream, unit, true);
}

hy_status hy_ring_settle(hy_store *store) {
    if (!store->copies.up || !store->slots || !store->units) return HY_OK;
    for (int32_t i = 0; i < store->slot_count; i++) {
        if (store->slots[i].is_dirty) HY_TRY(write_back(store, &store->slots[i]));
    }
    HY_TRY(store->backend->stream_sync(store->copies.up));
    HY_TRY(store->backend->stream_sync(store->copies.down));
    for (int32_t i = 0; i < store->slot_count; i++) store->slots[i].leaving = -1;
    for (int32_t u = 0; u < store->layout.unit_count; u++) store->units[u].is_returning = false;
    return HY_OK;
}

hy_status hy_store_settle(hy_store *store) {
    HY_TRY(hy_ring_settle(store));
    return store->stages ? hy_stages_settle(store) : HY_OK;
}

void hy_store_forget(hy_store *store) {
    for (int32_t i = 0; i < store->slot_count; i++) {
        if (store->slots[i].unit >= 0) hy_ring_drop(store, store->slots[i].unit);
    }
}

void hy_store_abandon(hy_store *store) {
    store->held = 0;
    for (int32_t i = 0; i < store->slot_count; i++) {
        hy_ring_slot *slot = &store->slots[i];
        slot->holders = 0;
        slot->is_new = false;
        if (slot->unit >= 0 && !slot->is_dirty) hy_ring_drop(store, slot->unit);
    }
    for (int32_t u = 0; store->units && u < store->layout.unit_count; u++) {
        store->units[u].brought_to = -1;
    }
}

/* ---- addresses ------------------------------------------------------------------------------- */

void *hy_store_device(const hy_store *store, int32_t item) {
    assert(!store->layout.part_begin); /* tensors may be cut */
    if (is_on_device(store)) return hy_store_backing(store, item);
    const hy_layout_item *entry = &store->layout.items[item];
    const hy_ring_slot *slot = hy_ring_slot_of(store, entry->unit);
    assert(slot && (slot->kind == HY_BUFFER_OWN || slot->holders > 0));
    return slot->data + entry->offset;
}

char *hy_store_unit(const hy_store *store, int32_t unit) {
    assert(!store->outside);
    if (is_on_device(store)) return hy_ring_backing_of(store, unit);
    const hy_ring_slot *slot = hy_ring_slot_of(store, unit);
    assert(slot && (slot->kind == HY_BUFFER_OWN || slot->holders > 0));
    return slot->data;
}

void *hy_store_backing(const hy_store *store, int32_t item) {
    if (store->outside) return store->outside[item];
    assert(!store->layout.part_begin);
    const hy_layout_item *entry = &store->layout.items[item];
    return hy_ring_backing_of(store, entry->unit) + entry->offset;
}

void *hy_store_host(const hy_store *store, int32_t item) {
    int32_t unit = store->layout.items[item].unit;
    bool is_on_disk = store->stages && !hy_ring_owns(store, unit);
    bool is_whole = !is_on_disk && !store->layout.part_begin;
    return is_whole && hy_store_is_host(store, unit) ? hy_store_backing(store, item) : NULL;
}

hy_tensor hy_store_tensor(const hy_store *store, int32_t item, void *at) {
    const hy_layout_item *entry = &store->layout.items[item];
    hy_tensor tensor = hy_tensor_1d(at, entry->dtype, entry->count);
    if (!entry->block) return tensor;
    tensor.quant.block = entry->block;
    tensor.quant.group = entry->group;
    tensor.quant.scale = (float *)(void *)((char *)at + hy_layout_scales_at(entry));
    return tensor;
}
