/* arena.c: a stack of blocks in one allocation. See arena.h. */
#include "memory/arena.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "memory/layout.h"
#include "memory/pinned.h"

hy_status hy_arena_init(hy_arena *arena, hy_backend *backend, hy_ledger *ledger, hy_place place,
                        uint64_t size, const char *purpose) {
    *arena = (hy_arena){.backend = backend, .ledger = ledger, .place = place, .size = size};
    if (size == 0) return HY_OK;
    void *data = NULL;
    hy_status status = place == HY_PINNED ? hy_pin_take(backend, size, &data)
                                          : backend->alloc(backend, place, size, &data);
    if (status != HY_OK) {
        ledger->refused = place;
        return hy_fail_context(status, "memory for %s", purpose);
    }
    arena->data = data;
    return HY_OK;
}

void hy_arena_fini(hy_arena *arena) {
    if (arena->data) {
        arena->backend->release(arena->backend, arena->place, arena->data, arena->size);
    }
    *arena = (hy_arena){0};
}

hy_status hy_arena_push(hy_arena *arena, hy_class cls, uint64_t bytes, void **out) {
    bytes = hy_align(bytes);
    HY_FAIL_IF(bytes > arena->size - arena->used, HY_ERR_INTERNAL,
               "the plan gave %s %llu bytes on %s; %llu are in use and %llu more were requested",
               hy_class_name(cls), (unsigned long long)arena->size, hy_place_name(arena->place),
               (unsigned long long)arena->used, (unsigned long long)bytes);
    *out = arena->data + arena->used;
    arena->used += bytes;
    if (arena->ledger) hy_ledger_take(arena->ledger, cls, arena->place, bytes);
    return HY_OK;
}

void hy_arena_pop(hy_arena *arena, hy_class cls, uint64_t bytes) {
    bytes = hy_align(bytes);
    assert(arena->used >= bytes);
    arena->used -= bytes;
#ifdef HY_POISON
    /* The host cannot write to the memory of a card. */
    bool is_ours = arena->place != HY_DEVICE || !arena->backend->facts.is_gpu;
    if (is_ours) memset(arena->data + arena->used, 0xff, bytes);
#endif
    if (arena->ledger) hy_ledger_give(arena->ledger, cls, arena->place, bytes);
}
