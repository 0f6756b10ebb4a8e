/* arena.c: blocks in one allocation. See arena.h. */
#include "memory/arena.h"

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

/* ---- dry runs -------------------------------------------------------------------------------- */

static hy_status no_event(hy_backend *b, hy_event **out) {
    (void)b;
    *out = NULL;
    return HY_OK;
}
static hy_status no_record(hy_event *e, hy_stream *s) {
    (void)e, (void)s;
    return HY_OK;
}
static hy_status no_wait(hy_stream *s, hy_event *e) {
    (void)s, (void)e;
    return HY_OK;
}

/* Counts as a card, so the host never writes to it. */
static const hy_backend no_device = {.facts.is_gpu = true,
                                     .event_create = no_event,
                                     .event_record = no_record,
                                     .stream_wait = no_wait};

void hy_arena_init_dry(hy_arena *arena) {
    *arena = (hy_arena){.backend = (hy_backend *)(uintptr_t)&no_device,
                        .place = HY_DEVICE,
                        .data = (char *)HY_ALIGNMENT,
                        .size = UINT64_MAX / 2};
}

/* ---- blocks ---------------------------------------------------------------------------------- */

void hy_arena_fini(hy_arena *arena) {
    hy_arena_set_live(arena, false);
    if (arena->data) {
        arena->backend->release(arena->backend, arena->place, arena->data, arena->size);
    }
    *arena = (hy_arena){0};
}

void hy_arena_set_live(hy_arena *arena, bool is_live) {
    for (int cls = 0; cls < HY_CLASS_COUNT && arena->ledger && arena->is_idle == is_live; cls++) {
        if (arena->held[cls] == 0) continue;
        (is_live ? hy_ledger_take : hy_ledger_give)(arena->ledger, (hy_class)cls, arena->place,
                                                    arena->held[cls]);
    }
    arena->is_idle = !is_live;
}

hy_status hy_arena_push(hy_arena *arena, hy_class cls, uint64_t bytes, void **out) {
    bytes = hy_align(bytes);
    HY_FAIL_IF(bytes > arena->size - arena->used, HY_ERR_INTERNAL,
               "the plan gave %s %llu bytes on %s; %llu are in use and %llu more were requested",
               hy_class_name(cls), (unsigned long long)arena->size, hy_place_name(arena->place),
               (unsigned long long)arena->used, (unsigned long long)bytes);
    *out = arena->data + arena->used;
    arena->used += bytes;
    arena->held[cls] += bytes;
    if (arena->ledger) hy_ledger_take(arena->ledger, cls, arena->place, bytes);
    return HY_OK;
}

void hy_arena_clear(hy_arena *arena) {
    hy_arena_set_live(arena, false);
#ifdef HY_POISON /* debug builds: NaN, except on a card, where the host cannot write */
    bool is_ours = arena->place != HY_DEVICE || !arena->backend->facts.is_gpu;
    if (is_ours && arena->used) memset(arena->data, 0xff, arena->used);
#endif
    arena->used = 0;
    memset(arena->held, 0, sizeof arena->held);
    arena->is_idle = false;
}
