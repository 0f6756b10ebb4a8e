/* disk.h: the file of the disk tier, for bytes that fit neither the device nor host memory.
 *
 * There is one file per run in the offload folder. Its size is set and reserved at creation. It has
 * no name if the file system allows that, so a killed process leaves nothing behind. Transfers are
 * asynchronous, with io_uring or, if that is forbidden, a few threads. They bypass the page cache
 * (O_DIRECT) if the file system supports it. All memory is allocated on opening, none for a
 * transfer. Every function may be called from any thread; a ticket from one thread may be waited
 * for in another. base/disk.h is something else: the counted system calls of checkpoints and
 * reports. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_SPILL_BLOCK 4096u /* offsets and buffers are multiples of this */

typedef struct hy_spill hy_spill;

/* Identifies a transfer. 0 identifies none: it is always done. */
typedef uint64_t hy_spill_ticket;

typedef enum hy_spill_path {
    HY_SPILL_AUTO = 0, /* io_uring if it works together with O_DIRECT, otherwise threads */
    HY_SPILL_URING = 1,
    HY_SPILL_THREADS = 2
} hy_spill_path;

/* Features that a system may lack; tests disable them. */
enum {
    HY_SPILL_LACKS_NAMELESS = 1, /* files without a name */
    HY_SPILL_LACKS_DIRECT = 2,   /* O_DIRECT */
    HY_SPILL_LACKS_RESERVE = 4   /* reserving space for a file */
};

/* Faults for tests. Requests (system calls or ring entries) are counted from 1, including
 * retries. */
typedef struct hy_spill_fault {
    int64_t at;           /* this request fails; 0: none */
    int error;            /* with this errno; EINTR and EAGAIN are retried */
    bool is_lasting;      /* later requests fail, too */
    int64_t short_every;  /* every n-th request reports half of its bytes; 0: none */
    uint64_t short_bytes; /* if not 0: reports this many bytes instead */
    unsigned lacks;
} hy_spill_fault;

typedef struct hy_spill_options {
    hy_spill_path path;
    int32_t depth;        /* requests in flight, 1 .. 1024; 0: 32. Threads: at most 8 */
    uint64_t chunk_bytes; /* size of the requests of a transfer; 0: 4 MiB */
    int32_t transfers;    /* transfers in flight, 1 .. 65536; 0: 1024 */
    hy_spill_fault fault;
} hy_spill_options;

typedef struct hy_spill_stats {
    uint64_t bytes_read, bytes_written; /* of transfers, without padding */
    uint64_t requests;                  /* system calls or ring entries */
} hy_spill_stats;

/* Creates and reserves a file of `bytes`. options may be NULL. HY_ERR_INPUT: the folder is missing
 * or forbidden, or the requested path does not work here. HY_ERR_IO: the disk has too little space;
 * the message says how much is needed and how much is free. */
hy_status hy_spill_open(const char *folder, uint64_t bytes, const hy_spill_options *options,
                        hy_spill **out);

/* Enlarges the file, while no transfer is in flight. If it fails (errors as above), the file is
 * unchanged. */
hy_status hy_spill_grow(hy_spill *s, uint64_t bytes);

/* Waits for everything in flight, removes the file and frees s. Returns the first failure that
 * nobody has waited for. s may be NULL. */
hy_status hy_spill_close(hy_spill *s);

/* The path that is used and why, in one line; valid as long as s. */
const char *hy_spill_describe(const hy_spill *s);
hy_spill_path hy_spill_path_used(const hy_spill *s); /* never HY_SPILL_AUTO */
bool hy_spill_is_direct(const hy_spill *s);          /* bypasses the page cache */

/* The space of a block of `bytes`: it begins at a multiple of HY_SPILL_BLOCK and is padded to the
 * next. */
uint64_t hy_spill_room(uint64_t bytes);

/* Begin to move `bytes` between `buffer` and the file at `offset`. Offset and buffer must be
 * multiples of HY_SPILL_BLOCK; bytes need not be. Exactly `bytes` of the buffer are read or
 * changed. A write fills the rest of the last block in the file with zeros, so nothing else may be
 * there. The transfer owns the buffer until it is done.
 *
 * Transfers have no order. To read what was written, or to overwrite what is being read, wait for
 * the first transfer before beginning the second. Parts of the file that were never written read as
 * zeros.
 *
 * If all transfers are in use, the call waits until one is done. */
hy_status hy_spill_read(hy_spill *s, uint64_t offset, uint64_t bytes, void *buffer,
                        hy_spill_ticket *ticket);
hy_status hy_spill_write(hy_spill *s, uint64_t offset, uint64_t bytes, const void *buffer,
                         hy_spill_ticket *ticket);

/* Waits until the transfer is done or has failed. The error names the folder, the position in the
 * file and the reason from the system; the buffer of a failed read, or the file of a failed write,
 * may be partly changed. Several threads may wait repeatedly: after the first report, a failure is
 * remembered until its slot is reused, and such slots are reused last. The ticket of a successful
 * transfer never expires. */
hy_status hy_spill_wait(hy_spill *s, hy_spill_ticket ticket);
bool hy_spill_is_done(hy_spill *s, hy_spill_ticket ticket); /* hy_spill_wait would return at once */

/* Waits until nothing is in flight; failures stay with their tickets. */
void hy_spill_settle(hy_spill *s);

void hy_spill_get_stats(hy_spill *s, hy_spill_stats *out);

/* Measures bytes per second of this folder by writing and reading a file of 64 MiB for a third of a
 * second, or a little longer on a slow disk; the file is removed. The first pass, over blocks never
 * written before, does not count, because a run overwrites the same blocks. */
hy_status hy_spill_measure(const char *folder, double *read_rate, double *write_rate);
