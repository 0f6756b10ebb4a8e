/* store.h: a class of per-unit tensors and the protocol by which compute reaches them.
 *
 * Whoever computes with a unit says so in three calls: gather (begin to bring it to the device, ahead
 * of need), get (from here on the stream may use it), release (the stream's use ends here). A store
 * whose home is the device answers at once. A store at home elsewhere passes its units through a ring
 * of device buffers on a copy stream of its own, with events; a unit that was changed is copied home
 * when it is released. The calls are the same whatever the place, and so are the results. */
#ifndef HY_MEMORY_STORE_H
#define HY_MEMORY_STORE_H

#include "memory/arena.h"
#include "memory/layout.h"

#define HY_RING_MAX 8

/* One buffer of the ring. */
typedef struct hy_ring_slot {
    char *data;
    int32_t unit;      /* whose bytes it holds, -1: none */
    int32_t holders;   /* gets not yet released */
    uint64_t used_at;  /* when it was last asked for: the oldest is taken next */
    int32_t returning; /* unit whose changes went home from here last; -1: none */
    hy_event *is_here; /* the copy from home is done */
    hy_event *is_free; /* compute is done with it */
    hy_event *is_home; /* the copy home is done */
} hy_ring_slot;

/* The two ways between home and device: they run beside each other and beside compute. */
typedef struct hy_copies {
    hy_stream *up, *down;
} hy_copies;

/* Makes the bytes of a unit at `data` by enqueueing ops on the stream. */
typedef hy_status (*hy_store_maker)(void *context, hy_stream *stream, int32_t unit, char *data);

typedef struct hy_store {
    hy_class cls;
    hy_place place; /* home; HY_NOWHERE when units are made on demand */
    hy_layout layout;
    char *data; /* the class, whole, at home */
    hy_backend *backend;
    hy_copies copies; /* NULL streams when home is the device */
    hy_ring_slot ring[HY_RING_MAX];
    int32_t ring_depth;
    hy_store_maker maker; /* NULL unless units are made on demand */
    void *maker_context;
    uint64_t clock;
    uint64_t bytes_moved; /* both ways, since the start */
    int32_t held;         /* units got and not released: misuse of the protocol is an assert */
} hy_store;

/* Lays the class out and takes its bytes from the arena, which lies on the device. */
hy_status hy_store_init(hy_store *store, hy_arena *arena, hy_class cls, const hy_layout *layout);

/* At home in `home` (pinned or host), with `depth` ring buffers (2 .. HY_RING_MAX) of the largest unit's
 * size from `device`. The copy streams belong to the caller; several stores may share them. */
hy_status hy_store_init_streamed(hy_store *store, hy_arena *home, hy_arena *device, hy_class cls,
                                 const hy_layout *layout, int32_t depth, const hy_copies *copies);

/* At home nowhere: get makes a unit in the ring, on the stream that asked, and nothing is written back.
 * So weights can be tried that exist only while a pass goes over them. */
hy_status hy_store_init_made(hy_store *store, hy_arena *device, hy_class cls,
                             const hy_layout *layout, int32_t depth, hy_store_maker maker,
                             void *context);

uint64_t hy_store_ring_bytes(const hy_layout *layout, int32_t depth);

void hy_store_fini(
    hy_store *store); /* the bytes go with their arenas; waits for copies in flight */

hy_status hy_store_gather(hy_store *store, int32_t unit);
hy_status hy_store_get(hy_store *store, hy_stream *stream, int32_t unit);
hy_status hy_store_release(hy_store *store, hy_stream *stream, int32_t unit);
/* Release of a unit that the stream has changed. */
hy_status hy_store_release_changed(hy_store *store, hy_stream *stream, int32_t unit);

/* Waits until everything that was changed is home. */
hy_status hy_store_settle(hy_store *store);
/* What the ring holds is no longer true: home, or what units are made of, was changed by others. */
void hy_store_forget(hy_store *store);

/* Where tensor `item` is for the device, between get and release of its unit. */
void *hy_store_device(const hy_store *store, int32_t item);
/* Where it is at home, between steps. */
void *hy_store_home(const hy_store *store, int32_t item);

/* The whole tensor at one of these two addresses, in one dimension; with its scales where it has. */
hy_tensor hy_store_tensor(const hy_store *store, int32_t item, void *at);

#endif
