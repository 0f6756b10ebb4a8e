/* peft_config.c: reads adapter_config.json of an adapter's folder. See peft.h.
 *
 * Set-up and inference call it before a model is built, because rank and modules belong to the
 * model's shape. An option that would change the computation is rejected by name. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "hub/peft.h"

bool hy_peft_is_folder(const char *folder) {
    char path[HY_PATH_MAX];
    return hy_path_join(path, sizeof path, folder, HY_PEFT_CONFIG) == HY_OK && hy_path_exists(path);
}

/* ---- reading the config ---------------------------------------------------------------------- */

/* Fields that change the computation, and the only value that we support. */
static const struct {
    const char *key, *why;
} refused[] = {{"use_dora", "DoRA"},
               {"use_qalora", "QALoRA"},
               {"rank_pattern", "a different rank for some modules"},
               {"alpha_pattern", "a different alpha for some modules"},
               {"layers_to_transform", "adapters in some layers only"},
               {"exclude_modules", "modules excluded by name"},
               {"lora_bias", "a bias in adapters"},
               {"layer_replication", "repeated layers"},
               {"target_parameters", "adapters for single parameters"},
               {"trainable_token_indices", "training of single tokens"},
               {"alora_invocation_tokens", "aLoRA"},
               {"arrow_config", "Arrow's routers"},
               {"use_bdlora", "BD-LoRA's blocks"},
               {"kasa_config", "KaSA's singular values"},
               {"monteclora_config", "MonteCLoRA's samples"},
               {"megatron_config", "Megatron's layers"}};

static bool is_nothing(const hy_json_node *node) {
    bool value;
    if (hy_json_as_bool(node, &value)) return !value;
    hy_json_type type = hy_json_type_of(node);
    bool is_list = type == HY_JSON_ARRAY || type == HY_JSON_OBJECT;
    return type == HY_JSON_NULL || (is_list && hy_json_size(node) == 0);
}

static hy_status check_computed(const hy_json_node *root, const char *path) {
    const char *type = "", *bias = "none";
    hy_json_as_string(hy_json_get(root, "peft_type"), &type, NULL);
    hy_json_as_string(hy_json_get(root, "bias"), &bias, NULL);
    HY_FAIL_IF(strcmp(type, "LORA") != 0, HY_ERR_INPUT,
               "%s: peft_type is \"%.40s\"; accepted: LORA", path, type);
    HY_FAIL_IF(strcmp(bias, "none") != 0, HY_ERR_INPUT, "%s: bias is \"%.40s\"; accepted: none",
               path, bias);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        HY_FAIL_IF(!is_nothing(hy_json_get(root, refused[i].key)), HY_ERR_INPUT,
                   "%s: %s is set (%s), which is not supported", path, refused[i].key,
                   refused[i].why);
    }
    /* The initialisation of adapters matters only if it changed the base matrices: PEFT changes
     * them again when it loads such an adapter, so the plain base would be wrong. */
    const char *init = NULL;
    bool is_plain = !hy_json_as_string(hy_json_get(root, "init_lora_weights"), &init, NULL) ||
                    hy_word_is_in(" gaussian orthogonal eva ", init);
    HY_FAIL_IF(!is_plain, HY_ERR_INPUT,
               "%s: init_lora_weights is \"%.40s\"; accepted: true, false, gaussian, "
               "orthogonal and eva; other methods may change the matrices of the base model",
               path, init);
    return HY_OK;
}

/* Older versions of PEFT omit keys, and some writers use null. */
static bool is_said(const hy_json_node *node) {
    return node && hy_json_type_of(node) != HY_JSON_NULL;
}

/* One name or a list, returned with commas. `is_short`: only the last part of each path, because
 * PEFT writes full paths for all-linear; the tensors show whether all layers have the module. */
static hy_status read_names(const hy_json_node *root, const char *path, const char *key,
                            bool is_short, char out[HY_PATH_MAX]) {
    const hy_json_node *node = hy_json_get(root, key);
    const char *name;
    size_t used = 0;
    out[0] = 0;
    if (hy_json_as_string(node, &name, NULL)) {
        bool is_all = strcmp(name, "all-linear") == 0;
        HY_FAIL_IF(!is_all && strpbrk(name, "*.|()[]\\+?^$"), HY_ERR_INPUT,
                   "%s: %s is the pattern \"%.100s\"; accepted: a name, a list of names, or "
                   "all-linear",
                   path, key, name);
        snprintf(out, HY_PATH_MAX, "%s", is_all ? "all" : name);
        return HY_OK;
    }
    HY_FAIL_IF(is_said(node) && hy_json_type_of(node) != HY_JSON_ARRAY, HY_ERR_INPUT,
               "%s: %s is neither a name nor a list of names", path, key);
    for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
        HY_FAIL_IF(!hy_json_as_string(n, &name, NULL), HY_ERR_INPUT,
                   "%s: %s contains entries that are not names", path, key);
        if (is_short) name = hy_module_last_name(name);
        if (hy_list_has(out, name, strlen(name))) continue;
        used += (size_t)snprintf(out + used, HY_PATH_MAX - used, "%s%s", used ? "," : "", name);
        HY_FAIL_IF(used >= HY_PATH_MAX, HY_ERR_INPUT, "%s: %s is too long", path, key);
    }
    return HY_OK;
}

static hy_status read_fields(const hy_json *json, const char *path, hy_peft_config *out) {
    const hy_json_node *root = hy_json_root(json),
                       *base = hy_json_get(root, "base_model_name_or_path");
    const char *name;
    HY_TRY(check_computed(root, path));
    HY_TRY(hy_json_int(json, root, "r", &out->rank));
    HY_FAIL_IF(out->rank < 1 || out->rank > HY_ADAPTER_RANK_MAX, HY_ERR_INPUT,
               "%s: r is %lld; accepted are 1 to %d", path, (long long)out->rank,
               HY_ADAPTER_RANK_MAX);
    HY_TRY(hy_json_double(json, root, "lora_alpha", &out->alpha));
    HY_FAIL_IF(!(out->alpha > 0 && out->alpha <= HY_ADAPTER_ALPHA_MAX), HY_ERR_INPUT,
               "%s: lora_alpha is %g; accepted are numbers above 0, up to %d", path, out->alpha,
               HY_ADAPTER_ALPHA_MAX);
    const hy_json_node *dropout = hy_json_get(root, "lora_dropout"),
                       *rslora = hy_json_get(root, "use_rslora");
    bool has_dropout = hy_json_as_double(dropout, &out->dropout);
    HY_FAIL_IF((is_said(dropout) && !has_dropout) || !(out->dropout >= 0 && out->dropout < 1),
               HY_ERR_INPUT, "%s: lora_dropout must be a number from 0 to below 1", path);
    HY_FAIL_IF(is_said(rslora) && !hy_json_as_bool(rslora, &out->is_root_scaled), HY_ERR_INPUT,
               "%s: use_rslora must be true or false", path);
    HY_TRY(read_names(root, path, "target_modules", true, out->targets));
    HY_FAIL_IF(!out->targets[0], HY_ERR_INPUT, "%s: target_modules is empty", path);
    HY_TRY(read_names(root, path, "modules_to_save", false, out->modules));
    if (hy_json_as_string(base, &name, NULL)) snprintf(out->base, sizeof out->base, "%s", name);
    return HY_OK;
}

hy_status hy_peft_config_read(const char *folder, hy_peft_config *out) {
    char path[HY_PATH_MAX], run[HY_PATH_MAX];
    hy_json *json;
    *out = (hy_peft_config){0};
    HY_TRY(hy_path_join(path, sizeof path, folder, HY_PEFT_CONFIG));
    HY_TRY(hy_path_join(run, sizeof run, folder, "config.cfg"));
    HY_FAIL_IF(!hy_path_exists(path), HY_ERR_INPUT,
               "%s is not an adapter: it has no " HY_PEFT_CONFIG
               "; expected a folder saved by PEFT%s",
               folder,
               hy_path_exists(run) ? " (a run with adapters writes one at its end; hybrid-export "
                                     "makes one from a checkpoint)"
                                   : "");
    HY_TRY(hy_json_read_file(path, &json));
    hy_status status = read_fields(json, path, out);
    hy_json_free(json);
    return status;
}
