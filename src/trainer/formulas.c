/* formulas.c: predictor formulas run over stores, unit by unit. See trainer.h and phases/predictor.h.
 *
 * The predictor's slots live on the host and pass through their rings; so may the weights. Each unit is
 * visited once: weights and slots are brought, all formulas run on it, what they changed goes back. */
#include <assert.h>

#include "base/error.h"
#include "base/rng.h"
#include "trainer/trainer.h"

static hy_tensor param_tensor(const hy_store *store, int32_t item, int64_t count) {
    return hy_tensor_1d(hy_store_device(store, item), HY_F32, count);
}

/* The op of one formula on one parameter; `out` is where the result goes. */
static hy_op_call formula_call(const hy_trainer *t, const hy_formula *f, int32_t item,
                               hy_tensor out, uint64_t seed) {
    const hy_param *param = &t->model->params.list[item];
    hy_op_call call = {.kind = HY_OP_COMBINE};
    call.t[0] = out;
    call.attr.combine.noise = (float)f->noise;
    call.attr.combine.seed = seed;
    call.attr.combine.first = (uint64_t)param->first;
    if (f->theta != 0) {
        call.t[1] = param_tensor(&t->weights, item, param->count);
        call.attr.combine.coefficient[0] = (float)f->theta;
    }
    for (int s = 0; s < HY_PREDICTOR_SLOTS; s++) {
        if (f->slot[s] == 0) continue;
        call.t[2 + s] = param_tensor(&t->slots[s], item, param->count);
        call.attr.combine.coefficient[1 + s] = (float)f->slot[s];
    }
    return call;
}

static hy_status apply_to_param(hy_trainer *t, const hy_formulas *formulas, int32_t item,
                                uint64_t seed) {
    int64_t count = t->model->params.list[item].count;
    for (int i = 0; i < formulas->count; i++) {
        const hy_formula *f = &formulas->list[i];
        const hy_store *target = f->target < 0 ? &t->weights : &t->slots[f->target];
        hy_op_call call = formula_call(t, f, item, param_tensor(target, item, count), seed);
        HY_TRY(t->backend->enqueue(t->compute, &call));
    }
    return HY_OK;
}

static hy_status gather_next(hy_store *store, int32_t unit, int32_t units) {
    return unit + 1 < units ? hy_store_gather(store, unit + 1) : HY_OK;
}

static hy_status enter_unit(hy_trainer *t, int32_t unit) {
    hy_store *stores[] = {&t->weights, &t->slots[0], &t->slots[1]};
    int count = 1 + hy_predictor_slots(t->predictor.kind);
    for (int i = 0; i < count; i++) {
        HY_TRY(hy_store_get(stores[i], t->compute, unit));
        HY_TRY(gather_next(stores[i], unit, t->model->params.units));
    }
    return HY_OK;
}

static hy_status leave_unit(hy_trainer *t, int32_t unit, bool changes_weights) {
    int slots = hy_predictor_slots(t->predictor.kind);
    for (int s = 0; s < slots; s++) {
        HY_TRY(hy_store_release_changed(&t->slots[s], t->compute, unit));
    }
    return changes_weights ? hy_store_release_changed(&t->weights, t->compute, unit)
                           : hy_store_release(&t->weights, t->compute, unit);
}

hy_status hy_trainer_apply(hy_trainer *t, const hy_formulas *formulas, uint64_t seed) {
    const hy_params *params = &t->model->params;
    bool changes_weights = false;
    int32_t item = 0;
    if (formulas->count == 0) return HY_OK;
    for (int i = 0; i < formulas->count; i++) changes_weights |= formulas->list[i].target < 0;
    for (int32_t unit = 0; unit < params->units; unit++) {
        HY_TRY(enter_unit(t, unit));
        for (; item < params->count && params->list[item].unit == unit; item++) {
            HY_TRY(apply_to_param(t, formulas, item, seed));
        }
        HY_TRY(leave_unit(t, unit, changes_weights));
    }
    if (changes_weights) t->is_low_current = false;
    return HY_OK;
}

/* ---- the proposed weights, one unit at a time ------------------------------------------------- */

static hy_status make_param(hy_trainer *t, int32_t item, hy_tensor out) {
    if (!t->candidate_is_tail) {
        hy_op_call call = formula_call(t, &t->candidate_formula, item, out, t->candidate_seed);
        return t->backend->enqueue(t->compute, &call);
    }
    hy_op_call mean = {.kind = HY_OP_COMBINE};
    mean.t[0] = out;
    mean.t[1] = param_tensor(&t->tail, item, t->model->params.list[item].count);
    mean.attr.combine.coefficient[0] = (float)(1.0 / (double)t->progress.tail_samples);
    return t->backend->enqueue(t->compute, &mean);
}

hy_status hy_candidate_maker(void *context, hy_stream *stream, int32_t unit, char *data) {
    hy_trainer *t = context;
    const hy_params *params = &t->model->params;
    hy_store *sources[1 + HY_PREDICTOR_SLOTS] = {&t->weights, &t->slots[0], &t->slots[1]};
    int count = 1 + hy_predictor_slots(t->predictor.kind);
    assert(count <= 1 + HY_PREDICTOR_SLOTS);
    if (t->candidate_is_tail) {
        sources[0] = &t->tail;
        count = 1;
    }
    for (int s = 0; s < count; s++) {
        HY_TRY(hy_store_get(sources[s], stream, unit));
        HY_TRY(gather_next(sources[s], unit, params->units));
    }
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].unit != unit) continue;
        hy_tensor out = hy_tensor_1d(data + t->candidate.layout.items[i].offset, t->candidate_dtype,
                                     params->list[i].count);
        HY_TRY(make_param(t, i, out));
    }
    for (int s = 0; s < count; s++) HY_TRY(hy_store_release(sources[s], stream, unit));
    return HY_OK;
}

/* ---- lengths and directions ------------------------------------------------------------------- */

static hy_status get_given(const hy_store *const stores[4], hy_stream *stream, int32_t unit) {
    for (int i = 0; i < 4; i++) {
        if (stores[i]) HY_TRY(hy_store_get((hy_store *)stores[i], stream, unit));
    }
    return HY_OK;
}

static hy_status release_given(const hy_store *const stores[4], hy_stream *stream, int32_t unit) {
    for (int i = 0; i < 4; i++) {
        if (stores[i]) HY_TRY(hy_store_release((hy_store *)stores[i], stream, unit));
    }
    return HY_OK;
}

hy_status hy_trainer_measure(hy_trainer *t, const hy_store *a, const hy_store *b, const hy_store *c,
                             const hy_store *d, double out[3]) {
    const hy_store *const stores[4] = {a, b, c, d};
    const hy_params *params = &t->model->params;
    for (int32_t i = 0; i < params->count; i++) {
        hy_op_call call = {.kind = HY_OP_DIFF_DOT,
                           .attr.accumulate = i > 0,
                           .workspace = t->buffers.reduce_workspace};
        HY_TRY(get_given(stores, t->compute, params->list[i].unit));
        for (int k = 0; k < 4; k++) {
            if (stores[k]) call.t[k] = param_tensor(stores[k], i, params->list[i].count);
        }
        call.t[4] = hy_tensor_1d(t->buffers.dots, HY_F64, 3);
        HY_TRY(t->backend->enqueue(t->compute, &call));
        HY_TRY(release_given(stores, t->compute, params->list[i].unit));
    }
    HY_TRY(t->backend->copy(t->compute, t->result->dots, t->buffers.dots, sizeof t->result->dots));
    HY_TRY(t->backend->stream_sync(t->compute));
    for (int k = 0; k < 3; k++) out[k] = t->result->dots[k];
    return HY_OK;
}

/* ---- whole copies ------------------------------------------------------------------------------ */

hy_status hy_trainer_copy_weights(hy_trainer *t, hy_store *host, bool to_host) {
    uint64_t bytes = t->weights.layout.bytes;
    char *from = to_host ? t->weights.data : host->data;
    char *to = to_host ? host->data : t->weights.data;
    HY_TRY(hy_store_settle(host));
    HY_TRY(t->backend->stream_sync(t->compute));
    HY_TRY(hy_store_settle(&t->weights));
    HY_TRY(t->backend->copy(t->compute, to, from, bytes));
    HY_TRY(t->backend->stream_sync(t->compute));
    t->bytes_moved += bytes;
    if (to_host) {
        hy_store_forget(host);
    } else {
        hy_store_forget(&t->weights);
        t->is_low_current = false;
    }
    return HY_OK;
}
