/* adapters.c: several adapters for one base model. See adapters.h. */
#include "infer/adapters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/derived.h"
#include "formats/checkpoint.h"
#include "kernels/coded.h"
#include "model/adapter.h"
#include "record/record.h"
#include "record/state_files.h"

/* ---- checks of each adapter ------------------------------------------------------------------ */

/* Makes a model with this adapter only. In the settings of several adapters, rank and names cover
 * all of them, so they are replaced by the adapter's; values from flags stay. */
static hy_status make_own(const hy_adapters *a, const hy_engine *e, int32_t i, hy_model **out) {
    const hy_peft_config *config = &a->set.list[i].config;
    hy_settings s = *e->request.settings;
    char names[2 * HY_TEXT_MAX];
    hy_shape shape;
    *out = NULL;
    if (a->set.count > 1) {
        s.lora.lora_rank = config->rank;
        if (!s.adapter_said.alpha) s.lora.lora_alpha = config->alpha;
        if (!s.adapter_said.rslora) s.lora.rslora = config->is_root_scaled;
        /* The combined names fit there, so these do too. */
        snprintf(s.lora.lora_targets, sizeof s.lora.lora_targets, "%.*s", HY_TEXT_MAX - 1,
                 config->targets);
        snprintf(s.lora.lora_modules, sizeof s.lora.lora_modules, "%.*s", HY_TEXT_MAX - 1,
                 config->modules[0] ? config->modules : "none");
    }
    HY_TRY(hy_shape_from_settings(&s, &shape));
    HY_TRY(hy_model_create(&shape, out));
    hy_settings_trained(&s, names, sizeof names);
    hy_status status = hy_adapter_check_modules(s.lora.lora_modules);
    if (status == HY_OK) status = hy_params_mark_beside(&(*out)->params, names);
    if (status == HY_OK) return HY_OK;
    hy_model_destroy(*out);
    *out = NULL;
    return status;
}

/* The rank or targets that a flag sets may be too small for an adapter. */
static hy_status check_room(const hy_engine *e, const hy_model *own) {
    const hy_adapter *room = &e->model->shape.adapter, *needs = &own->shape.adapter;
    const char *modules[HY_ADAPTER_MODULES];
    HY_FAIL_IF(needs->rank > room->rank, HY_ERR_INPUT,
               "its rank is %d, but lora_rank is %d: omit lora_rank, or set it to at least %d",
               needs->rank, room->rank, needs->rank);
    hy_adapter_modules(&own->shape, needs->parts & ~room->parts, modules);
    HY_FAIL_IF(modules[0], HY_ERR_INPUT,
               "it has an adapter for %s, which lora_targets = %s does not include: omit "
               "lora_targets, or add it there",
               modules[0], e->request.settings->lora.lora_targets);
    return HY_OK;
}

static hy_status check_member(const hy_adapters *a, const hy_engine *e, int32_t i) {
    hy_model *own;
    hy_peft_file file;
    HY_TRY(hy_origin_check_adapter(e->observer, e->request.settings, a->set.list[i].folder));
    HY_TRY(make_own(a, e, i, &own));
    hy_status status = check_room(e, own);
    if (status == HY_OK) status = hy_peft_open(a->set.list[i].folder, own, &file);
    if (status == HY_OK) hy_peft_close(&file);
    hy_model_destroy(own);
    return status;
}

/* A matrix that one adapter trains whole cannot be quantised, but the others need it quantised. */
static hy_status check_codes(const hy_adapters *a, const hy_engine *e) {
    hy_params *params = &e->model->params;
    for (int32_t i = 0; i < params->count && a->set.count > 1; i++) {
        hy_param *param = &params->list[i];
        if (!param->is_beside) continue;
        bool is_trainable = param->is_trainable;
        param->is_trainable = false;
        bool is_coded = hy_is_coded(hy_params_stored(params, i, HY_F32));
        param->is_trainable = is_trainable;
        HY_FAIL_IF(is_coded, HY_ERR_INPUT,
                   "one of these adapters trains %s whole, while the others need it as %s: "
                   "evaluate them one by one, or with frozen_dtype = auto",
                   param->name, hy_settings_frozen_name(e->request.settings));
    }
    return HY_OK;
}

hy_status hy_adapters_open(hy_adapters *a, hy_engine *e) {
    *a = (hy_adapters){.used = HY_BASE_ALONE};
    const char *names = e->request.settings->lora.adapter;
    if (!names[0]) return HY_OK;
    HY_TRY(hy_peft_set_read(names, &a->set));
    for (int32_t i = 0; i < a->set.count; i++) {
        hy_status status = check_member(a, e, i);
        if (status != HY_OK) return hy_fail_context(status, "adapter %s", a->set.list[i].folder);
    }
    return check_codes(a, e);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Lists the parameters that differ between adapters, and allocates the copies. */
static hy_status list_moved(hy_adapters *a, const hy_engine *e) {
    const hy_params *params = &e->model->params;
    const hy_store *store = hy_store_of(e, HY_ROW_MASTER);
    uint64_t bytes = 0;
    a->params = calloc((size_t)params->count, sizeof *a->params);
    a->at = calloc((size_t)params->count + 1, sizeof *a->at);
    a->copies = calloc((size_t)a->set.count + 1, sizeof *a->copies);
    bool is_there = a->params && a->at && a->copies;
    for (int32_t i = 0; i < params->count && is_there; i++) {
        if (!hy_is_adapter(params->list[i].kind) && !params->list[i].is_beside) continue;
        const hy_layout_item *item = &store->layout.items[hy_store_item_of(store, i)];
        bytes += hy_dtype_bytes(item->dtype, item->count);
        a->params[a->moved] = i;
        a->at[++a->moved] = bytes;
    }
    for (int32_t i = 0; i <= a->set.count && is_there; i++) {
        a->copies[i] = calloc(1, bytes + 1);
        is_there = a->copies[i] != NULL;
    }
    return is_there ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for adapters");
}

/* Parameters trained whole get the base's values; adapters are zero. */
static hy_status copy_base(hy_adapters *a, hy_engine *e) {
    hy_store *store = hy_store_of(e, HY_ROW_MASTER);
    for (int32_t k = 0; k < a->moved; k++) {
        int32_t param = a->params[k];
        if (hy_is_adapter(e->model->params.list[param].kind)) continue;
        uint64_t offset = hy_store_offset(store, hy_store_item_of(store, param));
        HY_TRY(hy_store_read(store, e->device.compute, offset, a->copies[0] + a->at[k],
                             a->at[k + 1] - a->at[k]));
    }
    return HY_OK;
}

/* The first row, in the loaded model's parameter, of a tensor of an adapter. */
static int64_t row_in_wide(const hy_model *own, const hy_model *wide, const hy_hf_name *name) {
    hy_param_kind kind = own->params.list[name->param].kind, matrix = hy_adapter_matrix(kind);
    hy_adapter_pieces ours = hy_shape_adapter_pieces(&own->shape, matrix),
                      theirs = hy_shape_adapter_pieces(&wide->shape, matrix);
    bool is_b = hy_is_adapter_b(kind);
    for (int32_t piece = 0; piece < ours.count; piece++) {
        hy_adapter_rows from = hy_adapter_rows_before(&ours, piece, own->shape.adapter.rank);
        if (!ours.is_there[piece] || (is_b ? from.b : from.a) != name->row) continue;
        hy_adapter_rows to = hy_adapter_rows_before(&theirs, piece, wide->shape.adapter.rank);
        return is_b ? to.b : to.a;
    }
    return 0; /* not reached: every tensor begins at a piece */
}

/* The rows of a parameter that a tensor is copied to. */
typedef struct place {
    char *to; /* the parameter's bytes in a copy */
    hy_dtype dtype;
    int64_t row, cols; /* the first row; columns of the parameter */
    float factor;
} place;

/* If the parameter is wider than the tensor, its other columns stay zero. */
static hy_status put_tensor(const hy_peft_file *file, int32_t i, const place *p) {
    const hy_hf_name *name = &file->names[i];
    int64_t most = hy_peft_rows_at_once(file, i);
    float *numbers = malloc((size_t)(most * name->cols) * sizeof *numbers);
    hy_status status =
        numbers ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to read an adapter");
    for (int64_t row = 0, rows; row < name->rows && status == HY_OK; row += rows) {
        rows = name->rows - row < most ? name->rows - row : most;
        status = hy_peft_read(file, i, row, rows, numbers);
        if (status != HY_OK) break;
        for (int64_t k = 0; k < rows * name->cols && p->factor != 1; k++) numbers[k] *= p->factor;
        for (int64_t r = 0; r < rows; r++) {
            char *to = p->to + hy_dtype_bytes(p->dtype, (p->row + row + r) * p->cols);
            hy_convert(numbers + r * name->cols, HY_F32, name->cols, to, p->dtype);
        }
    }
    free(numbers);
    return status;
}

static hy_status copy_tensor(hy_adapters *a, const hy_engine *e, const hy_model *own,
                             const hy_peft_file *file, int32_t i, char *copy) {
    const hy_hf_name *name = &file->names[i];
    const hy_param *param = &own->params.list[name->param];
    const hy_store *store = hy_store_of(e, HY_ROW_MASTER);
    int32_t index = hy_params_find(&e->model->params, param->unit, param->kind), k = 0;
    while (a->params[k] != index) k++;
    place p = {.to = copy + a->at[k],
               .dtype = store->layout.items[hy_store_item_of(store, index)].dtype,
               .row = name->row,
               .cols = name->cols,
               .factor = 1};
    if (hy_is_adapter(param->kind)) {
        p.row = row_in_wide(own, e->model, name);
        p.cols = e->model->params.list[index].shape[1];
        /* The model's ops have one scale, so B is multiplied by the ratio of the two scales. */
        double ratio = own->shape.adapter.scale / e->model->shape.adapter.scale;
        if (hy_is_adapter_b(param->kind)) p.factor = (float)ratio;
    }
    return put_tensor(file, i, &p);
}

static hy_status copy_member(hy_adapters *a, const hy_engine *e, int32_t i) {
    char *copy = a->copies[i + 1];
    hy_model *own;
    hy_peft_file file;
    memcpy(copy, a->copies[0], a->at[a->moved]);
    HY_TRY(make_own(a, e, i, &own));
    hy_status status = hy_peft_open(a->set.list[i].folder, own, &file);
    if (status == HY_OK) {
        for (int32_t t = 0; t < file.count && status == HY_OK; t++) {
            status = copy_tensor(a, e, own, &file, t, copy);
        }
        hy_peft_close(&file);
    }
    hy_model_destroy(own);
    return status;
}

hy_status hy_adapters_load(hy_adapters *a, hy_engine *e) {
    if (a->set.count == 0) return HY_OK;
    HY_TRY(list_moved(a, e));
    HY_TRY(copy_base(a, e));
    for (int32_t i = 0; i < a->set.count; i++) HY_TRY(copy_member(a, e, i));
    return hy_adapters_use(a, e, 0);
}

hy_status hy_adapters_use(hy_adapters *a, hy_engine *e, int32_t i) {
    hy_store *store = hy_store_of(e, HY_ROW_MASTER);
    HY_TRY(hy_engine_sync(e));
    HY_TRY(hy_store_settle(store));
    a->used = HY_NO_ADAPTER; /* until everything is copied */
    for (int32_t k = 0; k < a->moved; k++) {
        uint64_t offset = hy_store_offset(store, hy_store_item_of(store, a->params[k]));
        HY_TRY(hy_store_write(store, e->device.compute, offset, a->copies[i + 1] + a->at[k],
                              a->at[k + 1] - a->at[k]));
    }
    hy_row_changed(e->state, HY_ROW_MASTER);
    a->used = i;
    return hy_store_settle(store);
}

int32_t hy_adapters_find(const hy_adapters *a, const char *name) {
    for (int32_t i = 0; i < a->set.count; i++) {
        const hy_peft_member *member = &a->set.list[i];
        if (strcmp(member->name, name) == 0 || strcmp(member->folder, name) == 0) return i;
    }
    return HY_NO_ADAPTER;
}

const char *hy_adapters_name(const hy_adapters *a, int32_t i) {
    return i < 0 ? "" : a->set.list[i].name;
}

void hy_adapters_close(hy_adapters *a) {
    for (int32_t i = 0; a->copies && i <= a->set.count; i++) free(a->copies[i]);
    free(a->copies);
    free(a->params);
    free(a->at);
    hy_peft_set_free(&a->set);
    *a = (hy_adapters){.used = HY_BASE_ALONE};
}
