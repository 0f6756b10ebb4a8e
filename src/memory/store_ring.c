/* store_ring.c: how many device buffers a store needs, their sizes, and which unit uses which.
 *
 * An embedding or a head can be more than twice the size of a block. If every buffer were that
 * large, a ring would waste half of its memory. So units that are clearly larger than the others
 * share one large buffer: a walk over the units has one at each end and never holds both. Small
 * units use ordinary buffers. If the units that the ring still holds when the walk turns are worth
 * more (layout.h: has_small), small units have small buffers, as many as there are small units or
 * ordinary buffers.
 *
 * Resident units live in their buffers; the backing store has space only for the others, one after
 * another. Residents are spread evenly over the blocks. A pass visits all blocks forward and
 * backward, so each resident block saves the same traffic, except the few at the turning points,
 * which the ring still holds. Spread out, each gives the copies of its neighbours the time that its
 * own copy would have taken. All in one place, they would leave the copy streams idle there and
 * make compute wait elsewhere. A layout may fix some units: those stay, or never do, whatever
 * their size. */
#include "memory/store_ring.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

/* Clearly larger or smaller means: by a quarter. */
static bool is_above(uint64_t bytes, uint64_t middle) { return bytes * 4 > middle * 5; }
static bool is_below(uint64_t bytes, uint64_t middle) { return bytes * 5 < middle * 4; }
static bool is_small(uint64_t bytes, uint64_t middle) { return bytes > 0 && bytes * 4 <= middle; }

/* The lower median of the sizes of units that are not empty. */
static uint64_t middle_size(const hy_layout *layout) {
    const uint64_t *size = layout->unit_bytes;
    int32_t count = 0;
    for (int32_t u = 0; u < layout->unit_count; u++) count += size[u] > 0;
    for (int32_t u = 0; u < layout->unit_count; u++) {
        int32_t less = 0, equal = 0;
        for (int32_t o = 0; o < layout->unit_count; o++) {
            less += size[o] > 0 && size[o] < size[u];
            equal += size[o] == size[u];
        }
        if (size[u] > 0 && less <= (count - 1) / 2 && less + equal > (count - 1) / 2) {
            return size[u];
        }
    }
    return 0;
}

/* Neighbours are on the device at the same time, so they cannot share a buffer: if two large units
 * are adjacent, none counts as large. */
static bool has_large_neighbours(const hy_layout *layout, uint64_t middle) {
    for (int32_t u = 1; u < layout->unit_count; u++) {
        if (is_above(layout->unit_bytes[u - 1], middle) && is_above(layout->unit_bytes[u], middle))
            return true;
    }
    return false;
}

/* The rules above for one layout, unit by unit in ascending order. */
typedef struct sorter {
    const hy_layout *layout;
    uint64_t middle;
    bool has_large;
    int64_t resident, candidates; /* how many are resident, of how many candidates */
    int64_t seen;                 /* candidates so far */
    bool is_all;                  /* all open units of a layout that fixes others are resident */
} sorter;

static hy_unit_fixed fixed(const hy_layout *layout, int32_t unit) {
    return layout->fixed ? (hy_unit_fixed)layout->fixed[unit] : HY_UNIT_OPEN;
}

static bool could_stay(const sorter *s, int32_t unit) {
    uint64_t bytes = s->layout->unit_bytes[unit];
    bool is_usual = bytes > 0 && !is_above(bytes, s->middle) && !is_below(bytes, s->middle);
    return is_usual && fixed(s->layout, unit) == HY_UNIT_OPEN;
}

static sorter begin_sorting(const hy_layout *layout, int32_t resident) {
    sorter s = {.layout = layout, .is_all = layout->fixed && resident >= layout->unit_count};
    /* Sizes need not be compared. */
    if ((layout->is_even || layout->keeps_first) && resident == 0) return s;
    s.middle = middle_size(layout);
    s.has_large = !layout->is_even && !has_large_neighbours(layout, s.middle);
    for (int32_t u = 0; u < layout->unit_count; u++) s.candidates += could_stay(&s, u);
    s.resident = resident < s.candidates ? resident : s.candidates;
    return s;
}

/* A candidate is resident if the even share of residents passes the next half at it. */
static bool stays(sorter *s) {
    assert(s->candidates > 0); /* this unit is one */
    int64_t half = s->candidates / 2;
    int64_t before = (s->seen * s->resident + half) / s->candidates;
    s->seen++;
    return (s->seen * s->resident + half) / s->candidates > before;
}

static hy_buffer_kind next_kind(sorter *s, int32_t unit) {
    hy_unit_fixed as = fixed(s->layout, unit);
    bool is_own = as == HY_UNIT_STAYS || (s->is_all && as == HY_UNIT_OPEN);
    if (is_own && s->layout->unit_bytes[unit] > 0) return HY_BUFFER_OWN;
    if (s->layout->keeps_first) return unit == 0 ? HY_BUFFER_LARGE : HY_BUFFER_ORDINARY;
    if (could_stay(s, unit)) return stays(s) ? HY_BUFFER_OWN : HY_BUFFER_ORDINARY;
    uint64_t bytes = s->layout->unit_bytes[unit];
    if (s->has_large && is_above(bytes, s->middle)) return HY_BUFFER_LARGE;
    return s->layout->has_small && is_small(bytes, s->middle) ? HY_BUFFER_SMALL
                                                              : HY_BUFFER_ORDINARY;
}

hy_ring_plan hy_store_plan_ring(const hy_layout *layout, int32_t depth, int32_t resident) {
    sorter s = begin_sorting(layout, resident);
    hy_ring_plan plan = {.resident = s.is_all ? layout->unit_count : (int32_t)s.resident};
    for (int32_t u = 0; u < layout->unit_count; u++) {
        uint64_t bytes = layout->unit_bytes[u];
        hy_buffer_kind kind = next_kind(&s, u);
        uint64_t *largest = kind == HY_BUFFER_LARGE   ? &plan.large_bytes
                            : kind == HY_BUFFER_SMALL ? &plan.small_bytes
                                                      : &plan.buffer_bytes;
        if (kind == HY_BUFFER_OWN) {
            plan.resident_bytes += bytes;
            plan.own++;
            continue;
        }
        if (kind == HY_BUFFER_SMALL && plan.small_count < depth) plan.small_count++;
        if (kind == HY_BUFFER_ORDINARY && bytes > 0 && plan.buffers < depth) plan.buffers++;
        plan.backing_bytes += bytes;
        plan.disk_bytes += hy_spill_room(bytes);
        if (bytes > *largest) *largest = bytes;
    }
    if (!layout->fixed) plan.buffers = depth;
    plan.bytes = (uint64_t)plan.buffers * plan.buffer_bytes + plan.large_bytes +
                 (uint64_t)plan.small_count * plan.small_bytes + plan.resident_bytes;
    return plan;
}

uint64_t hy_store_ring_bytes(const hy_layout *layout, int32_t depth) {
    return hy_store_plan_ring(layout, depth, 0).bytes;
}

/* ---- taking buffers -------------------------------------------------------------------------- */

static hy_status add_slot(hy_store *store, hy_arena *device, hy_buffer_kind kind, uint64_t bytes) {
    hy_backend *b = store->backend;
    hy_ring_slot *slot = &store->slots[store->slot_count];
    void *data;
    HY_TRY(hy_arena_push(device, store->cls, bytes, &data));
    *slot = (hy_ring_slot){.data = data, .kind = kind, .unit = -1, .leaving = -1};
    store->slot_count++;
    if (kind == HY_BUFFER_OWN) return HY_OK; /* it is never copied */
    HY_TRY(b->event_create(b, &slot->is_here));
    return b->event_create(b, &slot->is_free);
}

/* A unit that is not resident is at `at` in the backing store, and the next one follows it. */
static hy_status set_up_unit(hy_store *store, hy_arena *device, int32_t unit, hy_buffer_kind kind,
                             uint64_t *at) {
    hy_backend *b = store->backend;
    hy_ring_unit *known = &store->units[unit];
    uint64_t bytes = store->layout.unit_bytes[unit];
    *known = (hy_ring_unit){.kind = kind, .backing_at = *at, .brought_to = -1, .slot = -1};
    if (kind == HY_BUFFER_OWN) {
        HY_TRY(add_slot(store, device, kind, bytes));
        known->slot = store->slot_count - 1;
        store->slots[known->slot].unit = unit;
        return HY_OK;
    }
    *at += store->place == HY_DISK ? hy_spill_room(bytes) : bytes;
    return b->event_create(b, &known->is_written_back);
}

hy_status hy_ring_init(hy_store *store, hy_arena *device, int32_t depth, int32_t resident) {
    assert(depth >= 2 && depth <= HY_RING_MAX);
    const hy_layout *layout = &store->layout;
    hy_ring_plan plan = hy_store_plan_ring(layout, depth, resident);
    sorter s = begin_sorting(layout, resident);
    uint64_t at = 0;
    store->ring_depth = depth;
    store->ring = plan;
    store->slots = calloc((size_t)(depth + 1 + plan.small_count + plan.own), sizeof *store->slots);
    store->units = calloc((size_t)layout->unit_count, sizeof *store->units);
    if (!store->slots || !store->units) {
        return hy_fail(HY_ERR_MEMORY, "not enough memory for the ring of %s",
                       hy_class_name(store->cls));
    }
    for (int32_t i = 0; i < plan.buffers; i++) {
        HY_TRY(add_slot(store, device, HY_BUFFER_ORDINARY, plan.buffer_bytes));
    }
    if (plan.large_bytes) HY_TRY(add_slot(store, device, HY_BUFFER_LARGE, plan.large_bytes));
    for (int32_t i = 0; i < plan.small_count; i++) {
        HY_TRY(add_slot(store, device, HY_BUFFER_SMALL, plan.small_bytes));
    }
    for (int32_t u = 0; u < layout->unit_count; u++) {
        HY_TRY(set_up_unit(store, device, u, next_kind(&s, u), &at));
    }
    return HY_OK;
}

static void drop_event(const hy_store *store, hy_event *event) {
    if (event) store->backend->event_destroy(event);
}

void hy_ring_fini(hy_store *store) {
    for (int32_t i = 0; i < store->slot_count; i++) {
        drop_event(store, store->slots[i].is_here);
        drop_event(store, store->slots[i].is_free);
    }
    for (int32_t u = 0; store->units && u < store->layout.unit_count; u++) {
        drop_event(store, store->units[u].is_written_back);
    }
    free(store->slots);
    free(store->units);
    store->slots = NULL;
    store->units = NULL;
    store->slot_count = 0;
}

/* ---- choosing a buffer ----------------------------------------------------------------------- */

char *hy_ring_backing_of(const hy_store *store, int32_t unit) {
    if (!store->units) return store->data + store->layout.unit_offset[unit];
    const hy_ring_unit *known = &store->units[unit];
    assert(hy_ring_owns(store, unit) || !store->stages);
    return hy_ring_owns(store, unit) ? store->slots[known->slot].data
                                     : store->data + known->backing_at;
}

hy_ring_slot *hy_ring_slot_of(const hy_store *store, int32_t unit) {
    int32_t slot = store->units[unit].slot;
    return slot < 0 ? NULL : &store->slots[slot];
}

hy_ring_slot *hy_ring_choose(hy_store *store, int32_t unit) {
    const hy_ring_unit *wanted = &store->units[unit];
    hy_ring_slot *oldest = NULL;
    assert(wanted->kind != HY_BUFFER_OWN); /* a resident unit has its buffer */
    for (int32_t i = 0; i < store->slot_count; i++) {
        hy_ring_slot *slot = &store->slots[i];
        if (slot->kind != wanted->kind || slot->holders > 0) continue;
        if (!oldest || slot->used_at < oldest->used_at) oldest = slot;
    }
    return oldest;
}

void hy_ring_assign(hy_store *store, hy_ring_slot *slot, int32_t unit) {
    if (slot->unit >= 0) store->units[slot->unit].slot = -1;
    slot->unit = unit;
    slot->leaving = -1;
    slot->brought = 0;
    store->units[unit].slot = (int32_t)(slot - store->slots);
}

void hy_ring_drop(hy_store *store, int32_t unit) {
    hy_ring_slot *slot = store->units ? hy_ring_slot_of(store, unit) : NULL;
    if (!slot || slot->kind == HY_BUFFER_OWN) return;
    assert(slot->holders == 0);
    store->units[unit].slot = -1;
    slot->unit = -1;
    slot->is_dirty = false;
}

void hy_ring_touch(hy_store *store, hy_ring_slot *slot) { slot->used_at = ++store->clock; }
