/* disk_engine.h: what the files behind disk.h share: the file, the queue and the two engines.
 *
 * disk.c keeps transfers and hands them out as requests of one chunk; an engine (disk_uring.c or
 * disk_threads.c) takes a request, makes the system call it describes, reports the result, makes the
 * next call where the first fell short, and ends the request. What a result means, retries and
 * injected faults are decided in disk.c alone. Everything marked "locked" is called and read
 * under s->lock. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "memory/disk.h"

/* ---- the file (disk_file.c) ------------------------------------------------------------------ */

typedef struct hy_spill_file {
    int fd;
    char *folder;
    char name[64];    /* inside the folder, still to be removed; "": it has none */
    uint64_t bytes;   /* a multiple of the block */
    bool is_direct;   /* O_DIRECT is set */
    bool is_reserved; /* its blocks are taken: no transfer can find the disk full */
} hy_spill_file;

/* On failure nothing is left behind and there is nothing to close. */
hy_status hy_spill_file_open(hy_spill_file *file, const char *folder, uint64_t bytes,
                             unsigned lacks);
hy_status hy_spill_file_grow(hy_spill_file *file, uint64_t bytes);
void hy_spill_file_close(hy_spill_file *file);
/* Through the page cache: brings a chunk to the disk where it was written, and drops it from
 * memory, which the plan has given to others. 0 or an errno. */
int hy_spill_file_drop(const hy_spill_file *file, bool is_write, uint64_t offset, uint64_t bytes);

/* Memory on block borders, for O_DIRECT; free() it. NULL when there is none. */
void *hy_spill_alloc(uint64_t bytes);

/* ---- requests -------------------------------------------------------------------------------- */

/* A chunk of a transfer on its way. Belongs to the engine's thread from take to end. */
typedef struct hy_spill_request {
    uint32_t transfer;
    bool is_write;
    bool is_tail;          /* less than a block: goes through `bounce` */
    uint64_t offset;       /* of the chunk in the file */
    char *data;            /* of the chunk in the caller's buffer */
    uint64_t bytes, moved; /* moved: whole blocks, or all */
    char *bounce;          /* one block, the request's own */
    int error;             /* why it failed, 0: it did not */
    int idle_tries;        /* calls that moved nothing, in a row */
    int doomed;            /* errno that the present call is to fail with, 0: none */
    uint64_t most;         /* that the present call may say to have moved */
} hy_spill_request;

/* The system call to make. */
typedef struct hy_spill_call {
    void *data;
    uint64_t bytes, offset;
} hy_spill_call;

/* Locked. Fills `r` (keeping its bounce) with the next chunk; false: there is none now. */
bool hy_spill_take(hy_spill *s, hy_spill_request *r);
hy_spill_call hy_spill_next_call(hy_spill *s, hy_spill_request *r);
/* `result`: bytes moved, or an errno below zero. True when the request is to be ended. */
bool hy_spill_accept(hy_spill *s, hy_spill_request *r, int64_t result);
/* Locked. */
void hy_spill_end(hy_spill *s, const hy_spill_request *r);

/* ---- engines --------------------------------------------------------------------------------- */

typedef struct hy_spill_engine {
    const char *name;
    /* Fails with a message that says why this path cannot be used. */
    hy_status (*start)(hy_spill *s, void **state);
    void (*stop)(void *state); /* nothing is in flight */
    void (*wake)(void *state); /* locked: there is something to take */
} hy_spill_engine;

extern const hy_spill_engine hy_spill_uring, hy_spill_threads;

#define HY_SPILL_THREADS_MAX 8 /* more gain nothing at chunks of megabytes */

/* Starts a thread that leaves all signals to others. 0 or an errno. */
int hy_spill_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *context);

/* ---- the whole ------------------------------------------------------------------------------- */

#define HY_SPILL_NONE UINT32_MAX

typedef struct hy_spill_transfer {
    hy_spill_ticket ticket; /* of its newest use */
    bool is_write, is_busy;
    bool is_reported; /* its failure, to someone who waited */
    char *data;
    uint64_t offset, bytes, handed; /* handed: given out as requests */
    uint32_t open;                  /* requests not ended */
    int error;                      /* the first one, 0: none */
    uint64_t error_offset, error_bytes;
    uint32_t next; /* in the one list it is in */
} hy_spill_transfer;

typedef struct hy_spill_list {
    uint32_t first, last;
} hy_spill_list;

struct hy_spill {
    hy_spill_file file;
    hy_spill_options options; /* defaults filled in */
    const hy_spill_engine *engine;
    void *engine_state;
    char description[512];
    atomic_llong requests; /* calls made, for faults and statistics */

    pthread_mutex_t lock;
    pthread_cond_t is_done; /* a transfer is done: for those who wait for it, or for room */
    bool is_stopping;
    hy_spill_transfer *transfers;
    hy_spill_list unused;     /* first in, first out: an old failure is remembered long */
    hy_spill_list waiting[2]; /* by is_write: transfers with chunks still to hand out */
    int turn;                 /* which of the two is asked first */
    uint64_t serial;          /* transfers begun */
    int32_t busy;             /* transfers in flight */
    int32_t untold;           /* failed transfers that nobody has waited for */
    hy_spill_stats stats;
};
