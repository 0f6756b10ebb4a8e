/* store_disk.c: units on disk, and the pinned staging buffers they pass through. See store_disk.h.
 *
 * A stage has these states:
 *     EMPTY -> READING -> CLEAN                 a unit is read; CLEAN: equal to the file
 *     CLEAN -> FILLING -> WRITING -> CLEAN      changes are copied from the device, then written
 *     CLEAN -> CHANGED -> WRITING -> CLEAN      the host has changed it
 * There is no thread: every call advances the stages that can continue. A unit has at most one
 * stage. While its changes are in flight it is taken from there, never from the file. So a unit is
 * never read while it is written, nor written twice at a time. A stage is reused for another unit
 * only after copies out of it are done. A failed transfer is reported by that call and every later
 * one: the state on the disk is no longer complete, and the run must end. */
#include "memory/store_disk.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

typedef enum stage_state {
    STAGE_EMPTY,
    STAGE_READING,
    STAGE_CLEAN,
    STAGE_FILLING,
    STAGE_CHANGED,
    STAGE_WRITING
} stage_state;

typedef struct stage {
    char *data;
    bool is_large;
    stage_state state;
    int32_t unit;    /* -1: none */
    bool is_awaited; /* read ahead and not yet copied to the device */
    bool is_open;    /* the host is using it */
    uint64_t used_at;
    hy_spill_ticket ticket;
    hy_event *is_copied; /* copies out of it are done */
} stage;

struct hy_stages {
    hy_spill *spill;
    uint64_t offset; /* of the class in the file */
    stage *list;
    int32_t count;
    uint64_t clock;
    hy_error failure; /* the first failure */
};

/* ---- opening and closing --------------------------------------------------------------------- */

/* Stages have only two sizes: small units use those of the usual size. */
static uint64_t usual_bytes(const hy_ring_plan *ring) {
    return ring->buffer_bytes > ring->small_bytes ? ring->buffer_bytes : ring->small_bytes;
}

/* Arenas align to less than the disk needs: one block more allows a start at a block. */
uint64_t hy_store_staging_bytes(const hy_ring_plan *ring, int32_t buffers) {
    return (uint64_t)buffers * hy_spill_room(usual_bytes(ring)) + hy_spill_room(ring->large_bytes) +
           HY_SPILL_BLOCK;
}

/* Takes the stages of the usual size, then that of large units, if there are any. */
static hy_status take_buffers(hy_store *store, const hy_disk_backing *backing) {
    hy_stages *s = store->stages;
    const hy_ring_plan *ring = &store->ring;
    uint64_t bytes = hy_store_staging_bytes(ring, backing->buffers);
    void *data;
    HY_TRY(hy_arena_push(backing->staging, store->cls, bytes, &data));
    char *at = (char *)data + (hy_spill_room((uintptr_t)data) - (uintptr_t)data);
    int32_t count = backing->buffers + (ring->large_bytes > 0);
    for (; s->count < count; s->count++) {
        stage *added = &s->list[s->count];
        bool is_large = s->count == backing->buffers;
        *added = (stage){.data = at, .is_large = is_large, .unit = -1};
        at += hy_spill_room(is_large ? ring->large_bytes : usual_bytes(ring));
        HY_TRY(store->backend->event_create(store->backend, &added->is_copied));
    }
    return HY_OK;
}

hy_status hy_stages_create(hy_store *store, const hy_disk_backing *backing) {
    assert(backing->buffers >= 2 && backing->offset % HY_SPILL_BLOCK == 0);
    hy_stages *s = calloc(1, sizeof *s);
    store->stages = s;
    if (s) {
        s->spill = backing->spill;
        s->offset = backing->offset;
        s->list = calloc((size_t)backing->buffers + 1, sizeof *s->list);
    }
    HY_FAIL_IF(!s || !s->list, HY_ERR_MEMORY, "not enough memory for %s on disk",
               hy_class_name(store->cls));
    return take_buffers(store, backing);
}

void hy_stages_destroy(hy_store *store) {
    hy_stages *s = store->stages;
    if (!s) return;
    for (int32_t i = 0; i < s->count; i++) {
        (void)hy_spill_wait(s->spill, s->list[i].ticket); /* was reported, or the run ends anyway */
        store->backend->event_destroy(s->list[i].is_copied);
    }
    free(s->list);
    free(s);
    store->stages = NULL;
}

/* ---- advancing stages ------------------------------------------------------------------------ */

hy_status hy_stages_failure(const hy_store *store) {
    return hy_error_restore(&store->stages->failure);
}

/* Records that the stage's transfer failed; its content is invalid. */
static hy_status note_failure(const hy_store *store, stage *at, hy_status status) {
    hy_stages *s = store->stages;
    bool was_reading = at->state == STAGE_READING;
    if (s->failure.status == HY_OK) {
        (void)hy_fail_context(status, "%s of unit %d could not be %s", hy_class_name(store->cls),
                              at->unit, was_reading ? "read" : "written");
        hy_error_save(&s->failure, status);
    }
    at->state = STAGE_EMPTY;
    at->unit = -1;
    at->ticket = 0;
    at->is_awaited = false;
    return hy_stages_failure(store);
}

/* Begins to read or write the stage. */
static hy_status begin(hy_store *store, stage *at, stage_state state) {
    hy_stages *s = store->stages;
    uint64_t offset = s->offset + store->units[at->unit].backing_at;
    uint64_t bytes = store->layout.unit_bytes[at->unit];
    at->state = state;
    hy_status status = state == STAGE_READING
                           ? hy_spill_read(s->spill, offset, bytes, at->data, &at->ticket)
                           : hy_spill_write(s->spill, offset, bytes, at->data, &at->ticket);
    return status == HY_OK ? HY_OK : note_failure(store, at, status);
}

/* Advances the stage as far as possible; with `waits`, until it is clean. */
static hy_status go_on(hy_store *store, stage *at, bool waits) {
    hy_stages *s = store->stages;
    hy_backend *b = store->backend;
    if (at->state == STAGE_FILLING) {
        hy_event *is_written_back = store->units[at->unit].is_written_back;
        if (waits) HY_TRY(b->event_sync(is_written_back));
        if (!waits && !b->event_is_done(is_written_back)) return HY_OK;
        at->state = STAGE_CHANGED;
    }
    if (at->state == STAGE_CHANGED) HY_TRY(begin(store, at, STAGE_WRITING));
    if (at->state != STAGE_READING && at->state != STAGE_WRITING) return HY_OK;
    if (!waits && !hy_spill_is_done(s->spill, at->ticket)) return HY_OK;
    hy_status status = hy_spill_wait(s->spill, at->ticket);
    if (status != HY_OK) return note_failure(store, at, status);
    at->state = STAGE_CLEAN;
    at->ticket = 0;
    return HY_OK;
}

/* Advances all stages except that of `unit`, which is in use. */
static hy_status go_on_all(hy_store *store, int32_t unit) {
    hy_stages *s = store->stages;
    HY_TRY(hy_stages_failure(store));
    for (int32_t i = 0; i < s->count; i++) {
        stage *at = &s->list[i];
        bool is_busy = at->state != STAGE_EMPTY && at->state != STAGE_CLEAN;
        if (is_busy && at->unit != unit) HY_TRY(go_on(store, at, false));
    }
    return HY_OK;
}

/* ---- choosing a stage ------------------------------------------------------------------------ */

static stage *stage_of(const hy_store *store, int32_t unit) {
    hy_stages *s = store->stages;
    for (int32_t i = 0; i < s->count; i++) {
        if (s->list[i].unit == unit) return &s->list[i];
    }
    return NULL;
}

/* The cost of reusing a stage: nothing, a wait for a write, or a lost read-ahead. */
static int price_of(const stage *at) {
    if (at->is_awaited) return 2;
    return at->state == STAGE_EMPTY || at->state == STAGE_CLEAN ? 0 : 1;
}

/* The cheapest stage of the unit's size, and of these the oldest. */
static stage *choose(const hy_store *store, int32_t unit) {
    hy_stages *s = store->stages;
    bool is_large = store->units[unit].kind == HY_BUFFER_LARGE;
    stage *best = NULL;
    for (int32_t i = 0; i < s->count; i++) {
        stage *at = &s->list[i];
        if (at->is_large != is_large || at->is_open) continue;
        bool is_better = !best || price_of(at) < price_of(best) ||
                         (price_of(at) == price_of(best) && at->used_at < best->used_at);
        if (is_better) best = at;
    }
    return best;
}

/* A stage for a unit that has none; NULL without `waits` if it would have to wait for the disk. */
static hy_status take(hy_store *store, int32_t unit, bool waits, stage **out) {
    stage *at = choose(store, unit);
    *out = NULL;
    /* The host opens one unit at a time, and there are at least two stages, or a large one. */
    assert(at);
    if (!waits && price_of(at) > 0) return HY_OK;
    HY_TRY(go_on(store, at, true));
    at->unit = unit;
    at->state = STAGE_EMPTY;
    at->is_awaited = false;
    at->used_at = ++store->stages->clock;
    *out = at;
    return HY_OK;
}

/* ---- fetching and returning units ------------------------------------------------------------ */

hy_status hy_stages_fetch(hy_store *store, int32_t unit, bool waits, bool *is_there) {
    *is_there = false;
    HY_TRY(go_on_all(store, unit));
    stage *at = stage_of(store, unit);
    if (!at) {
        HY_TRY(take(store, unit, waits, &at));
        if (!at) return HY_OK;
        HY_TRY(store->backend->event_sync(at->is_copied));
        HY_TRY(begin(store, at, STAGE_READING));
        at->is_awaited = true;
    }
    if (at->state == STAGE_READING) HY_TRY(go_on(store, at, waits));
    *is_there = at->state != STAGE_READING;
    return HY_OK;
}

const char *hy_stages_source(const hy_store *store, int32_t unit) {
    return stage_of(store, unit)->data;
}

hy_status hy_stages_note_copy(hy_store *store, int32_t unit) {
    stage *at = stage_of(store, unit);
    at->is_awaited = false;
    at->used_at = ++store->stages->clock;
    return store->backend->event_record(at->is_copied, store->copies.up);
}

hy_status hy_stages_return(hy_store *store, int32_t unit, char **out) {
    HY_TRY(go_on_all(store, unit));
    stage *at = stage_of(store, unit);
    bool is_in_transfer = at && (at->state == STAGE_READING || at->state == STAGE_WRITING);
    if (is_in_transfer) HY_TRY(go_on(store, at, true));
    if (!at) HY_TRY(take(store, unit, true, &at));
    at->state = STAGE_FILLING;
    at->is_awaited = false;
    at->used_at = ++store->stages->clock;
    *out = at->data;
    return store->backend->stream_wait(store->copies.down, at->is_copied);
}

hy_status hy_stages_settle(hy_store *store) {
    hy_stages *s = store->stages;
    for (int32_t i = 0; i < s->count; i++) (void)go_on(store, &s->list[i], true);
    return hy_stages_failure(store);
}

/* ---- access by the host ---------------------------------------------------------------------- */

hy_status hy_stages_open(hy_store *store, int32_t unit, bool is_new, char **out) {
    HY_TRY(go_on_all(store, unit));
    stage *at = stage_of(store, unit);
    if (!at) {
        HY_TRY(take(store, unit, true, &at));
        HY_TRY(store->backend->event_sync(at->is_copied));
        if (!is_new) HY_TRY(begin(store, at, STAGE_READING));
    }
    if (at->state != STAGE_CHANGED) HY_TRY(go_on(store, at, true));
    at->is_awaited = false;
    at->is_open = true;
    at->used_at = ++store->stages->clock;
    *out = at->data;
    return HY_OK;
}

void hy_stages_close(hy_store *store, int32_t unit, bool is_changed) {
    stage *at = stage_of(store, unit);
    assert(at && at->is_open);
    at->is_open = false;
    if (is_changed) at->state = STAGE_CHANGED;
    if (at->state == STAGE_EMPTY) at->unit = -1; /* opened as new and not used */
}
