/* custom_units.c: weights and gradients that we keep for a caller's passes. See custom.h.
 *
 * The rows are those of a model of ours: on the device, in pinned memory or on disk, with rings.
 * The caller computes on its own stream. hy_custom_hold makes that stream wait until the weights are
 * on the device, hy_custom_release makes ours wait until the caller's work with them is done.
 * Quantised frozen weights are decoded into a ring of two units, on our stream, when they are held. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"
#include "kernels/coded.h"
#include "kernels/cpu/machine.h"
#include "kernels/half.h"
#include "model/coding.h"

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

#define MOST_STORES 3

/* The stores that have weights of a unit: trained, frozen, and decoded ones. */
static int list_stores(const hy_engine *e, hy_store *out[MOST_STORES]) {
    const hy_row_id rows[MOST_STORES] = {weights_row(e), HY_ROW_FROZEN, HY_ROW_DECODED};
    int count = 0;
    for (int i = 0; i < MOST_STORES; i++) {
        if (hy_has_row(e, rows[i])) out[count++] = hy_store_of(e, rows[i]);
    }
    return count;
}

/* The store where passes read a parameter. */
static hy_store *store_of(const hy_engine *e, int32_t param) {
    const hy_params *params = &e->model->params;
    if (params->list[param].is_trainable) return hy_store_of(e, weights_row(e));
    return hy_store_of(e, hy_params_are_coded(params, param) ? HY_ROW_DECODED : HY_ROW_FROZEN);
}

hy_status hy_custom_fetch(hy_engine *e, int32_t unit) {
    HY_TRY(hy_store_prefetch(hy_store_of(e, weights_row(e)), unit));
    return hy_has_row(e, HY_ROW_FROZEN) ? hy_store_prefetch(hy_store_of(e, HY_ROW_FROZEN), unit)
                                        : HY_OK;
}

static hy_tensor matrix_of(const hy_store *store, int32_t item, const hy_param *p) {
    hy_tensor t = hy_store_tensor(store, item, hy_store_device(store, item));
    t.ndim = 2;
    t.shape[0] = hy_param_rows(p);
    t.shape[1] = hy_param_width(p);
    return t;
}

/* Decodes the unit's quantised weights, unless the ring still has them. */
static hy_status decode(hy_engine *e, int32_t unit) {
    hy_store *to = hy_store_of(e, HY_ROW_DECODED), *from = hy_store_of(e, HY_ROW_FROZEN);
    hy_stream *stream = e->device.compute;
    if (!hy_has_row(e, HY_ROW_DECODED) || to->layout.unit_bytes[unit] == 0) return HY_OK;
    if (hy_store_touch(to, unit)) return HY_OK;
    HY_TRY(hy_store_get_read(from, stream, unit));
    HY_TRY(hy_store_get_new(to, stream, unit));
    for (int32_t i = first_of(e, unit); is_in(e, i, unit); i++) {
        int32_t decoded = hy_store_item_of(to, i), coded = hy_store_item_of(from, i);
        if (decoded < 0) continue;
        hy_op_call cast = {.kind = HY_OP_CAST};
        cast.t[HY_CAST_SRC] = matrix_of(from, coded, &e->model->params.list[i]);
        cast.t[HY_CAST_DST] = matrix_of(to, decoded, &e->model->params.list[i]);
        HY_TRY(e->device.backend->enqueue(stream, &cast));
    }
    HY_TRY(hy_store_release_changed(to, stream, unit));
    return hy_store_release(from, stream, unit);
}

/* Frozen weights are in no checkpoint, so a caller that resumes a run might forget them. */
static hy_status check_written(const hy_engine *e, int32_t param) {
    const hy_param *p = &e->model->params.list[param];
    HY_FAIL_IF(!p->is_trainable && e->custom->written[param] < p->count, HY_ERR_STATE,
               "the frozen parameter %s has no weights: write all its %lld elements with "
               "hy_loop_write_weights, also in a resumed run",
               p->name, (long long)p->count);
    return HY_OK;
}

hy_status hy_custom_hold(hy_engine *e, int32_t unit, void **weights) {
    hy_store *stores[MOST_STORES];
    int count = list_stores(e, stores);
    for (int i = 0; i < count; i++) {
        HY_FAIL_IF(!hy_store_can_hold(stores[i], unit), HY_ERR_STATE,
                   "unit %d cannot be held, because the buffers for units of its size are held by "
                   "others; release one of them before",
                   (int)unit);
    }
    for (int32_t i = first_of(e, unit); is_in(e, i, unit); i++) HY_TRY(check_written(e, i));
    bool is_due = e->update.is_pending && e->update.units_done <= unit;
    if (is_due) {
        HY_TRY(hy_update_upto(e, unit));
        if (!e->update.is_pending) HY_TRY(hy_update_prefetch(e)); /* for the next update */
    }
    HY_TRY(decode(e, unit));
    for (int i = 0; i < count; i++) HY_TRY(hy_store_get_read(stores[i], e->device.compute, unit));
    for (int32_t i = first_of(e, unit), k = 0; is_in(e, i, unit); i++, k++) {
        const hy_store *store = store_of(e, i);
        weights[k] = hy_store_device(store, hy_store_item_of(store, i));
    }
    return hy_custom_lend(e);
}

bool hy_custom_stays(const hy_engine *e, int32_t unit) {
    hy_store *stores[MOST_STORES];
    int count = list_stores(e, stores);
    for (int i = 0; i < count; i++) {
        /* Quantised weights stay, but what the caller reads is decoded. */
        if (!hy_store_stays(stores[i], unit)) return false;
    }
    return true;
}

hy_status hy_custom_release(hy_engine *e, int32_t unit) {
    hy_store *stores[MOST_STORES];
    int count = list_stores(e, stores);
    HY_TRY(hy_custom_take_back(e));
    for (int i = 0; i < count; i++) HY_TRY(hy_store_release(stores[i], e->device.compute, unit));
    return HY_OK;
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
        if (!e->model->params.list[i].is_trainable) continue;
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

static void widen(hy_dtype dtype, const void *from, int64_t first, int64_t count, float *out) {
    const uint16_t *half = (const uint16_t *)from + first;
    if (dtype == HY_F32) {
        memcpy(out, (const float *)from + first, (size_t)count * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        out[i] = dtype == HY_BF16 ? hy_bf16_to_f32(half[i]) : hy_f16_to_f32(half[i]);
    }
}

/* The master is fp32 if it is not the row that passes read; that row has 16 bits. */
static hy_status write_master(hy_engine *e, int32_t param, int64_t first, int64_t count,
                              const void *from) {
    hy_store *master = hy_store_of(e, HY_ROW_MASTER);
    int32_t item = hy_store_item_of(master, param);
    hy_status status = HY_OK;
    float *wide = malloc((size_t)(count < CHUNK ? count : CHUNK) * sizeof *wide);
    if (!wide) return hy_fail(HY_ERR_MEMORY, "not enough memory to convert weights");
    for (int64_t at = 0; at < count && status == HY_OK; at += CHUNK) {
        int64_t n = count - at < CHUNK ? count - at : CHUNK;
        widen(e->custom->types.weights, from, at, n, wide);
        status = hy_store_put(master, e->device.compute, item, first + at, n, wide);
    }
    free(wide);
    return status;
}

typedef struct source {
    hy_dtype dtype;
    const void *from;
} source;

static hy_status read_source(void *context, int64_t first, int64_t count, float *out) {
    const source *s = context;
    widen(s->dtype, s->from, first, count, out);
    return HY_OK;
}

/* A quantised matrix needs all its elements at once, because their scales depend on each other. */
static hy_status write_coded(hy_engine *e, int32_t param, int64_t count, const void *from) {
    const hy_param *p = &e->model->params.list[param];
    hy_store *store = hy_store_of(e, HY_ROW_FROZEN);
    int32_t item = hy_store_item_of(store, param);
    HY_FAIL_IF(
        count < p->count, HY_ERR_INPUT,
        "%lld elements of parameter %s were given, which is stored in %s; write all its %lld "
        "elements in one call",
        (long long)count, p->name, hy_dtype_name(store->layout.items[item].dtype),
        (long long)p->count);
    source given = {e->custom->params[param].dtype, from};
    int64_t threads = e->request.settings->threads;
    hy_coding_source numbers = {&given, read_source,
                                (int)(threads ? threads : hy_machine_threads())};
    hy_coding_target to = {.store = store, .stream = e->device.compute, .item = item};
    hy_store_forget(hy_store_of(e, HY_ROW_DECODED)); /* it may have the old weights */
    e->custom->written[param] = 0;                   /* after a failure it has parts of both */
    return hy_coding_run(p, &store->layout.items[item], &numbers, &to);
}

static hy_status write_frozen(hy_engine *e, int32_t param, int64_t first, int64_t count,
                              const void *from) {
    hy_store *store = hy_store_of(e, HY_ROW_FROZEN);
    int32_t item = hy_store_item_of(store, param);
    int64_t *written = &e->custom->written[param];
    bool is_coded = hy_params_are_coded(&e->model->params, param);
    HY_FAIL_IF(!is_coded && first > *written, HY_ERR_INPUT,
               "elements from %lld on of the frozen parameter %s were given, but the first %lld "
               "are all that was written; write its elements in their order",
               (long long)first, e->model->params.list[param].name, (long long)*written);
    hy_status status = is_coded ? write_coded(e, param, count, from)
                                : hy_store_put(store, e->device.compute, item, first, count, from);
    if (status != HY_OK && !is_coded && first < *written) *written = first;
    if (status == HY_OK && first + count > *written) *written = first + count;
    return status;
}

hy_status hy_custom_write(hy_engine *e, int32_t param, int64_t first, int64_t count,
                          const void *from) {
    hy_row_id row = weights_row(e);
    hy_store *store = hy_store_of(e, row);
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_engine_sync(e));
    if (!e->model->params.list[param].is_trainable)
        return write_frozen(e, param, first, count, from);
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

/* Quantised weights are read where they are decoded. */
static hy_status read_decoded(hy_engine *e, int32_t param, uint64_t at, uint64_t bytes, void *to) {
    int32_t unit = e->model->params.list[param].unit;
    hy_store *store = hy_store_of(e, HY_ROW_DECODED);
    HY_TRY(decode(e, unit));
    HY_TRY(hy_store_get_read(store, e->device.compute, unit));
    const char *from = hy_store_device(store, hy_store_item_of(store, param));
    HY_TRY(e->device.backend->copy(e->device.compute, to, from + at, bytes));
    HY_TRY(e->device.backend->stream_sync(e->device.compute));
    return hy_store_release(store, e->device.compute, unit);
}

hy_status hy_custom_read(hy_engine *e, int32_t param, int64_t first, int64_t count, void *to) {
    hy_store *store = store_of(e, param);
    HY_TRY(check_written(e, param));
    HY_TRY(hy_update_finish(e));
    HY_TRY(hy_engine_sync(e));
    hy_dtype dtype = store->layout.items[hy_store_item_of(store, param)].dtype;
    uint64_t at = hy_dtype_bytes(dtype, first), bytes = hy_dtype_bytes(dtype, count);
    if (store == hy_store_of(e, HY_ROW_DECODED)) return read_decoded(e, param, at, bytes, to);
    uint64_t offset = hy_store_offset(store, hy_store_item_of(store, param)) + at;
    return hy_store_read(store, e->device.compute, offset, to, bytes);
}
