/* hf_config_quant.c: reads how config.json describes quantised weights. See hf_config.h.
 *
 * quantization_config names a method and its options. Only bitsandbytes in 4 bits (NF4) is
 * supported, with single-level or two-level scales. Other methods are rejected by name. Defaults
 * are those of transformers' BitsAndBytesConfig. */
#include <string.h>

#include "base/error.h"
#include "hub/hf_config.h"

#define ACCEPTED                                                                                   \
    "accepted: weights in 16 or 32 bits, or bitsandbytes with load_in_4bit and "                   \
    "bnb_4bit_quant_type nf4"

static bool is_on(const hy_json_node *object, const char *key) {
    bool value = false;
    return hy_json_as_bool(hy_json_get(object, key), &value) && value;
}

static const char *word(const hy_json_node *object, const char *key, const char *otherwise) {
    const char *text;
    return hy_json_as_string(hy_json_get(object, key), &text, NULL) ? text : otherwise;
}

hy_status hy_hf_quant_read(const hy_json_node *root, const char *name, hy_hf_quant *out) {
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
    HY_FAIL_IF(!is_4bit, HY_ERR_INPUT,
               "%s: \"quantization_config\": bitsandbytes %s is not supported; " ACCEPTED, name,
               is_8bit ? "in 8 bits (LLM.int8)" : "without load_in_4bit");
    const char *type = word(q, "bnb_4bit_quant_type", "fp4");
    HY_FAIL_IF(strcmp(type, "nf4") != 0, HY_ERR_INPUT,
               "%s: \"quantization_config\": bitsandbytes type %.40s is not supported; " ACCEPTED,
               name, type);
    *out = is_on(q, "bnb_4bit_use_double_quant") ? HY_HF_NF4 : HY_HF_NF4_SINGLE;
    return HY_OK;
}
