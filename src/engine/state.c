/* state.c: the rows of the state table get their memory. See engine.h and plan/rows.h.
 *
 * A row lives on the device, or elsewhere and passes through a ring there. Arenas have exactly the bytes
 * that plan/rows.c counts for the plan; each store takes its part of them, and what it takes is what the
 * ledger sees. */
#include "base/error.h"
#include "base/say.h"
#include "config/derived.h"
#include "engine/engine.h"

/* ---- rows and plan -------------------------------------------------------------------------------- */

hy_status hy_engine_make_model(hy_engine *e) {
    const hy_settings *s = e->settings;
    hy_shape shape;
    HY_TRY(hy_shape_from_settings(s, &shape));
    HY_TRY(hy_model_create(&shape, &e->model));
    hy_status status =
        hy_model_select(e->model, s->train.train, s->train.frozen_dtype == HY_DTYPE_INT8);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "train.train");
}

hy_status hy_engine_lay_out(hy_engine *e) {
    hy_subject *x = &e->subject, before = *x;
    before.model = e->model;
    before.backend = e->backend;
    HY_TRY(hy_subject_with(&before, e->settings, x));
    if (x->chunk_budget == 0) x->chunk_budget = hy_budget_device(x);
    e->types = x->rows.types;
    return hy_rows_init(&e->rows, &e->model->params, &x->rows);
}

/* ---- taking ---------------------------------------------------------------------------------------- */

static hy_copies copies_of(const hy_engine *e) { return (hy_copies){e->copies, e->returns}; }

/* A row that does not live on the device: in `backing`, or behind what is taken of the run's file. */
static hy_status take_streamed(hy_engine *e, hy_row *row, hy_place place, hy_arena *backing,
                               hy_arena *device, int32_t resident) {
    hy_ring_options ring = {.depth = hy_row_ring_depth(row, &e->plan.choice),
                            .resident = resident,
                            .copies = copies_of(e)};
    if (place != HY_DISK) {
        return hy_store_init_ring(&row->store, backing, device, row->cls, &row->layout, &ring);
    }
    hy_disk_backing disk = {.spill = e->memory.spill,
                            .offset = e->memory.spill_used,
                            .staging = &e->memory.staging,
                            .buffers = HY_DISK_BUFFERS};
    HY_TRY(hy_store_init_disk(&row->store, &disk, device, row->cls, &row->layout, &ring));
    e->memory.spill_used += hy_store_disk_bytes(&row->layout);
    hy_ledger_take(&e->ledger, row->cls, HY_DISK, hy_store_disk_bytes(&row->layout));
    return HY_OK;
}

static hy_status take_row(hy_engine *e, int id) {
    hy_row *row = &e->rows.row[id];
    hy_state_memory *m = &e->memory;
    hy_place place = hy_row_place(row, &e->plan.choice);
    if (place == HY_NOWHERE) {
        return hy_store_init_made(&row->store, &e->work.ring_arena, row->cls, &row->layout,
                                  HY_CANDIDATE_DEPTH);
    }
    if (row->is_tiled) return take_streamed(e, row, place, &m->kept, &e->work.ring_arena, 0);
    if (place == HY_DEVICE) {
        return hy_store_init(&row->store, &m->device, row->cls, &row->layout);
    }
    uint64_t before = m->rings.used;
    HY_TRY(take_streamed(e, row, place, &m->pinned, &m->rings, e->plan.choice.resident_units));
    row->ring_bytes = m->rings.used - before; /* counts as workspace: a class has one place */
    hy_ledger_take(&e->ledger, HY_WORKSPACE, HY_DEVICE, row->ring_bytes);
    return HY_OK;
}

/* One file for everything on disk, and the pinned buffers on the way there. */
static hy_status take_disk(hy_engine *e) {
    const hy_plan_state *need = &e->plan.state;
    if (need->disk == 0) return HY_OK;
    HY_TRY(hy_arena_init(&e->memory.staging, e->backend, &e->ledger, HY_PINNED, need->staging,
                         "what comes from disk"));
    HY_TRY(hy_spill_open(e->settings->memory.offload_folder, need->disk, NULL, &e->memory.spill));
    hy_say_to(e->observer, HY_NOTE, "%s", hy_spill_describe(e->memory.spill));
    return HY_OK;
}

static hy_status take_rows(hy_engine *e, bool rings_in_work) {
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &e->rows.row[i];
        if (row->is_there && hy_row_rings_in_work(row) == rings_in_work) HY_TRY(take_row(e, i));
    }
    return HY_OK;
}

hy_status hy_engine_take(hy_engine *e) {
    const hy_plan_state *need = &e->plan.state;
    hy_state_memory *m = &e->memory;
    HY_TRY(take_disk(e));
    HY_TRY(hy_arena_init(&m->device, e->backend, &e->ledger, HY_DEVICE, need->device,
                         "weights, gradients and optimizer state"));
    HY_TRY(hy_arena_init(&m->pinned, e->backend, &e->ledger, HY_PINNED, need->pinned,
                         "weights, gradients and optimizer state on the host"));
    HY_TRY(hy_arena_init(&m->rings, e->backend, &e->ring_ledger, HY_DEVICE, need->rings,
                         "the rings that they pass through"));
    HY_TRY(take_rows(e, false));
    HY_TRY(hy_work_take(e));
    HY_TRY(hy_arena_init(&m->kept, e->backend, &e->ledger, HY_PINNED, need->kept_pinned,
                         "what the predictor keeps"));
    HY_TRY(take_rows(e, true));
    return hy_mover_take(e);
}

/* ---- weights that are only used ---------------------------------------------------------------------- */

/* On the device where they fit beside what else is needed there; else in pinned memory, passing through a
 * ring with every pass. */
hy_status hy_engine_take_weights(hy_engine *e, uint64_t beside) {
    hy_row *row = &e->rows.row[HY_ROW_MASTER];
    hy_state_memory *m = &e->memory;
    hy_subject limits = {.settings = e->settings, .backend = e->backend};
    uint64_t limit = hy_budget_device(&limits);
    *row = (hy_row){.is_there = true,
                    .cls = HY_WEIGHTS,
                    .dtype = e->types.master,
                    .source = -1,
                    .file = "weights.safetensors",
                    .name = ""};
    HY_TRY(hy_params_layout(&e->model->params, HY_SET_ALL, row->dtype, &row->layout));
    uint64_t bytes = row->layout.bytes;
    bool fits = limit == 0 || bytes + beside <= limit;
    if (fits && e->settings->memory.weights_place != HY_PINNED) {
        HY_TRY(hy_arena_init(&m->device, e->backend, &e->ledger, HY_DEVICE, bytes, "the weights"));
        return hy_store_init(&row->store, &m->device, HY_WEIGHTS, &row->layout);
    }
    e->plan.choice.ring_depth = HY_TILE_RING_DEPTH;
    uint64_t ring = hy_store_ring_bytes(&row->layout, HY_TILE_RING_DEPTH);
    HY_TRY(hy_arena_init(&m->pinned, e->backend, &e->ledger, HY_PINNED, bytes, "the weights"));
    HY_TRY(
        hy_arena_init(&m->rings, e->backend, &e->ledger, HY_DEVICE, ring, "weights on their way"));
    return take_streamed(e, row, HY_PINNED, &m->pinned, &m->rings, 0);
}

/* ---- the rows together --------------------------------------------------------------------------------- */

/* Zero bits are the number zero in every type, quantised ones too: their scales are zero. */
hy_status hy_row_zero(hy_engine *e, int id) {
    hy_store *store = hy_store_of(e, id);
    hy_row_changed(e, id);
    if (store->place != HY_DEVICE) return hy_store_zero(store);
    for (int32_t i = 0; i < store->layout.item_count; i++) {
        uint64_t bytes = hy_layout_item_bytes(&store->layout.items[i]);
        hy_op_call fill = {.kind = HY_OP_FILL};
        fill.t[HY_FILL_DST] =
            hy_tensor_1d(hy_store_backing(store, i), HY_I32, (int64_t)(bytes / 4));
        HY_TRY(e->backend->enqueue(e->compute, &fill));
    }
    return HY_OK;
}

hy_status hy_engine_settle(hy_engine *e) {
    hy_stream *streams[] = {e->compute, e->copies, e->returns};
    for (int i = 0; i < 3; i++) (void)e->backend->stream_sync(streams[i]); /* reported already */
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

uint64_t hy_engine_reserved(const hy_engine *e, hy_place place) {
    const hy_state_memory *m = &e->memory;
    const hy_arena *arenas[] = {&m->device,  &m->pinned,     &m->rings,          &m->kept,
                                &m->staging, &e->work.arena, &e->work.host_arena};
    uint64_t bytes = hy_mover_reserved(e, place);
    for (size_t i = 0; i < sizeof arenas / sizeof arenas[0]; i++) {
        if (arenas[i]->data && arenas[i]->place == place) bytes += arenas[i]->size;
    }
    return bytes;
}

/* ---- giving back --------------------------------------------------------------------------------------- */

void hy_engine_release(hy_engine *e) {
    hy_state_memory *m = &e->memory;
    for (int i = 0; i < HY_ROW_COUNT; i++) hy_store_fini(hy_store_of(e, i));
    hy_mover_release(e);
    hy_work_release(e);
    hy_arena_fini(&m->device);
    hy_arena_fini(&m->pinned);
    hy_arena_fini(&m->staging);
    (void)hy_spill_close(m->spill); /* a failure there was reported when it mattered */
    hy_arena_fini(&m->rings);
    hy_arena_fini(&m->kept);
    *m = (hy_state_memory){0};
    hy_rows_fini(&e->rows);
}
