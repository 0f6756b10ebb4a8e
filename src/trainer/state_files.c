/* state_files.c: the files of a checkpoint, tensor by tensor. See state_files.h. */
#include "trainer/state_files.h"

#include <stdio.h>
#include <string.h>

static void add_part(hy_state_file *file, const char *name, hy_store *store) {
    file->part[file->part_count].name = name;
    file->part[file->part_count++].store = store;
}

int hy_state_files(hy_trainer *t, hy_state_file files[HY_STATE_FILES_MAX]) {
    static const char *const slot_names[HY_PREDICTOR_SLOTS] = {"slot0", "slot1"};
    const hy_engine *e = &t->engine;
    const hy_optimizer_kind *optimizer = e->update.optimizer.kind;
    int count = 0;
    files[count] = (hy_state_file){.name = "weights.safetensors"};
    add_part(&files[count++], "", hy_store_of(e, HY_ROW_MASTER));
    files[count] = (hy_state_file){.name = "optimizer.safetensors"};
    for (int i = 0; i < hy_optim_arrays(e); i++) {
        add_part(&files[count], optimizer->arrays[i].name, hy_store_of(e, HY_ROW_OPTIM + i));
    }
    count += files[count].part_count > 0;
    files[count] = (hy_state_file){.name = "predictor.safetensors"};
    int slots = hy_predictor_slots(e->predictor.kind);
    for (int i = 0; i < HY_PREDICTOR_SLOTS && i < slots; i++) {
        add_part(&files[count], slot_names[i], hy_store_of(e, HY_ROW_SLOW + i));
    }
    if (e->has_average) add_part(&files[count], "tail", hy_store_of(e, HY_ROW_AVERAGE));
    if (e->snapshot_is_valid) { /* until corrected */
        add_part(&files[count], "snapshot", hy_store_of(e, HY_ROW_SNAPSHOT));
    }
    return count + (files[count].part_count > 0);
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
    const char *name = file->part[cursor->part].name;
    snprintf(out->name, HY_PARAM_NAME_MAX + 9, "%s%s%s", name, *name ? "." : "", param->name);
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
