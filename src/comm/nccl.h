/* nccl.h: moving device memory between ranks with NCCL, which is opened at run time.
 *
 * The same primitive as a link has (link.h), but on a CUDA stream: an exchange is enqueued, and
 * what follows on the stream finds the transfers moved. Looked for: HYBRID_NCCL (a path),
 * libnccl.so.2, libnccl.so; 2.14 or newer, because calls must not block: a rank that waits for a
 * dead one has to be freed. When the control channel learns of a failure its thread aborts NCCL,
 * which ends kernels that wait for the others, so that whoever waits for the stream goes on; the
 * next call here then names the rank. */
#pragma once

#include "comm/link.h"

typedef struct hy_nccl hy_nccl;

typedef struct hy_nccl_library {
    char version[16]; /* "2.21.5" */
    char path[256];   /* the file that was opened; its end where it is longer */
} hy_nccl_library;

/* Whether NCCL is here, and new enough: HY_ERR_DEVICE says what is missing. Nothing is begun. `out`
 * may be NULL. */
hy_status hy_nccl_look(hy_nccl_library *out);

/* All ranks call it, with their CUDA device set in the calling thread; no two ranks may have the
 * same device. HY_ERR_DEVICE where NCCL is missing, too old or not alike on all ranks. */
hy_status hy_nccl_open(hy_control *control, hy_nccl **out);
/* Waits for nothing where something failed. Work on streams must be over. NULL is fine. */
void hy_nccl_close(hy_nccl *nccl);

/* Enqueues a group of sends and receives on `stream`, a cudaStream_t. Returns when it is enqueued,
 * which may wait for peers the first time that two ranks talk. */
hy_status hy_nccl_exchange(hy_nccl *nccl, const hy_transfer *sends, int32_t send_count,
                           const hy_transfer *receives, int32_t receive_count, void *stream);
/* Whether what was enqueued has failed so far; for who waits for the stream. A failure aborts. */
hy_status hy_nccl_check(hy_nccl *nccl);

/* "2.21.5" */
const char *hy_nccl_version(const hy_nccl *nccl);
uint64_t hy_nccl_bytes_sent(const hy_nccl *nccl); /* to other ranks */
uint64_t hy_nccl_bytes_received(const hy_nccl *nccl);
