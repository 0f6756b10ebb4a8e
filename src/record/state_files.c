/* state_files.c: the files of a checkpoint, tensor by tensor. See state_files.h.
 *
 * A cursor visits the saved rows and their parameters in the same order on every rank. With several
 * ranks, each knows all tensors of a file, and which of their elements it holds. */
#include "record/state_files.h"

#include <stdio.h>
#include <string.h>

#include "kernels/coded.h"

/* The snapshot is saved only until its jump is corrected. */
static bool is_saved(const hy_engine *e, int row) {
    const hy_row *r = &e->state->rows->row[row];
    bool is_kept = r->kind && r->kind->file && r->store.place != HY_NOWHERE;
    return is_kept && (row != HY_ROW_SNAPSHOT || e->progress.has_snapshot);
}

int hy_state_files(const hy_engine *e, const char *names[HY_STATE_FILES_MAX]) {
    int count = 0;
    for (int row = 0; row < HY_ROW_COUNT; row++) {
        if (!is_saved(e, row)) continue;
        bool is_new = true;
        for (int i = 0; i < count; i++)
            is_new &= strcmp(names[i], e->state->rows->row[row].kind->file) != 0;
        if (is_new) names[count++] = e->state->rows->row[row].kind->file;
    }
    return count;
}

static void step(const hy_engine *e, hy_state_cursor *at) {
    if (++at->param == e->model->params.count) {
        at->param = 0;
        at->row++;
    }
}

/* Each rank has slices of its parameters. Rows that are divided by bytes are looked up as if
 * they were whole: the store returns the part of this rank. */
static bool is_shared(const hy_engine *e, const hy_row *row) {
    return hy_rows_shard(e->state->rows) && row->kind->sharding != HY_SHARDED_BYTES &&
           (row->is_sharded || row->kind->is_tiled);
}

/* The elements of the cursor's parameter in its row on all ranks; false: the row has none of it. */
static bool look(const hy_engine *e, const hy_state_cursor *at, hy_layout_item *out) {
    const hy_row *row = &e->state->rows->row[at->row];
    const hy_param *param = &e->model->params.list[at->param];
    if (param->part_at > 0) return false; /* it is saved with the first of its parts */
    if (row->kind->is_tiled) {
        *out = (hy_layout_item){.dtype = row->dtype, .count = param->count, .block = row->block};
        return param->is_trainable;
    }
    const hy_layout *layout = row->is_sharded ? &row->whole : &row->store.layout;
    int32_t item = hy_layout_item_of(layout, at->param);
    if (item >= 0) *out = layout->items[item];
    return item >= 0;
}

/* This rank's first item of it; -1: none. */
static int32_t own_item(const hy_engine *e, const hy_state_cursor *at) {
    const hy_row *row = &e->state->rows->row[at->row];
    const int32_t *first = e->state->rows->tiles.first;
    if (!row->kind->is_tiled) return hy_store_item_of(&row->store, at->param);
    return first[at->param] < first[at->param + 1] ? first[at->param] : -1;
}

/* The scales of `count` elements, of which files hold `stored`. Two-level scales are bytes and
 * are stored complete. */
static void put_scales(const hy_layout_item *item, int64_t stored, int64_t count,
                       hy_state_tensor *out) {
    bool has_levels = item->group > 0;
    out->dtype = has_levels ? HY_U8 : HY_F32;
    out->ndim = 1;
    out->in_memory =
        has_levels ? (int64_t)hy_layout_scale_bytes(item) : hy_layout_scales(item, count);
    out->count = has_levels ? out->in_memory : hy_layout_scales(item, stored);
    out->shape[0] = out->count;
    out->run = has_levels ? out->in_memory : hy_layout_scales(item, out->run);
    out->is_scale = true;
    out->codes = item->dtype;
}

bool hy_state_next(const hy_engine *e, hy_state_cursor *at, hy_state_tensor *out) {
    hy_layout_item all, *item = &all;
    bool is_found = false;
    while (!is_found && at->row < HY_ROW_COUNT) {
        bool is_here =
            is_saved(e, at->row) && strcmp(e->state->rows->row[at->row].kind->file, at->file) == 0;
        if (!is_here)
            at->row++;
        else if (!(is_found = look(e, at, item)))
            step(e, at);
    }
    if (!is_found) return false;
    const hy_row *row = &e->state->rows->row[at->row];
    const hy_param *param = &e->model->params.list[at->param];
    int32_t index = own_item(e, at);
    bool is_like_param = row->kind->is_tiled || item->count == param->count;
    int64_t count = is_like_param ? hy_param_whole_count(param) : item->count;
    *out = (hy_state_tensor){.row = at->row,
                             .item = index,
                             .param = at->param,
                             .run = param->part > 0       ? param->part
                                    : row->kind->is_tiled ? HY_TILE_ELEMENTS
                                                          : item->count};
    out->block = item->block;
    if (!is_shared(e, row))
        out->scales = hy_store_offset(&row->store, index) + hy_layout_scales_at(item);
    else
        out->run = param->part > 0 ? param->part : item->count;
    /* The maximum length of a name is known here, so the compiler sees that ".scale" fits. */
    snprintf(out->name, HY_PARAM_NAME_MAX + 9, "%s%s%s", row->name, row->name[0] ? "." : "",
             param->name);
    if (at->is_at_scales) { /* scales of blocks that are only padding are zero, like their codes */
        memcpy(out->name + strlen(out->name), ".scale", sizeof ".scale");
        int64_t stored = param->part > 0 || !is_like_param ? count : param->stored;
        put_scales(item, stored, count, out);
    } else {
        out->dtype = item->dtype;
        out->ndim = is_like_param ? param->ndim : 1;
        memcpy(out->shape, param->shape, sizeof out->shape);
        if (param->stored != param->count) out->shape[0] = hy_param_stored_rows(param);
        if (!is_like_param) out->shape[0] = count;
        out->count = param->part > 0 || !is_like_param ? count : param->stored;
        out->in_memory = count;
        out->zero =
            item->block && row->is_signed ? HY_QUANT_SIGNED_ZERO : hy_coded_zero(item->dtype);
    }
    at->is_at_scales = !at->is_at_scales && item->block > 0;
    if (!at->is_at_scales) step(e, at);
    return true;
}

/* Element `in_run` of a run of items. */
static uint64_t offset_of(const hy_store *store, const hy_state_tensor *t, int32_t item,
                          int64_t in_run) {
    uint64_t at = hy_store_offset(store, item) + hy_dtype_bytes(t->dtype, in_run);
    return at + (t->is_scale ? hy_layout_scales_at(&store->layout.items[item]) : 0);
}

static void cut_to(int64_t *count, int64_t most) {
    if (*count > most) *count = most;
}

/* With several ranks a run of items is a parameter; this rank has a slice of it, in one or more
 * tiles. */
static bool find_shared(const hy_engine *e, const hy_state_tensor *t, int64_t first, int64_t *count,
                        uint64_t *offset) {
    const hy_row *row = &e->state->rows->row[t->row];
    int32_t param = t->param + (int32_t)(first / t->run);
    int64_t in_run = first % t->run, per = t->is_scale ? t->block : 1,
            tile = HY_TILE_ELEMENTS / per;
    hy_slice own = hy_shard_own(&e->state->rows->shard, &e->model->params, param);
    bool is_factored = !row->kind->is_tiled && own.count > 0 &&
                       t->run != e->model->params.list[param].count &&
                       !t->is_scale; /* it goes with its parameter */
    int64_t begin = is_factored ? 0 : own.begin / per;
    int64_t end = is_factored ? t->run : begin + (own.count + per - 1) / per;
    cut_to(count, t->run - in_run);
    if (in_run < begin) cut_to(count, begin - in_run);
    if (in_run < begin || in_run >= end) return false;
    cut_to(count, end - in_run);
    int64_t at = in_run - begin;
    if (!row->kind->is_tiled) {
        *offset = offset_of(&row->store, t, hy_store_item_of(&row->store, param), at);
        return true;
    }
    cut_to(count, tile - at % tile);
    *offset = offset_of(&row->store, t, e->state->rows->tiles.first[param] + (int32_t)(at / tile),
                        at % tile);
    return true;
}

bool hy_state_find(const hy_engine *e, const hy_state_tensor *t, int64_t first, int64_t *count,
                   uint64_t *offset) {
    const hy_store *store = hy_store_of(e, t->row);
    if (is_shared(e, &e->state->rows->row[t->row])) return find_shared(e, t, first, count, offset);
    int64_t in_run = first % t->run;
    cut_to(count, t->run - in_run);
    *offset = offset_of(store, t, t->item + (int32_t)(first / t->run), in_run);
    return true;
}

int32_t hy_state_tensors(const hy_engine *e, const char *file) {
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    int32_t count = 0;
    while (hy_state_next(e, &cursor, &tensor)) count++;
    return count;
}
