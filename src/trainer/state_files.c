/* state_files.c: the files of a checkpoint, tensor by tensor. See state_files.h. */
#include "trainer/state_files.h"

#include <stdio.h>
#include <string.h>

static void add_part(hy_state_file *file, const char *prefix, hy_store *store) {
    file->part[file->part_count].prefix = prefix;
    file->part[file->part_count++].store = store;
}

int hy_state_files(hy_trainer *t, hy_state_file files[HY_STATE_FILES_MAX]) {
    static const char *const slot_prefixes[HY_PREDICTOR_SLOTS] = {"slot0.", "slot1."};
    files[0] = (hy_state_file){.name = "weights.safetensors"};
    files[1] = (hy_state_file){.name = "optimizer.safetensors"};
    files[2] = (hy_state_file){.name = "predictor.safetensors"};
    add_part(&files[0], "", hy_store_of(&t->engine, HY_ROW_MASTER));
    add_part(&files[1], "m.", hy_store_of(&t->engine, HY_ROW_OPTIM));
    add_part(&files[1], "v.", hy_store_of(&t->engine, HY_ROW_OPTIM + 1));
    int slots = hy_predictor_slots(t->engine.predictor.kind);
    for (int i = 0; i < HY_PREDICTOR_SLOTS && i < slots; i++) {
        add_part(&files[2], slot_prefixes[i], hy_store_of(&t->engine, HY_ROW_SLOW + i));
    }
    if (t->engine.has_average)
        add_part(&files[2], "tail.", hy_store_of(&t->engine, HY_ROW_AVERAGE));
    if (t->engine.snapshot_is_valid)
        add_part(&files[2], "snapshot.",
                 hy_store_of(&t->engine, HY_ROW_SNAPSHOT)); /* until corrected */
    return files[2].part_count > 0 ? 3 : 2;
}

/* ---- pieces ------------------------------------------------------------------------------------ */

static void describe_values(const hy_param *param, const hy_layout_item *item,
                            hy_state_piece *out) {
    out->dtype = item->dtype;
    out->ndim = param->ndim;
    out->shape[0] = hy_param_stored_rows(param);
    out->shape[1] = param->shape[1];
    out->count = param->stored;
    out->in_memory = param->count;
}

/* Scales of blocks that are all padding are zero like their codes. */
static void describe_scales(const hy_param *param, const hy_layout_item *item,
                            hy_state_piece *out) {
    memcpy(out->name + strlen(out->name), ".scale", sizeof ".scale");
    out->dtype = HY_F32;
    out->ndim = 1;
    out->shape[0] = hy_layout_scales(item, param->stored);
    out->shape[1] = 0;
    out->count = out->shape[0];
    out->in_memory = hy_layout_scales(item, item->count);
    out->offset += hy_layout_scales_at(item);
}

bool hy_state_next(const hy_trainer *t, const hy_state_file *file, hy_state_cursor *cursor,
                   hy_state_piece *out) {
    const hy_params *params = &t->engine.model->params;
    if (cursor->part >= file->part_count) return false;
    hy_store *store = file->part[cursor->part].store;
    const hy_param *param = &params->list[cursor->item];
    int32_t index = hy_tiles_item(&t->engine.state.tiles, store, cursor->item);
    const hy_layout_item *item = &store->layout.items[index];
    *out = (hy_state_piece){.store = store, .offset = hy_store_offset(store, index)};
    /* The longest name is known here, so that ".scale" has room: the compiler sees it too. */
    snprintf(out->name, HY_PARAM_NAME_MAX + 8, "%s%s", file->part[cursor->part].prefix,
             param->name);
    if (cursor->is_at_scales) {
        describe_scales(param, item, out);
    } else {
        describe_values(param, item, out);
    }
    cursor->is_at_scales = !cursor->is_at_scales && item->block > 0;
    if (cursor->is_at_scales) return true;
    if (++cursor->item == params->count) {
        cursor->item = 0;
        cursor->part++;
    }
    return true;
}

int32_t hy_state_pieces(const hy_trainer *t, const hy_state_file *file) {
    hy_state_cursor cursor = {0};
    hy_state_piece piece;
    int32_t count = 0;
    while (hy_state_next(t, file, &cursor, &piece)) count++;
    return count;
}
