/* nccl.h: moves device memory between ranks with NCCL, which is opened at run time.
 *
 * It has the same primitive as a link (link.h), but on a CUDA stream: an exchange is enqueued,
 * and later work on the stream sees its result. The library is searched at HYBRID_NCCL (a path),
 * libnccl.so.2, libnccl.so; 2.14 or newer, because calls must not block: a rank that waits for a
 * dead one must be released. When the control channel reports a failure, its thread aborts NCCL.
 * This ends the waiting kernels, so the stream continues, and the next call here names the
 * failed rank. */
#pragma once

#include "comm/link.h"

typedef struct hy_nccl hy_nccl;

typedef struct hy_nccl_library {
    char version[16]; /* "2.21.5" */
    char path[256];   /* the opened file; only the end of a long path */
} hy_nccl_library;

/* Is NCCL installed and new enough? HY_ERR_DEVICE says what is missing. Nothing is started.
 * `out` may be NULL. */
hy_status hy_nccl_look(hy_nccl_library *out);

/* All ranks call it, with their CUDA device set in the calling thread; no two ranks may use the
 * same device. A control channel has one NCCL at a time. HY_ERR_DEVICE: NCCL is missing, too old or
 * different on some ranks. */
hy_status hy_nccl_open(hy_control *control, hy_nccl **out);
/* Does not wait after a failure. Work on streams must be finished. NULL is allowed. */
void hy_nccl_close(hy_nccl *nccl);

/* Enqueues a group of sends and receives on `stream`, a cudaStream_t. Returns when it is
 * enqueued; the first exchange of two ranks may wait for the peer. */
hy_status hy_nccl_exchange(hy_nccl *nccl, const hy_transfer *sends, int32_t send_count,
                           const hy_transfer *receives, int32_t receive_count, void *stream);
/* Has enqueued work failed so far? For code that waits for the stream. A failure aborts. */
hy_status hy_nccl_check(hy_nccl *nccl);

/* "2.21.5" */
const char *hy_nccl_version(const hy_nccl *nccl);
uint64_t hy_nccl_bytes_sent(const hy_nccl *nccl); /* to other ranks */
uint64_t hy_nccl_bytes_received(const hy_nccl *nccl);
