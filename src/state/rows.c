/* rows.c: which rows a run has, and what a choice of places makes of them. See rows.h. */
#include "state/rows.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

/* ---- which there are ----------------------------------------------------------------------------- */

/* The layout of what is not tiled, all of it. */
static hy_status lay_out_whole(const hy_params *params, const hy_rows_spec *spec, hy_row_id id,
                               const hy_row *row, hy_layout *out) {
    if (id == HY_ROW_FP8) return hy_params_fp8_layout(params, &spec->types.fp8, out);
    if (row->cls == HY_OPTIM) {
        return hy_optimizer_layout(&spec->optimizer, params, id - HY_ROW_OPTIM, row->dtype, out);
    }
    return hy_params_layout(params, row->set, row->dtype, out);
}

static hy_status lay_out(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec,
                         hy_row_id id, hy_row row) {
    rows->row[id] = row;
    rows->row[id].is_there = true;
    rows->row[id].version = 1; /* derived rows were made of version 0: not yet */
    hy_layout *layout = &rows->row[id].layout, *whole = &rows->row[id].whole;
    if (row.is_tiled) return hy_tiles_layout(&rows->tiles, params, row.dtype, row.block, layout);
    if (!row.is_sharded) return lay_out_whole(params, spec, id, &row, layout);
    HY_TRY(lay_out_whole(params, spec, id, &row, whole));
    if (row.is_cut) {
        HY_TRY(hy_layout_copy(layout, whole));
        return hy_layout_cut(layout, spec->ranks.rank, spec->ranks.count);
    }
    return hy_shard_layout(&rows->shard, params, whole, layout);
}

/* Which rows a stage keeps as shards. */
static bool shards_state(const hy_rows_spec *spec) {
    return spec->ranks.count > 0 && spec->ranks.stage > 0;
}
static bool shards_weights(const hy_rows_spec *spec) {
    return spec->ranks.count > 0 && spec->ranks.stage > 2;
}

static hy_status add_state(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec) {
    const hy_types *t = &spec->types;
    HY_TRY(lay_out(rows, params, spec, HY_ROW_MASTER,
                   (hy_row){.cls = t->has_low ? HY_MASTER : HY_WEIGHTS,
                            .dtype = t->master,
                            .state = t->has_low ? HY_PLAN_MASTER : HY_PLAN_WEIGHTS,
                            .set = HY_SET_TRAINABLE,
                            .source = -1,
                            .is_forked = true,
                            .is_sharded = t->has_low ? shards_state(spec) : shards_weights(spec),
                            .is_outside = spec->is_guest && !t->has_low,
                            .file = "weights.safetensors",
                            .name = ""}));
    if (t->has_low) {
        HY_TRY(lay_out(rows, params, spec, HY_ROW_WORKING,
                       (hy_row){.cls = HY_WEIGHTS,
                                .set = HY_SET_TRAINABLE,
                                .dtype = t->low,
                                .state = HY_PLAN_WEIGHTS,
                                .is_sharded = shards_weights(spec),
                                .is_outside = spec->is_guest,
                                .source = HY_ROW_MASTER}));
    }
    if (hy_types_have_fp8(t)) { /* of gathered weights they are made when these have come */
        bool is_gathered = shards_weights(spec);
        HY_TRY(lay_out(rows, params, spec, HY_ROW_FP8,
                       (hy_row){.cls = is_gathered ? HY_WORKSPACE : HY_QUANTS,
                                .set = HY_SET_TRAINABLE,
                                .dtype = HY_E4M3,
                                .state = is_gathered ? -1 : HY_PLAN_WEIGHTS,
                                .is_wired = is_gathered,
                                .is_for_steps = is_gathered,
                                .source = HY_ROW_MASTER}));
    }
    HY_TRY(lay_out(rows, params, spec, HY_ROW_GRADS,
                   (hy_row){.cls = HY_GRADS,
                            .set = HY_SET_TRAINABLE,
                            .dtype = t->grads,
                            .state = HY_PLAN_GRADS,
                            .source = -1,
                            .is_sharded = shards_state(spec),
                            .is_outside = spec->is_guest && !spec->sums_grads,
                            .is_for_steps = true}));
    for (int i = 0; i < rows->optim_count; i++) {
        HY_TRY(lay_out(rows, params, spec, (hy_row_id)(HY_ROW_OPTIM + i),
                       (hy_row){.cls = HY_OPTIM,
                                .set = HY_SET_TRAINABLE,
                                .dtype = t->optim,
                                .state = HY_PLAN_OPTIM,
                                .source = -1,
                                .is_for_steps = true,
                                .is_forked = true,
                                .is_sharded = shards_state(spec),
                                .is_signed = hy_optim_array_is_signed(i),
                                .file = "optimizer.safetensors",
                                .name = hy_optimizer_array_name(&spec->optimizer, i)}));
    }
    return HY_OK;
}

/* Read by passes and never written: in the type that Full computes in. Passes of another read it through a
 * cast. */
static hy_status add_frozen(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec) {
    bool has_frozen = false;
    for (int32_t i = 0; i < params->count; i++) has_frozen |= !params->list[i].is_trainable;
    bool is_sharded = shards_weights(spec) && !spec->is_guest; /* whose passes are not ours */
    if (!has_frozen) return HY_OK;
    return lay_out(rows, params, spec, HY_ROW_FROZEN,
                   (hy_row){.cls = HY_WEIGHTS,
                            .set = HY_SET_FROZEN,
                            .dtype = spec->types.of[HY_FULL],
                            .state = HY_PLAN_WEIGHTS,
                            .source = -1,
                            .is_sharded = is_sharded,
                            .is_cut = is_sharded,
                            .file = "weights.safetensors",
                            .name = ""});
}

static hy_status keep_tiles(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec,
                            hy_row_id id, hy_dtype dtype, int32_t block, const char *name) {
    return lay_out(rows, params, spec, id,
                   (hy_row){.cls = HY_PREDICTOR,
                            .set = HY_SET_TRAINABLE,
                            .dtype = dtype,
                            .state = -1,
                            .source = -1,
                            .is_tiled = true,
                            .block = block,
                            .is_signed = block > 0,
                            .file = "predictor.safetensors",
                            .name = name});
}

/* Memory to decode codes of the predictor's buffers in: no more of it than their largest tile fills. */
static void plan_scratch(hy_rows *rows) {
    int64_t largest = 0;
    rows->piece = HY_TILE_ELEMENTS;
    if (rows->slow_count == 0 || rows->row[HY_ROW_SLOW].dtype != HY_U8) return;
    const hy_layout *layout = &rows->row[HY_ROW_SLOW].layout;
    for (int32_t i = 0; i < layout->item_count; i++) {
        if (layout->items[i].count > largest) largest = layout->items[i].count;
    }
    rows->piece = largest < HY_TILE_PIECE ? largest : HY_TILE_PIECE;
    for (int s = 0; s < HY_PREDICTOR_BUFFERS; s++) {
        const hy_row *row = &rows->row[HY_ROW_SLOW + s];
        uint64_t bytes = row->is_there ? hy_dtype_bytes(hy_row_decoded(row), rows->piece) : 0;
        rows->scratch[s + 1] = rows->scratch[s] + hy_align(bytes);
    }
}

/* In 8 bits, slow weights are codes beside the weights, the others codes with scales. */
static hy_status add_predictor(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec) {
    static const char *const names[HY_PREDICTOR_BUFFERS] = {"slot0", "slot1"};
    const hy_types *t = &spec->types;
    bool is_low = t->of[HY_PREDICT] != HY_F32 && t->of[HY_FULL] != HY_F32;
    for (int i = 0; i < spec->slow_count; i++) {
        int32_t block = t->slow == HY_U8 && i > 0 ? HY_QUANT_BLOCK : 0;
        HY_TRY(
            keep_tiles(rows, params, spec, (hy_row_id)(HY_ROW_SLOW + i), t->slow, block, names[i]));
        rows->row[HY_ROW_SLOW + i].is_forked = rows->row[HY_ROW_SLOW + i].is_for_jumps = true;
    }
    plan_scratch(rows);
    if (spec->has_average)
        HY_TRY(keep_tiles(rows, params, spec, HY_ROW_AVERAGE, HY_F32, 0, "tail"));
    if (spec->has_snapshot) {
        HY_TRY(keep_tiles(rows, params, spec, HY_ROW_SNAPSHOT, t->master, 0, "snapshot"));
        rows->row[HY_ROW_SNAPSHOT].cls = HY_SNAPSHOT;
        rows->row[HY_ROW_SNAPSHOT].is_for_jumps = !(spec->is_guest && spec->has_average);
    }
    bool is_tried = spec->slow_count > 0 || spec->has_average;
    if (!is_tried || spec->is_guest) return HY_OK; /* a guest sees it where the weights are */
    return lay_out(rows, params, spec, HY_ROW_CANDIDATE,
                   (hy_row){.cls = HY_WORKSPACE,
                            .set = HY_SET_TRAINABLE,
                            .dtype = is_low ? t->low : HY_F32,
                            .is_for_jumps = !spec->has_average,
                            .state = -1,
                            .source = HY_ROW_MASTER});
}

/* ---- of several ranks ------------------------------------------------------------------------------ */

static hy_status cut_params(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec) {
    const hy_rank_spec *r = &spec->ranks;
    if (r->count == 0) return HY_OK;
    bool *is_whole = calloc((size_t)params->count, sizeof *is_whole);
    HY_FAIL_IF(!is_whole, HY_ERR_MEMORY, "no memory for the shards of %d ranks", r->count);
    hy_optimizer_mark_whole(&spec->optimizer, params, is_whole);
    hy_status status = hy_shard_init(&rows->shard, params, is_whole, r->rank, r->count);
    free(is_whole);
    return status;
}

/* A pass in some phase reads weights that are kept as shards. */
static bool gathers_weights(const hy_rows *rows, const hy_types *t) {
    bool reads_master = !t->has_low;
    for (int i = 0; i < HY_PHASE_COUNT; i++) reads_master |= t->of[i] == t->master;
    return rows->row[HY_ROW_WORKING].is_sharded ||
           (rows->row[HY_ROW_MASTER].is_sharded && reads_master);
}

static uint64_t largest_unit(const hy_layout *layout) {
    uint64_t most = 0;
    for (int32_t u = 0; u < layout->unit_count; u++) {
        if (layout->unit_bytes[u] > most) most = layout->unit_bytes[u];
    }
    return most;
}

/* What an exchange moves at most: a unit of gradients and the parts that come for it, or a unit of weights. A single
 * rank receives as much as it sends, and its parts are whole. */
static uint64_t wire_staging(const hy_rows *rows) {
    bool is_alone = rows->shard.count == 1;
    uint64_t most = 0;
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &rows->row[i];
        bool is_whole =
            row->is_there && (!row->is_sharded || is_alone) && !row->is_tiled && i != HY_ROW_FP8;
        bool is_moved = is_whole && (row->is_wired || row->set == HY_SET_TRAINABLE);
        uint64_t bytes = is_moved ? largest_unit(&row->layout) : 0;
        if (bytes > most) most = bytes;
    }
    return hy_align(is_alone ? 2 * most : most + rows->arriving / 2);
}

static hy_status add_gathered_frozen(hy_rows *rows, const hy_params *params,
                                     const hy_rows_spec *spec) {
    if (!rows->row[HY_ROW_FROZEN].is_sharded) return HY_OK;
    HY_TRY(lay_out(rows, params, spec, HY_ROW_GATHERED_FROZEN,
                   (hy_row){.cls = HY_WORKSPACE,
                            .set = HY_SET_FROZEN,
                            .dtype = rows->row[HY_ROW_FROZEN].dtype,
                            .state = -1,
                            .source = -1,
                            .is_wired = true}));
    rows->row[HY_ROW_GATHERED_FROZEN].layout.has_small = true;
    return HY_OK;
}

/* A single rank sums its gradients where they are kept. */
static hy_status add_partial(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec) {
    int32_t table = hy_params_tied_table(params);
    if (rows->shard.count == 1) return HY_OK;
    HY_TRY(lay_out(rows, params, spec, HY_ROW_PARTIAL,
                   (hy_row){.cls = HY_WORKSPACE,
                            .set = HY_SET_TRAINABLE,
                            .dtype = spec->types.grads,
                            .state = -1,
                            .source = -1,
                            .is_wired = true,
                            .is_for_steps = true}));
    hy_layout *partial = &rows->row[HY_ROW_PARTIAL].layout;
    /* A tied head begins the sum of the table, which goes on at the end of the pass. */
    partial->keeps_first = table >= 0 && params->list[table].is_trainable;
    rows->arriving =
        2 * (uint64_t)(rows->shard.count - 1) * hy_shard_largest(&rows->shard, params, partial);
    return HY_OK;
}

static hy_status add_wired(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec) {
    const hy_types *t = &spec->types;
    if (!hy_rows_shard(rows)) return HY_OK;
    HY_TRY(add_partial(rows, params, spec));
    HY_TRY(add_gathered_frozen(rows, params, spec));
    /* A guest's weights lie apart, and pass through it unit by unit. */
    if (!gathers_weights(rows, t) && !spec->is_guest) return HY_OK;
    bool is_low = t->has_low && (rows->row[HY_ROW_WORKING].is_sharded || spec->is_guest);
    for (int i = 0; i < HY_PHASE_COUNT; i++) is_low &= t->of[i] != t->master;
    HY_TRY(lay_out(rows, params, spec, HY_ROW_GATHERED,
                   (hy_row){.cls = HY_WORKSPACE,
                            .set = HY_SET_TRAINABLE,
                            .dtype = is_low ? t->low : t->master,
                            .state = -1,
                            .source = HY_ROW_MASTER,
                            .is_wired = true}));
    rows->row[HY_ROW_GATHERED].layout.has_small = true;
    return HY_OK;
}

hy_status hy_rows_init(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec) {
    *rows = (hy_rows){.optim_count = hy_optimizer_arrays(&spec->optimizer, params),
                      .slow_count = spec->slow_count};
    for (int32_t i = params->count - 1; i >= 0; i--) {
        if (params->list[i].is_trainable) rows->lowest_trained = params->list[i].unit;
    }
    hy_status status = cut_params(rows, params, spec);
    if (status == HY_OK) status = hy_tiles_init(&rows->tiles, params, hy_rows_shard(rows));
    if (status == HY_OK) status = add_state(rows, params, spec);
    if (status == HY_OK) status = add_frozen(rows, params, spec);
    if (status == HY_OK) status = add_predictor(rows, params, spec);
    if (status == HY_OK) status = add_wired(rows, params, spec);
    if (status == HY_OK && spec->ranks.is_staged) rows->wire_staging = wire_staging(rows);
    if (status != HY_OK) hy_rows_fini(rows);
    return status;
}

void hy_rows_fini(hy_rows *rows) {
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        hy_layout_fini(&rows->row[i].layout);
        hy_layout_fini(&rows->row[i].whole);
    }
    hy_tiles_fini(&rows->tiles);
    hy_shard_fini(&rows->shard);
    *rows = (hy_rows){0};
}

/* ---- what a choice makes of them ------------------------------------------------------------------ */

hy_place hy_row_place(const hy_row *row, const hy_plan_choice *c) {
    if (row->state >= 0) return c->state[row->state];
    return row->is_tiled && !hy_row_is_aside(row, c) ? c->predictor : HY_NOWHERE;
}

uint64_t hy_row_bytes(const hy_row *row, const hy_plan_choice *c) {
    hy_place place = hy_row_place(row, c);
    if (place == HY_NOWHERE || place == HY_DEVICE) return place ? row->layout.bytes : 0;
    hy_ring_plan ring = hy_row_ring(row, c);
    return place == HY_DISK ? ring.disk_bytes : ring.backing_bytes;
}

int32_t hy_row_ring_depth(const hy_row *row, const hy_plan_choice *c) {
    if (row->state >= 0) return c->ring_depth;
    if (row->is_wired && row->set == HY_SET_FROZEN) return HY_FROZEN_DEPTH;
    if (row->is_wired) return row->is_for_steps ? HY_PARTIAL_DEPTH : HY_GATHERED_DEPTH;
    return row->is_tiled ? HY_TILE_RING_DEPTH : HY_CANDIDATE_DEPTH;
}

static int32_t residents(const hy_row *row, const hy_plan_choice *c) {
    int32_t wanted = row->state >= 0 ? c->resident_units : 0, most = row->layout.unit_count;
    return wanted < most ? wanted : most;
}

hy_ring_plan hy_row_ring(const hy_row *row, const hy_plan_choice *c) {
    return hy_store_plan_ring(&row->layout, hy_row_ring_depth(row, c), residents(row, c));
}

/* The same ones are asked for again and again while choices are compared. */
static hy_ring_plan ring_of(const hy_rows *rows, int id, const hy_plan_choice *c,
                            hy_ring_memo *memo) {
    const hy_row *row = &rows->row[id];
    int32_t depth = hy_row_ring_depth(row, c), resident = residents(row, c);
    assert(depth >= 0 && depth <= HY_RING_MAX && resident >= 0);
    if (!memo) return hy_row_ring(row, c);
    hy_ring_plan *known = &memo->of[id][depth * (row->layout.unit_count + 1) + resident];
    if (known->bytes == 0) *known = hy_row_ring(row, c);
    return *known;
}

/* Of a row's bytes that pass, those of blocks: the first and the last unit never stay. */
static uint64_t share_of_blocks(const hy_row *row, uint64_t streamed) {
    const hy_layout *l = &row->layout;
    uint64_t ends = l->unit_bytes[0] + l->unit_bytes[l->unit_count - 1];
    return streamed > ends ? streamed - ends : 0;
}

/* Of a row's bytes that pass, those of units below all that is trained. */
static uint64_t share_below(const hy_rows *rows, const hy_row *row, uint64_t streamed) {
    uint64_t below = rows->lowest_trained < row->layout.unit_count
                         ? row->layout.unit_offset[rows->lowest_trained]
                         : row->layout.bytes;
    return (uint64_t)((double)streamed * (double)below / (double)row->layout.bytes);
}

void hy_rows_need(const hy_rows *rows, const hy_plan_choice *c, hy_ring_memo *memo,
                  hy_plan_state *out) {
    *out = (hy_plan_state){.work_rings = c->is_aside ? 0 : rows->scratch[HY_PREDICTOR_BUFFERS],
                           .rings = rows->arriving,
                           .staging = rows->wire_staging};
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &rows->row[i];
        if (!row->is_there || hy_row_is_aside(row, c)) continue;
        hy_place place = hy_row_place(row, c);
        hy_ring_plan ring = {0};
        if (place != HY_DEVICE) ring = ring_of(rows, i, c, memo);
        if (row->is_wired) {
            out->rings += ring.bytes;
            out->step_rings += row->is_for_steps ? ring.bytes : 0;
            out->fp8_gathered += i == HY_ROW_FP8 ? row->layout.bytes : 0;
        } else if (row->state < 0) {
            out->work_rings += ring.bytes;
            out->kept += place == HY_NOWHERE ? 0 : row->layout.bytes;
            if (place == HY_PINNED) out->kept_pinned += row->layout.bytes;
        } else {
            bool is_fp8 = i == HY_ROW_FP8;
            out->fp8 += is_fp8 ? row->layout.bytes : 0;
            out->bytes[row->state] += is_fp8 ? 0 : row->layout.bytes;
            out->rings += ring.bytes;
            out->step_rings += hy_row_step_ring(row, &ring);
            uint64_t streamed = ring.backing_bytes;
            bool is_frozen = row->set == HY_SET_FROZEN;
            out->frozen += is_frozen ? row->layout.bytes : 0;
            if (place == HY_DEVICE) {
                out->device += row->is_outside ? 0 : row->layout.bytes;
            } else {
                bool is_weights = row->state == HY_PLAN_WEIGHTS && row->set == HY_SET_TRAINABLE;
                out->fp8_streamed += is_fp8 ? streamed : 0;
                out->streamed[row->state] += is_fp8 ? 0 : streamed;
                bool is_read = rows->row[HY_ROW_FP8].is_wired; /* what codes are made of */
                if (is_weights && !is_fp8 && !is_read)
                    out->blocks_streamed = share_of_blocks(row, streamed);
                out->frozen_streamed += is_frozen ? streamed : 0;
                if (is_frozen) out->forward_only += share_below(rows, row, streamed);
            }
            if (place == HY_PINNED) out->pinned += ring.backing_bytes;
        }
        if (place == HY_DISK) {
            out->disk += ring.disk_bytes;
            out->staging += hy_store_staging_bytes(&ring, HY_DISK_BUFFERS);
        }
    }
}

/* Elements of all parameters that are trained, of which several ranks have tiles. */
static int64_t trained_elements(const hy_rows *rows) {
    const hy_row *master = &rows->row[HY_ROW_MASTER];
    const hy_layout *layout = master->is_sharded ? &master->whole : &master->layout;
    int64_t count = 0;
    for (int32_t i = 0; i < layout->item_count; i++) count += layout->items[i].count;
    return count;
}

/* All ranks together have it once. */
static uint64_t saved_bytes(const hy_rows *rows, const hy_row *row) {
    if (row->is_sharded) return row->whole.bytes;
    if (!row->is_tiled || !hy_rows_shard(rows)) return row->layout.bytes;
    int64_t elements = trained_elements(rows);
    uint64_t scales = row->block ? (uint64_t)(elements / row->block) * sizeof(float) : 0;
    return hy_dtype_bytes(row->dtype, elements) + scales;
}

uint64_t hy_rows_saved_bytes(const hy_rows *rows, bool is_aside) {
    uint64_t bytes = 0;
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        bool is_now_and_then = i == HY_ROW_SNAPSHOT; /* only until a jump is corrected */
        bool is_kept = !(rows->row[i].is_for_jumps && is_aside);
        if (rows->row[i].file && is_kept && !is_now_and_then)
            bytes += saved_bytes(rows, &rows->row[i]);
    }
    return bytes;
}

uint64_t hy_rows_forked_bytes(const hy_rows *rows) {
    uint64_t bytes = 0;
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        if (rows->row[i].is_forked) bytes += rows->row[i].layout.bytes;
    }
    return bytes;
}
