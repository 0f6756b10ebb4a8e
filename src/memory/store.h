/* store.h: a class of per-unit tensors, and the protocol for using them.
 *
 * Code that computes with a unit makes three calls: prefetch (begin to copy it to the device, ahead
 * of need), get (from now on the stream may use it), release (the stream's use ends here). The
 * backing store is where units are kept. If that is the device, the calls return at once. Otherwise
 * units pass through a ring of device buffers on copy streams, with events, and a changed unit is
 * written back when it is released. Each resident unit has a permanent device buffer and
 * takes no space in the backing store. The calls and the results are the same for every place; a
 * unit without bytes takes no buffer. All users of a store compute on one stream. */
#pragma once

#include "memory/arena.h"
#include "memory/disk.h"
#include "memory/layout.h"

#define HY_RING_MAX 8

/* The buffer that a unit may use. */
typedef enum hy_buffer_kind {
    HY_BUFFER_ORDINARY, /* any of the ring */
    HY_BUFFER_LARGE,    /* the one that all large units share */
    HY_BUFFER_SMALL,    /* one of those for small units, if the layout separates them */
    HY_BUFFER_OWN       /* its own, permanently: a resident unit */
} hy_buffer_kind;

/* A device buffer that units pass through. */
typedef struct hy_ring_slot {
    char *data;
    hy_buffer_kind kind;
    int32_t unit;      /* the unit it holds; -1: none */
    int32_t holders;   /* gets that are not released yet */
    int32_t leaving;   /* unit that was last written back from here; -1: none */
    bool is_new;       /* from get_new: must be released as changed */
    bool is_dirty;     /* changed, and the write-back has not begun */
    uint64_t brought;  /* bytes of the unit with enqueued copies */
    uint64_t used_at;  /* time of last use: the oldest is reused first */
    hy_event *is_here; /* the copy from the backing store is done */
    hy_event *is_free; /* compute is done with it */
} hy_ring_slot;

/* State of a unit in the ring. */
typedef struct hy_ring_unit {
    hy_buffer_kind kind;
    uint64_t backing_at;       /* offset in the backing store; resident units have none */
    int32_t brought_to;        /* slot of a copy up that compute has not waited for; -1: none */
    int32_t slot;              /* slot that holds it; -1: none; resident: its own */
    bool is_returning;         /* changes are being written back, and up has not waited for it */
    hy_event *is_written_back; /* the write-back is complete */
} hy_ring_unit;

/* The two streams between backing store and device; they run in parallel with each other and with
 * compute. */
typedef struct hy_copies {
    hy_stream *up, *down;
} hy_copies;

/* How the units of a store that is backed elsewhere pass through the device. */
typedef struct hy_ring_options {
    int32_t depth; /* ordinary buffers, 2 .. HY_RING_MAX; store.c says how many are enough */
    /* This many ordinary units stay on the device, beside those that the layout fixes; as many as
     * it has units: all that it leaves open, large and small ones, too. */
    int32_t resident;
    hy_copies copies; /* owned by the caller; several stores may share them */
} hy_ring_options;

/* Where a class is on disk, and the pinned buffers it passes through. */
typedef struct hy_disk_backing {
    hy_spill *spill;   /* owned by the caller; several stores may share it */
    uint64_t offset;   /* where the class begins in the file: a multiple of HY_SPILL_BLOCK */
    hy_arena *staging; /* pinned: provides hy_store_staging_bytes */
    int32_t buffers;   /* at least 2: units that can be in transfer at a time, both ways together */
} hy_disk_backing;

/* The exact bytes that a ring takes from the device, and its units from the backing store. */
typedef struct hy_ring_plan {
    int32_t resident; /* open units that are resident, limited by the number of candidates */
    int32_t own;      /* all resident units: these, and those that the layout fixes */
    int32_t
        buffers; /* ordinary ones: its depth, or if the layout fixes units, as many as need one */
    /* of one ordinary buffer: the largest ordinary unit that is not resident */
    uint64_t buffer_bytes;
    uint64_t large_bytes;    /* of the buffer that large units share; 0: there are none */
    int32_t small_count;     /* number of buffers for small units */
    uint64_t small_bytes;    /* of each of them */
    uint64_t resident_bytes; /* of all resident units */
    uint64_t bytes;          /* of the whole ring */
    uint64_t backing_bytes;  /* of units that are not resident */
    uint64_t disk_bytes;     /* as above, in a file, which has its own alignment */
} hy_ring_plan;

typedef struct hy_stages hy_stages; /* store_disk.c */

typedef struct hy_store {
    hy_class cls;
    hy_place place; /* of the backing store; HY_NOWHERE: units are computed in the ring */
    hy_layout layout;
    char *data;     /* the backing store; NULL on disk */
    char **outside; /* (layout.item_count) address of each tensor, if other code owns the memory */
    hy_stages *stages; /* on disk: staging buffers */
    hy_backend *backend;
    hy_copies copies;    /* NULL streams if backed by the device or by nothing */
    hy_ring_slot *slots; /* ordinary, large and small ones, then those of resident units */
    int32_t slot_count;
    hy_ring_unit *units; /* (layout.unit_count) */
    int32_t ring_depth;  /* 0 if backed by the device */
    hy_ring_plan ring;
    uint64_t clock;
    uint64_t bytes_up, bytes_down, bytes_moved; /* since the start; moved is the sum */
    int32_t held; /* units that were not released; misuse of the protocol is an assert */
} hy_store;

/* Lays out the class and takes its bytes from the arena, which is on the device. */
hy_status hy_store_init(hy_store *store, hy_arena *arena, hy_class cls, const hy_layout *layout);

/* Backed by memory of the caller that the device reads and writes: an address for each tensor of
 * the layout (hy_store_place_outside), none at first. It allocates nothing. Units are not
 * contiguous: they cannot be opened, and reading and writing skips the gaps between their
 * tensors. */
hy_status hy_store_init_outside(hy_store *store, hy_backend *backend, hy_class cls,
                                const hy_layout *layout);
static inline void hy_store_place_outside(hy_store *store, int32_t item, void *at) {
    store->outside[item] = at;
}

/* Backed by the arena `backing` (pinned or host), with the ring's buffers from `device`. Resident
 * units have no copy in `backing`, so they are undefined until written. */
hy_status hy_store_init_ring(hy_store *store, hy_arena *backing, hy_arena *device, hy_class cls,
                             const hy_layout *layout, const hy_ring_options *ring);
/* As above, without resident units. */
hy_status hy_store_init_streamed(hy_store *store, hy_arena *backing, hy_arena *device, hy_class cls,
                                 const hy_layout *layout, int32_t depth, const hy_copies *copies);

/* Backed by the disk: prefetch reads a unit ahead, and the unit is written after its changes have
 * left the device. get waits on the host for the disk. A failed read or write is reported by the
 * next calls, with the folder; then the run must end. Units that were never written read as zero,
 * except resident ones. No arena counts the bytes on disk; the creator of the file does. */
hy_status hy_store_init_disk(hy_store *store, const hy_disk_backing *backing, hy_arena *device,
                             hy_class cls, const hy_layout *layout, const hy_ring_options *ring);
uint64_t hy_store_staging_bytes(const hy_ring_plan *ring, int32_t buffers);

/* Backed by nothing: the caller computes a unit in the ring (get_new, ops, release_changed) before
 * it gets it, and nothing is written back. So a pass can try weights that exist only during that
 * pass. */
hy_status hy_store_init_made(hy_store *store, hy_arena *device, hy_class cls,
                             const hy_layout *layout, int32_t depth);
/* Whether the unit is in the ring. If so, marks it recently used: the next units take other
 * buffers. */
bool hy_store_touch(hy_store *store, int32_t unit);
/* As above, without marking it recently used. */
static inline bool hy_store_holds(const hy_store *store, int32_t unit) {
    return store->units[unit].slot >= 0;
}

/* The bytes of a ring, and of its units in the backing store. */
hy_ring_plan hy_store_plan_ring(const hy_layout *layout, int32_t depth, int32_t resident);
uint64_t hy_store_ring_bytes(const hy_layout *layout, int32_t depth); /* without resident units */

/* Writes changes back and waits for copies in flight. The arenas own the bytes; those of resident
 * units belong to the ring. */
void hy_store_fini(hy_store *store);

/* Begins to copy a unit to the device. Copies are done in the order of calls: up is one queue for
 * all stores that share it. */
hy_status hy_store_prefetch(hy_store *store, int32_t unit);
/* As above for a large unit, one chunk per call, so that the units of a walk are not delayed: call
 * it for the same large unit at each unit that the walk visits. Get copies what is missing. A unit
 * that is not large is copied whole. */
hy_status hy_store_prefetch_chunk(hy_store *store, int32_t unit);
hy_status hy_store_get(hy_store *store, hy_stream *stream, int32_t unit);
/* Is a buffer free for the unit, or does it have one? If not, get fails: its users hold too many
 * units of its size. */
bool hy_store_can_hold(hy_store *store, int32_t unit);
/* Get for a unit that is only read and then released unchanged. Unlike get, it does not wait for a
 * write-back in flight, because the unit is not changed again. */
hy_status hy_store_get_read(hy_store *store, hy_stream *stream, int32_t unit);
/* Get for a unit that the caller overwrites completely: its bytes are not copied. It must be
 * released as changed. */
hy_status hy_store_get_new(hy_store *store, hy_stream *stream, int32_t unit);
hy_status hy_store_release(hy_store *store, hy_stream *stream, int32_t unit);
/* Releases a unit that the stream has changed. */
hy_status hy_store_release_changed(hy_store *store, hy_stream *stream, int32_t unit);

/* Whether the unit is always on the device, at one address: resident, empty, or in a store there. */
bool hy_store_stays(const hy_store *store, int32_t unit);

/* Whether the unit takes no buffer from ordinary units, so that it may be prefetched long before it
 * is needed: large, small and resident units that have their own buffers, and all units of a store
 * on the device. */
bool hy_store_has_own_buffer(const hy_store *store, int32_t unit);

/* Waits until all changes are written back. */
hy_status hy_store_settle(hy_store *store);
/* Invalidates the ring's copies of units that are not resident, because the backing store, or the
 * source of computed units, was changed elsewhere. */
void hy_store_forget(hy_store *store);
/* After a walk was aborted and all streams are idle: nobody holds a unit any more. Released changes
 * are kept; units that were held count as unchanged. settle then writes back what was in flight. */
void hy_store_abandon(hy_store *store);
/* ---- the backing store, for the host between steps: nobody holds a unit, compute is idle ----- */

/* The bytes of a unit; one unit of a store at a time. is_new: all bytes will be overwritten, so
 * they need not be read. The host can access them if hy_store_is_host; otherwise (on a card) use
 * the backend's copy. Changes of a class on disk are written in the background; settle waits for
 * them. */
hy_status hy_store_open_unit(hy_store *store, int32_t unit, bool is_new, char **bytes);
void hy_store_close_unit(hy_store *store, int32_t unit, bool is_changed);
bool hy_store_is_host(const hy_store *store, int32_t unit);

/* Copies bytes [offset, offset + bytes) of the class, in layout order, to and from host memory. The
 * stream is for copies from a card; it is idle again afterwards. If the layout is cut, offsets are
 * those of the whole class: a write keeps only bytes of this rank's parts, and a read must be
 * within them. */
hy_status hy_store_read(hy_store *store, hy_stream *stream, uint64_t offset, void *out,
                        uint64_t bytes);
hy_status hy_store_write(hy_store *store, hy_stream *stream, uint64_t offset, const void *in,
                         uint64_t bytes);
/* Elements [first, first + count) of the parameter with tensor `item`: those that this class has,
 * which may be some or none of them with several ranks. Not for quantised tensors. */
hy_status hy_store_put(hy_store *store, hy_stream *stream, int32_t item, int64_t first,
                       int64_t count, const void *in);
uint64_t hy_store_offset(const hy_store *store, int32_t item); /* of an item in its class */
/* Clips a range to the first piece that this rank has; without a cut that is all of it. False: it
 * has none. */
bool hy_store_clip(const hy_store *store, uint64_t *offset, uint64_t *bytes);
/* Has this rank any byte of the tensor? */
bool hy_store_has_item(const hy_store *store, int32_t item);
/* On the device, ops on the stream write the zeros: enqueued, not waited for. */
hy_status hy_store_zero(hy_store *store, hy_stream *stream);
/* Copies a whole class from another of the same size; their layouts may cut it differently. */
hy_status hy_store_copy(hy_store *to, hy_store *from, hy_stream *stream);
/* Copies a unit of a class on the device to or from other memory: enqueued, not waited for. */
hy_status hy_store_copy_unit(hy_store *store, hy_stream *stream, int32_t unit, char *other,
                             bool is_out);
/* Copies only resident units, from a store with the same resident units and the same backing
 * store. */
hy_status hy_store_copy_resident(hy_store *to, const hy_store *from, hy_stream *stream);

/* ---- addresses ------------------------------------------------------------------------------- */

/* The tensor of a parameter in this class; -1: the class does not hold it. */
static inline int32_t hy_store_item_of(const hy_store *store, int32_t param) {
    return hy_layout_item_of(&store->layout, param);
}

/* The device address of tensor `item`, between get and release of its unit. */
void *hy_store_device(const hy_store *store, int32_t item);
/* The device address of a unit, between get and release. */
char *hy_store_unit(const hy_store *store, int32_t unit);
/* Where a tensor that is not on disk is kept between steps. */
void *hy_store_backing(const hy_store *store, int32_t item);
/* As above, if the host can access it; NULL: on a card, on disk, or cut. */
void *hy_store_host(const hy_store *store, int32_t item);

/* The whole tensor at one of these two addresses, one-dimensional, with its scales if it has
 * them. */
hy_tensor hy_store_tensor(const hy_store *store, int32_t item, void *at);
