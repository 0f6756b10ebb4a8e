/* store.h: a class of per-unit tensors and the protocol by which compute reaches them.
 *
 * Whoever computes with a unit says so in three calls: gather (begin to bring it to the device, ahead of
 * need), get (from here on the stream may use it), release (the stream's use ends here). The backing
 * store is where units live. Where that is the device, the calls answer at once. Where it is elsewhere,
 * units pass through a ring of device buffers on copy streams, with events; a unit that was changed is
 * written back when it is released. Of these, resident units have a device buffer of their own for ever:
 * they live there and take no room in the backing store. The calls are the same whatever the place, and
 * so are the results; a unit without bytes takes no buffer. All users of a store compute on one stream. */
#pragma once

#include "memory/arena.h"
#include "memory/disk.h"
#include "memory/layout.h"

#define HY_RING_MAX 8

/* Which buffer a unit may take. */
typedef enum hy_buffer_kind {
    HY_BUFFER_ORDINARY, /* any of the ring's */
    HY_BUFFER_LARGE,    /* the one that all large units share */
    HY_BUFFER_SMALL,    /* one of those for small units, where the layout wants them apart */
    HY_BUFFER_OWN       /* its own, for ever: a resident unit */
} hy_buffer_kind;

/* One device buffer that units pass through. */
typedef struct hy_ring_slot {
    char *data;
    hy_buffer_kind kind;
    int32_t unit;      /* whose bytes it holds, -1: none */
    int32_t holders;   /* gets not yet released */
    int32_t leaving;   /* unit whose changes were written back from here last, -1: none */
    bool is_new;       /* got without its bytes: it has to be released as changed */
    bool is_dirty;     /* changed, and its way back has not begun */
    uint64_t brought;  /* bytes of the unit whose copies are enqueued */
    uint64_t used_at;  /* when it was last asked for: the oldest is taken next */
    hy_event *is_here; /* the copy from the backing store is done */
    hy_event *is_free; /* compute is done with it */
} hy_ring_slot;

/* What the ring knows of a unit. */
typedef struct hy_ring_unit {
    hy_buffer_kind kind;
    uint64_t backing_at; /* where it begins in the backing store; resident: it has no room there */
    int32_t brought_to;  /* slot of a copy up that compute has not waited for yet, -1: none */
    int32_t slot;        /* that holds it, -1: none; resident: its own */
    bool is_returning;   /* changes are being written back, and the way up has not waited for it */
    hy_event *is_written_back; /* they are there */
} hy_ring_unit;

/* The two ways between backing store and device: they run beside each other and beside compute. */
typedef struct hy_copies {
    hy_stream *up, *down;
} hy_copies;

/* How the units of a store backed elsewhere pass through the device. */
typedef struct hy_ring_options {
    int32_t depth;    /* ordinary buffers, 2 .. HY_RING_MAX; store.c says which is enough */
    int32_t resident; /* this many ordinary units stay on the device */
    hy_copies copies; /* belong to the caller; several stores may share them */
} hy_ring_options;

/* Where a class lives on disk, and the pinned buffers that it passes through. */
typedef struct hy_disk_backing {
    hy_spill *spill;   /* belongs to the caller; several stores may share it */
    uint64_t offset;   /* where the class begins in its file: a multiple of HY_SPILL_BLOCK */
    hy_arena *staging; /* pinned: hy_store_staging_bytes are taken from it */
    int32_t buffers; /* 2 at least: units that can be on their way at a time, both ways together */
} hy_disk_backing;

/* What a ring takes from the device, and its units from the backing store: exactly. */
typedef struct hy_ring_plan {
    int32_t resident;        /* units that stay: no more than there are to choose from */
    uint64_t buffer_bytes;   /* of one ordinary buffer: the largest ordinary unit that travels */
    uint64_t large_bytes;    /* of the buffer that large units share; 0: there are none */
    int32_t small_count;     /* buffers for small units, */
    uint64_t small_bytes;    /* of each */
    uint64_t resident_bytes; /* of all resident units */
    uint64_t bytes;          /* of the ring, all together */
    uint64_t backing_bytes;  /* of units that travel */
    uint64_t disk_bytes;     /* the same in a file, which has borders of its own */
} hy_ring_plan;

typedef struct hy_stages hy_stages; /* store_disk.c */

typedef struct hy_store {
    hy_class cls;
    hy_place place; /* of the backing store; HY_NOWHERE: units are made in the ring */
    hy_layout layout;
    char *data;        /* the backing store; NULL on disk */
    char **outside;    /* (layout.item_count) where each tensor is, if it is in others' memory */
    hy_stages *stages; /* on disk: the way there */
    hy_backend *backend;
    hy_copies copies;    /* NULL streams when backed by the device, or by nothing */
    hy_ring_slot *slots; /* ordinary ones, the large one, small ones, those of resident units */
    int32_t slot_count;
    hy_ring_unit *units; /* (layout.unit_count) */
    int32_t ring_depth;  /* 0 when backed by the device */
    hy_ring_plan ring;
    uint64_t clock;
    uint64_t bytes_up, bytes_down, bytes_moved; /* since the start; moved is the sum */
    int32_t held; /* units got and not released: misuse of the protocol is an assert */
} hy_store;

/* Lays the class out and takes its bytes from the arena, which lies on the device. */
hy_status hy_store_init(hy_store *store, hy_arena *arena, hy_class cls, const hy_layout *layout);

/* Backed by memory of others, which the device reads and writes: a place for each tensor of the layout
 * (hy_store_place_outside), none at first. Nothing is taken, and units are not contiguous: they are not opened,
 * and read and written without what lies between their tensors. */
hy_status hy_store_init_outside(hy_store *store, hy_backend *backend, hy_class cls,
                                const hy_layout *layout);
static inline void hy_store_place_outside(hy_store *store, int32_t item, void *at) {
    store->outside[item] = at;
}

/* Backed by the arena `backing` (pinned or host), with the ring's buffers from `device`. Resident units
 * begin with what their buffers hold: whoever gets one first has written it. */
hy_status hy_store_init_ring(hy_store *store, hy_arena *backing, hy_arena *device, hy_class cls,
                             const hy_layout *layout, const hy_ring_options *ring);
/* The same without resident units. */
hy_status hy_store_init_streamed(hy_store *store, hy_arena *backing, hy_arena *device, hy_class cls,
                                 const hy_layout *layout, int32_t depth, const hy_copies *copies);

/* Backed by the disk: a unit is read ahead when it is gathered, and written once its changes have left
 * the device. get waits on the host for the disk. A read or write that fails is reported by the next
 * calls, with the folder: the run has to end. What was never written of units that travel is zero. Bytes on
 * disk are in no arena: whoever made the file counts them. */
hy_status hy_store_init_disk(hy_store *store, const hy_disk_backing *backing, hy_arena *device,
                             hy_class cls, const hy_layout *layout, const hy_ring_options *ring);
uint64_t hy_store_staging_bytes(const hy_ring_plan *ring, int32_t buffers);

/* Backed by nothing: the caller makes a unit in the ring (get_new, ops, release_changed) before it gets it,
 * and nothing is written back. So weights can be tried that exist only while a pass goes over them. */
hy_status hy_store_init_made(hy_store *store, hy_arena *device, hy_class cls,
                             const hy_layout *layout, int32_t depth);
/* Whether it is in the ring already. It then counts as used now: the next units take other buffers. */
bool hy_store_touch(hy_store *store, int32_t unit);
/* As above, without marking it recently used. */
static inline bool hy_store_holds(const hy_store *store, int32_t unit) {
    return store->units[unit].slot >= 0;
}

/* What each of these takes. */
hy_ring_plan hy_store_plan_ring(const hy_layout *layout, int32_t depth, int32_t resident);
uint64_t hy_store_ring_bytes(const hy_layout *layout, int32_t depth); /* none resident */
/* Which buffer each unit takes there. */
void hy_store_ring_kinds(const hy_layout *layout, int32_t resident, hy_buffer_kind *out);

/* The bytes go with their arenas, those of resident units with the ring's; what was changed is written back
 * first, and copies in flight end. */
void hy_store_fini(hy_store *store);

/* Begins to bring a unit, in the order asked for: up is one queue for all stores that share it. */
hy_status hy_store_gather(hy_store *store, int32_t unit);
/* The same for a large unit, a chunk with each call, so that the units of a walk are not held up: called
 * along the way, it is here in time. Get brings what is missing. Other units are brought whole. */
hy_status hy_store_gather_chunk(hy_store *store, int32_t unit);
hy_status hy_store_get(hy_store *store, hy_stream *stream, int32_t unit);
/* Get of a unit that is only read and released unchanged: get also waits for a write-back that is still
 * going on, because the unit may be changed again; this one does not. */
hy_status hy_store_get_read(hy_store *store, hy_stream *stream, int32_t unit);
/* Get of a unit that the caller will overwrite, all of it: its bytes are not brought. It has to be
 * released as changed. */
hy_status hy_store_get_new(hy_store *store, hy_stream *stream, int32_t unit);
hy_status hy_store_release(hy_store *store, hy_stream *stream, int32_t unit);
/* Release of a unit that the stream has changed. */
hy_status hy_store_release_changed(hy_store *store, hy_stream *stream, int32_t unit);

/* Whether the unit takes no buffer away from ordinary ones, so that it may be gathered long before it is
 * needed: large, small and resident units where these have buffers of their own, and all units of a store on the
 * device. */
bool hy_store_has_own_buffer(const hy_store *store, int32_t unit);

/* Waits until everything that was changed is written back. */
hy_status hy_store_settle(hy_store *store);
/* What the ring holds of units that travel is no longer true: the backing store, or what units are made of,
 * was changed by others. */
void hy_store_forget(hy_store *store);
/* A walk broke off and all streams are idle: nobody holds a unit any more. Released changes are kept;
 * units that were held count as unchanged. settle then writes back what was on its way. */
void hy_store_abandon(hy_store *store);
/* ---- the backing store, for the host between steps: nobody holds a unit, compute is idle ---- */

/* The bytes of a unit, one unit of a store at a time; is_new: all will be overwritten, so they need not be
 * brought. They can be touched where hy_store_is_host, else (a card's, where the class or a resident unit
 * lives there) reached by the backend's copy. What was changed in a class on disk is written by and by;
 * settle waits for it. */
hy_status hy_store_open_unit(hy_store *store, int32_t unit, bool is_new, char **bytes);
void hy_store_close_unit(hy_store *store, int32_t unit, bool is_changed);
bool hy_store_is_host(const hy_store *store, int32_t unit);

/* Bytes [offset, offset + bytes) of the class, as its layout has them, to and from host memory. The stream
 * is for copies from a card; it is idle again afterwards. Where the layout is cut, offsets are those of the whole class:
 * of what is written this rank keeps what falls into its parts, and what is read has to lie there. */
hy_status hy_store_read(hy_store *store, hy_stream *stream, uint64_t offset, void *out,
                        uint64_t bytes);
hy_status hy_store_write(hy_store *store, hy_stream *stream, uint64_t offset, const void *in,
                         uint64_t bytes);
/* Elements [first, first + count) of a parameter whose tensor is `item`: those that this class has, which of several
 * ranks may be some of them or none. Not for codes. */
hy_status hy_store_put(hy_store *store, hy_stream *stream, int32_t item, int64_t first,
                       int64_t count, const void *in);
uint64_t hy_store_offset(const hy_store *store, int32_t item); /* of an item in its class */
/* Of so many bytes there, the first piece that is here; where the layout is not cut all of them. False: none are. */
bool hy_store_clip(const hy_store *store, uint64_t *offset, uint64_t *bytes);
bool hy_store_has_item(const hy_store *store, int32_t item); /* whether any byte of it is here */
/* What lives on the device is zeroed by ops on the stream: enqueued, not waited for. */
hy_status hy_store_zero(hy_store *store, hy_stream *stream);
/* All of a class from another of the same size: their layouts may cut it differently. */
hy_status hy_store_copy(hy_store *to, hy_store *from, hy_stream *stream);
/* A unit of a class on the device, to or from other memory: enqueued, not waited for. */
hy_status hy_store_copy_unit(hy_store *store, hy_stream *stream, int32_t unit, char *other,
                             bool is_out);
/* Its resident units only, from a store that has the same ones and shares its backing store. */
hy_status hy_store_copy_resident(hy_store *to, const hy_store *from, hy_stream *stream);

/* ---- addresses ---- */

/* Which tensor of the class belongs to a parameter; -1: the class does not hold it. */
static inline int32_t hy_store_item_of(const hy_store *store, int32_t param) {
    return hy_layout_item_of(&store->layout, param);
}

/* Where tensor `item` is for the device, between get and release of its unit. */
void *hy_store_device(const hy_store *store, int32_t item);
/* Where a unit is for the device, between get and release. */
char *hy_store_unit(const hy_store *store, int32_t unit);
/* Where it lives, between steps: of a unit that is not on disk. */
void *hy_store_backing(const hy_store *store, int32_t item);
/* The same where the host can touch it; NULL: on a card, on disk, or cut. */
void *hy_store_host(const hy_store *store, int32_t item);

/* The whole tensor at one of these two addresses, in one dimension; with its scales where it has. */
hy_tensor hy_store_tensor(const hy_store *store, int32_t item, void *at);
