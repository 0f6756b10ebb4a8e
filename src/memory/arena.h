/* arena.h: one block of memory in one place, taken once and cut by a stack.
 *
 * An arena is taken from the backend before step 0 and never grows. Blocks are pushed and popped in
 * order; each belongs to a class, and the ledger sees it become live and released. In debug builds
 * (HY_POISON) released device memory is filled with a pattern that turns into NaN, so that a use
 * after release shows. */
#pragma once

#include "kernels/kernels.h"
#include "memory/ledger.h"

typedef struct hy_arena {
    hy_backend *backend;
    hy_ledger *ledger; /* NULL: blocks are booked by who has taken the arena */
    hy_place place;
    char *data;
    uint64_t size, used;
    uint64_t held[HY_CLASS_COUNT]; /* of used, by class */
    bool is_idle;                  /* what it holds does not count as live now */
} hy_arena;

/* Takes `size` bytes; the message of a failure gives what the arena is for. */
hy_status hy_arena_init(hy_arena *arena, hy_backend *backend, hy_ledger *ledger, hy_place place,
                        uint64_t size, const char *purpose);
/* An arena of any size without memory, for dry runs: stores in it can be walked over, and nothing
 * that they hold can be used. */
void hy_arena_init_dry(hy_arena *arena);
/* Gives the memory back, and ends the booking of what is still in it. */
void hy_arena_fini(hy_arena *arena);
void hy_arena_clear(hy_arena *arena); /* releases all blocks; the memory stays */
/* What it holds counts as live, or no longer: for memory that a phase does without. */
void hy_arena_set_live(hy_arena *arena, bool is_live);
/* Bytes that it has taken there. */
static inline uint64_t hy_arena_reserved(const hy_arena *arena, hy_place place) {
    return arena->data && arena->place == place ? arena->size : 0;
}

/* A block of the arena, on a 256-byte border. Not enough room is an internal error: the plan was
 * wrong. */
hy_status hy_arena_push(hy_arena *arena, hy_class cls, uint64_t bytes, void **out);
/* Releases the newest block; `bytes` and `cls` as pushed. */
void hy_arena_pop(hy_arena *arena, hy_class cls, uint64_t bytes);
