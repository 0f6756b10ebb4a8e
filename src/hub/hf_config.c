/* hf_config.c: reads config.json into a shape. See hf_config.h.
 *
 * Loading, planning and export call it through hy_hf_config_read and hy_hf_config_look. The fields
 * of the shape are read by the family's table (model/arch/config.h); the others are checked in
 * hf_config_fields.c. */
#include "hub/hf_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "hub/gguf_load.h"
#include "model/arch/arch.h"
#include "model/arch/config.h"

/* ---- the architecture ------------------------------------------------------------------------ */

/* What a file says about its architecture; NULL: nothing. */
typedef struct named {
    const char *type, *class_name;
} named;

static hy_status read_named(const hy_json_node *node, const char *name, named *out) {
    const hy_json_node *list = hy_json_get(node, "architectures");
    bool is_list = hy_json_type_of(list) == HY_JSON_ARRAY && hy_json_size(list) == 1;
    *out = (named){0};
    if (hy_json_type_of(list) != HY_JSON_NULL &&
        (!is_list || !hy_json_as_string(hy_json_first(list), &out->class_name, NULL)))
        return hy_fail(HY_ERR_INPUT, "%s: \"architectures\" is not a list with one name", name);
    const hy_json_node *type = hy_json_get(node, "model_type");
    HY_FAIL_IF(hy_json_type_of(type) != HY_JSON_NULL && !hy_json_as_string(type, &out->type, NULL),
               HY_ERR_INPUT, "%s: \"model_type\" is not a string", name);
    HY_FAIL_IF(!out->type && !out->class_name, HY_ERR_INPUT,
               "%s: \"architectures\" is missing; expected a list with one name", name);
    return HY_OK;
}

static hy_status refuse_arch(const char *name, const named *n) {
    hy_text known = {0};
    for (int i = HY_ARCH_NONE + 1; i < HY_ARCH_COUNT; i++)
        hy_text_addf(&known, "%s%s", known.size ? ", " : "", hy_family_of((hy_arch)i)->class_name);
    const char *theirs = n->class_name ? n->class_name : n->type;
    hy_status status =
        hy_fail(HY_ERR_INPUT,
                "%s: \"%s\" %.80s is not supported%s; supported: %s, and the text part of models "
                "with images such as Gemma3ForConditionalGeneration or "
                "Mistral3ForConditionalGeneration",
                name, n->class_name ? "architectures" : "model_type", theirs,
                hy_arch_why_not(theirs), hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

static hy_status read_arch(const hy_json_node *node, const char *name, hy_arch *out) {
    named n;
    HY_TRY(read_named(node, name, &n));
    for (int i = HY_ARCH_NONE + 1; i < HY_ARCH_COUNT; i++) {
        const hy_family *f = hy_family_of((hy_arch)i);
        bool is_type = !n.type || strcmp(n.type, f->name) == 0;
        bool is_own = n.class_name && strcmp(n.class_name, f->class_name) == 0;
        bool is_class = !n.class_name || is_own || strcmp(n.class_name, f->base_class) == 0;
        *out = (hy_arch)i;
        if (is_type && is_class) return HY_OK;
        HY_FAIL_IF(is_own, HY_ERR_INPUT, "%s: \"model_type\" %.80s does not match %s", name, n.type,
                   n.class_name);
    }
    return refuse_arch(name, &n);
}

/* A model of text and images has the text model's fields in an object of its own. */
static const hy_json_node *text_config(const hy_json_node *root) {
    const hy_json_node *text = hy_json_get(root, "text_config");
    bool has_images = hy_json_type_of(hy_json_get(root, "vision_config")) == HY_JSON_OBJECT;
    return has_images && hy_json_type_of(text) == HY_JSON_OBJECT ? text : NULL;
}

const char *hy_hf_dtype_word(hy_dtype dtype) {
    return dtype == HY_F32 ? "float32" : dtype == HY_F16 ? "float16" : "bfloat16";
}

bool hy_hf_dtype_named(const char *word, hy_dtype *out) {
    static const hy_dtype known[] = {HY_F32, HY_F16, HY_BF16};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(word, hy_hf_dtype_word(known[i])) != 0) continue;
        *out = known[i];
        return true;
    }
    return false;
}

/* ---- quantised weights ----------------------------------------------------------------------- */

/* quantization_config names a method and its options. Only bitsandbytes is supported, in 8 bits,
 * or in 4 bits (NF4) with single-level or two-level scales. Other methods are rejected by name.
 * Defaults are those of transformers' BitsAndBytesConfig. */

#define ACCEPTED                                                                                   \
    "accepted: weights in 16 or 32 bits, or bitsandbytes with load_in_8bit, or with "              \
    "load_in_4bit and bnb_4bit_quant_type nf4"

static const char *const quant_names[] = {[HY_HF_PLAIN] = "",
                                          [HY_HF_NF4] = "nf4",
                                          [HY_HF_NF4_SINGLE] = "nf4_single",
                                          [HY_HF_INT8] = "int8"};

const char *hy_hf_quant_name(hy_hf_quant quant) { return quant_names[quant]; }

bool hy_hf_quant_named(const char *name, hy_hf_quant *out) {
    for (int i = HY_HF_PLAIN + 1; i <= HY_HF_INT8; i++) {
        *out = (hy_hf_quant)i;
        if (strcmp(name, quant_names[i]) == 0) return true;
    }
    return false;
}

static bool is_on(const hy_json_node *object, const char *key) {
    bool value = false;
    return hy_json_as_bool(hy_json_get(object, key), &value) && value;
}

static const char *word(const hy_json_node *object, const char *key, const char *otherwise) {
    const char *text;
    return hy_json_as_string(hy_json_get(object, key), &text, NULL) ? text : otherwise;
}

static hy_status read_quant(const hy_json_node *root, const char *name, hy_hf_quant *out) {
    const hy_json_node *q = hy_json_get(root, "quantization_config");
    *out = HY_HF_PLAIN;
    if (hy_json_type_of(q) == HY_JSON_NULL) return HY_OK;
    bool is_object = hy_json_type_of(q) == HY_JSON_OBJECT;
    if (is_object && hy_json_size(q) == 0) return HY_OK;
    bool is_8bit = is_on(q, "load_in_8bit"), is_4bit = is_on(q, "load_in_4bit");
    /* folders of early versions name no method */
    const char *method = word(q, "quant_method", is_8bit || is_4bit ? "bitsandbytes" : "unknown");
    HY_FAIL_IF(!is_object || strcmp(method, "bitsandbytes") != 0, HY_ERR_INPUT,
               "%s: \"quantization_config\": method %.40s is not supported; " ACCEPTED, name,
               is_object ? method : "unknown");
    HY_FAIL_IF(is_8bit == is_4bit, HY_ERR_INPUT,
               "%s: \"quantization_config\": bitsandbytes %s is "
               "not supported; " ACCEPTED,
               name,
               is_8bit ? "with both load_in_8bit and load_in_4bit"
                       : "with neither load_in_8bit nor load_in_4bit");
    *out = HY_HF_INT8;
    if (is_8bit) return HY_OK;
    const char *type = word(q, "bnb_4bit_quant_type", "fp4");
    HY_FAIL_IF(strcmp(type, "nf4") != 0, HY_ERR_INPUT,
               "%s: \"quantization_config\": bitsandbytes type %.40s is not supported; " ACCEPTED,
               name, type);
    *out = is_on(q, "bnb_4bit_use_double_quant") ? HY_HF_NF4 : HY_HF_NF4_SINGLE;
    return HY_OK;
}

/* ---- the whole file -------------------------------------------------------------------------- */

/* An unknown dtype (auto, a quantised one) is ignored: the files have their own types. */
static void read_dtype(const hy_json_node *node, hy_hf_config *out) {
    const char *word;
    const hy_json_node *new = hy_json_get(node, "dtype");
    if (hy_json_type_of(new) == HY_JSON_NULL) new = hy_json_get(node, "torch_dtype");
    if (hy_json_as_string(new, &word, NULL)) out->has_dtype = hy_hf_dtype_named(word, &out->dtype);
}

/* For a model of text and images the tie is a field of the whole. */
static hy_status read_outer_tie(const hy_json_node *root, const char *name, hy_shape *shape) {
    const hy_json_node *tie = hy_json_get(root, "tie_word_embeddings");
    HY_FAIL_IF(tie && !hy_json_as_bool(tie, &shape->has_tied_head), HY_ERR_INPUT,
               "%s: \"tie_word_embeddings\" is not true or false", name);
    return HY_OK;
}

static hy_status read_model(const hy_json_node *root, const char *name, hy_hf_config *out) {
    const hy_json_node *text = text_config(root), *node = text ? text : root;
    HY_TRY(read_arch(node, name, &out->shape.arch));
    read_dtype(root, out);
    if (!out->has_dtype) read_dtype(node, out);
    HY_TRY(hy_arch_read(node, name, &out->shape));
    if (text) HY_TRY(read_outer_tie(root, name, &out->shape));
    HY_TRY(read_quant(root, name, &out->quant));
    out->has_images = text != NULL;
    if (text)
        hy_text_addf(&out->notes,
                     "%s: only the text model is loaded; the parts for images are left out\n",
                     name);
    return hy_hf_check_fields(hy_family_of(out->shape.arch), node, name, &out->notes);
}

hy_status hy_hf_config_parse(const char *text, size_t size, const char *name, hy_hf_config *out) {
    hy_json *json;
    *out = (hy_hf_config){0};
    HY_TRY(hy_json_parse(text, size, name, &json));
    const hy_json_node *root = hy_json_root(json);
    hy_status status = hy_json_type_of(root) == HY_JSON_OBJECT
                           ? read_model(root, name, out)
                           : hy_fail(HY_ERR_INPUT, "%s is not a JSON object", name);
    hy_json_free(json);
    if (status != HY_OK) hy_hf_config_free(out);
    return status;
}

hy_status hy_hf_config_read(const char *folder, hy_hf_config *out) {
    char path[1024], *text;
    size_t size;
    *out = (hy_hf_config){0};
    if (hy_gguf_is_file(folder)) return hy_gguf_config_read(folder, out);
    HY_TRY(hy_path_join(path, sizeof path, folder, "config.json"));
    HY_TRY(hy_file_read(path, &text, &size));
    hy_status status = hy_hf_config_parse(text, size, path, out);
    free(text);
    return status;
}

hy_status hy_hf_config_look(const char *folder, hy_hf_config *out) {
    HY_TRY(hy_hf_config_read(folder, out));
    hy_text_free(&out->notes);
    return HY_OK;
}

void hy_hf_config_free(hy_hf_config *config) {
    hy_text_free(&config->notes);
    *config = (hy_hf_config){0};
}
