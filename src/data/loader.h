/* loader.h: micro-batches read ahead by a thread of their own.
 *
 * A loader hands out training micro-batches in order from a starting sequence number. Its thread
 * fills a small ring ahead of need; all memory is taken at creation. The trainer keeps the cursor:
 * a batch says which sequences it holds. */
#pragma once

#include "data/dataset.h"
#include "kernels/kernels.h"

typedef struct hy_loader hy_loader;

typedef struct hy_batch {
    const int32_t *tokens;     /* (B,T) */
    const int32_t *targets;    /* (B,T), -1: does not count */
    const int32_t *doc_starts; /* (B,T): where each token's document begins; NULL: one each */
    uint64_t first;            /* number of its first sequence; it holds first .. first + B - 1 */
    int64_t counted;           /* targets that count */
} hy_batch;

/* depth: batches read ahead, at least 1. Bytes taken: hy_loader_bytes(). With a backend (NULL: without)
 * they are its pinned memory, so that copies to its device run beside everything else. */
hy_status hy_loader_create(const hy_dataset *data, int32_t batch, int32_t depth, uint64_t first,
                           hy_backend *backend, hy_loader **out);
/* One of several ranks: of the batches of a step it has the rank-th `run`, the others have the rest. */
typedef struct hy_loader_share {
    int32_t rank, count;
    int32_t run; /* batches of a step */
} hy_loader_share;
hy_status hy_loader_create_share(const hy_dataset *data, int32_t batch, int32_t depth,
                                 uint64_t first, const hy_loader_share *share, hy_backend *backend,
                                 hy_loader **out);
void hy_loader_destroy(hy_loader *loader);
size_t hy_loader_bytes(const hy_loader *loader);
/* Waits for the batch that is `ahead` (0 .. depth - 1) after the oldest and shows it without taking
 * it; HY_ERR_IO where its data could not be read. Needed to know how many targets count in a whole accumulated step before its first backward
 * pass. */
hy_status hy_loader_peek(hy_loader *loader, int32_t ahead, hy_batch *out);
/* Gives back the oldest batch, looked at or not; pointers from its peek are invalid after this. */
void hy_loader_pop(hy_loader *loader);
/* Number of the sequence that comes next; of several ranks, of the first one of the step. */
uint64_t hy_loader_cursor(const hy_loader *loader);
double hy_loader_waited(const hy_loader *loader); /* seconds the caller waited for data so far */
