/* custom.c: weights and gradients in a caller's memory. See custom.h.
 *
 * The caller sees one row of weights: the master, or its working copy if the master has more
 * bits. Proposed weights and the average are written there while they are tested. Afterwards a
 * working copy is made from the master again; a master waits in the snapshot meanwhile and
 * returns bit for bit. */
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"

#define CARD_ALIGNMENT 16 /* bytes that kernels read at a time */

/* ---- opening --------------------------------------------------------------------------------- */

hy_status hy_custom_make_model(hy_engine *e) {
    hy_custom_side *g = e->custom;
    HY_TRY(hy_model_create_custom(g->params, g->count, g->unit_of, &e->model));
    const hy_params *params = &e->model->params;
    g->first_part = calloc((size_t)g->count + 1, sizeof *g->first_part);
    g->has_grads = calloc((size_t)params->units, sizeof *g->has_grads);
    g->written = calloc((size_t)g->count, sizeof *g->written);
    HY_FAIL_IF(!g->first_part || !g->has_grads || !g->written, HY_ERR_MEMORY,
               "not enough memory for a list of parameters");
    for (int32_t i = 0; i < params->count; i++) g->first_part[params->list[i].whole + 1] = i + 1;
    return HY_OK;
}

hy_status hy_custom_open(hy_engine *e) {
    hy_custom_side *g = e->custom;
    hy_backend *b = e->device.backend;
    if (!b->stream_adopt) return HY_OK;
    HY_TRY(b->stream_adopt(b, g->stream_handle, &g->stream));
    HY_TRY(b->event_create(b, &g->is_lent));
    return b->event_create(b, &g->is_back);
}

void hy_custom_close(hy_engine *e) {
    hy_custom_side *g = e->custom;
    if (!g) return;
    free(g->first_part);
    free(g->has_grads);
    free(g->written);
    g->first_part = NULL;
    g->has_grads = NULL;
    g->written = NULL;
    if (!e->device.backend) return;
    if (g->is_lent) e->device.backend->event_destroy(g->is_lent);
    if (g->is_back) e->device.backend->event_destroy(g->is_back);
    if (g->stream) e->device.backend->stream_destroy(g->stream);
    g->is_lent = g->is_back = NULL;
    g->stream = NULL;
}

/* ---- places ---------------------------------------------------------------------------------- */

static hy_status check(const hy_engine *e, int32_t param, void *at, hy_dtype dtype,
                       const char *what) {
    hy_backend *b = e->device.backend;
    const char *name = e->custom->params[param].name;
    uint64_t border = b->facts.is_gpu ? CARD_ALIGNMENT : hy_dtype_size(dtype);
    HY_FAIL_IF(!at, HY_ERR_INPUT, "parameter %s has no memory for its %s", name, what);
    HY_FAIL_IF((uintptr_t)at % border != 0, HY_ERR_INPUT,
               "the %s of parameter %s begin at an address that is not a multiple of %d bytes",
               what, name, (int)border);
    hy_status status = b->check_memory ? b->check_memory(b, at) : HY_OK;
    return status == HY_OK ? HY_OK : hy_fail_context(status, "the %s of parameter %s", what, name);
}

/* Stores the caller's addresses in a row. is_known false: missing addresses are skipped. */
static hy_status place(hy_engine *e, int row, void *const *at, const char *what, bool is_known) {
    const hy_row *r = &e->state->rows->row[row];
    const hy_custom_side *g = e->custom;
    for (int32_t k = 0; k < g->count; k++) {
        if (!at[k] && !is_known) continue;
        HY_TRY(check(e, k, at[k], r->dtype, what));
        for (int32_t i = g->first_part[k]; i < g->first_part[k + 1]; i++) {
            uint64_t begin = hy_dtype_bytes(r->dtype, e->model->params.list[i].part_at);
            hy_store_place_outside(hy_store_of(e, row), hy_store_item_of(&r->store, i),
                                   (char *)at[k] + begin);
        }
    }
    return HY_OK;
}

hy_status hy_custom_place(hy_engine *e) {
    const hy_custom_side *g = e->custom;
    if (!g || g->types.keeps_weights) return HY_OK;
    int row = hy_weights_row(&e->plan->types, e->plan->types.of[HY_FULL]);
    HY_TRY(place(e, row, g->weights, "weights", true));
    return g->types.sums_grads ? HY_OK : place(e, HY_ROW_GRADS, g->grads, "gradients", false);
}

hy_status hy_custom_place_grads(hy_engine *e) {
    return place(e, HY_ROW_GRADS, e->custom->grads, "gradients", true);
}

/* ---- weights to begin with ------------------------------------------------------------------- */

/* If the caller's weights are the working copy, they are cast to the master. */
hy_status hy_custom_take_weights(hy_engine *e) {
    if (e->custom->types.keeps_weights) { /* the caller writes them later */
        if (e->plan->types.has_low) hy_row_is_made(e->state, HY_ROW_WORKING);
        return HY_OK;
    }
    HY_TRY(hy_weights_broadcast(e));
    hy_row_changed(e->state, HY_ROW_MASTER);
    return e->plan->types.has_low ? hy_row_cast(e, HY_ROW_WORKING, HY_ROW_MASTER) : HY_OK;
}

/* ---- turns ----------------------------------------------------------------------------------- */

hy_status hy_custom_lend(hy_engine *e) {
    const hy_custom_side *g = e->custom;
    hy_backend *b = e->device.backend;
    if (!g->stream) return b->stream_sync(e->device.compute);
    HY_TRY(b->event_record(g->is_lent, e->device.compute));
    return b->stream_wait(g->stream, g->is_lent);
}

hy_status hy_custom_take_back(hy_engine *e) {
    const hy_custom_side *g = e->custom;
    hy_backend *b = e->device.backend;
    if (!g->stream) return HY_OK;
    HY_TRY(b->event_record(g->is_back, g->stream));
    return b->stream_wait(e->device.compute, g->is_back);
}

hy_status hy_custom_use(hy_engine *e, int32_t param) {
    const hy_custom_side *g = e->custom;
    int32_t units = e->model->params.units;
    if (!e->update.is_pending) return HY_OK;
    int32_t last = param < 0 ? units - 1 : e->model->params.list[g->first_part[param + 1] - 1].unit;
    if (e->update.at.unit > last) return HY_OK;
    HY_TRY(hy_update_upto(e, last));
    HY_TRY(hy_weights_await_all(e)); /* parts that other ranks have updated */
    if (!e->update.is_pending) HY_TRY(hy_update_prefetch(e)); /* for the next update */
    return hy_custom_lend(e);
}

/* ---- what is tried --------------------------------------------------------------------------- */

/* The caller's memory holds the weights again. */
static hy_status show_weights(hy_engine *e) {
    hy_store *unused;
    if (e->custom->shown != HY_SHOWN_WEIGHTS) {
        if (!e->plan->types.has_low) HY_TRY(hy_engine_copy_weights(e, HY_ROW_SNAPSHOT, false));
        e->state->rows->row[HY_ROW_WORKING].made_of = 0; /* stale */
        e->custom->shown = HY_SHOWN_WEIGHTS;
    }
    return hy_engine_weights(e, e->plan->types.of[HY_FULL], &unused);
}

hy_status hy_custom_show(hy_engine *e, hy_shown shown) {
    if (shown == HY_SHOWN_WEIGHTS || e->custom->shown != HY_SHOWN_WEIGHTS) HY_TRY(show_weights(e));
    if (shown == HY_SHOWN_WEIGHTS) return HY_OK;
    HY_TRY(hy_update_finish(e));
    if (!e->plan->types.has_low) {
        e->progress.has_snapshot = false; /* the row holds the weights from here on */
        HY_TRY(hy_engine_copy_weights(e, HY_ROW_SNAPSHOT, true));
    }
    e->custom->shown = shown; /* set first: after a failure the weights must be written back */
    return hy_engine_make_shown(e, shown == HY_SHOWN_AVERAGE);
}

hy_status hy_custom_keep_snapshot(hy_engine *e, hy_arena *kept) {
    uint64_t bytes = e->state->rows->row[HY_ROW_SNAPSHOT].layout.bytes;
    void *data;
    *kept = (hy_arena){0};
    if (e->plan->types.has_low || !e->progress.has_snapshot) return HY_OK;
    HY_TRY(hy_arena_init(kept, e->device.backend, &e->state->ledger, HY_HOST, bytes,
                         "the weights before the last jump, while the average is evaluated"));
    hy_status status = hy_arena_push(kept, HY_SNAPSHOT, bytes, &data);
    if (status == HY_OK) {
        status = hy_store_read(hy_store_of(e, HY_ROW_SNAPSHOT), e->device.compute, 0, data, bytes);
    }
    if (status != HY_OK) hy_arena_fini(kept);
    return status;
}

hy_status hy_custom_return_snapshot(hy_engine *e, hy_arena *kept) {
    hy_store *store = hy_store_of(e, HY_ROW_SNAPSHOT);
    if (!kept->data) return HY_OK;
    hy_row_changed(e->state, HY_ROW_SNAPSHOT);
    hy_status status = hy_store_write(store, e->device.compute, 0, kept->data, store->layout.bytes);
    if (status == HY_OK) status = hy_store_settle(store);
    hy_arena_fini(kept);
    e->progress.has_snapshot = status == HY_OK;
    return status;
}

hy_status hy_custom_begin_step(hy_engine *e, hy_dtype dtype) {
    hy_store *unused;
    HY_TRY(hy_update_begin(e, dtype));
    if (!e->custom->uses_in_turn) HY_TRY(hy_update_finish(e));
    if (e->update.is_pending) return HY_OK;
    HY_TRY(hy_custom_show(e, HY_SHOWN_WEIGHTS));
    return hy_engine_weights_pending(e, dtype, &unused);
}

/* ---- sums of gradients ----------------------------------------------------------------------- */

hy_status hy_custom_add_one(hy_engine *e, hy_store *sums, int32_t param, void *from, double scale,
                            bool is_first) {
    int32_t item = hy_store_item_of(sums, param);
    hy_tensor sum = hy_store_tensor(sums, item, hy_store_device(sums, item));
    hy_op_call call = {.kind = HY_OP_FILL};
    call.t[HY_FILL_DST] = sum;
    if (!from && !is_first) return HY_OK;
    if (!from) return e->device.backend->enqueue(e->device.compute, &call);
    call = (hy_op_call){.kind = HY_OP_COMBINE};
    call.t[HY_COMBINE_OUT] = sum;
    call.t[HY_COMBINE_X0] =
        hy_tensor_1d(from, e->custom->types.grads, e->model->params.list[param].count);
    call.attr.combine.coefficient[0] = (float)scale;
    if (!is_first) call.t[HY_COMBINE_X1] = sum;
    call.attr.combine.coefficient[1] = 1;
    return e->device.backend->enqueue(e->device.compute, &call);
}

/* The address of an entry of the model's list in a caller's memory of gradients. */
static void *grads_at(const hy_engine *e, int32_t param, void *const *at) {
    const hy_param *p = &e->model->params.list[param];
    return (char *)at[p->whole] + hy_dtype_bytes(e->custom->types.grads, p->part_at);
}

/* With several ranks, the unit's reduce-scatter begins, as after a pass of our own model. */
static hy_status add_unit(hy_engine *e, hy_store *to, int32_t unit, int32_t *param, void *const *at,
                          double scale, bool is_first) {
    const hy_params *params = &e->model->params;
    hy_status status = HY_OK;
    HY_TRY(is_first ? hy_store_get_new(to, e->device.compute, unit)
                    : hy_store_get(to, e->device.compute, unit));
    for (; *param < params->count && params->list[*param].unit == unit; ++*param) {
        if (status != HY_OK) continue;
        status = hy_custom_add_one(e, to, *param, grads_at(e, *param, at), scale, is_first);
    }
    bool is_given = status == HY_OK && hy_engine_exchanges(e);
    if (is_given) status = hy_grads_reduce(e, e->device.compute, unit);
    hy_status released = hy_store_release_changed(to, e->device.compute, unit);
    HY_TRY(status);
    return released;
}

hy_status hy_custom_add_grads(hy_engine *e, void *const *at, double scale, bool is_first,
                              bool is_last) {
    bool has_ranks = hy_engine_exchanges(e), accumulates;
    hy_store *to = hy_grads_begin_pass(e, is_first, is_last, &accumulates);
    int32_t param = 0;
    for (int32_t i = 0; i < e->custom->count; i++) {
        HY_TRY(check(e, i, at[i], e->custom->types.grads, "gradients"));
    }
    /* The last unit of the pass before may hold the buffer that the first unit needs. */
    if (has_ranks) HY_TRY(hy_grads_reduce_end(e));
    for (int32_t unit = 0; unit < e->model->params.units; unit++) {
        HY_TRY(add_unit(e, to, unit, &param, at, scale, !accumulates));
    }
    return HY_OK;
}
