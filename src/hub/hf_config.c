/* hf_config.c: reads config.json into a shape. See hf_config.h.
 *
 * Loading, planning and export call it through hy_hf_config_read and hy_hf_config_look. After HY_OK
 * the shape is complete (hy_shape_complete), and every field that changes the computation was used
 * or has the only supported value (hf_config_fields.c). */
#include "hub/hf_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

#define LARGEST_SIZE (1 << 24)

/* ---- single fields: null counts as absent ---------------------------------------------------- */

typedef struct reader {
    const char *name;         /* of the file */
    const hy_json_node *node; /* the object that is being read */
    const char *within;       /* "" at the top, "rope_scaling." inside */
    hy_hf_config *out;
    const hy_family *family;
} reader;

static bool has_key(const reader *r, const char *key) { return hy_family_has_key(r->family, key); }

static const hy_json_node *field(const reader *r, const char *key) {
    const hy_json_node *node = hy_json_get(r->node, key);
    return hy_json_type_of(node) != HY_JSON_NULL ? node : NULL;
}

static hy_status refuse(const reader *r, const char *key, const char *expected) {
    return hy_fail(HY_ERR_INPUT, "%s: \"%s%s\" %s %s", r->name, r->within, key,
                   field(r, key) ? "is not" : "is missing; expected", expected);
}

#define REQUIRED (-1)

static hy_status read_size(const reader *r, const char *key, int32_t fallback, int32_t *out) {
    int64_t value;
    const hy_json_node *node = field(r, key);
    *out = fallback;
    if (!node && fallback != REQUIRED) return HY_OK;
    if (!hy_json_as_int(node, &value) || value < 1 || value > LARGEST_SIZE) {
        return refuse(r, key, "a whole number from 1 to 16777216");
    }
    *out = (int32_t)value;
    return HY_OK;
}

static hy_status read_number(const reader *r, const char *key, double fallback, double *out) {
    const hy_json_node *node = field(r, key);
    *out = fallback;
    if (!node && fallback != REQUIRED) return HY_OK;
    return hy_json_as_double(node, out) ? HY_OK : refuse(r, key, "a number");
}

static hy_status read_switch(const reader *r, const char *key, bool fallback, bool *out) {
    const hy_json_node *node = field(r, key);
    *out = fallback;
    if (!node) return HY_OK;
    return hy_json_as_bool(node, out) ? HY_OK : refuse(r, key, "true or false");
}

static hy_status read_word(const reader *r, const char *key, const char *fallback,
                           const char **out) {
    const hy_json_node *node = field(r, key);
    *out = fallback;
    if (!node) return HY_OK;
    return hy_json_as_string(node, out, NULL) ? HY_OK : refuse(r, key, "a string");
}

/* ---- the architecture ------------------------------------------------------------------------ */

static hy_status read_arch(reader *r) {
    const hy_json_node *list = field(r, "architectures");
    const char *type, *class_name = NULL;
    if (list && (hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) != 1 ||
                 !hy_json_as_string(hy_json_first(list), &class_name, NULL))) {
        return refuse(r, "architectures", "a list with one name");
    }
    HY_TRY(read_word(r, "model_type", NULL, &type));
    if (!class_name && !type) return refuse(r, "architectures", "a list with one name");
    for (int i = HY_ARCH_NONE + 1; i < HY_ARCH_COUNT; i++) {
        const hy_family *f = r->family = hy_family_of((hy_arch)i);
        if (!f->keys) continue;
        bool is_type = !type || strcmp(type, f->name) == 0;
        bool is_class = !class_name || strcmp(class_name, f->class_name) == 0 ||
                        strcmp(class_name, f->base_class) == 0;
        r->out->shape.arch = (hy_arch)i;
        if (is_type && is_class) return HY_OK;
        HY_FAIL_IF(class_name && strcmp(class_name, f->class_name) == 0, HY_ERR_INPUT,
                   "%s: \"model_type\" %.80s does not match %s", r->name, type, class_name);
    }
    hy_text known = {0};
    for (int i = HY_ARCH_NONE + 1; i < HY_ARCH_COUNT; i++) {
        hy_text_addf(&known, "%s%s", known.size ? ", " : "", hy_family_of((hy_arch)i)->class_name);
    }
    hy_status status = hy_fail(HY_ERR_INPUT, "%s: \"%s\" %.80s is not supported; supported: %s",
                               r->name, class_name ? "architectures" : "model_type",
                               class_name ? class_name : type, hy_text_string(&known));
    hy_text_free(&known);
    return status;
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

/* ---- rope ------------------------------------------------------------------------------------ */

static hy_status read_rotations(const reader *r, hy_shape *s) {
    const char *kind;
    double share, factor;
    HY_TRY(read_number(r, "rope_theta", s->rope_theta, &s->rope_theta));
    HY_TRY(read_number(r, "partial_rotary_factor", 1, &share));
    HY_FAIL_IF(share != 1, HY_ERR_INPUT,
               "%s: \"%spartial_rotary_factor\" is %g; only 1 is supported", r->name, r->within,
               share);
    HY_TRY(read_word(r, field(r, "rope_type") ? "rope_type" : "type", "default", &kind));
    HY_FAIL_IF(field(r, "full_attention") || field(r, "sliding_attention"), HY_ERR_INPUT,
               "%s: \"%s...\" differs from layer to layer, which is not supported", r->name,
               r->within);
    if (strcmp(kind, "default") == 0) return HY_OK;
    if (strcmp(kind, "llama3") == 0) {
        s->rope_scaling = HY_ROPE_SCALED_LLAMA3;
        HY_TRY(read_number(r, "factor", REQUIRED, &s->rope_factor));
        HY_TRY(read_number(r, "low_freq_factor", REQUIRED, &s->rope_low_freq));
        HY_TRY(read_number(r, "high_freq_factor", REQUIRED, &s->rope_high_freq));
        return read_size(r, "original_max_position_embeddings", REQUIRED,
                         &s->rope_original_context);
    }
    HY_TRY(read_number(r, "factor", 0, &factor));
    HY_FAIL_IF(strcmp(kind, "linear") != 0 || factor != 1, HY_ERR_INPUT,
               "%s: \"%srope_type\" %.40s is not supported; supported: default, llama3", r->name,
               r->within, kind);
    return HY_OK;
}

/* transformers 5 writes rope_parameters with theta inside; older versions write rope_theta and
 * rope_scaling. */
static hy_status read_rope(const reader *r, hy_shape *s) {
    bool is_new = field(r, "rope_parameters") != NULL;
    const char *key = is_new ? "rope_parameters" : "rope_scaling";
    s->has_rope = true;
    HY_TRY(read_number(r, "rope_theta", 10000, &s->rope_theta));
    HY_FAIL_IF(is_new && field(r, "rope_scaling"), HY_ERR_INPUT,
               "%s: both \"rope_parameters\" and \"rope_scaling\" are given; expected one",
               r->name);
    if (!field(r, key)) return HY_OK;
    if (hy_json_type_of(field(r, key)) != HY_JSON_OBJECT) return refuse(r, key, "an object");
    reader inside = *r;
    inside.node = field(r, key);
    inside.within = is_new ? "rope_parameters." : "rope_scaling.";
    return read_rotations(&inside, s);
}

/* ---- sliding windows ------------------------------------------------------------------------- */

/* One letter per layer, as in hy_shape.sliding_layers, from the list of layer types. */
static hy_status read_layer_types(const reader *r, char *letters, int32_t layers) {
    const hy_json_node *list = field(r, "layer_types");
    const char *kind;
    if (!list) return HY_OK;
    if (hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) != (size_t)layers) {
        return refuse(r, "layer_types", "a list with one word per layer");
    }
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        if (!hy_json_as_string(n, &kind, NULL)) kind = "";
        bool is_full = strcmp(kind, "full_attention") == 0;
        HY_FAIL_IF(!is_full && strcmp(kind, "sliding_attention") != 0, HY_ERR_INPUT,
                   "%s: \"layer_types\" has %.40s; supported: full_attention, sliding_attention",
                   r->name, kind[0] ? kind : "an entry that is not a string");
        *letters++ = is_full ? 'f' : 's';
    }
    return HY_OK;
}

/* The window and the layers that use it: the shortest pattern of letters that repeats over all
 * layers. */
static hy_status set_window(const reader *r, const char *letters, int32_t window, hy_shape *s) {
    size_t layers = (size_t)s->layers, period = 1;
    bool has_full = memchr(letters, 'f', layers), has_sliding = memchr(letters, 's', layers);
    if (!has_sliding || (has_full && window >= s->context)) return HY_OK;
    s->sliding_window = window;
    if (!has_full) return HY_OK;
    for (size_t i = period; i < layers; i++) {
        if (letters[i] != letters[i - period])
            i = period++; /* try again with a period that is one longer */
    }
    HY_FAIL_IF(period >= sizeof s->sliding_layers, HY_ERR_INPUT,
               "%s: the pattern of sliding windows in its %d layers repeats after %zu layers; "
               "supported: up to %zu",
               r->name, s->layers, period, sizeof s->sliding_layers - 1);
    memcpy(s->sliding_layers, letters, period);
    return HY_OK;
}

/* A Qwen's window applies from layer max_window_layers on, if it is enabled; other windows apply
 * to all layers. A list of layer types overrides that; AutoModel treats a Mistral with a list as
 * a Ministral. */
static hy_status read_window(const reader *r, hy_shape *s) {
    bool is_used = true;
    int64_t first = 0;
    int32_t window = 4096;
    if (!r->family->has_window) return HY_OK;
    if (has_key(r, "use_sliding_window")) {
        HY_TRY(read_switch(r, "use_sliding_window", false, &is_used));
        const hy_json_node *node = field(r, "max_window_layers");
        first = 28;
        if (node && (!hy_json_as_int(node, &first) || first < 0)) {
            return refuse(r, "max_window_layers", "a whole number of at least 0");
        }
    }
    char *letters = malloc((size_t)s->layers);
    if (!letters)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of %d layers", s->layers);
    for (int32_t l = 0; l < s->layers; l++) letters[l] = l < first ? 'f' : 's';
    hy_status status = read_layer_types(r, letters, s->layers);
    const hy_json_node *given = hy_json_get(r->node, "sliding_window");
    bool is_null = given && hy_json_type_of(given) == HY_JSON_NULL;
    if (status == HY_OK && is_used && !is_null) {
        status = read_size(r, "sliding_window", window, &window);
        if (status == HY_OK) status = set_window(r, letters, window, s);
    }
    free(letters);
    return status;
}

/* ---- the two kinds of block ------------------------------------------------------------------ */

static hy_status check_act(const reader *r, const char *key, const char *fallback,
                           const char *first, const char *second) {
    const char *act;
    HY_TRY(read_word(r, key, fallback, &act));
    if (strcmp(act, first) == 0 || strcmp(act, second) == 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: \"%s\" %.40s is not supported for %s; supported: %s, %s",
                   r->name, key, act, r->family->class_name, first, second);
}

static hy_status read_gpt2(const reader *r, hy_shape *s) {
    HY_TRY(read_size(r, "n_layer", REQUIRED, &s->layers));
    HY_TRY(read_size(r, "n_embd", REQUIRED, &s->width));
    HY_TRY(read_size(r, "n_head", REQUIRED, &s->heads));
    HY_TRY(read_size(r, "n_inner", 0, &s->mlp_width));
    HY_TRY(read_size(r, "n_positions", REQUIRED, &s->context));
    HY_TRY(read_number(r, "layer_norm_epsilon", 1e-5, &s->norm_eps));
    HY_TRY(read_switch(r, "tie_word_embeddings", true, &s->has_tied_head));
    s->has_qkv_bias = s->has_proj_bias = true;
    return check_act(r, "activation_function", "gelu_new", "gelu_new", "gelu_pytorch_tanh");
}

static hy_status read_llama(const reader *r, hy_shape *s) {
    bool is_llama = s->arch == HY_ARCH_LLAMA, attention = false, mlp = false;
    s->is_rms = s->is_gated = true;
    s->has_qk_norm = r->family->has_qk_norm;
    HY_TRY(read_size(r, "num_hidden_layers", REQUIRED, &s->layers));
    HY_TRY(read_size(r, "hidden_size", REQUIRED, &s->width));
    HY_TRY(read_size(r, "num_attention_heads", REQUIRED, &s->heads));
    HY_TRY(read_size(r, "num_key_value_heads", is_llama ? s->heads : REQUIRED, &s->kv_heads));
    HY_TRY(read_size(r, "head_dim", s->has_qk_norm ? REQUIRED : 0, &s->head_size));
    HY_TRY(read_size(r, "intermediate_size", REQUIRED, &s->mlp_width));
    HY_TRY(read_size(r, "max_position_embeddings", REQUIRED, &s->context));
    HY_TRY(read_number(r, "rms_norm_eps", 1e-6, &s->norm_eps));
    HY_TRY(read_switch(r, "tie_word_embeddings", false, &s->has_tied_head));
    if (has_key(r, "attention_bias")) {
        HY_TRY(read_switch(r, "attention_bias", false, &attention));
    }
    if (has_key(r, "mlp_bias")) HY_TRY(read_switch(r, "mlp_bias", false, &mlp));
    s->has_qkv_bias = attention || s->arch == HY_ARCH_QWEN2;
    s->has_proj_bias = attention || mlp;
    s->lacks_out_bias = mlp && !attention;
    s->lacks_mlp_bias = attention && !mlp;
    HY_TRY(read_rope(r, s));
    HY_TRY(read_window(r, s));
    return check_act(r, "hidden_act", "silu", "silu", "swish");
}

static hy_status read_shape(reader *r) {
    hy_shape *s = &r->out->shape;
    HY_TRY(read_arch(r));
    /* An unknown dtype (auto, a quantised one) is ignored: the files have their own types. */
    const char *dtype;
    HY_TRY(read_word(r, field(r, "dtype") ? "dtype" : "torch_dtype", "", &dtype));
    r->out->has_dtype = hy_hf_dtype_named(dtype, &r->out->dtype);
    HY_TRY(read_size(r, "vocab_size", REQUIRED, &s->vocab));
    HY_TRY(read_number(r, "initializer_range", 0.02, &s->init_std));
    if (!(s->init_std >= 0 && s->init_std <= 10)) s->init_std = 0.02;
    HY_TRY(r->family->is_rotary ? read_llama(r, s) : read_gpt2(r, s));
    hy_status status = hy_shape_complete(s);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", r->name);
}

/* ---- quantised weights ----------------------------------------------------------------------- */

/* quantization_config names a method and its options. Only bitsandbytes in 4 bits (NF4) is
 * supported, with single-level or two-level scales. Other methods are rejected by name. Defaults
 * are those of transformers' BitsAndBytesConfig. */

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

/* ---- the whole file -------------------------------------------------------------------------- */

hy_status hy_hf_config_parse(const char *text, size_t size, const char *name, hy_hf_config *out) {
    hy_json *json;
    *out = (hy_hf_config){0};
    HY_TRY(hy_json_parse(text, size, name, &json));
    reader r = {.name = name, .node = hy_json_root(json), .within = "", .out = out};
    hy_status status = hy_json_type_of(r.node) == HY_JSON_OBJECT
                           ? read_shape(&r)
                           : hy_fail(HY_ERR_INPUT, "%s is not a JSON object", name);
    if (status == HY_OK) status = read_quant(r.node, name, &out->quant);
    if (status == HY_OK) status = hy_hf_check_fields(r.family, r.node, name, &out->notes);
    hy_json_free(json);
    if (status != HY_OK) hy_hf_config_free(out);
    return status;
}

hy_status hy_hf_config_read(const char *folder, hy_hf_config *out) {
    char path[1024], *text;
    size_t size;
    *out = (hy_hf_config){0};
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
