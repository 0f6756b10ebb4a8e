/* peft.c: names of the tensors in PEFT's files, and their config. See peft.h.
 *
 * Export writes these names and this config; peft_read.c expects the same names. */
#include "hub/peft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "model/adapter.h"

#define PREFIX "base_model.model."
#define HEAD "lm_head.weight" /* in the classes of transformers 5, also where files differ */

/* ---- the config ------------------------------------------------------------------------------ */

/* A table that is both embedding and head occurs twice in PEFT files, once per module: the
 * modules have separate tensors unless ensure_weight_tying is set, and even then both are saved. */
static bool is_shared(const hy_shape *shape, const hy_param *param) {
    return param->kind == HY_P_TOKENS && shape->has_tied_head;
}

static bool is_in_all_layers(const hy_params *params, hy_param_kind kind) {
    for (int32_t unit = 1; unit + 1 < params->units; unit++) {
        int32_t at = hy_params_find(params, unit, kind);
        if (at < 0 || !params->list[at].is_beside) return false;
    }
    return true;
}

/* The module of a tensor by its path, which means only that one; a module of all layers by its
 * last name, which means all of them. False: it was already listed. */
static bool module_of(const hy_params *params, const hy_hf_name *name, char out[HY_HF_NAME_MAX]) {
    const hy_param *param = &params->list[name->param];
    bool is_layer = param->unit > 0 && param->unit + 1 < params->units;
    bool is_short = is_layer && is_in_all_layers(params, param->kind);
    char path[HY_HF_NAME_MAX], before[HY_HF_NAME_MAX];
    snprintf(path, sizeof path, "%s", name->name + strlen(PREFIX));
    char *dot = strrchr(path, '.'); /* of ".weight" or ".bias" */
    if (dot) *dot = 0;
    memcpy(before, out, sizeof before);
    snprintf(out, HY_HF_NAME_MAX, "%s", is_short ? hy_module_last_name(path) : path);
    return strcmp(before, out) != 0 && !(is_short && param->unit > 1);
}

/* Whether the tensor is the bias of a weight before it, which already names the module. */
static bool is_named_by_weight(const hy_params *params, const hy_hf_name *name) {
    const hy_param *param = &params->list[name->param], *before = param - 1;
    bool is_bias = param->ndim == 1 && name->param > 0 && before->unit == param->unit &&
                   before->kind + 1 == param->kind && hy_linear_bit(before->kind);
    return is_bias && before->is_beside;
}

/* The modules that are trained whole. */
static void put_modules(hy_json_writer *w, const hy_params *params, const hy_hf_name *names,
                        int32_t count) {
    char module[HY_HF_NAME_MAX] = "";
    bool is_any = false;
    for (int32_t i = 0; i < count; i++) {
        if (hy_is_adapter(params->list[names[i].param].kind)) continue;
        if (is_named_by_weight(params, &names[i])) continue;
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
    hy_hf_name *names;
    int32_t count;
    hy_json_writer w;
    HY_TRY(hy_arch_check(shape));
    HY_TRY(hy_peft_list_names(shape, params, &names, &count));
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
    hy_json_put_bool(&w, "fan_in_fan_out", hy_shape_family(shape)->modules[HY_P_QKV].is_transposed);
    hy_json_put_bool(&w, "inference_mode", true);
    hy_json_put_bool(&w, "init_lora_weights", true);
    hy_json_open_array(&w, "target_modules");
    for (int i = 0; modules[i]; i++) hy_json_put_string(&w, NULL, modules[i]);
    hy_json_close_array(&w);
    put_modules(&w, params, names, count);
    bool trains_shared = false;
    for (const hy_param *p = params->list; p < params->list + params->count; p++) {
        trains_shared |= p->is_beside && is_shared(shape, p);
    }
    if (trains_shared) hy_json_put_bool(&w, "ensure_weight_tying", true);
    hy_json_close_object(&w);
    hy_text_add(text, "\n");
    free(names);
    return hy_text_status(text);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* "model.layers.0.mlp.up_proj.weight" becomes
 * "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight". */
static hy_status name_adapter(const hy_hf_name *matrix, bool is_a, char out[HY_HF_NAME_MAX]) {
    int length = (int)(strlen(matrix->name) - strlen(".weight"));
    int used = snprintf(out, HY_HF_NAME_MAX, PREFIX "%.*s.lora_%c.weight", length, matrix->name,
                        is_a ? 'A' : 'B');
    HY_FAIL_IF(used >= HY_HF_NAME_MAX, HY_ERR_INPUT, "the adapter's tensor name for %s is too long",
               matrix->name);
    return HY_OK;
}

/* The tensors of a matrix's adapter: two for each piece that has one. `at` is its first name in
 * the model's list. */
static hy_status add_adapter(const hy_shape *shape, const hy_params *params, const hy_hf_name *at,
                             hy_hf_name *list, int32_t *count) {
    const hy_param *matrix = &params->list[at->param];
    hy_adapter_pieces pieces = hy_shape_adapter_pieces(shape, matrix->kind);
    int32_t a = hy_params_find(params, matrix->unit, hy_adapter_kind(matrix->kind));
    int64_t rank = shape->adapter.rank;
    for (int32_t i = 0; i < pieces.count && pieces.adapted > 0; i++) {
        if (!pieces.is_there[i]) continue;
        hy_adapter_rows row = hy_adapter_rows_before(&pieces, i, rank);
        hy_hf_name *of_a = &list[(*count)++], *of_b = &list[(*count)++];
        *of_a = (hy_hf_name){
            .param = a, .row = row.a, .rows = rank, .cols = params->list[a].shape[1], .ndim = 2};
        *of_b = (hy_hf_name){.param = a + 1,
                             .row = row.b,
                             .rows = pieces.rows[i],
                             .cols = rank,
                             .ndim = 2,
                             .head_size = at->head_size};
        HY_TRY(name_adapter(&at[i], true, of_a->name));
        HY_TRY(name_adapter(&at[i], false, of_b->name));
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
    snprintf(head.name, sizeof head.name, HEAD);
    return add_whole(&head, list, count);
}

void hy_peft_use_old_head(const hy_family *family, hy_peft_file *file) {
    char own[HY_HF_NAME_MAX], old[HY_HF_NAME_MAX + sizeof PREFIX];
    hy_hf_head_name(family, "", own);
    snprintf(old, sizeof old, PREFIX "%s", own);
    for (int32_t i = 0; i < file->count && hy_safetensors_find(file->tensors, old); i++) {
        hy_hf_name *name = &file->names[i];
        if (strcmp(name->name, PREFIX HEAD) == 0)
            snprintf(name->name, sizeof name->name, "%.*s", HY_HF_NAME_MAX - 1, old);
    }
}

void hy_peft_use_text_prefix(const hy_family *family, hy_peft_file *file) {
    char own[HY_HF_NAME_MAX], text[2 * HY_HF_NAME_MAX];
    size_t length = (size_t)snprintf(own, sizeof own, PREFIX "%s", family->prefix);
    for (int32_t i = 0; i < file->count; i++) {
        char *name = file->names[i].name;
        if (strncmp(name, own, length) != 0) continue; /* the head is outside */
        snprintf(text, sizeof text, PREFIX HY_HF_TEXT_PREFIX "%s", name + length);
        if (hy_safetensors_find(file->tensors, name) || !hy_safetensors_find(file->tensors, text))
            return;
        snprintf(name, HY_HF_NAME_MAX, "%.*s", HY_HF_NAME_MAX - 1, text);
    }
}

hy_status hy_peft_list_names(const hy_shape *shape, const hy_params *params, hy_hf_name **out,
                             int32_t *count) {
    const hy_family *family = hy_shape_family(shape);
    hy_hf_name *all;
    int32_t every;
    *count = 0;
    HY_TRY(hy_hf_list_names(family, family->prefix, shape, params, &all, &every));
    *out = calloc((size_t)every * 3, sizeof **out);
    hy_status status =
        *out ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory for the names of adapters");
    for (int32_t i = 0; i < every && status == HY_OK; i++) {
        const hy_param *param = &params->list[all[i].param];
        bool is_first = i == 0 || all[i - 1].param != all[i].param;
        bool is_matrix = hy_linear_bit(param->kind) != 0;
        if (param->kind == HY_P_HEAD) snprintf(all[i].name, sizeof all[i].name, HEAD);
        if (is_first && is_matrix) status = add_adapter(shape, params, &all[i], *out, count);
        if (status == HY_OK && param->is_beside)
            status = add_beside(shape, params, &all[i], *out, count);
    }
    free(all);
    if (status != HY_OK) {
        free(*out);
        *out = NULL; /* the caller frees it even on failure */
    }
    return status;
}
