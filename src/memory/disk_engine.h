/* disk_engine.h: shared by the files behind disk.h: the file, the queue and the two engines.
 *
 * disk.c keeps transfers and issues them as requests of one chunk. An engine (disk_uring.c or
 * disk_threads.c) takes a request, makes its system call and reports the result. If the call moved
 * too little, the engine makes the next call; then it ends the request. Only disk.c interprets
 * results, retries and injects faults. Functions and members marked "locked" are used with s->lock
 * held. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "memory/disk.h"

/* ---- the file (disk_file.c) ------------------------------------------------------------------ */

typedef struct hy_spill_file {
    int fd;
    char *folder;
    char name[64];    /* in the folder, not yet removed; "": no name */
    uint64_t bytes;   /* a multiple of the block size */
    bool is_direct;   /* O_DIRECT is set */
    bool is_reserved; /* its blocks are allocated: no transfer can find the disk full */
} hy_spill_file;

/* On failure nothing is left behind and nothing needs closing. */
hy_status hy_spill_file_open(hy_spill_file *file, const char *folder, uint64_t bytes,
                             unsigned lacks);
hy_status hy_spill_file_grow(hy_spill_file *file, uint64_t bytes);
void hy_spill_file_close(hy_spill_file *file);
/* With the page cache: writes a written chunk to the disk and drops it from memory, because the
 * plan uses that memory for other things. Returns 0 or an errno. */
int hy_spill_file_drop(const hy_spill_file *file, bool is_write, uint64_t offset, uint64_t bytes);

/* Memory aligned to blocks, for O_DIRECT; free it with free(). NULL: not enough memory. */
void *hy_spill_alloc(uint64_t bytes);

/* ---- requests -------------------------------------------------------------------------------- */

/* A chunk of a transfer in flight. The engine's thread owns it from take to end. */
typedef struct hy_spill_request {
    uint32_t transfer;
    bool is_write;
    bool is_tail;          /* less than a block: uses `bounce` */
    uint64_t offset;       /* position of the chunk in the file */
    char *data;            /* the chunk in the caller's buffer */
    uint64_t bytes, moved; /* moved: whole blocks, or all bytes */
    char *bounce;          /* one block, owned by the request */
    int error;             /* why it failed; 0: it did not */
    int idle_tries;        /* calls in a row that moved nothing */
    int doomed;            /* injected errno of the current call; 0: none */
    uint64_t most;         /* most bytes that the current call may report */
} hy_spill_request;

/* A system call to make. */
typedef struct hy_spill_call {
    void *data;
    uint64_t bytes, offset;
} hy_spill_call;

/* Locked. Fills `r` (keeping its bounce) with the next chunk; false: there is none now. */
bool hy_spill_take(hy_spill *s, hy_spill_request *r);
hy_spill_call hy_spill_next_call(hy_spill *s, hy_spill_request *r);
/* `result`: bytes moved, or a negative errno. True if the request must be ended. */
bool hy_spill_accept(hy_spill *s, hy_spill_request *r, int64_t result);
/* Locked. */
void hy_spill_end(hy_spill *s, const hy_spill_request *r);

/* ---- engines --------------------------------------------------------------------------------- */

typedef struct hy_spill_engine {
    const char *name;
    /* On failure, the message says why this engine cannot be used. */
    hy_status (*start)(hy_spill *s, void **state);
    void (*stop)(void *state); /* nothing is in flight */
    void (*wake)(void *state); /* locked: there is work to take */
} hy_spill_engine;

extern const hy_spill_engine hy_spill_uring, hy_spill_threads;

#define HY_SPILL_THREADS_MAX 8 /* with chunks of megabytes, more threads gain nothing */

/* ---- the disk tier --------------------------------------------------------------------------- */

#define HY_SPILL_NONE UINT32_MAX

typedef struct hy_spill_transfer {
    hy_spill_ticket ticket; /* of its latest use */
    bool is_write, is_busy;
    bool is_reported; /* its failure was reported to a caller */
    char *data;
    uint64_t offset, bytes, handed; /* handed: bytes issued as requests */
    uint32_t open;                  /* requests that have not ended */
    int error;                      /* of the first failure; 0: none */
    uint64_t error_offset, error_bytes;
    uint32_t next; /* in the list that contains it */
} hy_spill_transfer;

typedef struct hy_spill_list {
    uint32_t first, last;
} hy_spill_list;

struct hy_spill {
    hy_spill_file file;
    hy_spill_options options; /* with defaults filled in */
    const hy_spill_engine *engine;
    void *engine_state;
    char description[512];
    atomic_llong requests; /* system calls made, for faults and statistics */

    pthread_mutex_t lock;
    pthread_cond_t is_done; /* a transfer is done: signals callers that wait for it or for a slot */
    bool is_stopping;
    hy_spill_transfer *transfers;
    hy_spill_list unused;     /* first in, first out, so an old failure is remembered for long */
    hy_spill_list waiting[2]; /* by is_write: transfers with chunks still to issue */
    int turn;                 /* which of the two is tried first */
    uint64_t serial;          /* number of transfers begun */
    int32_t busy;             /* transfers in flight */
    int32_t untold;           /* failed transfers that nobody has waited for */
    hy_spill_stats stats;
};
