/* peft.c: adapters in PEFT's files. See peft.h. */
#include "hub/peft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "model/adapter.h"

#define PREFIX "base_model.model."
#define PIECE (1 << 20) /* elements read at a time */

/* ---- the config ------------------------------------------------------------------------------------ */

/* A table that is embedding and head is both in PEFT's files, once for each module: its modules have tensors of their
 * own unless ensure_weight_tying says otherwise, and then both are saved all the same. */
static bool is_shared(const hy_shape *shape, const hy_param *param) {
    return param->kind == HY_P_TOKENS && shape->has_tied_head;
}

static bool trains_shared(const hy_shape *shape, const hy_params *params) {
    for (int32_t i = 0; i < params->count; i++) {
        if (params->list[i].is_beside && is_shared(shape, &params->list[i])) return true;
    }
    return false;
}

static bool is_in_all_layers(const hy_params *params, hy_param_kind kind) {
    for (int32_t unit = 1; unit + 1 < params->units; unit++) {
        int32_t at = hy_params_find(params, unit, kind);
        if (at < 0 || !params->list[at].is_beside) return false;
    }
    return true;
}

/* The module of a tensor by its path, so that it is that one alone; one of all layers by its last name, which means
 * them all. False: it was named before. */
static bool module_of(const hy_params *params, const hy_hf_name *name, char out[HY_HF_NAME_MAX]) {
    const hy_param *param = &params->list[name->param];
    bool is_layer = param->unit > 0 && param->unit + 1 < params->units;
    bool is_short = is_layer && is_in_all_layers(params, param->kind);
    char path[HY_HF_NAME_MAX], before[HY_HF_NAME_MAX];
    snprintf(path, sizeof path, "%s", name->name + strlen(PREFIX));
    char *dot = strrchr(path, '.'); /* of ".weight" or ".bias" */
    if (dot) *dot = 0;
    memcpy(before, out, sizeof before);
    snprintf(out, HY_HF_NAME_MAX, "%s", is_short ? hy_peft_last_name(path) : path);
    return strcmp(before, out) != 0 && !(is_short && param->unit > 1);
}

/* The modules that are trained whole. */
static void put_modules(hy_json_writer *w, const hy_params *params, const hy_hf_name *names,
                        int32_t count) {
    char module[HY_HF_NAME_MAX] = "";
    bool is_any = false;
    for (int32_t i = 0; i < count; i++) {
        if (hy_is_adapter(params->list[names[i].param].kind)) continue;
        if (!module_of(params, &names[i], module)) continue;
        if (!is_any) hy_json_open_array(w, "modules_to_save");
        is_any = true;
        hy_json_put_string(w, NULL, module);
    }
    if (is_any)
        hy_json_close_array(w);
    else
        hy_json_put_null(w, "modules_to_save");
}

hy_status hy_peft_config_write(const hy_shape *shape, const hy_params *params, const char *base,
                               hy_text *text) {
    const hy_adapter *a = &shape->adapter;
    const char *modules[HY_ADAPTER_MODULES];
    hy_hf_arch arch;
    hy_hf_name *names;
    int32_t count;
    hy_json_writer w;
    HY_TRY(hy_hf_arch_of(shape, &arch));
    HY_TRY(hy_peft_list_names(arch, shape, params, &names, &count));
    hy_adapter_modules(shape, a->parts, modules);
    hy_json_begin(&w, text, true);
    hy_json_open_object(&w, NULL);
    hy_json_put_string(&w, "peft_type", "LORA");
    hy_json_put_string(&w, "task_type", "CAUSAL_LM");
    hy_json_put_string(&w, "base_model_name_or_path", base && base[0] ? base : NULL);
    hy_json_put_int(&w, "r", a->rank);
    hy_json_put_double(&w, "lora_alpha", a->alpha);
    hy_json_put_double(&w, "lora_dropout", a->dropout);
    hy_json_put_bool(&w, "use_rslora", a->is_root_scaled);
    hy_json_put_bool(&w, "use_dora", false);
    hy_json_put_string(&w, "bias", "none");
    hy_json_put_bool(&w, "fan_in_fan_out", arch == HY_HF_GPT2);
    hy_json_put_bool(&w, "inference_mode", true);
    hy_json_put_bool(&w, "init_lora_weights", true);
    hy_json_open_array(&w, "target_modules");
    for (int i = 0; modules[i]; i++) hy_json_put_string(&w, NULL, modules[i]);
    hy_json_close_array(&w);
    put_modules(&w, params, names, count);
    if (trains_shared(shape, params)) hy_json_put_bool(&w, "ensure_weight_tying", true);
    hy_json_close_object(&w);
    hy_text_add(text, "\n");
    free(names);
    return hy_text_status(text);
}

/* ---- names ----------------------------------------------------------------------------------------- */

/* "model.layers.0.mlp.up_proj.weight" becomes "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight". */
static hy_status name_adapter(const hy_hf_name *matrix, bool is_a, char out[HY_HF_NAME_MAX]) {
    int length = (int)(strlen(matrix->name) - strlen(".weight"));
    int used = snprintf(out, HY_HF_NAME_MAX, PREFIX "%.*s.lora_%c.weight", length, matrix->name,
                        is_a ? 'A' : 'B');
    HY_FAIL_IF(used >= HY_HF_NAME_MAX, HY_ERR_INPUT, "the name of %s is too long", matrix->name);
    return HY_OK;
}

/* The tensors of a matrix' adapter: two for each piece that has one. `at` is its first name among those of the
 * model. */
static hy_status add_adapter(const hy_shape *shape, const hy_params *params, const hy_hf_name *at,
                             hy_hf_name *list, int32_t *count) {
    const hy_param *matrix = &params->list[at->param];
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(shape, matrix->kind);
    int32_t a = hy_params_find(params, matrix->unit, hy_adapter_kind(matrix->kind));
    int64_t rank = shape->adapter.rank, row_a = 0, row_b = 0;
    for (int32_t i = 0; i < pieces.count && pieces.adapted > 0; i++) {
        if (!pieces.is_there[i]) continue;
        hy_hf_name *of_a = &list[(*count)++], *of_b = &list[(*count)++];
        *of_a = (hy_hf_name){
            .param = a, .row = row_a, .rows = rank, .cols = params->list[a].shape[1], .ndim = 2};
        *of_b = (hy_hf_name){
            .param = a + 1, .row = row_b, .rows = pieces.rows[i], .cols = rank, .ndim = 2};
        HY_TRY(name_adapter(&at[i], true, of_a->name));
        HY_TRY(name_adapter(&at[i], false, of_b->name));
        row_a += rank;
        row_b += pieces.rows[i];
    }
    return HY_OK;
}

static hy_status add_whole(const hy_hf_name *at, hy_hf_name *list, int32_t *count) {
    hy_hf_name *name = &list[(*count)++];
    *name = *at;
    int used = snprintf(name->name, sizeof name->name, PREFIX "%.*s",
                        (int)(HY_HF_NAME_MAX - sizeof PREFIX), at->name);
    HY_FAIL_IF(used >= HY_HF_NAME_MAX || strlen(at->name) + sizeof PREFIX > HY_HF_NAME_MAX,
               HY_ERR_INPUT, "the name of %s is too long", at->name);
    return HY_OK;
}

static hy_status add_beside(const hy_shape *shape, const hy_params *params, const hy_hf_name *at,
                            hy_hf_name *list, int32_t *count) {
    HY_TRY(add_whole(at, list, count));
    if (!is_shared(shape, &params->list[at->param])) return HY_OK;
    hy_hf_name head = *at;
    snprintf(head.name, sizeof head.name, "lm_head.weight");
    return add_whole(&head, list, count);
}

hy_status hy_peft_list_names(hy_hf_arch arch, const hy_shape *shape, const hy_params *params,
                             hy_hf_name **out, int32_t *count) {
    hy_hf_name *all;
    int32_t every;
    *count = 0;
    HY_TRY(hy_hf_list_names(arch, hy_hf_prefix(arch), shape, params, &all, &every));
    *out = calloc((size_t)every * 3, sizeof **out);
    hy_status status = *out ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory for the names of adapters");
    for (int32_t i = 0; i < every && status == HY_OK; i++) {
        const hy_param *param = &params->list[all[i].param];
        bool is_first = i == 0 || all[i - 1].param != all[i].param;
        bool is_matrix = hy_linear_bit(param->kind) != 0;
        if (is_first && is_matrix) status = add_adapter(shape, params, &all[i], *out, count);
        if (status == HY_OK && param->is_beside)
            status = add_beside(shape, params, &all[i], *out, count);
    }
    free(all);
    if (status != HY_OK) {
        free(*out);
        *out = NULL; /* an export frees what it has of it */
    }
    return status;
}

/* ---- reading tensors ------------------------------------------------------------------------------- */

static hy_status check_tensor(const char *path, const hy_hf_name *name, bool is_table,
                              const hy_safetensors_entry *entry) {
    HY_FAIL_IF(!entry, HY_ERR_INPUT,
               "%s: tensor \"%s\" is missing: the adapter is for another model, or for other "
               "modules%s",
               path, name->name,
               is_table ? " (this model has one table for embedding and head)" : "");
    int64_t rows = name->is_transposed ? name->cols : name->rows,
            cols = name->is_transposed ? name->rows : name->cols;
    bool fits = entry->ndim == name->ndim && entry->shape[0] == rows &&
                (name->ndim < 2 || entry->shape[1] == cols);
    HY_FAIL_IF(!fits, HY_ERR_INPUT,
               "%s: %s is (%lld, %lld), and (%lld, %lld) is expected beside this model: it is an "
               "adapter for another one, or of another rank",
               path, name->name, (long long)entry->shape[0],
               (long long)(entry->ndim > 1 ? entry->shape[1] : 1), (long long)rows,
               (long long)cols);
    bool is_real = entry->dtype == HY_F32 || entry->dtype == HY_BF16 || entry->dtype == HY_F16;
    HY_FAIL_IF(!is_real, HY_ERR_INPUT, "%s: %s is %s; accepted are fp32, bf16 and fp16", path,
               name->name, hy_safetensors_type(entry));
    HY_FAIL_IF(name->is_transposed, HY_ERR_INPUT,
               "%s: %s is a whole matrix that lies transposed, which is not read", path,
               name->name);
    return HY_OK;
}

static bool is_again(const hy_hf_name *names, int32_t i) {
    return i > 0 && names[i].param == names[i - 1].param && names[i].row == names[i - 1].row;
}

static hy_status check_all(const char *path, const hy_safetensors *file, const hy_hf_name *names,
                           int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        bool is_table = is_again(names, i) || (i + 1 < count && is_again(names, i + 1));
        const hy_safetensors_entry *entry = hy_safetensors_find(file, names[i].name);
        HY_TRY(check_tensor(path, &names[i], is_table, entry));
    }
    if (hy_safetensors_count(file) == (size_t)count) return HY_OK;
    for (size_t k = 0; k < hy_safetensors_count(file); k++) {
        const char *name = hy_safetensors_at(file, k)->name;
        int32_t i = 0;
        while (i < count && strcmp(names[i].name, name) != 0) i++;
        HY_FAIL_IF(i == count, HY_ERR_INPUT,
                   "%s: tensor \"%.200s\" has no place beside this model: the adapter is for "
                   "another one, or for other modules",
                   path, name);
    }
    return HY_OK;
}

/* Embedding and head as two tensors are one here, and so must have the same numbers. */
static hy_status check_shared(const char *path, const hy_safetensors *file, const hy_hf_name *one,
                              const hy_hf_name *other) {
    const hy_safetensors_entry *a = hy_safetensors_find(file, one->name),
                               *b = hy_safetensors_find(file, other->name);
    char left[4096], right[4096];
    bool is_same = a->dtype == b->dtype && a->bytes == b->bytes;
    for (uint64_t at = 0; at < a->bytes && is_same; at += sizeof left) {
        size_t size = a->bytes - at < sizeof left ? (size_t)(a->bytes - at) : sizeof left;
        HY_TRY(hy_safetensors_read(file, a, at, left, size));
        HY_TRY(hy_safetensors_read(file, b, at, right, size));
        is_same = memcmp(left, right, size) == 0;
    }
    HY_FAIL_IF(!is_same, HY_ERR_INPUT,
               "%s: %s and %s differ, and this model has one table for both", path, one->name,
               other->name);
    return HY_OK;
}

static hy_status check_tables(const char *path, const hy_safetensors *file, const hy_hf_name *names,
                              int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        if (is_again(names, i)) HY_TRY(check_shared(path, file, &names[i - 1], &names[i]));
    }
    return HY_OK;
}

static hy_status load_tensor(const hy_safetensors *file, const hy_hf_name *name, hy_store *store,
                             hy_stream *stream, char *raw, char *made) {
    const hy_safetensors_entry *entry = hy_safetensors_find(file, name->name);
    int32_t item = hy_store_item_of(store, name->param);
    if (item < 0) return HY_OK; /* another rank's */
    hy_dtype dtype = store->layout.items[item].dtype;
    int64_t all = name->rows * name->cols, begin = name->row * name->cols;
    for (int64_t at = 0; at < all; at += PIECE) {
        int64_t count = all - at < PIECE ? all - at : PIECE;
        HY_TRY(hy_safetensors_read(file, entry, hy_dtype_bytes(entry->dtype, at), raw,
                                   hy_dtype_bytes(entry->dtype, count)));
        hy_convert(raw, entry->dtype, count, made, dtype);
        HY_TRY(hy_store_put(store, stream, item, begin + at, count, made));
    }
    return HY_OK;
}

static hy_status load_all(const hy_safetensors *file, const hy_hf_name *names, int32_t count,
                          hy_store *store, hy_stream *stream) {
    char *raw = malloc((size_t)PIECE * sizeof(float)),
         *made = malloc((size_t)PIECE * sizeof(float));
    hy_status status = raw && made ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory to read an adapter");
    for (int32_t i = 0; i < count && status == HY_OK; i++) {
        status = load_tensor(file, &names[i], store, stream, raw, made);
    }
    free(raw);
    free(made);
    return status;
}

/* Older versions of PEFT wrote a pickle instead, which is a program. */
static hy_status find_tensors(const char *folder, char path[HY_PATH_MAX]) {
    char pickle[HY_PATH_MAX];
    HY_TRY(hy_path_join(pickle, sizeof pickle, folder, "adapter_model.bin"));
    HY_TRY(hy_path_join(path, HY_PATH_MAX, folder, HY_PEFT_TENSORS));
    HY_FAIL_IF(hy_path_exists(pickle) && !hy_path_exists(path), HY_ERR_INPUT,
               "%s is not read, because a pickle may run any code; load it with PEFT and save it "
               "again, as " HY_PEFT_TENSORS,
               pickle);
    return HY_OK;
}

hy_status hy_peft_open(const char *folder, const hy_model *model, hy_peft_file *out) {
    char path[HY_PATH_MAX];
    hy_hf_arch arch;
    *out = (hy_peft_file){0};
    HY_TRY(hy_hf_arch_of(&model->shape, &arch));
    HY_TRY(find_tensors(folder, path));
    HY_TRY(hy_safetensors_open(path, &out->tensors));
    hy_status status =
        hy_peft_list_names(arch, &model->shape, &model->params, &out->names, &out->count);
    if (status == HY_OK) status = check_all(path, out->tensors, out->names, out->count);
    if (status == HY_OK) status = check_tables(path, out->tensors, out->names, out->count);
    if (status != HY_OK) hy_peft_close(out);
    return status;
}

void hy_peft_close(hy_peft_file *file) {
    free(file->names);
    hy_safetensors_close(file->tensors);
    *file = (hy_peft_file){0};
}

hy_status hy_peft_read(const hy_peft_file *file, int32_t i, int64_t first, int64_t count,
                       float *out) {
    enum { SOME = 4096 };
    const hy_safetensors_entry *entry = hy_safetensors_find(file->tensors, file->names[i].name);
    float raw[SOME]; /* of the widest type */
    for (int64_t at = 0, some; at < count; at += some) {
        some = count - at < SOME ? count - at : SOME;
        HY_TRY(hy_safetensors_read(file->tensors, entry, hy_dtype_bytes(entry->dtype, first + at),
                                   raw, hy_dtype_bytes(entry->dtype, some)));
        hy_convert(raw, entry->dtype, some, out + at, HY_F32);
    }
    return HY_OK;
}

hy_status hy_peft_load(const char *folder, const hy_model *model, hy_store *store,
                       hy_stream *stream) {
    hy_peft_file file;
    HY_TRY(hy_peft_open(folder, model, &file));
    hy_status status = load_all(file.tensors, file.names, file.count, store, stream);
    hy_peft_close(&file);
    return status;
}
