/* formulas.c: runs predictor formulas over weights and the predictor's buffers. See formulas.h and
 * phases/predictor.h. The trainer calls it between steps, and passes of Predict call it to make
 * proposed weights.
 *
 * A walk goes over the units of the weights. Inside a unit it goes over the tiles of slow weights,
 * snapshot and average, which stream through their own small rings (tiles.h). It visits each tile
 * once: it brings the tiles that a formula reads, runs all formulas on them, and writes back those
 * that changed.
 *
 * 8-bit buffers are decoded first: a piece of a tile at a time becomes numbers in scratch memory,
 * the formulas run on these, and changed numbers are encoded again. Slow weights are decoded
 * relative to the weights as they are before the formulas (kernels/grid.h); encoding needs no
 * weights.
 *
 * Most formulas cannot be run twice. A walk that runs out of memory leaves its tiles and the
 * scratch memory as they are at that point. It is then repeated without the ops that were enqueued
 * already, so every op runs exactly once. */
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"

#define SOURCES 4 /* maximum number of stores in a walk, without the weights */

/* The position of a walk: a tile of a parameter, or a piece of a tile. */
typedef struct spot {
    int32_t param, item;  /* item: in tiled stores */
    int64_t begin, count; /* elements of the parameter */
    int64_t in_tile;      /* where they begin in the tile */
} spot;

typedef struct walk {
    hy_engine *e;
    hy_stream *stream;
    hy_store *tiled[SOURCES]; /* NULL: none */
    bool is_changed[SOURCES];
    bool uses_weights, changes_weights;
    hy_store *written; /* a row beside the weights that is written whole; NULL: none */
    hy_status (*visit)(struct walk *w, const spot *at);
    const void *context;
    int32_t held[SOURCES]; /* the unit that is held now, plus 1; 0: none */
    int64_t enqueued;      /* ops of this attempt so far */
    int64_t skip;          /* ops that an earlier attempt has enqueued */
} walk;

/* ---- walking --------------------------------------------------------------------------------- */

/* The slice of a parameter that this rank has. */
static hy_slice slice_of(const hy_engine *e, int32_t param) {
    return hy_tiles_slice(&e->state->rows->tiles, &e->model->params, param);
}

/* The elements of a store at a position. */
static hy_tensor tensor_at(const hy_engine *e, const hy_store *store, const spot *at) {
    const hy_row *master = &e->state->rows->row[HY_ROW_MASTER];
    bool is_tiled = store != &master->store;
    int32_t item = is_tiled ? at->item : hy_store_item_of(store, at->param);
    hy_tensor all = hy_store_tensor(store, item, hy_store_device(store, item));
    int64_t begin = master->is_sharded ? at->begin - slice_of(e, at->param).begin : at->begin;
    return hy_tensor_rows(&all, is_tiled ? at->in_tile : begin, at->count);
}

/* Small tensors share a unit of a tiled store: it is held from its first item to its last. */
static bool is_edge(const hy_store *store, int32_t item, int step) {
    const hy_layout *l = &store->layout;
    int32_t next = item + step;
    return next < 0 || next >= l->item_count || l->items[next].unit != l->items[item].unit;
}

/* Makes a unit usable on the walk's stream, and releases it. */
static hy_status get(walk *w, hy_store *store, int32_t unit, bool is_changed) {
    return is_changed ? hy_store_get(store, w->stream, unit)
                      : hy_store_get_read(store, w->stream, unit);
}

static hy_status release(walk *w, hy_store *store, int32_t unit, bool is_changed) {
    return is_changed ? hy_store_release_changed(store, w->stream, unit)
                      : hy_store_release(store, w->stream, unit);
}

static hy_status enter_tile(walk *w, int32_t item) {
    for (int i = 0; i < SOURCES; i++) {
        hy_store *store = w->tiled[i];
        if (!store || !is_edge(store, item, -1)) continue;
        int32_t unit = store->layout.items[item].unit;
        HY_TRY(get(w, store, unit, w->is_changed[i]));
        w->held[i] = unit + 1;
        if (unit + 1 < store->layout.unit_count) HY_TRY(hy_store_prefetch(store, unit + 1));
    }
    return HY_OK;
}

/* Releases the units that end here, or all after a failure. Goes on after a release that fails, and
 * returns the first failure. */
static hy_status leave_tile(walk *w, int32_t item, bool leaves_all) {
    hy_status first = HY_OK;
    for (int i = 0; i < SOURCES; i++) {
        if (!w->held[i] || !(leaves_all || is_edge(w->tiled[i], item, +1))) continue;
        hy_status status = release(w, w->tiled[i], w->held[i] - 1, w->is_changed[i]);
        w->held[i] = 0;
        if (first == HY_OK) first = status;
    }
    return first;
}

static hy_status walk_tile(walk *w, int32_t param, int32_t item) {
    const hy_rows *rows = w->e->state->rows;
    int64_t first = hy_tile_begin(&rows->tiles, param, item), piece = rows->piece;
    hy_slice own = slice_of(w->e, param);
    int64_t left = own.count - first;
    if (left > HY_TILE_ELEMENTS) left = HY_TILE_ELEMENTS;
    for (int64_t in_tile = 0; in_tile < left; in_tile += piece) {
        int64_t count = left - in_tile < piece ? left - in_tile : piece;
        spot at = {param, item, own.begin + first + in_tile, count, in_tile};
        HY_TRY(w->visit(w, &at));
    }
    return HY_OK;
}

static hy_status walk_param(walk *w, int32_t param) {
    const hy_tiles *tiles = &w->e->state->rows->tiles;
    for (int32_t item = tiles->first[param]; item < tiles->first[param + 1]; item++) {
        hy_status visited = enter_tile(w, item);
        if (visited == HY_OK) visited = walk_tile(w, param, item);
        hy_status released = leave_tile(w, item, visited != HY_OK);
        HY_TRY(visited);
        HY_TRY(released);
    }
    return HY_OK;
}

static hy_status walk_unit(walk *w, int32_t unit) {
    const hy_params *params = &w->e->model->params;
    hy_store *weights = w->uses_weights ? hy_store_of(w->e, HY_ROW_MASTER) : NULL;
    hy_status walked = HY_OK, released = HY_OK;
    if (w->written) HY_TRY(get(w, w->written, unit, true));
    if (weights) walked = get(w, weights, unit, w->changes_weights);
    if (walked != HY_OK) weights = NULL;
    if (weights && unit + 1 < params->units) walked = hy_store_prefetch(weights, unit + 1);
    for (int32_t i = 0; i < params->count && walked == HY_OK; i++) {
        if (params->list[i].unit == unit) walked = walk_param(w, i);
    }
    if (weights) released = release(w, weights, unit, w->changes_weights);
    if (w->written) {
        hy_status written = release(w, w->written, unit, true);
        if (released == HY_OK) released = written;
    }
    return walked != HY_OK ? walked : released;
}

/* Enqueues an op, unless an earlier attempt has enqueued it. */
static hy_status enqueue_once(walk *w, const hy_op_call *call) {
    if (w->enqueued >= w->skip) HY_TRY(w->e->device.backend->enqueue(w->stream, call));
    w->enqueued++;
    return HY_OK;
}

/* One attempt over all units, after the pending update. The rings are in the memory of training's
 * activations. */
static hy_status walk_units(walk *w) {
    HY_TRY(hy_update_finish(w->e));
    w->e->work->rings_are_used = true;
    if (w->changes_weights) hy_row_changed(w->e->state, HY_ROW_MASTER);
    w->enqueued = 0;
    memset(w->held, 0, sizeof w->held);
    for (int32_t unit = 0; unit < w->e->model->params.units; unit++) HY_TRY(walk_unit(w, unit));
    return HY_OK;
}

static hy_status walk_all(walk *w) {
    hy_status status;
    while ((status = walk_units(w)) != HY_OK) {
        if (w->enqueued > w->skip) w->skip = w->enqueued;
        HY_TRY(hy_engine_prepare_retry(w->e, status));
    }
    return HY_OK;
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* The values of a row at a position; for an 8-bit row, the decoded ones. */
static hy_tensor numbers_at(const hy_engine *e, int row, const spot *at) {
    const hy_row *r = &e->state->rows->row[row];
    if (r->dtype != HY_U8) return tensor_at(e, &r->store, at);
    char *scratch = e->work->scratch + e->state->rows->scratch[row - HY_ROW_SLOW];
    return hy_tensor_1d(scratch, hy_row_decoded(r), at->count);
}

/* Decodes an 8-bit row at a position, or encodes its changed values. */
static hy_status convert_at(walk *w, int row, const spot *at, bool decodes) {
    hy_engine *e = w->e;
    const hy_row *r = &e->state->rows->row[row];
    if (r->dtype != HY_U8) return HY_OK;
    hy_tensor codes = tensor_at(e, &r->store, at), numbers = numbers_at(e, row, at);
    hy_op_call call = {.kind = decodes ? HY_OP_UNWRAP : HY_OP_WRAP};
    if (r->block) {
        int64_t blocks = (at->count + r->block - 1) / r->block;
        hy_tensor scales = hy_tensor_1d(codes.quant.scale, HY_F32, blocks);
        call.kind = decodes ? HY_OP_DEQUANTIZE : HY_OP_QUANTIZE;
        call.attr.quantize.block = r->block;
        call.attr.quantize.is_signed = r->is_signed;
        call.t[decodes ? HY_DEQUANTIZE_SCALES : HY_QUANTIZE_SCALES] = scales;
        call.t[decodes ? HY_DEQUANTIZE_CODES : HY_QUANTIZE_CODES] = codes;
        call.t[decodes ? HY_DEQUANTIZE_X : HY_QUANTIZE_X] = numbers;
    } else if (decodes) {
        call.attr.grid.exponent = e->progress.slow_exponent;
        call.t[HY_UNWRAP_CODES] = codes;
        call.t[HY_UNWRAP_NEAR] = tensor_at(e, hy_store_of(e, HY_ROW_MASTER), at);
        call.t[HY_UNWRAP_X] = numbers;
    } else {
        call.attr.grid.exponent = e->plan->predictor.exponent;
        call.t[HY_WRAP_X] = numbers;
        call.t[HY_WRAP_CODES] = codes;
    }
    return enqueue_once(w, &call);
}

/* ---- formulas -------------------------------------------------------------------------------- */

/* The op of one formula at one position; the caller sets the output. */
static hy_op_call formula_call(const hy_engine *e, const hy_formula *f, const spot *at) {
    hy_op_call call = {.kind = HY_OP_COMBINE};
    if (f->theta != 0) {
        call.t[HY_COMBINE_X0] = tensor_at(e, hy_store_of(e, HY_ROW_MASTER), at);
        call.attr.combine.coefficient[0] = (float)f->theta;
    }
    for (int s = 0; s < HY_PREDICTOR_BUFFERS; s++) {
        if (f->buffer[s] == 0) continue;
        call.t[HY_COMBINE_X1 + s] = numbers_at(e, HY_ROW_SLOW + s, at);
        call.attr.combine.coefficient[1 + s] = (float)f->buffer[s];
    }
    return call;
}

static hy_status apply_at(walk *w, const spot *at) {
    const hy_formulas *formulas = w->context;
    bool is_read[HY_PREDICTOR_BUFFERS] = {false}, is_written[HY_PREDICTOR_BUFFERS] = {false};
    for (int i = 0; i < formulas->count; i++) {
        const hy_formula *f = &formulas->list[i];
        for (int s = 0; s < HY_PREDICTOR_BUFFERS; s++) {
            is_read[s] |= f->buffer[s] != 0;
            is_written[s] |= f->target == s;
        }
    }
    for (int s = 0; s < HY_PREDICTOR_BUFFERS; s++) {
        if (is_read[s]) HY_TRY(convert_at(w, HY_ROW_SLOW + s, at, true));
    }
    for (int i = 0; i < formulas->count; i++) {
        const hy_formula *f = &formulas->list[i];
        int row = f->target < 0 ? HY_ROW_MASTER : HY_ROW_SLOW + f->target;
        hy_op_call call = formula_call(w->e, f, at);
        call.t[HY_COMBINE_OUT] = numbers_at(w->e, row, at);
        HY_TRY(enqueue_once(w, &call));
    }
    for (int s = 0; s < HY_PREDICTOR_BUFFERS; s++) {
        if (is_written[s]) HY_TRY(convert_at(w, HY_ROW_SLOW + s, at, false));
    }
    return HY_OK;
}

static void use_slow_weights(walk *w, bool is_changed) {
    for (int s = 0; s < w->e->state->rows->slow_count; s++) {
        w->tiled[s] = hy_store_of(w->e, HY_ROW_SLOW + s);
        w->is_changed[s] = is_changed;
    }
}

hy_status hy_engine_apply(hy_engine *e, const hy_formulas *formulas) {
    walk w = {.e = e,
              .stream = e->device.compute,
              .uses_weights = true,
              .visit = apply_at,
              .context = formulas};
    bool writes_slow = false;
    if (formulas->count == 0) return HY_OK;
    for (int i = 0; i < formulas->count; i++) {
        w.changes_weights |= formulas->list[i].target < 0;
        writes_slow |= formulas->list[i].target >= 0;
    }
    use_slow_weights(&w, true);
    HY_TRY(walk_all(&w));
    if (w.changes_weights) HY_TRY(hy_row_all_gather(e, HY_ROW_MASTER));
    /* All slow weights were written. */
    if (writes_slow) e->progress.slow_exponent = e->plan->predictor.exponent;
    return HY_OK;
}

/* ---- the average ----------------------------------------------------------------------------- */

static hy_status add_at(walk *w, const spot *at) {
    hy_op_call add = {.kind = HY_OP_COMBINE};
    add.t[HY_COMBINE_OUT] = tensor_at(w->e, hy_store_of(w->e, HY_ROW_AVERAGE), at);
    add.t[HY_COMBINE_X0] = tensor_at(w->e, hy_store_of(w->e, HY_ROW_MASTER), at);
    if (w->e->progress.average_samples > 0) add.t[HY_COMBINE_X1] = add.t[HY_COMBINE_OUT];
    add.attr.combine.coefficient[0] = add.attr.combine.coefficient[1] = 1;
    return enqueue_once(w, &add);
}

hy_status hy_engine_add_to_average(hy_engine *e) {
    walk w = {.e = e,
              .stream = e->device.compute,
              .tiled = {hy_store_of(e, HY_ROW_AVERAGE)},
              .is_changed = {true},
              .uses_weights = true,
              .visit = add_at};
    HY_TRY(walk_all(&w));
    e->progress.average_samples++;
    return hy_store_settle(hy_store_of(e, HY_ROW_AVERAGE));
}

/* ---- copies of the weights ------------------------------------------------------------------- */

typedef struct copying {
    int row;
    bool to_row; /* else from the row to the weights */
} copying;

static hy_status copy_at(walk *w, const spot *at) {
    const copying *c = w->context;
    hy_tensor kept = tensor_at(w->e, hy_store_of(w->e, c->row), at);
    hy_tensor weights = tensor_at(w->e, hy_store_of(w->e, HY_ROW_MASTER), at);
    const hy_tensor *to = c->to_row ? &kept : &weights, *from = c->to_row ? &weights : &kept;
    return w->e->device.backend->copy(w->stream, to->data, from->data, hy_tensor_bytes(to));
}

static hy_status copy_slices(hy_engine *e, const copying *c) {
    walk w = {.e = e,
              .stream = e->device.compute,
              .tiled = {hy_store_of(e, c->row)},
              .is_changed = {c->to_row},
              .uses_weights = true,
              .changes_weights = !c->to_row,
              .visit = copy_at,
              .context = c};
    HY_TRY(walk_all(&w));
    if (!c->to_row) HY_TRY(hy_row_all_gather(e, HY_ROW_MASTER));
    return e->device.backend->stream_sync(e->device.compute);
}

/* The row has the type of the weights, so both have the same order of elements: the tiles of a
 * parameter are contiguous. */
hy_status hy_engine_copy_weights(hy_engine *e, int row, bool to_row) {
    hy_store *weights = hy_store_of(e, HY_ROW_MASTER), *kept = hy_store_of(e, row);
    HY_TRY(hy_update_finish(e));
    HY_TRY(e->device.backend->stream_sync(e->device.compute));
    hy_row_changed(e->state, to_row ? row : HY_ROW_MASTER);
    if (hy_engine_exchanges(e)) return copy_slices(e, &(copying){row, to_row});
    double begin = hy_clock();
    HY_TRY(hy_store_copy(to_row ? kept : weights, to_row ? weights : kept, e->device.compute));
    e->state->host_waited += hy_clock() - begin;
    e->state->bytes_moved += weights->layout.bytes;
    return HY_OK;
}

/* ---- the proposed weights, one unit at a time ------------------------------------------------ */

/* The row that proposed weights are written to. A custom model has no separate row: it reads them
 * in the memory of its weights. */
static hy_row_id candidate_row(const hy_engine *e) {
    if (hy_has_row(e, HY_ROW_CANDIDATE)) return HY_ROW_CANDIDATE;
    return hy_weights_row(&e->plan->types, e->plan->types.of[HY_FULL]);
}

/* The candidate's ring has room for its widest type; the layout changes with the type. */
void hy_engine_propose(hy_engine *e, const hy_formula *formula, hy_dtype dtype) {
    hy_store *store = hy_store_of(e, HY_ROW_CANDIDATE);
    e->candidate.is_average = formula == NULL;
    if (formula) e->candidate.formula = *formula;
    if (!hy_has_row(e, HY_ROW_CANDIDATE)) return;
    hy_layout_retype(&store->layout, dtype);
    hy_store_abandon(store); /* units that a failed pass left there */
}

static hy_status make_at(walk *w, const spot *at) {
    hy_engine *e = w->e;
    const hy_store *store = hy_store_of(e, candidate_row(e));
    const hy_formula *formula = &e->candidate.formula;
    int32_t item = hy_store_item_of(store, at->param);
    hy_tensor all = hy_store_tensor(store, item, hy_store_device(store, item));
    hy_op_call call = {.kind = HY_OP_COMBINE};
    for (int s = 0; s < HY_PREDICTOR_BUFFERS && !e->candidate.is_average; s++) {
        bool is_read = formula->buffer[s] != 0;
        if (is_read) HY_TRY(convert_at(w, HY_ROW_SLOW + s, at, true));
    }
    if (!e->candidate.is_average) {
        call = formula_call(e, formula, at);
    } else {
        call.t[HY_COMBINE_X0] = tensor_at(e, hy_store_of(e, HY_ROW_AVERAGE), at);
        call.attr.combine.coefficient[0] = (float)(1.0 / (double)e->progress.average_samples);
    }
    call.t[HY_COMBINE_OUT] = hy_tensor_rows(&all, at->begin, at->count);
    return enqueue_once(w, &call);
}

static walk candidate_walk(hy_engine *e, hy_stream *stream) {
    bool is_average = e->candidate.is_average;
    walk w = {.e = e, .stream = stream, .uses_weights = !is_average, .visit = make_at};
    if (is_average) w.tiled[0] = hy_store_of(e, HY_ROW_AVERAGE);
    if (!is_average) use_slow_weights(&w, false);
    return w;
}

hy_status hy_engine_make_shown(hy_engine *e, bool is_average) {
    e->candidate.is_average = is_average;
    walk w = candidate_walk(e, e->device.compute);
    w.changes_weights = candidate_row(e) == HY_ROW_MASTER;
    w.uses_weights |= w.changes_weights;
    if (!w.changes_weights) w.written = hy_store_of(e, candidate_row(e));
    HY_TRY(walk_all(&w));
    return hy_row_all_gather(e, candidate_row(e));
}

hy_status hy_candidate_make(void *context, hy_stream *stream, int32_t unit) {
    hy_engine *e = context;
    hy_store *store = hy_store_of(e, HY_ROW_CANDIDATE);
    /* The unit is in the ring: from an earlier batch, or as a tied embedding. */
    if (hy_store_touch(store, unit)) return HY_OK;
    walk w = candidate_walk(e, stream);
    e->work->rings_are_used = true;
    HY_TRY(hy_store_get_new(store, stream, unit));
    HY_TRY(walk_unit(&w, unit));
    HY_TRY(hy_unit_all_gather(e, stream, store, unit));
    return hy_store_release_changed(store, stream, unit);
}

/* ---- lengths and directions ------------------------------------------------------------------ */

/* Is rows[k] a row that does not occur before? -1 stands for no row. */
static bool is_first(const int rows[4], int k) {
    bool is_new = rows[k] >= 0;
    for (int j = 0; j < k; j++) is_new &= rows[j] != rows[k];
    return is_new;
}

/* Sums over rows a, b, c, d, as HY_OP_DIFF_DOT defines them. */
static hy_status measure_at(walk *w, const spot *at) {
    const int *rows = w->context;
    hy_engine *e = w->e;
    hy_op_call call = {.kind = HY_OP_DIFF_DOT,
                       .attr.accumulate = true,
                       .workspace = e->work->buffers.reduce_workspace};
    for (int k = 0; k < 4; k++) {
        if (is_first(rows, k)) HY_TRY(convert_at(w, rows[k], at, true));
        if (rows[k] >= 0) call.t[HY_DIFF_DOT_A + k] = numbers_at(e, rows[k], at);
    }
    call.t[HY_DIFF_DOT_OUT] = hy_tensor_1d(e->work->buffers.dots, HY_F64, 3);
    return enqueue_once(w, &call);
}

hy_status hy_engine_measure(hy_engine *e, int a, int b, int c, int d, double out[3]) {
    const int rows[4] = {a, b, c, d};
    hy_stream *stream = e->device.compute;
    walk w = {.e = e, .stream = stream, .visit = measure_at, .context = rows};
    for (int k = 0; k < 4; k++) {
        bool is_coded = rows[k] >= 0 && e->state->rows->row[rows[k]].dtype == HY_U8;
        /* Weights are needed to decode slow weights. */
        if (rows[k] == HY_ROW_MASTER || is_coded) w.uses_weights = true;
        if (is_first(rows, k) && rows[k] != HY_ROW_MASTER) w.tiled[k] = hy_store_of(e, rows[k]);
    }
    double *sums = e->work->buffers.dots, *dots = e->work->result->dots;
    hy_op_call begin = {.kind = HY_OP_FILL}; /* zero: a rank may have no elements */
    begin.t[HY_FILL_DST] = hy_tensor_1d(sums, HY_F64, 3);
    HY_TRY(hy_update_finish(e));
    HY_TRY(e->device.backend->enqueue(stream, &begin));
    HY_TRY(walk_all(&w));
    HY_TRY(hy_all_reduce(&e->collectives->net, stream, (double *const[]){sums, sums + 1, sums + 2},
                         3));
    HY_TRY(e->device.backend->copy(stream, dots, sums, 3 * sizeof *dots));
    HY_TRY(e->device.backend->stream_sync(stream));
    memcpy(out, dots, 3 * sizeof *dots);
    return HY_OK;
}
