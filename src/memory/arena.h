/* arena.h: one block of memory in one place, allocated once and divided into parts.
 *
 * An arena is allocated from the backend between steps and never grows. Blocks are pushed one after
 * another and released together. Each belongs to a class, and the ledger records when it becomes
 * live and when it is released. In debug builds (HY_POISON), released device memory is filled with
 * a pattern that reads as NaN, so a use after release shows. */
#pragma once

#include "kernels/kernels.h"
#include "memory/ledger.h"

typedef struct hy_arena {
    hy_backend *backend;
    hy_ledger *ledger; /* NULL: the owner of the arena records its blocks */
    hy_place place;
    char *data;
    uint64_t size, used;
    uint64_t held[HY_CLASS_COUNT]; /* bytes in use, by class */
    bool is_idle;                  /* its content does not count as live now */
} hy_arena;

/* Allocates `size` bytes; an error message says what the arena is for. */
hy_status hy_arena_init(hy_arena *arena, hy_backend *backend, hy_ledger *ledger, hy_place place,
                        uint64_t size, const char *purpose);
/* An arena of any size without memory, for dry runs: code can walk over stores in it, but nothing
 * in them can be read or written. */
void hy_arena_init_dry(hy_arena *arena);
/* Frees the memory; blocks that are still in it no longer count as live. */
void hy_arena_fini(hy_arena *arena);
void hy_arena_clear(hy_arena *arena); /* releases all blocks; the memory stays */
/* Whether its content counts as live; false for memory that the current phase does not use. */
void hy_arena_set_live(hy_arena *arena, bool is_live);
/* Bytes that it has allocated in `place`. */
static inline uint64_t hy_arena_reserved(const hy_arena *arena, hy_place place) {
    return arena->data && arena->place == place ? arena->size : 0;
}

/* Pushes a block, aligned to 256 bytes. Not enough room is an internal error: the plan was
 * wrong. */
hy_status hy_arena_push(hy_arena *arena, hy_class cls, uint64_t bytes, void **out);
