/* custom_units.c: weights and gradients that we keep for a caller's passes. See custom.h.
 *
 * The rows are those of a model of ours: on the device, in pinned memory or on disk, with rings.
 * The caller computes on its own stream. hy_custom_hold makes that stream wait until the weights are
 * on the device, hy_custom_release makes ours wait until the caller's work with them is done. */
#include <stdlib.h>

#include "base/error.h"
#include "engine/engine.h"
#include "kernels/half.h"

static hy_row_id weights_row(const hy_engine *e) {
    return hy_weights_row(&e->plan->types, e->plan->types.of[HY_FULL]);
}

/* The unit's parameters are neighbours in the list. */
static int32_t first_of(const hy_engine *e, int32_t unit) {
    int32_t i = 0;
    while (e->model->params.list[i].unit < unit) i++;
    return i;
}

static bool is_in(const hy_engine *e, int32_t param, int32_t unit) {
    return param < e->model->params.count && e->model->params.list[param].unit == unit;
}

/* ---- weights --------------------------------------------------------------------------------- */

hy_status hy_custom_fetch(hy_engine *e, int32_t unit) {
    return hy_store_prefetch(hy_store_of(e, weights_row(e)), unit);
}

hy_status hy_custom_hold(hy_engine *e, int32_t unit, void **weights) {
    hy_store *store = hy_store_of(e, weights_row(e));
    HY_FAIL_IF(!hy_store_can_hold(store, unit), HY_ERR_STATE,
               "unit %d cannot be held, because the buffers for units of its size are held by "
               "others; release one of them before",
               (int)unit);
    bool is_due = e->update.is_pending && e->update.units_done <= unit;
    if (is_due) {
        HY_TRY(hy_update_upto(e, unit));
        if (!e->update.is_pending) HY_TRY(hy_update_prefetch(e)); /* for the next update */
    }
    HY_TRY(hy_store_get_read(store, e->device.compute, unit));
    for (int32_t i = first_of(e, unit), k = 0; is_in(e, i, unit); i++, k++) {
        weights[k] = hy_store_device(store, hy_store_item_of(store, i));
    }
    return hy_custom_lend(e);
}

hy_status hy_custom_release(hy_engine *e, int32_t unit) {
    HY_TRY(hy_custom_take_back(e));
    return hy_store_release(hy_store_of(e, weights_row(e)), e->device.compute, unit);
}

/* ---- gradients ------------------------------------------------------------------------------- */

void hy_custom_begin_units(hy_engine *e, bool is_first, bool is_last) {
    hy_custom_side *g = e->custom;
    for (int32_t i = 0; is_first && i < e->model->params.units; i++) g->has_grads[i] = false;
    g->norm_from = e->model->params.units;
    g->is_last = is_last;
}

/* The norm is summed from the last unit to the first, wherever gradients are kept, so that its bits
 * are always the same. A usual backward pass has that order: then each unit is added while it is on
 * the device. If gradients change after they were added, the sum begins anew at the end. */
static hy_status add_norm(hy_engine *e, int32_t unit) {
    hy_custom_side *g = e->custom;
    if (unit >= g->norm_from) {
        g->norm_from = e->model->params.units;
        g->is_last = false;
    }
    if (!g->is_last || unit != g->norm_from - 1) return HY_OK;
    HY_TRY(hy_update_add_norm(e, e->device.compute, unit));
    g->norm_from = unit;
    return HY_OK;
}

static hy_status add_all(hy_engine *e, int32_t unit, void *const *grads, double scale) {
    hy_store *sums = hy_store_of(e, HY_ROW_GRADS);
    bool is_first = !e->custom->has_grads[unit];
    bool adds_next = unit > 0 && e->custom->has_grads[unit - 1]; /* backward comes there next */
    hy_status status = HY_OK;
    if (adds_next) HY_TRY(hy_store_prefetch(sums, unit - 1));
    HY_TRY(is_first ? hy_store_get_new(sums, e->device.compute, unit)
                    : hy_store_get(sums, e->device.compute, unit));
    for (int32_t i = first_of(e, unit), k = 0; status == HY_OK && is_in(e, i, unit); i++, k++) {
        status = hy_custom_add_one(e, sums, i, grads ? grads[k] : NULL, scale, is_first);
    }
    hy_status released = hy_store_release_changed(sums, e->device.compute, unit);
    HY_TRY(status);
    e->custom->has_grads[unit] = true;
    return released;
}

/* A pending update still reads the gradients of the step before: it comes first. */
hy_status hy_custom_add_unit(hy_engine *e, int32_t unit, void *const *grads, double scale) {
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_custom_take_back(e));
    HY_TRY(add_all(e, unit, grads, scale));
    HY_TRY(add_norm(e, unit));
    return hy_custom_lend(e); /* the caller may overwrite its gradients after that */
}

hy_status hy_custom_end_units(hy_engine *e) {
    HY_TRY(hy_update_finish(e));
    for (int32_t unit = 0; unit < e->model->params.units; unit++) {
        if (!e->custom->has_grads[unit]) HY_TRY(add_all(e, unit, NULL, 0));
    }
    for (int32_t unit = e->custom->norm_from - 1; unit >= 0; unit--) {
        if (unit > 0) HY_TRY(hy_store_prefetch(hy_store_of(e, HY_ROW_GRADS), unit - 1));
        HY_TRY(hy_update_add_norm(e, e->device.compute, unit));
    }
    return HY_OK;
}

/* ---- weights in host memory ------------------------------------------------------------------ */

/* Elements that are converted at a time. */
#define CHUNK ((int64_t)1 << 20)

/* The master is fp32 if it is not the row that passes read; that row has 16 bits. */
static hy_status write_master(hy_engine *e, int32_t param, int64_t first, int64_t count,
                              const uint16_t *from) {
    bool is_bf16 = e->custom->types.weights == HY_BF16;
    hy_store *master = hy_store_of(e, HY_ROW_MASTER);
    int32_t item = hy_store_item_of(master, param);
    hy_status status = HY_OK;
    float *wide = malloc((size_t)(count < CHUNK ? count : CHUNK) * sizeof *wide);
    if (!wide) return hy_fail(HY_ERR_MEMORY, "not enough memory to convert weights");
    for (int64_t at = 0; at < count && status == HY_OK; at += CHUNK) {
        int64_t n = count - at < CHUNK ? count - at : CHUNK;
        for (int64_t i = 0; i < n; i++) {
            wide[i] = is_bf16 ? hy_bf16_to_f32(from[at + i]) : hy_f16_to_f32(from[at + i]);
        }
        status = hy_store_put(master, e->device.compute, item, first + at, n, wide);
    }
    free(wide);
    return status;
}

hy_status hy_custom_write(hy_engine *e, int32_t param, int64_t first, int64_t count,
                          const void *from) {
    hy_row_id row = weights_row(e);
    hy_store *store = hy_store_of(e, row);
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_engine_sync(e));
    HY_TRY(
        hy_store_put(store, e->device.compute, hy_store_item_of(store, param), first, count, from));
    if (row == HY_ROW_MASTER) {
        hy_row_changed(e->state, HY_ROW_MASTER);
        return HY_OK;
    }
    HY_TRY(write_master(e, param, first, count, from));
    hy_row_changed(e->state, HY_ROW_MASTER);
    hy_row_is_made(e->state, row);
    return HY_OK;
}

hy_status hy_custom_read(hy_engine *e, int32_t param, int64_t first, int64_t count, void *to) {
    hy_store *store = hy_store_of(e, weights_row(e));
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_engine_sync(e));
    hy_dtype dtype = e->custom->types.weights;
    uint64_t offset = hy_store_offset(store, hy_store_item_of(store, param));
    return hy_store_read(store, e->device.compute, offset + hy_dtype_bytes(dtype, first), to,
                         hy_dtype_bytes(dtype, count));
}
