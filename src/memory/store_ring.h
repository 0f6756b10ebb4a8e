/* store_ring.h: the device buffers of a store; used only by the files of the store.
 *
 * The layout alone decides which buffer a unit may use, so the size of a ring is known before it is
 * created. See store_ring.c for the rules and store.c for the order of events. */
#pragma once

#include "memory/store.h"

/* Takes buffers and events. On failure the owner of the store calls hy_ring_fini. */
hy_status hy_ring_init(hy_store *store, hy_arena *device, int32_t depth, int32_t resident);
void hy_ring_fini(hy_store *store);

/* Whether the unit lives in a buffer of the ring. */
static inline bool hy_ring_owns(const hy_store *store, int32_t unit) {
    return store->units && store->units[unit].kind == HY_BUFFER_OWN;
}
/* Where a unit that is not on disk is kept. */
char *hy_ring_backing_of(const hy_store *store, int32_t unit);

/* The buffer that holds the unit, or NULL. */
hy_ring_slot *hy_ring_slot_of(const hy_store *store, int32_t unit);
/* A buffer the unit may use: of its kind, not held, least recently used. NULL: all are held. */
hy_ring_slot *hy_ring_choose(hy_store *store, int32_t unit);
/* From now on the buffer holds the unit. */
void hy_ring_assign(hy_store *store, hy_ring_slot *slot, int32_t unit);
/* Invalidates the copy of the unit, unless it is resident, because a resident unit lives there. */
void hy_ring_drop(hy_store *store, int32_t unit);
void hy_ring_touch(hy_store *store, hy_ring_slot *slot);

/* Writes all changes to pinned memory and waits for them. */
hy_status hy_ring_settle(hy_store *store);
