/* loader.h: a thread that reads micro-batches ahead.
 *
 * A loader returns training micro-batches in order from a starting sequence number. Its thread
 * fills a small ring ahead of need; all memory is allocated at creation. The trainer keeps the
 * cursor: a batch says which sequences it holds. */
#pragma once

#include "data/dataset.h"
#include "kernels/kernels.h"

typedef struct hy_loader hy_loader;

typedef struct hy_batch {
    const int32_t *tokens;  /* (B,T) */
    const int32_t *targets; /* (B,T), negative: does not count in the loss */
    /* (B,T): where each token's document begins; NULL: one document per sequence */
    const int32_t *doc_starts;
    const float *reference; /* (B,T): see data/pair_reference.h; NULL: it is not known */
    const struct hy_policy_token *policy; /* (B,T): of tasks with rewards; or NULL */
    uint64_t first;  /* number of its first sequence; it holds first .. first + B - 1 */
    int64_t counted; /* what its loss is a mean over: targets that count, or pairs of answers */
    int64_t targets_counted; /* number of targets that count */
} hy_batch;

/* Host memory of rewarded answers, at most one to a sequence, as batches (B of any size up to `most`,
 * so the last may have as many empty sequences): their arrays, and the losses of their tokens. */
enum { HY_POLICY_POSITION_BYTES = 4 * sizeof(int32_t) + 4 * sizeof(float) };
static inline uint64_t hy_policy_bytes(int64_t seq, int64_t most) {
    return 2 * (uint64_t)most * (uint64_t)seq * HY_POLICY_POSITION_BYTES;
}

/* With several ranks, each rank reads its own `run` batches of every step. */
typedef struct hy_loader_share {
    int32_t rank, count;
    int32_t run; /* batches of this rank in a step */
} hy_loader_share;

/* depth: batches read ahead, at least 1. share NULL: all sequences. hy_loader_bytes() is the memory
 * used. With a backend (NULL: without), this is pinned memory of the backend, so copies to its
 * device run asynchronously. */
hy_status hy_loader_create(const hy_dataset *data, int32_t batch, int32_t depth, uint64_t first,
                           const hy_loader_share *share, hy_backend *backend, hy_loader **out);
void hy_loader_destroy(hy_loader *loader);
size_t hy_loader_bytes(const hy_loader *loader);
/* Waits for the batch that is `ahead` (0 .. depth - 1) after the oldest, and returns it without
 * removing it. HY_ERR_IO: its data could not be read. The trainer uses it to count the targets of a
 * whole accumulated step before the first backward pass. */
hy_status hy_loader_peek(hy_loader *loader, int32_t ahead, hy_batch *out);
/* Whether peek would return at once; waits for `seconds` at most. */
bool hy_loader_is_ready(hy_loader *loader, int32_t ahead, double seconds);
/* Releases the oldest batch; pointers from its peek are invalid after this. */
void hy_loader_pop(hy_loader *loader);
/* Number of the next sequence; with several ranks, of the first sequence of the step. */
uint64_t hy_loader_cursor(const hy_loader *loader);
double hy_loader_waited(const hy_loader *loader); /* seconds the caller has waited for data */
