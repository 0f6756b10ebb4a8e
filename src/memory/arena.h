/* arena.h: one block of memory in one place, allocated once and used as a stack.
 *
 * An arena is allocated from the backend before step 0 and never grows. Blocks are pushed and
 * popped in order. Each belongs to a class, and the ledger records when it becomes live and when it
 * is released. In debug builds (HY_POISON), released device memory is filled with a pattern that
 * reads as NaN, so a use after release shows. */
#pragma once

#include "kernels/kernels.h"
#include "memory/ledger.h"

typedef struct hy_arena {
    hy_backend *backend;
    hy_ledger *ledger; /* NULL: the owner of the arena records its blocks */
    hy_place place;
    char *data;
    uint64_t size, used;
} hy_arena;

/* Allocates `size` bytes; an error message says what the arena is for. */
hy_status hy_arena_init(hy_arena *arena, hy_backend *backend, hy_ledger *ledger, hy_place place,
                        uint64_t size, const char *purpose);
void hy_arena_fini(hy_arena *arena);

/* Pushes a block, aligned to 256 bytes. Not enough room is an internal error: the plan was
 * wrong. */
hy_status hy_arena_push(hy_arena *arena, hy_class cls, uint64_t bytes, void **out);
/* Releases the newest block; `bytes` and `cls` are those of the push. */
void hy_arena_pop(hy_arena *arena, hy_class cls, uint64_t bytes);
