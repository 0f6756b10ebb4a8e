/* state.c: the rows of the state table get their memory. See engine.h and state/rows.h.
 *
 * A row lives on the device, or elsewhere and passes through a ring there, but for its resident layers,
 * which live in the ring. Arenas have exactly the bytes that state/rows.c counts for the plan, and what is
 * taken of them is what the ledger sees. A row that has another place or other resident layers in another
 * plan moves there between steps. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "config/config_adapter.h"
#include "config/derived.h"
#include "engine/engine.h"
#include "hub/bnb.h"
#include "hub/hf_load.h"
#include "model/adapter.h"
#include "optim/groups.h"

/* ---- rows and plan -------------------------------------------------------------------------------- */

/* What a quantised folder left as it was is no code here either; files that are gone are told of when they are read. */
static hy_status keep_skipped(const hy_settings *s, hy_model *model) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    if (hy_dtype_chosen(s->train.frozen_dtype, HY_F32) != HY_NF4) return HY_OK;
    if (hy_settings_base_files(s, &kind, path) != HY_OK || kind != HY_FILES_HF) return HY_OK;
    return hy_bnb_mark_skipped(path, &model->shape, &model->params);
}

hy_status hy_settings_store_frozen(const hy_settings *s, hy_model *model) {
    model->params.frozen_codes = hy_dtype_chosen(s->train.frozen_dtype, HY_F32);
    model->params.has_plain_scales = s->train.frozen_dtype == HY_DTYPE_NF4_SINGLE;
    HY_TRY(keep_skipped(s, model));
    hy_model_settle(model);
    return HY_OK;
}

hy_status hy_settings_select(const hy_settings *s, hy_model *model) {
    char names[2 * HY_TEXT_MAX];
    hy_settings_trained(s, names, sizeof names);
    hy_status status = s->lora.lora ? hy_adapter_check_modules(s->lora.lora_modules) : HY_OK;
    if (status == HY_OK) {
        status = hy_model_select(model, names, hy_dtype_chosen(s->train.frozen_dtype, HY_F32));
    }
    if (status == HY_OK && s->lora.lora) status = hy_params_mark_beside(&model->params, names);
    const char *key = s->lora.lora ? "lora.lora_modules" : "train.train";
    return status == HY_OK ? hy_settings_store_frozen(s, model)
                           : hy_fail_context(status, "%s", key);
}

static hy_status make_model(hy_engine *e) {
    const hy_settings *s = e->settings;
    hy_shape shape;
    if (e->guest) return hy_guest_make_model(e);
    HY_TRY(hy_shape_from_settings(s, &shape));
    HY_TRY(hy_settings_check_base(s));
    HY_TRY(hy_model_create(&shape, &e->model));
    HY_TRY(hy_settings_check_adapters(s));
    e->base_is_named = s->lora.lora && hy_settings_bring_files(s);
    HY_TRY(hy_settings_select(s, e->model));
    if (s->save.resume[0]) return HY_OK; /* it began as it is */
    hy_status status = hy_adapter_check_beside(&e->model->params);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "lora.lora_modules");
}

hy_status hy_engine_make_model(hy_engine *e) {
    HY_TRY(make_model(e));
    hy_status status = hy_groups_apply(e->settings->optimizer.groups, &e->model->params);
    if (status != HY_OK) return hy_fail_context(status, "optimizer.groups");
    hy_model_settle(e->model);
    return HY_OK;
}

hy_status hy_engine_lay_out(hy_engine *e) {
    hy_rows_spec spec = hy_plan_rows(&e->request, &e->plan);
    spec.has_named_base = e->base_is_named;
    return hy_rows_init(&e->rows, &e->model->params, &spec);
}

/* ---- taking ---------------------------------------------------------------------------------------- */

/* A row's memory is its own, so that it can move while the others stay. */
static hy_status take_arena(hy_engine *e, const hy_row *row, hy_arena *arena, hy_place place,
                            uint64_t bytes) {
    char purpose[64];
    snprintf(purpose, sizeof purpose, "%s%s", row->kind->holds,
             arena == &row->ring      ? " on their way"
             : arena == &row->staging ? " on their way from disk"
                                      : "");
    if (arena->data) return HY_OK; /* it stays */
    return hy_arena_init(arena, e->backend, &e->ledger, place, bytes, purpose);
}

/* One file for everything on disk. */
static hy_status take_file(hy_engine *e, uint64_t bytes) {
    if (bytes == 0) return HY_OK;
    if (e->spill) return hy_spill_grow(e->spill, bytes);
    HY_TRY(hy_spill_open(e->settings->memory.offload_folder, bytes, NULL, &e->spill));
    hy_say_to(e->observer, HY_NOTE, "%s", hy_spill_describe(e->spill));
    return HY_OK;
}

/* The first place in the file that is as large and that no row has: at its begin, or behind a row. */
static uint64_t find_room(const hy_engine *e, uint64_t bytes) {
    uint64_t best = UINT64_MAX;
    for (int i = -1; i < HY_ROW_COUNT; i++) {
        const hy_row *before = i < 0 ? NULL : &e->rows.row[i];
        if (before && before->store.place != HY_DISK) continue;
        uint64_t at = before ? before->disk_at + before->store.ring.disk_bytes : 0;
        bool is_free = at < best;
        for (int k = 0; k < HY_ROW_COUNT; k++) {
            const hy_row *other = &e->rows.row[k];
            if (other->store.place != HY_DISK) continue;
            is_free &=
                at + bytes <= other->disk_at || at >= other->disk_at + other->store.ring.disk_bytes;
        }
        if (is_free) best = at;
    }
    return best;
}

static hy_status take_on_disk(hy_engine *e, hy_row *row, hy_arena *device,
                              const hy_ring_options *options, const hy_ring_plan *ring) {
    if (!row->staging.data) { /* else it stays */
        row->disk_at = find_room(e, ring->disk_bytes);
        HY_TRY(take_file(e, row->disk_at + ring->disk_bytes));
    }
    HY_TRY(take_arena(e, row, &row->staging, HY_PINNED,
                      hy_store_staging_bytes(ring, HY_DISK_BUFFERS)));
    hy_disk_backing disk = {.spill = e->spill,
                            .offset = row->disk_at,
                            .staging = &row->staging,
                            .buffers = HY_DISK_BUFFERS};
    HY_TRY(hy_store_init_disk(&row->store, &disk, device, row->kind->cls, &row->layout, options));
    hy_ledger_take(&e->ledger, row->kind->cls, HY_DISK, ring->disk_bytes);
    return HY_OK;
}

static hy_status take_row(hy_engine *e, hy_row *row, const hy_plan_choice *choice) {
    hy_place place = hy_row_place(row, choice);
    hy_ring_plan ring = hy_row_ring(row, choice);
    hy_ring_options options = {.depth = hy_row_ring_depth(row, choice),
                               .resident = ring.resident,
                               .copies = {e->copies, e->returns}};
    hy_arena *device = &e->work.ring_arena;
    if (row->is_callers) {
        HY_TRY(hy_store_init_outside(&row->store, e->backend, row->kind->cls, &row->layout));
        hy_ledger_take(&e->ledger, row->kind->cls, HY_DEVICE, row->layout.bytes);
        return HY_OK;
    }
    if (hy_row_is_exchanged(row)) {
        device = &row->ring;
        HY_TRY(take_arena(e, row, device, HY_DEVICE, ring.bytes));
    }
    if (place == HY_NOWHERE) {
        return hy_store_init_made(&row->store, device, row->kind->cls, &row->layout, options.depth);
    }
    if (place != HY_DISK) {
        HY_TRY(take_arena(e, row, &row->backing, place, hy_row_bytes(row, choice)));
    }
    if (place == HY_DEVICE) {
        return hy_store_init(&row->store, &row->backing, row->kind->cls, &row->layout);
    }
    if (!hy_row_rings_in_work(row)) {
        device = &row->ring;
        HY_TRY(take_arena(e, row, device, HY_DEVICE, ring.bytes));
        device->ledger = NULL; /* a class has one place: its ring counts as workspace */
        hy_ledger_take(&e->ledger, HY_WORKSPACE, HY_DEVICE, ring.bytes);
    }
    if (place == HY_DISK) return take_on_disk(e, row, device, &options, &ring);
    return hy_store_init_ring(&row->store, &row->backing, device, row->kind->cls, &row->layout,
                              &options);
}

static hy_status take_rows(hy_engine *e, bool rings_in_work) {
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        hy_row *row = &e->rows.row[i];
        bool is_wanted = hy_row_is_used(row, &e->plan.choice);
        if (is_wanted && hy_row_rings_in_work(row) == rings_in_work) {
            HY_TRY(take_row(e, row, &e->plan.choice));
        }
    }
    return HY_OK;
}

hy_status hy_engine_take(hy_engine *e) {
    HY_TRY(take_file(e, e->plan.state.disk)); /* all of it at once */
    HY_TRY(take_rows(e, false));
    HY_TRY(hy_shards_take(e));
    HY_TRY(hy_work_take(e));
    HY_TRY(take_rows(e, true));
    return hy_mover_take(e);
}

static void release_row(hy_row *row) {
    hy_store_fini(&row->store);
    hy_arena_fini(&row->backing);
    hy_arena_fini(&row->ring);
    hy_arena_fini(&row->staging);
}

/* ---- another plan ------------------------------------------------------------------------------------ */

/* What of a row is live, given back in the ledger. */
static void unbook(hy_engine *e, const hy_row *row) {
    hy_ledger_give(&e->ledger, row->kind->cls, row->backing.place, row->backing.used);
    hy_ledger_give(&e->ledger, row->kind->cls, HY_PINNED, row->staging.used);
    hy_ledger_give(&e->ledger, HY_WORKSPACE, HY_DEVICE, row->ring.size);
    if (row->store.place == HY_DISK) {
        hy_ledger_give(&e->ledger, row->kind->cls, HY_DISK, row->store.ring.disk_bytes);
    }
}

/* Takes the row's memory by another choice, brings over what a checkpoint would hold of it, and gives the
 * old back: a failure leaves the row as it was. Until then there are both, of one row at a time. Where only
 * the ring's depth is another, the backing store stays, and resident layers go from ring to ring. */
static hy_status move_row(hy_engine *e, hy_row *row, const hy_plan_choice *choice) {
    hy_row fresh = *row;
    hy_ledger before = e->ledger;
    bool was_there = row->store.layout.items, is_disabled = !hy_row_is_used(row, choice);
    bool is_same_place = was_there && hy_row_place(row, choice) == row->store.place;
    bool stays = is_same_place && !is_disabled &&
                 hy_row_ring(row, choice).resident == row->store.ring.resident;
    HY_TRY(hy_store_settle(&row->store));
    fresh.store = (hy_store){0};
    fresh.ring = (hy_arena){0};
    if (is_same_place) unbook(e, row); /* first: a class has its bytes once, in the ledger too */
    if (stays) {
        fresh.backing.used = fresh.staging.used = 0;
    } else {
        fresh.backing = fresh.staging = (hy_arena){0};
    }
    hy_status status = is_disabled ? HY_OK : take_row(e, &fresh, choice);
    bool was_kept = row->store.place != HY_NOWHERE, is_kept = fresh.store.place != HY_NOWHERE;
    bool is_brought = !stays && row->kind->life == HY_LASTING && was_kept && is_kept;
    if (status == HY_OK && stays) {
        status = hy_store_copy_resident(&fresh.store, &row->store, e->compute);
    } else if (status == HY_OK && is_brought) {
        status = hy_store_copy(&fresh.store, &row->store, e->compute);
    }
    hy_row *gone = status == HY_OK ? row : &fresh;
    if (status == HY_OK && !is_same_place) unbook(e, row);
    if (status != HY_OK) e->ledger = before;
    if (stays) gone->backing = gone->staging = (hy_arena){0}; /* both have the same */
    e->bytes_moved += gone->store.bytes_moved + (is_brought ? row->layout.bytes : 0);
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

/* Rows with rings of their own; first those that leave the device, which makes room for the others. */
static hy_status move_rows(hy_engine *e, const hy_plan_choice *choice) {
    for (int leave = 1; leave >= 0; leave--) {
        for (int i = 0; i < HY_ROW_COUNT; i++) {
            hy_row *row = &e->rows.row[i];
            bool leaves = row->store.place == HY_DEVICE;
            if (!row->kind || row->kind->state < 0 || leaves != leave) continue;
            if (is_as_chosen(row, choice)) continue;
            HY_TRY(hy_mover_await(e)); /* the optimizer's state, if it is away */
            HY_TRY(hy_engine_sync(e));
            HY_TRY(move_row(e, row, choice));
        }
    }
    return HY_OK;
}

/* The work area is another, so those with rings in it begin anew there; and what leaves in Predict may
 * have another place to go to. */
static hy_status follow_work(hy_engine *e) {
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        if (!hy_row_rings_in_work(&e->rows.row[i])) continue;
        HY_TRY(move_row(e, &e->rows.row[i], &e->plan.choice));
    }
    return hy_mover_take(e);
}

hy_status hy_engine_change(hy_engine *e, const hy_plan *plan) {
    HY_TRY(hy_work_give_back(e));
    e->work.is_gone = true;
    HY_TRY(move_rows(e, &plan->choice));
    if (plan->offload != e->plan.offload) HY_TRY(hy_mover_await(e)); /* by the way it left */
    hy_ledger before = e->ledger;
    e->plan = *plan;
    hy_status status = hy_work_take(e);
    if (status != HY_OK) {
        hy_work_release(e);
        e->ledger = before;
        return status;
    }
    e->work.is_gone = false;
    status = follow_work(e);
    if (status != HY_OK) {
        hy_work_drop(e);
        e->work.is_gone = true;
    }
    return status;
}

/* ---- weights that are only used ---------------------------------------------------------------------- */

/* On the device where they fit beside what else is needed there; else in pinned memory, passing through a
 * ring with every pass. */
hy_status hy_engine_take_weights(hy_engine *e, uint64_t beside) {
    hy_row *row = &e->rows.row[HY_ROW_MASTER];
    hy_plan_choice *choice = &e->plan.choice;
    hy_plan_request limits = {.settings = e->settings, .backend = e->backend};
    uint64_t limit = hy_budget_device(&limits);
    *row = (hy_row){
        .kind = &hy_state_kinds[HY_KIND_WEIGHTS], .dtype = e->plan.types.master, .name = ""};
    HY_TRY(hy_params_layout(&e->model->params, HY_SET_ALL, row->dtype, &row->layout));
    bool fits = limit == 0 || row->layout.bytes + beside <= limit;
    bool is_here = fits && e->settings->memory.weights_place != HY_PINNED;
    choice->state[HY_PLAN_WEIGHTS] = is_here ? HY_DEVICE : HY_PINNED;
    choice->ring_depth = HY_TILE_RING_DEPTH;
    return take_row(e, row, choice);
}

/* ---- the rows together --------------------------------------------------------------------------------- */

hy_status hy_row_zero(hy_engine *e, int id) {
    hy_row_changed(e, id);
    return hy_store_zero(hy_store_of(e, id), e->compute);
}

hy_status hy_engine_settle(hy_engine *e) {
    hy_stream *streams[] = {e->compute, e->copies, e->returns, e->trip.stream,
                            e->shards.net.stream};
    for (int i = 0; i < 5; i++) {
        if (streams[i]) (void)e->backend->stream_sync(streams[i]); /* reported already */
    }
    hy_shards_abandon(e);
    for (int i = 0; i < HY_ROW_COUNT; i++) hy_store_abandon(hy_store_of(e, i));
    hy_store_abandon(&e->work.activations);
    for (int i = 0; i < HY_ROW_COUNT; i++) HY_TRY(hy_store_settle(hy_store_of(e, i)));
    return hy_store_settle(&e->work.activations);
}

uint64_t hy_engine_moved(const hy_engine *e) {
    uint64_t bytes = e->bytes_moved + e->work.activations.bytes_moved;
    for (int i = 0; i < HY_ROW_COUNT; i++) bytes += e->rows.row[i].store.bytes_moved;
    return bytes;
}

static uint64_t held_in(const hy_arena *arena, hy_place place) {
    return arena->data && arena->place == place ? arena->size : 0;
}

uint64_t hy_engine_reserved(const hy_engine *e, hy_place place) {
    const hy_arena *others[] = {&e->work.arena, &e->work.host_arena, &e->shards.arena,
                                &e->shards.staging};
    uint64_t bytes = hy_mover_reserved(e, place);
    for (int i = 0; i < 4; i++) bytes += held_in(others[i], place);
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &e->rows.row[i];
        bytes += held_in(&row->backing, place) + held_in(&row->ring, place) +
                 held_in(&row->staging, place);
    }
    return bytes;
}

/* ---- giving back --------------------------------------------------------------------------------------- */

void hy_engine_release(hy_engine *e) {
    hy_shards_release(e);
    for (int i = 0; i < HY_ROW_COUNT; i++) release_row(&e->rows.row[i]);
    hy_mover_release(e);
    hy_work_release(e);
    (void)hy_spill_close(e->spill); /* a failure there was reported when it mattered */
    e->spill = NULL;
    hy_rows_fini(&e->rows);
}
