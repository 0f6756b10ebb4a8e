/* disk.h: the disk tier's file, for bytes that fit neither the device nor host memory.
 *
 * One file per run in the offload folder, of a size given at creation and reserved there and
 * then, without a name where the file system allows it: a killed process leaves nothing behind.
 * Transfers are asynchronous, through io_uring or, where that is forbidden, a few threads; past
 * the page cache (O_DIRECT) where the file system takes it. All memory is taken by open; nothing
 * is allocated for a transfer. Every function may be called from any thread; a ticket drawn in
 * one may be waited for in another. The counted system calls of checkpoints and reports are
 * another thing: base/disk.h. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_SPILL_BLOCK 4096u /* offsets and buffers are multiples of this */

typedef struct hy_spill hy_spill;

/* Names one transfer. 0 names none: it is always done. */
typedef uint64_t hy_spill_ticket;

typedef enum hy_spill_path {
    HY_SPILL_AUTO = 0, /* io_uring where it works and O_DIRECT too, else threads */
    HY_SPILL_URING = 1,
    HY_SPILL_THREADS = 2
} hy_spill_path;

/* What a system may lack; tests take it away. */
enum {
    HY_SPILL_LACKS_NAMELESS = 1, /* files without a name */
    HY_SPILL_LACKS_DIRECT = 2,   /* O_DIRECT */
    HY_SPILL_LACKS_RESERVE = 4   /* reserving space for a file */
};

/* Faults for tests. Requests (system calls or ring entries) are counted from 1, retries too. */
typedef struct hy_spill_fault {
    int64_t at;           /* this request fails; 0: none does */
    int error;            /* with this errno; EINTR and EAGAIN are tried again */
    bool is_lasting;      /* and all after it */
    int64_t short_every;  /* each n-th request says to have moved half of its bytes; 0: none */
    uint64_t short_bytes; /* or this many, when not 0 */
    unsigned lacks;
} hy_spill_fault;

typedef struct hy_spill_options {
    hy_spill_path path;
    int32_t depth;        /* requests in flight, 1 .. 1024; 0: 32. Threads: at most 8 of them */
    uint64_t chunk_bytes; /* a transfer is cut into requests of this size; 0: 4 MiB */
    int32_t transfers;    /* transfers in flight, 1 .. 65536; 0: 1024 */
    hy_spill_fault fault;
} hy_spill_options;

typedef struct hy_spill_stats {
    uint64_t bytes_read, bytes_written; /* of transfers, padding not counted */
    uint64_t requests;                  /* system calls or ring entries */
} hy_spill_stats;

/* Creates and reserves a file of `bytes`. options may be NULL. A folder that is missing or
 * forbidden, or a path that was asked for and does not work here, is HY_ERR_INPUT; a disk without
 * room is HY_ERR_IO and the message says how much is needed and how much is free. */
hy_status hy_spill_open(const char *folder, uint64_t bytes, const hy_spill_options *options,
                        hy_spill **out);

/* Makes the file larger, between transfers; failures as above, and it stays as it was. */
hy_status hy_spill_grow(hy_spill *s, uint64_t bytes);

/* Waits for everything in flight, removes the file and frees. Returns the first failure that nobody
 * has waited for. s may be NULL. */
hy_status hy_spill_close(hy_spill *s);

/* Which path is used and why, in one line; lives as long as s. */
const char *hy_spill_describe(const hy_spill *s);
hy_spill_path hy_spill_path_used(const hy_spill *s); /* never HY_SPILL_AUTO */
bool hy_spill_is_direct(const hy_spill *s);          /* past the page cache */

/* What a block of `bytes` occupies: it begins on a HY_SPILL_BLOCK and is padded to the next. */
uint64_t hy_spill_room(uint64_t bytes);

/* Begin to move `bytes` between `buffer` and the file at `offset`. Offset and buffer are
 * multiples of HY_SPILL_BLOCK; bytes need not be. Exactly `bytes` of the buffer are read or
 * changed; in the file a write fills the last block with zeros, so nothing else may lie in it.
 * The buffer belongs to the transfer until it is done.
 *
 * There is no order between transfers. Who reads what was written, or writes what is being read,
 * waits for the first before beginning the second. Reads of what was never written give zeros.
 *
 * When all transfers are taken, the call waits until one is done. */
hy_status hy_spill_read(hy_spill *s, uint64_t offset, uint64_t bytes, void *buffer,
                        hy_spill_ticket *ticket);
hy_status hy_spill_write(hy_spill *s, uint64_t offset, uint64_t bytes, const void *buffer,
                         hy_spill_ticket *ticket);

/* Waits until the transfer is done, in whole or failed. A failure names the folder, the place in
 * the file and the system's reason; after it a read has left the buffer, a write the file, in
 * part as it was. It may be asked for repeatedly and by several threads: after it was reported once, a
 * failure is remembered until its place is needed again, as the last of those that are free. A
 * ticket of a transfer that went well never expires. */
hy_status hy_spill_wait(hy_spill *s, hy_spill_ticket ticket);
bool hy_spill_is_done(hy_spill *s, hy_spill_ticket ticket); /* wait would return at once */

/* Waits until nothing is in flight; failures stay with their tickets. */
void hy_spill_settle(hy_spill *s);

void hy_spill_get_stats(hy_spill *s, hy_spill_stats *out);

/* Bytes per second of this folder, by writing and reading a file of 64 MiB for a third of a
 * second, on a slow disk a little longer; nothing stays. The first pass, which finds the blocks
 * never written, is not counted: a run writes the same ones again and again. */
hy_status hy_spill_measure(const char *folder, double *read_rate, double *write_rate);
