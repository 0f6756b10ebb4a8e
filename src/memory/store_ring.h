/* store_ring.h: the device buffers of a store, inside the store's own files only.
 *
 * Which buffer a unit may take follows from the layout alone, so what a ring needs is known before it is
 * made. See store_ring.c for the rules and store.c for the order of events. */
#pragma once

#include "memory/store.h"

/* Takes buffers and events. On failure the store's owner calls hy_ring_fini. */
hy_status hy_ring_init(hy_store *store, hy_arena *device, int32_t depth, int32_t resident);
void hy_ring_fini(hy_store *store);

/* Whether the unit lives in a buffer of the ring. */
static inline bool hy_ring_owns(const hy_store *store, int32_t unit) {
    return store->units && store->units[unit].kind == HY_BUFFER_OWN;
}
/* Where the unit lives: of one that is not on disk. */
char *hy_ring_backing_of(const hy_store *store, int32_t unit);

/* The buffer that holds the unit, or NULL. */
hy_ring_slot *hy_ring_slot_of(const hy_store *store, int32_t unit);
/* The buffer it may take: of its kind, not held, asked for longest ago. NULL: all are held. */
hy_ring_slot *hy_ring_choose(hy_store *store, int32_t unit);
/* From here on the buffer is the unit's. */
void hy_ring_assign(hy_store *store, hy_ring_slot *slot, int32_t unit);
/* What it holds of the unit is no longer true; a resident unit lives there, so it always is. */
void hy_ring_drop(hy_store *store, int32_t unit);
void hy_ring_touch(hy_store *store, hy_ring_slot *slot);

/* Brings all changes to pinned memory and waits for them. */
hy_status hy_ring_settle(hy_store *store);
