/* hf_parts.c: opens a model's files and finds each parameter in them. See hf_load.h.
 *
 * A model is in a Hugging Face folder, in a llama2.c file, or in a GGUF file (gguf_load.c). Names
 * and shapes are checked before any weights are read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hub/gguf_load.h"

/* ---- Hugging Face folders -------------------------------------------------------------------- */

static hy_status check_tensor(const char *folder, const hy_hf_name *name, hy_hf_found found) {
    int64_t expected[3];
    hy_hf_dims(name, expected);
    const hy_safetensors_entry *e = found.entry;
    if (e->ndim != name->ndim || memcmp(e->shape, expected, (size_t)name->ndim * 8) != 0) {
        return hy_fail(HY_ERR_INPUT, "%s: tensor \"%s\" has shape %s, but the model needs %s",
                       folder, name->name, hy_dims_to_text(e->shape, e->ndim).text,
                       hy_dims_to_text(expected, name->ndim).text);
    }
    if (hy_is_real(e->dtype)) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: tensor \"%s\" is %s; supported: fp32, fp16, bf16", folder,
                   name->name, hy_safetensors_type(e));
}

static bool has_prefix(const hy_hf_tensors *tensors, const char *prefix) {
    for (size_t i = 0; i < hy_hf_tensors_count(tensors); i++) {
        if (strncmp(hy_hf_tensors_at(tensors, i).entry->name, prefix, strlen(prefix)) == 0)
            return true;
    }
    return false;
}

const char *hy_hf_prefix_in(const hy_hf_tensors *tensors, const hy_family *family) {
    if (has_prefix(tensors, HY_HF_TEXT_PREFIX)) return HY_HF_TEXT_PREFIX;
    if (has_prefix(tensors, HY_HF_OLD_TEXT_PREFIX)) return HY_HF_OLD_TEXT_PREFIX;
    return has_prefix(tensors, family->prefix) ? family->prefix : "";
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The tensor of a name; a tied table may have either name. */
static hy_status find_tensor(const char *folder, const hy_model *model, const hy_hf_name *name,
                             const hy_hf_tensors *tensors, hy_hf_found *out) {
    const hy_family *family = hy_shape_family(&model->shape);
    char head_name[HY_HF_NAME_MAX];
    bool is_tied_table =
        model->params.list[name->param].kind == HY_P_TOKENS && model->shape.has_tied_head;
    *out = hy_hf_tensors_find(tensors, name->name);
    if (!is_tied_table) {
        HY_FAIL_IF(!out->entry, HY_ERR_INPUT, "%s: tensor \"%s\" is missing", folder, name->name);
        return HY_OK;
    }
    hy_hf_head_name(family, hy_hf_prefix_in(tensors, family), head_name);
    hy_hf_found head = hy_hf_tensors_find(tensors, head_name);
    if (!out->entry) *out = head;
    HY_FAIL_IF(!out->entry, HY_ERR_INPUT, "%s: tensor \"%s\" is missing", folder, name->name);
    HY_TRY(check_tensor(folder, name, *out));
    if (!head.entry || head.entry == out->entry) return HY_OK;
    /* A tied head may be stored a second time, but only with equal values: versions of transformers
     * disagree about which copy counts. */
    bool is_same;
    HY_TRY(hy_safetensors_compare(out->file, out->entry, head.file, head.entry, &is_same));
    HY_FAIL_IF(!is_same, HY_ERR_INPUT,
               "%s: config.json sets tie_word_embeddings, but %s differs from %.200s; "
               "set tie_word_embeddings to false to use both, or remove %s",
               folder, head_name, out->entry->name, head_name);
    return HY_OK;
}

/* The parts of a tensor that is stored head by head: one for each head's q, k and v. */
static void split_by_head(const hy_hf_name *name, hy_weight_files *out) {
    hy_weight_part whole = out->parts[out->count];
    for (int64_t row = 0, run; row < name->rows; row += run) {
        hy_weight_part *part = &out->parts[out->count++];
        int64_t in_file = hy_hf_row_in_file(name, row, &run);
        *part = whole;
        part->row = row;
        part->rows = run;
        part->tensor_row = in_file;
        part->offset += (uint64_t)in_file * hy_dtype_bytes(whole.dtype, whole.cols);
    }
}

/* Quantised matrices are always (rows, cols): bitsandbytes transposes those of GPT-2. */
static hy_status add_part(const char *folder, const hy_model *model, const hy_hf_name *name,
                          hy_weight_files *out) {
    hy_hf_found found;
    hy_weight_part *part = &out->parts[out->count];
    HY_TRY(find_tensor(folder, model, name, out->tensors, &found));
    *part = (hy_weight_part){.param = name->param,
                             .row = name->row,
                             .rows = name->rows,
                             .cols = name->cols,
                             .order = HY_PART_PLAIN};
    if (out->coded && name->ndim == 2 && hy_bnb_is_coded(out->tensors, found.entry->name)) {
        hy_bnb_matrix *coded = &out->coded[out->count];
        HY_TRY(hy_bnb_open(out->tensors, found, name->rows, name->cols, coded));
        part->coded = coded;
        part->dtype = coded->type;
    } else {
        HY_TRY(check_tensor(folder, name, found));
        part->order = name->is_transposed ? HY_PART_TRANSPOSED : HY_PART_PLAIN;
        part->dtype = found.entry->dtype;
    }
    part->reader = hy_safetensors_place(found.file, found.entry, &part->offset);
    if (name->head_size)
        split_by_head(name, out);
    else
        out->count++;
    return HY_OK;
}

/* Is it one of these names, or the name of a tensor that belongs to a quantised one? */
static bool has_place(const hy_weight_files *files, const char *const *known, int32_t count,
                      const char *name) {
    char owner[HY_BNB_NAME_MAX];
    const char *key = files->coded && hy_bnb_owner(name, owner) ? owner : name;
    return bsearch(&key, known, (size_t)count, sizeof *known, compare_names);
}

/* All other tensors are unknown. In files of a model with images, only the text model's count. */
static hy_status check_others(const char *folder, const hy_model *model, const hy_hf_name *names,
                              int32_t count, const hy_weight_files *files) {
    const hy_family *family = hy_shape_family(&model->shape);
    const char *prefix = hy_hf_prefix_in(files->tensors, family);
    bool is_bare = prefix[0] == 0 || strcmp(prefix, family->prefix) == 0;
    const char *text_prefix = is_bare ? "" : prefix;
    const char **known = calloc((size_t)count + 1, sizeof *known);
    if (!known) return hy_fail(HY_ERR_MEMORY, "not enough memory for %d names", count);
    for (int32_t i = 0; i < count; i++) known[i] = names[i].name;
    qsort(known, (size_t)count, sizeof *known, compare_names);
    hy_status status = HY_OK;
    for (size_t i = 0; i < hy_hf_tensors_count(files->tensors) && status == HY_OK; i++) {
        const char *name = hy_hf_tensors_at(files->tensors, i).entry->name;
        if (has_place(files, known, count, name)) continue;
        if (hy_hf_is_ignored(&model->shape, name)) continue;
        if (text_prefix[0] && strncmp(name, text_prefix, strlen(text_prefix)) != 0) continue;
        status =
            hy_fail(HY_ERR_INPUT,
                    "%s: tensor \"%.200s\" does not belong to the model that config.json describes",
                    folder, name);
    }
    free(known);
    return status;
}

static hy_status match(const char *folder, const hy_model *model, const hy_hf_name *names,
                       int32_t count, hy_hf_quant quant, hy_weight_files *out) {
    bool is_coded = quant != HY_HF_PLAIN;
    size_t parts = 0;
    out->keeps_codes = is_coded && quant != HY_HF_INT8;
    for (int32_t i = 0; i < count; i++)
        parts += names[i].head_size ? (size_t)(names[i].rows / names[i].head_size) : 1;
    out->parts = calloc(parts, sizeof *out->parts);
    if (is_coded) out->coded = calloc(parts, sizeof *out->coded);
    HY_FAIL_IF(!out->parts || (is_coded && !out->coded), HY_ERR_MEMORY,
               "not enough memory for a list of %d tensors", count);
    for (int32_t i = 0; i < count; i++) HY_TRY(add_part(folder, model, &names[i], out));
    return check_others(folder, model, names, count, out);
}

static hy_status open_folder(const char *folder, const hy_model *model, hy_weight_files *out) {
    hy_hf_config config;
    hy_hf_name *names = NULL;
    int32_t count;
    HY_TRY(hy_hf_config_look(folder, &config));
    const hy_family *family = hy_shape_family(&config.shape);
    HY_TRY(hy_hf_tensors_open(folder, &out->tensors));
    hy_status status = hy_hf_list_names(family, hy_hf_prefix_in(out->tensors, family),
                                        &model->shape, &model->params, &names, &count);
    if (status == HY_OK) status = match(folder, model, names, count, config.quant, out);
    free(names);
    return status;
}

/* ---- llama2.c files -------------------------------------------------------------------------- */

/* Values that the file does not contain are constants of llama2.c. */
static hy_status llama2c_shape(const char *path, hy_shape *out) {
    hy_llama2c file;
    HY_TRY(hy_llama2c_open(path, &file));
    *out = (hy_shape){.layers = file.layers,
                      .width = file.width,
                      .heads = file.heads,
                      .kv_heads = file.kv_heads,
                      .mlp_width = file.mlp_width,
                      .vocab = file.vocab,
                      .context = file.context,
                      .is_rms = true,
                      .has_rope = true,
                      .is_gated = true,
                      .has_tied_head = !file.has_own_head,
                      .norm_eps = 1e-5,
                      .rope_theta = 10000,
                      .init_std = 0.02};
    hy_llama2c_close(&file);
    return hy_shape_complete(out);
}

static const struct {
    hy_param_kind kind;
    hy_llama2c_kind parts[3];
    int count;
} llama2c_kinds[] = {
    {HY_P_TOKENS, {HY_L2C_TOKENS}, 1},
    {HY_P_NORM1, {HY_L2C_NORM1}, 1},
    {HY_P_QKV, {HY_L2C_WQ, HY_L2C_WK, HY_L2C_WV}, 3},
    {HY_P_OUT, {HY_L2C_WO}, 1},
    {HY_P_NORM2, {HY_L2C_NORM2}, 1},
    {HY_P_UP, {HY_L2C_GATE, HY_L2C_UP}, 2},
    {HY_P_DOWN, {HY_L2C_DOWN}, 1},
    {HY_P_FINAL_NORM, {HY_L2C_FINAL_NORM}, 1},
    {HY_P_HEAD, {HY_L2C_HEAD}, 1},
};

static void add_llama2c(const hy_model *model, int32_t index, size_t row_of_table,
                        hy_weight_files *out) {
    const hy_param *param = &model->params.list[index];
    int64_t cols = hy_param_width(param), row = 0;
    bool is_layered = param->unit >= 1 && param->unit <= model->shape.layers;
    uint64_t layer = is_layered ? (uint64_t)param->unit - 1 : 0;
    for (int i = 0; i < llama2c_kinds[row_of_table].count; i++) {
        hy_llama2c_kind kind = llama2c_kinds[row_of_table].parts[i];
        bool is_paired = kind == HY_L2C_WQ || kind == HY_L2C_WK;
        int64_t rows = (int64_t)(out->llama2c.layer[kind] / 4) / cols;
        out->parts[out->count++] = (hy_weight_part){
            .param = index,
            .row = row,
            .rows = rows,
            .cols = cols,
            .order = is_paired ? HY_PART_PAIRED : HY_PART_PLAIN,
            .head_size = model->shape.head_size,
            .dtype = HY_F32,
            .reader = out->llama2c.reader,
            .offset = out->llama2c.offset[kind] + layer * out->llama2c.layer[kind]};
        row += rows;
    }
}

static bool is_same_model(const hy_shape *a, const hy_shape *b) {
    return a->layers == b->layers && a->width == b->width && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_size == b->head_size &&
           a->mlp_width == b->mlp_width && a->vocab == b->vocab && a->has_rope && a->is_rms &&
           a->is_gated && !a->has_qkv_bias && !a->has_proj_bias && !a->has_qk_norm &&
           a->has_tied_head == b->has_tied_head;
}

static hy_status open_llama2c(const char *path, const hy_model *model, hy_weight_files *out) {
    hy_shape shape;
    HY_TRY(llama2c_shape(path, &shape));
    HY_TRY(hy_llama2c_open(path, &out->llama2c));
    HY_FAIL_IF(!is_same_model(&model->shape, &shape), HY_ERR_INPUT,
               "%s contains a model of another shape", path);
    out->parts = calloc((size_t)model->params.count * 3, sizeof *out->parts);
    if (!out->parts) return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of tensors");
    for (int32_t i = 0; i < model->params.count; i++) {
        for (size_t k = 0; k < sizeof llama2c_kinds / sizeof llama2c_kinds[0]; k++) {
            if (llama2c_kinds[k].kind == model->params.list[i].kind) add_llama2c(model, i, k, out);
        }
    }
    return HY_OK;
}

/* ---- all formats ----------------------------------------------------------------------------- */

hy_status hy_model_files_shape(hy_model_files kind, const char *path, hy_shape *out) {
    hy_hf_config config;
    if (kind == HY_FILES_LLAMA2C) return llama2c_shape(path, out);
    HY_TRY(hy_hf_config_look(path, &config));
    *out = config.shape;
    return HY_OK;
}

hy_status hy_model_files_quant(hy_model_files kind, const char *path, hy_hf_quant *out) {
    hy_hf_config config;
    *out = HY_HF_PLAIN;
    if (kind != HY_FILES_HF) return HY_OK;
    HY_TRY(hy_hf_config_look(path, &config));
    *out = config.quant;
    return HY_OK;
}

hy_status hy_weight_files_open(const char *name, const hy_model *model, hy_weight_files *out) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    *out = (hy_weight_files){0};
    HY_TRY(hy_hf_find(name, &kind, path));
    HY_FAIL_IF(kind == HY_FILES_NONE, HY_ERR_INPUT,
               "%s is not a model folder and not a model name in the hub's cache%s", name,
               hy_hf_how_to_fetch(name).text);
    hy_status status = kind == HY_FILES_HF     ? open_folder(path, model, out)
                       : kind == HY_FILES_GGUF ? hy_gguf_open_weights(path, model, out)
                                               : open_llama2c(path, model, out);
    if (status != HY_OK) hy_weight_files_close(out);
    return status;
}

void hy_weight_files_close(hy_weight_files *files) {
    hy_hf_tensors_close(files->tensors);
    if (files->llama2c.reader) hy_llama2c_close(&files->llama2c);
    hy_gguf_close(files->gguf);
    free(files->parts);
    free(files->coded);
    *files = (hy_weight_files){0};
}
