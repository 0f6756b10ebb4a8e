/* formulas.c: predictor formulas run over weights and what predictors keep. See phases/predictor.h.
 *
 * A walk goes over the units of the weights; inside a unit it goes over the tiles of slots, snapshot and
 * tail, which pass through small rings of their own (tiles.h). Each tile is visited once: what a formula
 * reads is brought, all formulas run on it, what they changed goes back.
 *
 * Most formulas cannot be run twice. A walk that breaks off for want of memory leaves its tiles as changed
 * as they are, and is gone again without the ops that have been enqueued: no op runs twice or never. */
#include <string.h>

#include "base/error.h"
#include "trainer/trainer.h"

#define SOURCES 4 /* stores of a walk besides the weights, at most */

/* Where a walk is: a tile of a parameter. */
typedef struct spot {
    int32_t param, item;  /* item of tiled stores */
    int64_t begin, count; /* elements of the parameter */
} spot;

typedef struct walk {
    hy_trainer *t;
    hy_stream *stream;
    hy_store *tiled[SOURCES]; /* NULL: none */
    bool is_changed[SOURCES];
    bool uses_weights, changes_weights;
    hy_status (*visit)(struct walk *w, const spot *at);
    const void *context;
    bool is_held[SOURCES];  /* a unit of it is, now */
    int32_t held[SOURCES];  /* which */
    int64_t enqueued, skip; /* ops of this walk so far; those of an earlier go that are not again */
} walk;

/* ---- walking ----------------------------------------------------------------------------------- */

/* A store's numbers at a spot. */
static hy_tensor tensor_at(const hy_trainer *t, const hy_store *store, const spot *at) {
    bool is_tiled = store != hy_store_of(&t->engine, HY_ROW_MASTER);
    int32_t item = is_tiled ? at->item : at->param;
    hy_tensor all = hy_store_tensor(store, item, hy_store_device(store, item));
    return is_tiled ? all : hy_tensor_rows(&all, at->begin, at->count);
}

/* Small tensors share a unit of a tiled store: it is held from its first item to its last. */
static bool is_edge(const hy_store *store, int32_t item, int step) {
    const hy_layout *l = &store->layout;
    int32_t next = item + step;
    return next < 0 || next >= l->item_count || l->items[next].unit != l->items[item].unit;
}

static hy_status enter_tile(walk *w, int32_t item) {
    for (int i = 0; i < SOURCES; i++) {
        hy_store *store = w->tiled[i];
        if (!store || !is_edge(store, item, -1)) continue;
        int32_t unit = store->layout.items[item].unit;
        HY_TRY(w->is_changed[i] ? hy_store_get(store, w->stream, unit)
                                : hy_store_get_read(store, w->stream, unit));
        w->is_held[i] = true;
        w->held[i] = unit;
        if (unit + 1 < store->layout.unit_count) HY_TRY(hy_store_gather(store, unit + 1));
    }
    return HY_OK;
}

static hy_status let_go(walk *w, int source) {
    hy_store *store = w->tiled[source];
    w->is_held[source] = false;
    return w->is_changed[source] ? hy_store_release_changed(store, w->stream, w->held[source])
                                 : hy_store_release(store, w->stream, w->held[source]);
}

/* Those that end here, or all after a failure; goes on after one that fails, and tells the first. */
static hy_status leave_tile(walk *w, int32_t item, bool leaves_all) {
    hy_status first = HY_OK;
    for (int i = 0; i < SOURCES; i++) {
        bool ends = w->is_held[i] && (leaves_all || is_edge(w->tiled[i], item, +1));
        hy_status status = ends ? let_go(w, i) : HY_OK;
        if (first == HY_OK) first = status;
    }
    return first;
}

static hy_status visit_tile(walk *w, const spot *at) {
    HY_TRY(enter_tile(w, at->item));
    return w->visit(w, at);
}

static hy_status walk_param(walk *w, int32_t param) {
    const hy_tiles *tiles = &w->t->engine.state.tiles;
    int64_t all = w->t->engine.model->params.list[param].count;
    for (int32_t item = tiles->first[param]; item < tiles->first[param + 1]; item++) {
        int64_t begin = hy_tile_begin(tiles, param, item), left = all - begin;
        spot at = {param, item, begin, left < HY_TILE_ELEMENTS ? left : HY_TILE_ELEMENTS};
        hy_status visited = visit_tile(w, &at);
        hy_status released = leave_tile(w, item, visited != HY_OK);
        HY_TRY(visited);
        HY_TRY(released);
    }
    return HY_OK;
}

static hy_status walk_params(walk *w, int32_t unit) {
    const hy_params *params = &w->t->engine.model->params;
    if (w->uses_weights && unit + 1 < params->units) {
        HY_TRY(hy_store_gather(hy_store_of(&w->t->engine, HY_ROW_MASTER), unit + 1));
    }
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].unit == unit) HY_TRY(walk_param(w, i));
    }
    return HY_OK;
}

static hy_status walk_unit(walk *w, int32_t unit) {
    hy_store *weights = hy_store_of(&w->t->engine, HY_ROW_MASTER);
    if (!w->uses_weights) return walk_params(w, unit);
    HY_TRY(w->changes_weights ? hy_store_get(weights, w->stream, unit)
                              : hy_store_get_read(weights, w->stream, unit));
    hy_status walked = walk_params(w, unit);
    hy_status released = w->changes_weights ? hy_store_release_changed(weights, w->stream, unit)
                                            : hy_store_release(weights, w->stream, unit);
    HY_TRY(walked);
    return released;
}

/* Enqueues an op, unless an earlier go has. */
static hy_status enqueue_once(walk *w, const hy_op_call *call) {
    if (w->enqueued >= w->skip) HY_TRY(w->t->engine.backend->enqueue(w->stream, call));
    w->enqueued++;
    return HY_OK;
}

/* All units. What is pending is finished first; the rings lie where training's activations were. */
static hy_status walk_units(walk *w) {
    HY_TRY(hy_trainer_finish_update(w->t));
    w->t->engine.work.rings_are_used = true;
    if (w->changes_weights) w->t->engine.is_low_current = false;
    w->enqueued = 0;
    memset(w->is_held, 0, sizeof w->is_held);
    for (int32_t unit = 0; unit < w->t->engine.model->params.units; unit++)
        HY_TRY(walk_unit(w, unit));
    return HY_OK;
}

static hy_status walk_all(walk *w) {
    hy_status status;
    while ((status = walk_units(w)) != HY_OK) {
        if (w->enqueued > w->skip) w->skip = w->enqueued;
        HY_TRY(hy_trainer_survive(w->t, status, HY_AS_IT_IS));
    }
    return HY_OK;
}

/* ---- formulas ---------------------------------------------------------------------------------- */

/* The op of one formula at one spot; `out` is where the result goes. */
static hy_op_call formula_call(const hy_trainer *t, const hy_formula *f, const spot *at,
                               hy_tensor out) {
    hy_op_call call = {.kind = HY_OP_COMBINE};
    call.t[HY_COMBINE_OUT] = out;
    if (f->theta != 0) {
        call.t[HY_COMBINE_X0] = tensor_at(t, hy_store_of(&t->engine, HY_ROW_MASTER), at);
        call.attr.combine.coefficient[0] = (float)f->theta;
    }
    for (int s = 0; s < HY_PREDICTOR_SLOTS; s++) {
        if (f->slot[s] == 0) continue;
        call.t[HY_COMBINE_X1 + s] = tensor_at(t, hy_store_of(&t->engine, HY_ROW_SLOW + s), at);
        call.attr.combine.coefficient[1 + s] = (float)f->slot[s];
    }
    return call;
}

static hy_status apply_at(walk *w, const spot *at) {
    const hy_formulas *formulas = w->context;
    hy_trainer *t = w->t;
    for (int i = 0; i < formulas->count; i++) {
        const hy_formula *f = &formulas->list[i];
        const hy_store *target = f->target < 0 ? hy_store_of(&t->engine, HY_ROW_MASTER)
                                               : hy_store_of(&t->engine, HY_ROW_SLOW + f->target);
        hy_op_call call = formula_call(t, f, at, tensor_at(t, target, at));
        HY_TRY(enqueue_once(w, &call));
    }
    return HY_OK;
}

static void use_slots(walk *w, bool is_changed) {
    for (int s = 0; s < hy_predictor_slots(w->t->engine.predictor.kind); s++) {
        w->tiled[s] = hy_store_of(&w->t->engine, HY_ROW_SLOW + s);
        w->is_changed[s] = is_changed;
    }
}

hy_status hy_trainer_apply(hy_trainer *t, const hy_formulas *formulas) {
    walk w = {.t = t, .stream = t->engine.compute, .uses_weights = true, .visit = apply_at};
    if (formulas->count == 0) return HY_OK;
    for (int i = 0; i < formulas->count; i++) w.changes_weights |= formulas->list[i].target < 0;
    use_slots(&w, true);
    w.context = (void *)formulas;
    return walk_all(&w);
}

/* ---- the tail's sum ---------------------------------------------------------------------------- */

static hy_status add_at(walk *w, const spot *at) {
    const bool *is_first = w->context;
    hy_op_call add = {.kind = HY_OP_COMBINE};
    add.t[HY_COMBINE_OUT] = tensor_at(w->t, hy_store_of(&w->t->engine, HY_ROW_AVERAGE), at);
    add.t[HY_COMBINE_X0] = tensor_at(w->t, hy_store_of(&w->t->engine, HY_ROW_MASTER), at);
    if (!*is_first) add.t[HY_COMBINE_X1] = add.t[HY_COMBINE_OUT];
    add.attr.combine.coefficient[0] = add.attr.combine.coefficient[1] = 1;
    return enqueue_once(w, &add);
}

hy_status hy_trainer_add_to_tail(hy_trainer *t, bool is_first) {
    walk w = {.t = t,
              .stream = t->engine.compute,
              .tiled = {hy_store_of(&t->engine, HY_ROW_AVERAGE)},
              .is_changed = {true},
              .uses_weights = true,
              .visit = add_at,
              .context = &is_first};
    return walk_all(&w);
}

/* ---- the proposed weights, one unit at a time --------------------------------------------------- */

static hy_status make_at(walk *w, const spot *at) {
    hy_trainer *t = w->t;
    const hy_layout_item *item =
        &hy_store_of(&t->engine, HY_ROW_CANDIDATE)->layout.items[at->param];
    hy_tensor all =
        hy_tensor_1d((char *)w->context + item->offset, t->engine.candidate.dtype, item->count);
    hy_tensor out = hy_tensor_rows(&all, at->begin, at->count);
    if (!t->engine.candidate.is_average) {
        hy_op_call call = formula_call(t, &t->engine.candidate.formula, at, out);
        return t->engine.backend->enqueue(w->stream, &call);
    }
    hy_op_call mean = {.kind = HY_OP_COMBINE};
    mean.t[HY_COMBINE_OUT] = out;
    mean.t[HY_COMBINE_X0] = tensor_at(t, hy_store_of(&t->engine, HY_ROW_AVERAGE), at);
    mean.attr.combine.coefficient[0] = (float)(1.0 / (double)t->progress.tail_samples);
    return t->engine.backend->enqueue(w->stream, &mean);
}

hy_status hy_candidate_maker(void *context, hy_stream *stream, int32_t unit, char *data) {
    hy_trainer *t = context;
    walk w = {.t = t, .stream = stream, .visit = make_at, .context = data};
    t->engine.work.rings_are_used = true;
    if (t->engine.candidate.is_average) {
        w.tiled[0] = hy_store_of(&t->engine, HY_ROW_AVERAGE);
    } else {
        w.uses_weights = true;
        use_slots(&w, false);
    }
    return walk_unit(&w, unit);
}

/* ---- lengths and directions --------------------------------------------------------------------- */

typedef struct four_stores {
    const hy_store *of[4];
} four_stores;

static hy_status measure_at(walk *w, const spot *at) {
    const four_stores *stores = w->context;
    hy_trainer *t = w->t;
    bool is_first = at->param == 0 && at->begin == 0;
    hy_op_call call = {.kind = HY_OP_DIFF_DOT,
                       .attr.accumulate = !is_first,
                       .workspace = t->engine.work.buffers.reduce_workspace};
    for (int k = 0; k < 4; k++) {
        if (stores->of[k]) call.t[HY_DIFF_DOT_A + k] = tensor_at(t, stores->of[k], at);
    }
    call.t[HY_DIFF_DOT_OUT] = hy_tensor_1d(t->engine.work.buffers.dots, HY_F64, 3);
    return enqueue_once(w, &call);
}

hy_status hy_trainer_measure(hy_trainer *t, const hy_store *a, const hy_store *b, const hy_store *c,
                             const hy_store *d, double out[3]) {
    four_stores stores = {{a, b, c, d}};
    walk w = {.t = t, .stream = t->engine.compute, .visit = measure_at, .context = &stores};
    for (int k = 0; k < 4; k++) {
        bool is_new = stores.of[k] != NULL;
        for (int j = 0; j < k; j++) is_new &= stores.of[j] != stores.of[k];
        if (stores.of[k] == hy_store_of(&t->engine, HY_ROW_MASTER)) w.uses_weights = true;
        if (is_new && stores.of[k] != hy_store_of(&t->engine, HY_ROW_MASTER))
            w.tiled[k] = (hy_store *)stores.of[k];
    }
    HY_TRY(walk_all(&w));
    HY_TRY(t->engine.backend->copy(t->engine.compute, t->engine.work.result->dots,
                                   t->engine.work.buffers.dots,
                                   sizeof t->engine.work.result->dots));
    HY_TRY(t->engine.backend->stream_sync(t->engine.compute));
    for (int k = 0; k < 3; k++) out[k] = t->engine.work.result->dots[k];
    return HY_OK;
}

/* ---- whole copies ------------------------------------------------------------------------------- */

/* The snapshot has the weights' type, so both lie the same way: tiles back to back are parameters. */
hy_status hy_trainer_copy_weights(hy_trainer *t, hy_store *host, bool to_host) {
    HY_TRY(hy_trainer_finish_update(t));
    HY_TRY(t->engine.backend->stream_sync(t->engine.compute));
    double begin = hy_clock();
    HY_TRY(to_host
               ? hy_store_copy(host, hy_store_of(&t->engine, HY_ROW_MASTER), t->engine.compute)
               : hy_store_copy(hy_store_of(&t->engine, HY_ROW_MASTER), host, t->engine.compute));
    t->engine.host_waited += hy_clock() - begin;
    t->engine.bytes_moved += hy_store_of(&t->engine, HY_ROW_MASTER)->layout.bytes;
    if (!to_host) t->engine.is_low_current = false;
    return HY_OK;
}
