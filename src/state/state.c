/* state.c: allocates, moves and frees the memory of rows. See state.h.
 *
 * Arenas have exactly the bytes that rows.c counts for the plan. A row is entered in the ledger
 * when all its memory is allocated, and removed when it is freed: a failure in between leaves
 * the ledger unchanged. */
#include "state/state.h"

#include <stdio.h>

#include "base/error.h"
#include "base/say.h"

typedef void booking(hy_ledger *, hy_class, hy_place, uint64_t); /* hy_ledger_take or _give */

/* ---- what a row has taken -------------------------------------------------------------------- */

/* Bytes of the row at its place. */
static uint64_t live_bytes(const hy_row *row) {
    if (row->is_callers) return row->layout.bytes;
    return row->store.place == HY_DISK ? row->store.ring.disk_bytes : row->backing.used;
}

/* A class has one place, so a row's ring counts as workspace. */
static void book_row(hy_state *s, const hy_row *row, booking *book) {
    book(&s->ledger, row->kind->cls, row->store.place, live_bytes(row));
    book(&s->ledger, row->kind->cls, HY_PINNED, row->staging.used);
    book(&s->ledger, HY_WORKSPACE, HY_DEVICE, row->ring.size);
}

void hy_state_book_steps(hy_state *s, bool is_live) {
    booking *book = is_live ? hy_ledger_take : hy_ledger_give;
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &s->rows->row[i];
        if (!row->kind || row->kind->need != HY_NEEDED_BY_STEPS) continue;
        book(&s->ledger, HY_WORKSPACE, HY_DEVICE, hy_row_step_ring(row, &row->store.ring));
        if (row->kind->cls == HY_OPTIM) continue; /* offload.c books optimizer state */
        book(&s->ledger, row->kind->cls, row->store.place, live_bytes(row));
    }
}

static void release_row(hy_row *row) {
    hy_store_fini(&row->store);
    hy_arena_fini(&row->backing);
    hy_arena_fini(&row->ring);
    hy_arena_fini(&row->staging);
}

/* ---- taking ---------------------------------------------------------------------------------- */

static hy_status take_arena(hy_state *s, const hy_row *row, hy_arena *arena, hy_place place,
                            uint64_t bytes) {
    char purpose[64];
    const char *part = arena == &row->ring ? "a ring for " : "";
    if (arena == &row->staging) part = "buffers between disk and device for ";
    snprintf(purpose, sizeof purpose, "%s%s", part, row->kind->holds);
    if (arena->data) return HY_OK; /* it stays */
    HY_TRY(hy_arena_init(arena, s->device->backend, &s->ledger, place, bytes, purpose));
    arena->ledger = NULL; /* book_row books it */
    return HY_OK;
}

/* One file for everything on disk. */
static hy_status take_file(hy_state *s, uint64_t bytes) {
    if (bytes == 0) return HY_OK;
    if (s->spill) return hy_spill_grow(s->spill, bytes);
    HY_TRY(hy_spill_open(s->folder, bytes, NULL, &s->spill));
    hy_say_to(s->observer, HY_NOTE, "%s", hy_spill_describe(s->spill));
    return HY_OK;
}

/* The first gap in the file that is large enough: at its start, or after a row. */
static uint64_t find_room(const hy_state *s, uint64_t bytes) {
    uint64_t best = UINT64_MAX;
    for (int i = -1; i < HY_ROW_COUNT; i++) {
        const hy_row *before = i < 0 ? NULL : &s->rows->row[i];
        if (before && before->store.place != HY_DISK) continue;
        uint64_t at = before ? before->disk_at + before->store.ring.disk_bytes : 0;
        bool is_free = at < best;
        for (int k = 0; k < HY_ROW_COUNT; k++) {
            const hy_row *other = &s->rows->row[k];
            if (other->store.place != HY_DISK) continue;
            is_free &=
                at + bytes <= other->disk_at || at >= other->disk_at + other->store.ring.disk_bytes;
        }
        if (is_free) best = at;
    }
    return best;
}

static hy_status take_on_disk(hy_state *s, hy_row *row, hy_arena *device,
                              const hy_ring_options *options, const hy_ring_plan *ring) {
    if (!row->staging.data) { /* else the row stays in the file */
        row->disk_at = find_room(s, ring->disk_bytes);
        HY_TRY(take_file(s, row->disk_at + ring->disk_bytes));
    }
    HY_TRY(take_arena(s, row, &row->staging, HY_PINNED,
                      hy_store_staging_bytes(ring, HY_DISK_BUFFERS)));
    hy_disk_backing disk = {.spill = s->spill,
                            .offset = row->disk_at,
                            .staging = &row->staging,
                            .buffers = HY_DISK_BUFFERS};
    return hy_store_init_disk(&row->store, &disk, device, row->kind->cls, &row->layout, options);
}

/* Allocates a row. `device`: memory of its ring, if the ring is in the work area. */
static hy_status take_row(hy_state *s, hy_row *row, const hy_plan_choice *choice,
                          hy_arena *device) {
    hy_class cls = row->kind->cls;
    hy_place place = hy_row_place(row, choice);
    hy_ring_plan ring = hy_row_ring(row, choice);
    hy_ring_options options = {.depth = hy_row_ring_depth(row, choice),
                               .resident = ring.resident,
                               .copies = {s->device->copies, s->device->returns}};
    if (row->is_callers) {
        return hy_store_init_outside(&row->store, s->device->backend, cls, &row->layout);
    }
    if (place == HY_DEVICE || place == HY_PINNED) {
        HY_TRY(take_arena(s, row, &row->backing, place, hy_row_bytes(row, choice)));
    }
    if (place == HY_DEVICE) return hy_store_init(&row->store, &row->backing, cls, &row->layout);
    if (!hy_row_rings_in_work(row)) {
        device = &row->ring;
        HY_TRY(take_arena(s, row, device, HY_DEVICE, ring.bytes));
    }
    if (place == HY_NOWHERE) {
        return hy_store_init_made(&row->store, device, cls, &row->layout, options.depth);
    }
    if (place == HY_DISK) return take_on_disk(s, row, device, &options, &ring);
    return hy_store_init_ring(&row->store, &row->backing, device, cls, &row->layout, &options);
}

hy_status hy_state_take_in_work(hy_state *s, const hy_plan_choice *choice, hy_arena *work_rings) {
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        hy_row *row = &s->rows->row[i];
        bool is_due = hy_row_rings_in_work(row) == (work_rings != NULL);
        if (!is_due || !hy_row_is_used(row, choice)) continue;
        HY_TRY(take_row(s, row, choice, work_rings));
        book_row(s, row, hy_ledger_take);
    }
    return HY_OK;
}

hy_status hy_state_take(hy_state *s, const hy_plan_choice *choice, uint64_t disk) {
    HY_TRY(take_file(s, disk)); /* reserved at once */
    return hy_state_take_in_work(s, choice, NULL);
}

void hy_state_release(hy_state *s) {
    for (int i = 0; i < HY_ROW_COUNT; i++) release_row(&s->rows->row[i]);
    hy_arena_fini(&s->offload.host);
    (void)hy_spill_close(s->spill); /* an error of its writes was reported already */
    s->spill = NULL;
    hy_rows_fini(s->rows);
}

/* ---- another choice -------------------------------------------------------------------------- */

/* Only the ring changes. */
static bool keeps_backing(const hy_row *row, const hy_plan_choice *choice) {
    return row->store.layout.items && hy_row_is_used(row, choice) &&
           hy_row_place(row, choice) == row->store.place &&
           hy_row_ring(row, choice).resident == row->store.ring.resident;
}

/* Allocates the row's memory for another choice, copies its values if they last, and frees the
 * old memory; a failure leaves the row unchanged. Meanwhile both exist, for one row at a time.
 * stays: only the ring changes, so both share the backing store, and resident layers are copied
 * between rings. is_brought: all values are copied. gone: the one that is freed, which is the old
 * row, or after a failure the new one. */
static hy_status move_row(hy_state *s, hy_row *row, const hy_plan_choice *choice,
                          hy_arena *work_rings) {
    hy_row fresh = *row;
    bool was_there = row->store.layout.items, is_used = hy_row_is_used(row, choice);
    bool stays = keeps_backing(row, choice);
    HY_TRY(hy_store_settle(&row->store));
    fresh.store = (hy_store){0};
    fresh.ring = (hy_arena){0};
    if (stays) {
        fresh.backing.used = fresh.staging.used = 0;
    } else {
        fresh.backing = fresh.staging = (hy_arena){0};
    }
    hy_status status = is_used ? take_row(s, &fresh, choice, work_rings) : HY_OK;
    bool was_kept = row->store.place != HY_NOWHERE, is_kept = fresh.store.place != HY_NOWHERE;
    bool is_brought = !stays && row->kind->life == HY_LASTING && was_kept && is_kept;
    if (status == HY_OK && stays) {
        status = hy_store_copy_resident(&fresh.store, &row->store, s->device->compute);
    } else if (status == HY_OK && is_brought) {
        status = hy_store_copy(&fresh.store, &row->store, s->device->compute);
    }
    hy_row *gone = status == HY_OK ? row : &fresh;
    if (status == HY_OK && was_there) book_row(s, row, hy_ledger_give);
    if (status == HY_OK && is_used) book_row(s, &fresh, hy_ledger_take);
    if (stays) gone->backing = gone->staging = (hy_arena){0}; /* old and new row share it */
    s->bytes_moved += gone->store.bytes_moved + (is_brought ? row->layout.bytes : 0);
    release_row(gone);
    if (status != HY_OK) return status;
    if (!is_brought && !stays) fresh.made_of = 0;
    *row = fresh;
    return HY_OK;
}

static bool is_as_chosen(const hy_row *row, const hy_plan_choice *c) {
    hy_place place = hy_row_place(row, c);
    if (place != row->store.place || place == HY_DEVICE) return place == row->store.place;
    return row->store.ring_depth == c->ring_depth &&
           row->store.ring.resident == hy_row_ring(row, c).resident;
}

/* Does the row, or a part of its resident units, leave the device? */
static bool leaves_device(const hy_row *row, const hy_plan_choice *c) {
    if (row->store.place == HY_DEVICE) return true;
    return hy_row_place(row, c) != HY_DEVICE &&
           row->store.ring.resident > hy_row_ring(row, c).resident;
}

/* The rows that move. Those that leave the device are first, to make room for the others. */
static int list_moves(const hy_state *s, const hy_plan_choice *choice, hy_row *out[HY_ROW_COUNT]) {
    int count = 0;
    for (int leave = 1; leave >= 0; leave--) {
        for (int i = 0; i < HY_ROW_COUNT; i++) {
            hy_row *row = &s->rows->row[i];
            if (!row->kind || row->kind->state < 0 || is_as_chosen(row, choice)) continue;
            if (leaves_device(row, choice) == leave) out[count++] = row;
        }
    }
    return count;
}

hy_move_peak hy_state_move_peak(const hy_state *s, const hy_plan_choice *choice) {
    bool is_one_memory = !s->device->backend->facts.is_gpu;
    hy_row *rows[HY_ROW_COUNT];
    hy_move_peak out = {0, ""};
    int64_t more = 0; /* than before the first move */
    int count = list_moves(s, choice, rows);
    for (int i = 0; i < count; i++) {
        hy_place to = hy_row_place(rows[i], choice), from = rows[i]->store.place;
        bool is_taken = to == HY_PINNED || (is_one_memory && to == HY_DEVICE);
        bool is_given = from == HY_PINNED || (is_one_memory && from == HY_DEVICE);
        if (keeps_backing(rows[i], choice)) continue;
        if (is_taken && hy_row_is_used(rows[i], choice)) {
            more += (int64_t)hy_row_bytes(rows[i], choice);
        }
        if (more > (int64_t)out.host) {
            out = (hy_move_peak){(uint64_t)more, rows[i]->kind->holds};
        }
        if (is_given) more -= (int64_t)rows[i]->backing.size;
    }
    return out;
}

hy_status hy_state_move(hy_state *s, const hy_plan_choice *choice) {
    hy_row *rows[HY_ROW_COUNT];
    int count = list_moves(s, choice, rows);
    for (int i = 0; i < count; i++) {
        HY_TRY(hy_offload_await(s));
        HY_TRY(hy_device_sync(s->device));
        HY_TRY(move_row(s, rows[i], choice, NULL));
    }
    return HY_OK;
}

hy_status hy_state_move_in_work(hy_state *s, const hy_plan_choice *choice, hy_arena *work_rings) {
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        if (!hy_row_rings_in_work(&s->rows->row[i])) continue;
        HY_TRY(move_row(s, &s->rows->row[i], choice, work_rings));
    }
    return HY_OK;
}

/* ---- the rows together ----------------------------------------------------------------------- */

hy_status hy_row_zero(hy_state *s, int row) {
    hy_row_changed(s, row);
    return hy_store_zero(&s->rows->row[row].store, s->device->compute);
}

hy_arena hy_state_lent(hy_state *s, int id) {
    const hy_row *row = &s->rows->row[id];
    bool is_here = row->store.place == HY_DEVICE;
    return (hy_arena){.backend = s->device->backend,
                      .ledger = &s->ledger,
                      .place = HY_DEVICE,
                      .data = is_here ? row->backing.data : row->ring.data,
                      .size =
                          is_here ? row->layout.bytes : hy_row_step_ring(row, &row->store.ring)};
}

hy_status hy_state_vacate(hy_state *s, int id) {
    hy_store *store = &s->rows->row[id].store;
    if (store->place == HY_DEVICE) return HY_OK;
    HY_TRY(hy_store_settle(store));
    hy_store_forget(store);
    return HY_OK;
}

hy_status hy_state_leave_work(hy_state *s) {
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        hy_row *row = &s->rows->row[i];
        if (!hy_row_rings_in_work(row)) continue;
        HY_TRY(hy_store_settle(&row->store));
        hy_store_forget(&row->store);
    }
    return HY_OK;
}

hy_status hy_state_settle(hy_state *s) {
    for (int i = 0; i < HY_ROW_COUNT; i++) hy_store_abandon(&s->rows->row[i].store);
    for (int i = 0; i < HY_ROW_COUNT; i++) HY_TRY(hy_store_settle(&s->rows->row[i].store));
    return HY_OK;
}

/* The optimizer's state is restored too: a test arm that failed in Predict left it on the host. */
hy_status hy_state_copy_forked(hy_state *s, char *host, bool to_host) {
    hy_stream *stream = s->device->compute;
    if (!to_host) hy_offload_forget(s);
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        hy_row *row = &s->rows->row[i];
        uint64_t bytes = row->layout.bytes;
        if (!row->kind || !row->kind->is_restored) continue;
        if (!to_host) hy_row_changed(s, i);
        HY_TRY(to_host ? hy_store_read(&row->store, stream, 0, host, bytes)
                       : hy_store_write(&row->store, stream, 0, host, bytes));
        HY_TRY(hy_store_settle(&row->store));
        host += bytes;
    }
    s->bytes_moved += hy_rows_forked_bytes(s->rows);
    return HY_OK;
}

uint64_t hy_state_moved(const hy_state *s) {
    uint64_t bytes = s->bytes_moved;
    for (int i = 0; i < HY_ROW_COUNT; i++) bytes += s->rows->row[i].store.bytes_moved;
    return bytes;
}

uint64_t hy_state_reserved(const hy_state *s, hy_place place) {
    uint64_t bytes = hy_arena_reserved(&s->offload.host, place);
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &s->rows->row[i];
        bytes += hy_arena_reserved(&row->backing, place) + hy_arena_reserved(&row->ring, place) +
                 hy_arena_reserved(&row->staging, place);
    }
    return bytes;
}
