/* pool.h: who has which blocks of the cache.
 *
 * A sequence takes all blocks that it may ever need before its first token, so it never waits for
 * one later. Blocks are counted by reference: the answers of one request share the full blocks of
 * their prompt, and full chunks of prompts (hy_chunk_length) are *kept* for later prompts that
 * begin alike. A kept chunk is given up when its blocks are needed, the least recently used first.
 *
 * With states (linear attention) keys and values are not enough to begin after a chunk: it takes a
 * snapshot of the state at its end. Snapshots are few. The last chunk that was kept of a prompt
 * always has one. If none is free, it takes the snapshot of the chunk before it. Two chunks keep
 * theirs: a prompt's first, and one at which another prompt has begun. Then the least recently used
 * snapshot is taken.
 *
 * A sequence that is longer than the blocks it has in a kind with a window uses them in turn, so a
 * block does not stay what it was. Such a sequence shares no block of that kind, and its chunks are
 * neither kept nor taken from those that are.
 *
 * Only the thread that schedules uses a pool. It knows numbers of blocks; their memory belongs to
 * the decoder. */
#pragma once

#include "model/batch_decode.h"

typedef struct hy_pool hy_pool;

/* The blocks of a sequence: of each kind, as hy_batch_decoder_seat takes them. */
typedef struct hy_blocks {
    int32_t *ids[HY_CACHE_KINDS], counts[HY_CACHE_KINDS];
} hy_blocks;

/* What is asked for: a prompt, and the positions that prompt and answer use together. */
typedef struct hy_claim {
    const int32_t *prompt;
    int32_t prompt_count, positions;
    bool is_whole; /* no kept chunk is used: all of the prompt will be computed */
} hy_claim;

#define HY_NO_STATE (-1)

/* Where a sequence begins: so many tokens of the prompt are in its blocks already, and this state
 * is that after them. */
typedef struct hy_start {
    int32_t position;
    int32_t state; /* HY_NO_STATE: nothing is to be copied */
} hy_start;

/* A pool has at least the blocks of one sequence, so an empty one has room for any. chunk: tokens
 * of the longest. */
hy_status hy_pool_create(const hy_cache_kind *kinds, int32_t count, const hy_states *states,
                         int32_t chunk, hy_pool **out);
void hy_pool_destroy(hy_pool *pool); /* NULL is allowed */

/* Takes the blocks of a sequence. At least one token of the prompt is left after *start, whose
 * state has to be copied before the next call of hy_pool_keep. *is_taken false: there are too few
 * free blocks now, and nothing has changed except that kept chunks may be gone. */
hy_status hy_pool_take(hy_pool *pool, const hy_claim *claim, hy_blocks *out, hy_start *start,
                       bool *is_taken);
/* As above, for another answer to the prompt of `of`: shares the prompt's full blocks. */
hy_status hy_pool_share(hy_pool *pool, const hy_claim *claim, const hy_blocks *of, hy_blocks *out,
                        bool *is_taken);
/* Gives the blocks back; accepts all zeros. */
void hy_pool_give(hy_pool *pool, hy_blocks *blocks);

/* Does block i of a kind hold a part of the prompt, without being shared by the two sequences? */
bool hy_pool_needs_copy(const hy_blocks *from, const hy_blocks *to, int32_t kind, int32_t i,
                        int32_t prompt_count);

/* The prompt's chunk that begins at position `first` is in these blocks and full: it is kept.
 * Chunks come in order. *state: where the state at its end has to be copied to now; HY_NO_STATE:
 * nowhere. */
hy_status hy_pool_keep(hy_pool *pool, const hy_claim *claim, int32_t first, const hy_blocks *blocks,
                       int32_t *state);
/* Gives up all kept chunks that no sequence uses. */
void hy_pool_forget(hy_pool *pool);
/* Positions in blocks that sequences have. */
int64_t hy_pool_used(const hy_pool *pool);
