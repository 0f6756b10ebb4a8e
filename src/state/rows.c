/* rows.c: which rows a run has, and how many bytes they need in a choice of places. See rows.h.
 *
 * hy_rows_init derives every row from its kind (kinds.c) and hy_rows_spec. hy_rows_need counts the
 * bytes of a choice. The planner compares choices by these bytes, and state.c allocates them. */
#include "state/rows.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"

/* ---- which rows a run has -------------------------------------------------------------------- */

static bool is_sharded(const hy_state_kind *kind, const hy_rows_spec *spec) {
    if (spec->ranks.count == 0) return false;
    switch (kind->sharding) {
    case HY_WHOLE: return false;
    case HY_SHARDED_STATE: return spec->ranks.stage > 0;
    case HY_SHARDED_WEIGHTS: return spec->ranks.stage > 2;
    case HY_SHARDED_BYTES:
        return spec->ranks.stage > 2 && !spec->is_custom; /* its passes cannot gather */
    }
    return false;
}

/* The candidate evaluates the average; meanwhile a custom model's weights are kept in the
 * snapshot. */
static bool is_optional(hy_row_id id, const hy_state_kind *kind, const hy_rows_spec *spec) {
    bool serves_average = id == HY_ROW_CANDIDATE || (id == HY_ROW_SNAPSHOT && spec->is_custom);
    return kind->need == HY_NEEDED_BY_JUMPS && !(serves_average && spec->has_average);
}

static const char *tensor_prefix(hy_row_id id, const hy_state_kind *kind,
                                 const hy_rows_spec *spec) {
    static const char *const buffers[HY_PREDICTOR_BUFFERS] = {"slot0", "slot1"};
    if (kind->cls == HY_OPTIM) return hy_optimizer_array_name(&spec->optimizer, id - HY_ROW_OPTIM);
    return kind == &hy_state_kinds[HY_KIND_SLOW] ? buffers[id - HY_ROW_SLOW] : kind->name;
}

/* What hy_rows_init works on. */
typedef struct maker {
    hy_rows *rows;
    const hy_params *params;
    const hy_rows_spec *spec;
} maker;

/* The layout of a whole row, in units. */
static hy_status lay_out_whole(const maker *m, hy_row_id id, const hy_row *row, hy_layout *out) {
    const hy_rows_spec *spec = m->spec;
    if (id == HY_ROW_FP8) return hy_params_fp8_layout(m->params, &spec->types.fp8, out);
    if (id == HY_ROW_DECODED) return hy_params_decoded_layout(m->params, out);
    if (row->kind->cls == HY_OPTIM) {
        return hy_optimizer_layout(&spec->optimizer, m->params, id - HY_ROW_OPTIM, row->dtype, out);
    }
    return hy_params_layout(m->params, row->kind->set, row->dtype, out);
}

static hy_status lay_out(const maker *m, hy_row_id id) {
    hy_row *row = &m->rows->row[id];
    if (row->kind->is_tiled) {
        return hy_tiles_layout(&m->rows->tiles, m->params, row->dtype, row->block, &row->layout);
    }
    if (!row->is_sharded) return lay_out_whole(m, id, row, &row->layout);
    HY_TRY(lay_out_whole(m, id, row, &row->whole));
    if (row->kind->sharding != HY_SHARDED_BYTES) {
        return hy_shard_layout(&m->rows->shard, m->params, &row->whole, &row->layout);
    }
    HY_TRY(hy_layout_copy(&row->layout, &row->whole));
    return hy_layout_cut(&row->layout, m->spec->ranks.rank, m->spec->ranks.count);
}

/* Groups may place units of a class: those on the device stay there, the others stream. */
static hy_status fix_units(const maker *m, hy_row *row) {
    int cls = row->kind->state;
    if (cls < 0 || !hy_params_are_placed(m->params, cls)) return HY_OK;
    uint8_t *fixed = calloc((size_t)row->layout.unit_count, sizeof *fixed);
    if (!fixed) return hy_fail(HY_ERR_MEMORY, "not enough memory for a layout");
    for (int32_t i = 0; i < row->layout.unit_count && m->spec->stays[cls]; i++) {
        fixed[i] = HY_UNIT_STAYS;
    }
    for (int32_t i = 0; i < m->params->count; i++) {
        const hy_param *p = &m->params->list[i];
        hy_place place = p->own.place[cls];
        if (place) fixed[p->unit] = place == HY_DEVICE ? HY_UNIT_STAYS : HY_UNIT_STREAMS;
    }
    hy_status status = hy_layout_fix(&row->layout, fixed);
    free(fixed);
    return status;
}

/* Derives everything about a row that depends on the run. */
static hy_status add_row(const maker *m, hy_row_id id, hy_state_kind_id kind_id, hy_dtype dtype) {
    const hy_state_kind *kind = &hy_state_kinds[kind_id];
    const hy_rows_spec *spec = m->spec;
    bool is_optim = kind_id == HY_KIND_OPTIM, is_sum = kind_id == HY_KIND_GRADS && spec->sums_grads;
    /* 8-bit slow weights are differences to the weights; the other buffers have scales. */
    bool has_scales = kind_id == HY_KIND_SLOW && id > HY_ROW_SLOW && dtype == HY_U8;
    m->rows->row[id] = (hy_row){
        .kind = kind,
        .dtype = dtype,
        .block = has_scales ? HY_QUANT_BLOCK : 0,
        .is_signed = is_optim ? hy_optim_array_is_signed(id - HY_ROW_OPTIM) : has_scales,
        .is_sharded = is_sharded(kind, spec),
        .is_callers = kind->is_callers && spec->is_custom && !is_sum && !spec->keeps_weights,
        .is_optional = is_optional(id, kind, spec),
        .name = tensor_prefix(id, kind, spec),
        .version = 1}; /* made_of is 0: derived rows are not computed yet */
    HY_TRY(lay_out(m, id));
    /* A caller may hold a small unit for a whole pass, which must not take a block's buffer. */
    bool is_read =
        id == hy_weights_row(&spec->types, spec->types.of[HY_FULL]) || kind->set == HY_SET_FROZEN;
    if (spec->keeps_weights && is_read) m->rows->row[id].layout.has_small = true;
    return fix_units(m, &m->rows->row[id]);
}

static hy_status add_state(const maker *m) {
    const hy_types *t = &m->spec->types;
    HY_TRY(add_row(m, HY_ROW_MASTER, t->has_low ? HY_KIND_MASTER : HY_KIND_WEIGHTS, t->master));
    if (t->has_low) HY_TRY(add_row(m, HY_ROW_WORKING, HY_KIND_WORKING, t->low));
    bool is_gathered = is_sharded(&hy_state_kinds[HY_KIND_WORKING], m->spec);
    if (hy_types_have_fp8(t)) {
        HY_TRY(add_row(m, HY_ROW_FP8, is_gathered ? HY_KIND_FP8_GATHERED : HY_KIND_FP8, HY_E4M3));
    }
    HY_TRY(add_row(m, HY_ROW_GRADS, HY_KIND_GRADS, t->grads));
    for (int i = 0; i < m->rows->optim_count; i++) {
        HY_TRY(add_row(m, HY_ROW_OPTIM + i, HY_KIND_OPTIM, t->optim));
    }
    bool has_frozen = false, has_codes = false;
    for (int32_t i = 0; i < m->params->count; i++) {
        has_frozen |= !m->params->list[i].is_trainable;
        has_codes |= hy_params_are_coded(m->params, i);
    }
    if (!has_frozen) return HY_OK;
    /* Frozen weights have Full's compute type; passes of another type cast them. */
    hy_state_kind_id kind = m->spec->has_named_base ? HY_KIND_FROZEN_BASE : HY_KIND_FROZEN;
    HY_TRY(add_row(m, HY_ROW_FROZEN, kind, t->of[HY_FULL]));
    if (!has_codes || !m->spec->keeps_weights) return HY_OK;
    return add_row(m, HY_ROW_DECODED, HY_KIND_DECODED, t->of[HY_FULL]);
}

/* Plans memory to decode the predictor's 8-bit buffers: at most the size of their largest tile. */
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
        uint64_t bytes = row->kind ? hy_dtype_bytes(hy_row_decoded(row), rows->piece) : 0;
        rows->scratch[s + 1] = rows->scratch[s] + hy_align(bytes);
    }
}

static hy_status add_predictor(const maker *m) {
    const hy_rows_spec *spec = m->spec;
    const hy_types *t = &spec->types;
    for (int i = 0; i < spec->slow_count; i++) {
        HY_TRY(add_row(m, HY_ROW_SLOW + i, HY_KIND_SLOW, t->slow));
    }
    plan_scratch(m->rows);
    if (spec->has_average) HY_TRY(add_row(m, HY_ROW_AVERAGE, HY_KIND_AVERAGE, HY_F32));
    if (spec->has_snapshot) HY_TRY(add_row(m, HY_ROW_SNAPSHOT, HY_KIND_SNAPSHOT, t->master));
    bool is_tried = spec->slow_count > 0 || spec->has_average;
    /* A custom model reads proposed weights in the memory of its weights. */
    if (!is_tried || spec->is_custom) return HY_OK;
    bool is_low = t->of[HY_PREDICT] != HY_F32 && t->of[HY_FULL] != HY_F32;
    return add_row(m, HY_ROW_CANDIDATE, HY_KIND_CANDIDATE, is_low ? t->low : HY_F32);
}

/* ---- several ranks --------------------------------------------------------------------------- */

static hy_status cut_params(const maker *m) {
    const hy_rank_spec *r = &m->spec->ranks;
    if (r->count == 0) return HY_OK;
    bool *is_whole = calloc((size_t)m->params->count, sizeof *is_whole);
    HY_FAIL_IF(!is_whole, HY_ERR_MEMORY, "not enough memory for the shards of %d ranks", r->count);
    hy_optimizer_mark_whole(&m->spec->optimizer, m->params, is_whole);
    hy_status status = hy_shard_init(&m->rows->shard, m->params, is_whole, r->rank, r->count);
    free(is_whole);
    return status;
}

/* The largest exchange: a unit of gradients with the parts received for it, or a unit of
 * weights. A single rank receives as much as it sends, and its parts are whole. */
static uint64_t wire_staging(const hy_rows *rows) {
    bool is_alone = rows->shard.count == 1;
    uint64_t most = 0;
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &rows->row[i];
        if (!row->kind || row->kind->is_tiled || i == HY_ROW_FP8) continue;
        bool is_whole = !row->is_sharded || is_alone;
        bool is_moved = hy_row_is_exchanged(row) || row->kind->set == HY_SET_TRAINABLE;
        for (int32_t u = 0; u < row->layout.unit_count && is_whole && is_moved; u++) {
            if (row->layout.unit_bytes[u] > most) most = row->layout.unit_bytes[u];
        }
    }
    return hy_align(is_alone ? 2 * most : most + rows->arriving / 2);
}

/* Where a micro-batch leaves its gradients. A single rank sums its gradients in place. */
static hy_status add_partial(const maker *m) {
    int32_t table = hy_params_tied_table(m->params);
    const hy_shard *shard = &m->rows->shard;
    if (shard->count == 1) return HY_OK;
    HY_TRY(add_row(m, HY_ROW_PARTIAL, HY_KIND_PARTIAL, m->spec->types.grads));
    hy_layout *partial = &m->rows->row[HY_ROW_PARTIAL].layout;
    /* A tied head starts the sum of the table, which is completed at the end of the pass. */
    partial->keeps_first = table >= 0 && m->params->list[table].is_trainable;
    m->rows->arriving =
        2 * (uint64_t)(shard->count - 1) * hy_shard_largest(shard, m->params, partial);
    return HY_OK;
}

static hy_status add_exchanged(const maker *m) {
    const hy_types *t = &m->spec->types;
    hy_row *row = m->rows->row;
    if (!hy_rows_shard(m->rows)) return HY_OK;
    HY_TRY(add_partial(m));
    if (row[HY_ROW_FROZEN].is_sharded) {
        hy_dtype dtype = row[HY_ROW_FROZEN].dtype;
        HY_TRY(add_row(m, HY_ROW_GATHERED_FROZEN, HY_KIND_GATHERED_FROZEN, dtype));
        row[HY_ROW_GATHERED_FROZEN].layout.has_small = true;
    }
    /* A custom model's tensors are separate: its units are copied through this row. */
    bool is_gathered = m->spec->is_custom;
    bool is_low = t->has_low && (row[HY_ROW_WORKING].is_sharded || m->spec->is_custom);
    for (int i = 0; i < HY_PHASE_COUNT; i++) {
        is_gathered |= row[hy_weights_row(t, t->of[i])].is_sharded; /* a pass reads it */
        is_low &= t->of[i] != t->master;
    }
    if (!is_gathered) return HY_OK;
    HY_TRY(add_row(m, HY_ROW_GATHERED, HY_KIND_GATHERED, is_low ? t->low : t->master));
    row[HY_ROW_GATHERED].layout.has_small = true;
    return HY_OK;
}

hy_status hy_rows_init(hy_rows *rows, const hy_params *params, const hy_rows_spec *spec) {
    const maker m = {rows, params, spec};
    *rows = (hy_rows){.optim_count = hy_optimizer_arrays(&spec->optimizer, params),
                      .slow_count = spec->slow_count};
    for (int32_t i = params->count - 1; i >= 0; i--) {
        if (params->list[i].is_trainable) rows->lowest_trained = params->list[i].unit;
    }
    hy_status status = cut_params(&m);
    if (status == HY_OK) status = hy_tiles_init(&rows->tiles, params, hy_rows_shard(rows));
    if (status == HY_OK) status = add_state(&m);
    if (status == HY_OK) status = add_predictor(&m);
    if (status == HY_OK) status = add_exchanged(&m);
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

/* ---- what a choice makes of them ------------------------------------------------------------- */

hy_place hy_row_place(const hy_row *row, const hy_plan_choice *c) {
    if (row->kind->state >= 0) return c->state[row->kind->state];
    return row->kind->is_tiled && hy_row_is_used(row, c) ? c->predictor : HY_NOWHERE;
}

uint64_t hy_row_bytes(const hy_row *row, const hy_plan_choice *c) {
    hy_place place = hy_row_place(row, c);
    if (place == HY_NOWHERE || place == HY_DEVICE) return place ? row->layout.bytes : 0;
    hy_ring_plan ring = hy_row_ring(row, c);
    return place == HY_DISK ? ring.disk_bytes : ring.backing_bytes;
}

int32_t hy_row_ring_depth(const hy_row *row, const hy_plan_choice *c) {
    return row->kind->ring_depth ? row->kind->ring_depth : c->ring_depth;
}

static int32_t residents(const hy_row *row, const hy_plan_choice *c) {
    int32_t wanted = row->kind->state >= 0 ? c->resident_units : 0, most = row->layout.unit_count;
    return wanted < most ? wanted : most;
}

hy_ring_plan hy_row_ring(const hy_row *row, const hy_plan_choice *c) {
    return hy_store_plan_ring(&row->layout, hy_row_ring_depth(row, c), residents(row, c));
}

uint64_t hy_row_lent_bytes(const hy_row *row, const hy_plan_choice *c, bool has_left) {
    hy_place place = hy_row_place(row, c);
    bool is_idle = row->kind->need == HY_NEEDED_BY_STEPS && !row->is_callers;
    if (!is_idle || hy_row_rings_in_work(row)) return 0;
    if (place == HY_DEVICE) {
        return row->kind->life != HY_LASTING || has_left ? row->layout.bytes : 0;
    }
    hy_ring_plan ring = hy_row_ring(row, c);
    return hy_row_step_ring(row, &ring);
}

/* The ring of a row, cached: the search asks for the same rings many times. */
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

/* The blocks' share of a row's streamed bytes: the first and last unit are resident only if groups
 * place units. */
static uint64_t share_of_blocks(const hy_row *row, const hy_ring_plan *ring) {
    const hy_layout *l = &row->layout;
    const int32_t units[] = {0, l->unit_count - 1};
    uint64_t streamed = ring->backing_bytes, ends = 0;
    for (int i = 0; i < 2; i++) {
        int fixed = l->fixed ? l->fixed[units[i]] : HY_UNIT_STREAMS;
        bool is_resident = fixed == HY_UNIT_OPEN && ring->resident == l->unit_count;
        if (fixed != HY_UNIT_STAYS && !is_resident) ends += l->unit_bytes[units[i]];
    }
    return streamed > ends ? streamed - ends : 0;
}

/* The streamed bytes of units below everything that is trained. */
static uint64_t share_below(const hy_rows *rows, const hy_row *row, uint64_t streamed) {
    uint64_t below = rows->lowest_trained < row->layout.unit_count
                         ? row->layout.unit_offset[rows->lowest_trained]
                         : row->layout.bytes;
    return (uint64_t)((double)streamed * (double)below / (double)row->layout.bytes);
}

/* A row with its own place in a choice; the fp8 copy is counted separately from the weights. */
static void add_placed(const hy_rows *rows, const hy_row *row, hy_place place,
                       const hy_ring_plan *ring, hy_plan_state *out) {
    bool is_fp8 = row == &rows->row[HY_ROW_FP8], is_frozen = row->kind->set == HY_SET_FROZEN;
    uint64_t bytes = row->layout.bytes, streamed = ring->backing_bytes;
    *(is_fp8 ? &out->fp8 : &out->bytes[row->kind->state]) += bytes;
    if (is_frozen) out->frozen += bytes;
    out->rings += ring->bytes;
    out->step_rings += hy_row_step_ring(row, ring);
    if (place == HY_PINNED) out->pinned += streamed;
    if (place == HY_DEVICE) {
        out->device += row->is_callers ? 0 : bytes;
        return;
    }
    *(is_fp8 ? &out->fp8_streamed : &out->streamed[row->kind->state]) += streamed;
    /* Passes that make the fp8 copy themselves read the weights. */
    bool is_read = hy_row_is_exchanged(&rows->row[HY_ROW_FP8]);
    bool is_weights = row->kind->state == HY_PLAN_WEIGHTS && !is_frozen && !is_fp8;
    if (is_weights && !is_read) out->blocks_streamed = share_of_blocks(row, ring);
    if (is_frozen) {
        out->frozen_streamed += streamed;
        out->forward_only += share_below(rows, row, streamed);
    }
}

void hy_rows_need(const hy_rows *rows, const hy_plan_choice *c, hy_ring_memo *memo,
                  hy_plan_state *out) {
    *out = (hy_plan_state){.work_rings =
                               c->prediction_awaits_test ? 0 : rows->scratch[HY_PREDICTOR_BUFFERS],
                           .rings = rows->arriving,
                           .staging = rows->wire_staging};
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &rows->row[i];
        if (!hy_row_is_used(row, c)) continue;
        hy_place place = hy_row_place(row, c);
        hy_ring_plan ring = {0};
        if (place != HY_DEVICE) ring = ring_of(rows, i, c, memo);
        if (hy_row_is_exchanged(row)) {
            out->rings += ring.bytes;
            out->step_rings += hy_row_step_ring(row, &ring);
            out->fp8_gathered += i == HY_ROW_FP8 ? row->layout.bytes : 0;
        } else if (hy_row_rings_in_work(row)) {
            out->work_rings += ring.bytes;
            out->kept += place == HY_NOWHERE ? 0 : row->layout.bytes;
            if (place == HY_PINNED) out->kept_pinned += row->layout.bytes;
        } else {
            add_placed(rows, row, place, &ring, out);
        }
        if (place == HY_DISK) {
            out->disk += ring.disk_bytes;
            out->staging += hy_store_staging_bytes(&ring, HY_DISK_BUFFERS);
        }
    }
}

/* Bytes of a row in a checkpoint, which holds the parts of all ranks. */
static uint64_t saved_bytes(const hy_rows *rows, const hy_row *row) {
    const hy_row *master = &rows->row[HY_ROW_MASTER];
    const hy_layout *layout = master->is_sharded ? &master->whole : &master->layout;
    int64_t elements = 0; /* of all trained parameters */
    if (row->is_sharded) return row->whole.bytes;
    if (!row->kind->is_tiled || !hy_rows_shard(rows)) return row->layout.bytes;
    for (int32_t i = 0; i < layout->item_count; i++) elements += layout->items[i].count;
    uint64_t scales = row->block ? (uint64_t)(elements / row->block) * sizeof(float) : 0;
    return hy_dtype_bytes(row->dtype, elements) + scales;
}

uint64_t hy_rows_saved_bytes(const hy_rows *rows, bool awaits_test) {
    uint64_t bytes = 0;
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &rows->row[i];
        bool is_kept = row->kind && row->kind->file && !(row->is_optional && awaits_test);
        /* A snapshot is saved only until its jump is corrected. */
        if (is_kept && i != HY_ROW_SNAPSHOT) bytes += saved_bytes(rows, row);
    }
    return bytes;
}

uint64_t hy_rows_saved_frozen(const hy_rows *rows) {
    const hy_row *row = &rows->row[HY_ROW_FROZEN];
    return row->kind && row->kind->file ? saved_bytes(rows, row) : 0;
}

uint64_t hy_rows_forked_bytes(const hy_rows *rows) {
    uint64_t bytes = 0;
    for (int i = 0; i < HY_ROW_COUNT; i++) {
        const hy_row *row = &rows->row[i];
        if (row->kind && row->kind->is_restored) bytes += row->layout.bytes;
    }
    return bytes;
}

uint64_t hy_rows_optim_bytes(const hy_rows *rows) {
    uint64_t bytes = 0;
    for (int i = 0; i < rows->optim_count; i++) bytes += rows->row[HY_ROW_OPTIM + i].layout.bytes;
    return bytes;
}

uint64_t hy_offload_compressed_bytes(const hy_rows *rows) {
    uint64_t bytes = 0;
    for (int i = 0; i < rows->optim_count; i++) {
        const hy_layout *l = &rows->row[HY_ROW_OPTIM + i].layout;
        for (int32_t k = 0; k < l->item_count; k++) bytes += hy_quant_bytes(l->items[k].count);
    }
    return bytes;
}
