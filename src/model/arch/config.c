/* config.c: reads and writes the fields of config.json that describe a shape. See config.h.
 *
 * Most fields are a number or a switch (read_field, write_field). Rope and windows are spread over
 * several keys, and versions of transformers write them differently (config_rope.c,
 * config_window.c). */
#include "model/arch/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "model/arch/config_parts.h"

#define LARGEST_SIZE (1 << 24)
#define ORIGINAL "original_max_position_embeddings"

/* ---- single values --------------------------------------------------------------------------- */

const hy_json_node *hy_config_value(const hy_config_reader *r, const char *key) {
    const hy_json_node *node = hy_json_get(r->node, key);
    return hy_json_type_of(node) != HY_JSON_NULL ? node : NULL;
}

hy_status hy_config_refuse(const hy_config_reader *r, const char *key, const char *expected) {
    return hy_fail(HY_ERR_INPUT, "%s: \"%s%s\" %s %s", r->name, r->within, key,
                   hy_config_value(r, key) ? "is not" : "is missing; expected", expected);
}

hy_status hy_config_size(const hy_config_reader *r, const char *key, double fallback,
                         int32_t *out) {
    int64_t value;
    const hy_json_node *node = hy_config_value(r, key);
    *out = (int32_t)fallback;
    if (!node && fallback != HY_REQUIRED) return HY_OK;
    if (!hy_json_as_int(node, &value) || value < 1 || value > LARGEST_SIZE)
        return hy_config_refuse(r, key, "a whole number from 1 to 16777216");
    *out = (int32_t)value;
    return HY_OK;
}

hy_status hy_config_number(const hy_config_reader *r, const char *key, double fallback,
                           double *out) {
    const hy_json_node *node = hy_config_value(r, key);
    *out = fallback;
    if (!node && fallback != HY_REQUIRED) return HY_OK;
    if (!hy_json_as_double(node, out)) return hy_config_refuse(r, key, "a number");
    return *out > 0 && *out < 1e30 ? HY_OK : hy_config_refuse(r, key, "a number above 0");
}

hy_status hy_config_switch(const hy_config_reader *r, const char *key, bool fallback, bool *out) {
    const hy_json_node *node = hy_config_value(r, key);
    *out = fallback;
    if (!node) return HY_OK;
    return hy_json_as_bool(node, out) ? HY_OK : hy_config_refuse(r, key, "true or false");
}

hy_status hy_config_word(const hy_config_reader *r, const char *key, const char *fallback,
                         const char **out) {
    const hy_json_node *node = hy_config_value(r, key);
    *out = fallback;
    if (!node) return HY_OK;
    return hy_json_as_string(node, out, NULL) ? HY_OK : hy_config_refuse(r, key, "a string");
}

/* ---- activation functions -------------------------------------------------------------------- */

/* The names of functions in config.json. The first row that matches an mlp gives the name that is
 * written. */
static const struct {
    const char *word;
    bool is_gated; /* the row is for an mlp with a gate */
    hy_mlp_function function;
} functions[] = {
    {"silu", true, HY_MLP_USUAL},
    {"swish", true, HY_MLP_USUAL},
    {"gelu_new", false, HY_MLP_USUAL},
    {"gelu_pytorch_tanh", false, HY_MLP_USUAL},
    {"gelu_pytorch_tanh", true, HY_MLP_GELU_TANH},
    {"gelu_new", true, HY_MLP_GELU_TANH},
    {"gelu", true, HY_MLP_GELU},
    {"gelu", false, HY_MLP_GELU},
    {"relu2", false, HY_MLP_RELU2},
    {"relu2", true, HY_MLP_RELU2},
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

static hy_status read_function(const hy_config_reader *r, const char *key) {
    const char *word;
    hy_shape *s = r->shape;
    s->more.function = r->family->base->more.function;
    HY_TRY(hy_config_word(r, key, "", &word));
    if (!word[0]) return HY_OK;
    hy_text known = {0};
    for (size_t i = 0; i < FUNCTIONS; i++) {
        if (functions[i].is_gated != s->is_gated) continue;
        if (strcmp(functions[i].word, word) == 0) {
            s->more.function = functions[i].function;
            hy_text_free(&known);
            return HY_OK;
        }
        hy_text_addf(&known, "%s%s", known.size ? ", " : "", functions[i].word);
    }
    hy_status status =
        hy_fail(HY_ERR_INPUT, "%s: \"%s\" %.40s is not supported for %s; supported: %s", r->name,
                key, word, r->family->class_name, hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

static void write_function(const hy_shape *s, const char *key, hy_json_writer *w) {
    for (size_t i = 0; i < FUNCTIONS; i++) {
        bool is_it =
            functions[i].is_gated == s->is_gated && functions[i].function == s->more.function;
        if (!is_it) continue;
        hy_json_put_string(w, key, functions[i].word);
        return;
    }
}

/* ---- fields ---------------------------------------------------------------------------------- */

static hy_status read_field(hy_config_reader *r, const hy_config_field *f) {
    void *at = (char *)r->shape + f->at;
    double *number = at;
    switch (f->kind) {
    case HY_CONFIG_SIZE: return hy_config_size(r, f->key, f->fallback, at);
    case HY_CONFIG_NUMBER:
    case HY_CONFIG_COUNT: return hy_config_number(r, f->key, f->fallback, number);
    case HY_CONFIG_OPTIONAL: {
        const hy_json_node *node = hy_json_get(r->node, f->key);
        bool is_null = node && hy_json_type_of(node) == HY_JSON_NULL;
        return hy_config_number(r, f->key, is_null ? 0 : f->fallback, number);
    }
    case HY_CONFIG_FACTOR:
        HY_TRY(hy_config_number(r, f->key, f->fallback, number));
        if (*number == 1) *number = 0;
        return HY_OK;
    case HY_CONFIG_SWITCH: return hy_config_switch(r, f->key, f->fallback != 0, at);
    case HY_CONFIG_STD: { /* only new weights need it: a strange one does no harm */
        const hy_json_node *node = hy_config_value(r, f->key);
        if (!node || !hy_json_as_double(node, number) || !(*number >= 0 && *number <= 10))
            *number = f->fallback;
        return HY_OK;
    }
    case HY_CONFIG_FUNCTION: return read_function(r, f->key);
    case HY_CONFIG_BIAS:
    case HY_CONFIG_ATTENTION_BIAS:
        HY_TRY(hy_config_switch(r, f->key, f->fallback != 0, &r->has_out_bias));
        r->shape->has_qkv_bias = r->has_out_bias;
        if (f->kind == HY_CONFIG_BIAS) r->has_mlp_bias = r->has_out_bias;
        return HY_OK;
    case HY_CONFIG_MLP_BIAS: return hy_config_switch(r, f->key, f->fallback != 0, &r->has_mlp_bias);
    case HY_CONFIG_ROPE: return hy_config_read_rope(r, f);
    case HY_CONFIG_ROPE_LAYERS: return hy_config_read_rope_layers(r, f);
    case HY_CONFIG_WINDOW: return hy_config_read_window(r, f);
    case HY_CONFIG_POSITIONS: return hy_config_read_positions(r, f);
    case HY_CONFIG_ATTENTIONS: return hy_config_read_attentions(r, f);
    case HY_CONFIG_FIXED: {
        int64_t value;
        bool is_it = hy_json_as_int(hy_config_value(r, f->key), &value) && value == f->fallback;
        char expected[48];
        snprintf(expected, sizeof expected, "%g, which alone is supported", f->fallback);
        return is_it ? HY_OK : hy_config_refuse(r, f->key, expected);
    }
    case HY_CONFIG_UNUSED:
    case HY_CONFIG_PART: return HY_OK;
    }
    return HY_OK;
}

static void write_field(const hy_shape *s, const hy_family *family, const hy_config_field *f,
                        hy_json_writer *w) {
    const void *at = (const char *)s + f->at;
    double number = 0;
    switch (f->kind) {
    case HY_CONFIG_SIZE: {
        /* dynamic rope grows from the context in the file, which a run may exceed */
        bool is_original = f->at == HY_AT(context) && s->rope_scaling == HY_ROPE_SCALED_DYNAMIC;
        hy_json_put_int(w, f->key, is_original ? s->rope_original_context : *(const int32_t *)at);
        break;
    }
    case HY_CONFIG_SWITCH: hy_json_put_bool(w, f->key, *(const bool *)at); break;
    case HY_CONFIG_NUMBER:
    case HY_CONFIG_STD:
    case HY_CONFIG_OPTIONAL:
    case HY_CONFIG_FACTOR:
        memcpy(&number, at, sizeof number);
        if (f->kind == HY_CONFIG_FACTOR && number == 0) number = 1;
        if (f->kind == HY_CONFIG_OPTIONAL && number == 0)
            hy_json_put_null(w, f->key);
        else
            hy_json_put_real(w, f->key, number);
        break;
    case HY_CONFIG_COUNT:
        memcpy(&number, at, sizeof number);
        hy_json_put_double(w, f->key, number);
        break;
    case HY_CONFIG_FUNCTION: write_function(s, f->key, w); break;
    case HY_CONFIG_BIAS:
    case HY_CONFIG_ATTENTION_BIAS: hy_json_put_bool(w, f->key, s->has_qkv_bias); break;
    case HY_CONFIG_MLP_BIAS: hy_json_put_bool(w, f->key, hy_shape_mlp_bias(s)); break;
    case HY_CONFIG_ROPE:
        hy_json_put_real(w, f->key, s->rope_theta);
        hy_config_write_rope(s, family, w);
        if (s->rope_scaling == HY_ROPE_SCALED_LONGROPE && hy_family_field(family, ORIGINAL))
            hy_json_put_int(w, ORIGINAL, s->rope_original_context);
        break;
    case HY_CONFIG_ROPE_LAYERS: hy_config_write_rope_layers(s, f, w); break;
    case HY_CONFIG_WINDOW: hy_config_write_window(s, family, w); break;
    case HY_CONFIG_POSITIONS:
        hy_json_put_string(w, f->key, s->more.rope.layers[0] == 'n' ? "nope" : "rope");
        break;
    case HY_CONFIG_ATTENTIONS:
        hy_json_open_array(w, f->key);
        for (int32_t l = 0; l < s->layers; l++) hy_json_put_string(w, NULL, "attention");
        hy_json_close_array(w);
        break;
    case HY_CONFIG_FIXED:
    case HY_CONFIG_UNUSED: hy_json_put_int(w, f->key, (int64_t)f->fallback); break;
    case HY_CONFIG_PART: break;
    }
}

static void set_biases(const hy_config_reader *r) {
    hy_shape *s = r->shape;
    s->has_proj_bias = r->has_out_bias || r->has_mlp_bias;
    s->lacks_out_bias = r->has_mlp_bias && !r->has_out_bias;
    s->lacks_mlp_bias = r->has_out_bias && !r->has_mlp_bias;
}

hy_status hy_arch_read(const hy_json_node *config, const char *name, hy_shape *shape) {
    const hy_family *family = hy_family_of(shape->arch);
    hy_arch arch = shape->arch;
    *shape = *family->base;
    shape->arch = arch;
    hy_config_reader r = {.name = name,
                          .node = config,
                          .within = "",
                          .family = family,
                          .shape = shape,
                          .has_out_bias = hy_shape_out_bias(shape),
                          .has_mlp_bias = hy_shape_mlp_bias(shape)};
    for (const hy_config_field *f = family->fields; f->key; f++) HY_TRY(read_field(&r, f));
    set_biases(&r);
    hy_status status = hy_shape_complete(shape);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", name);
}

void hy_arch_write(const hy_shape *shape, hy_json_writer *w) {
    const hy_family *family = hy_shape_family(shape);
    for (const hy_config_field *f = family->fields; f->key; f++) write_field(shape, family, f, w);
}

/* ---- options alone --------------------------------------------------------------------------- */

static bool is_option(const hy_config_field *f) {
    bool is_inside = f->at >= HY_AT(more) && f->at < HY_AT(more) + sizeof(hy_shape_options);
    return is_inside && f->kind != HY_CONFIG_PART;
}

/* Would the field's default give the same value? */
static bool is_usual(const hy_shape *s, const hy_family *family, const hy_config_field *f) {
    const void *at = (const char *)s + f->at;
    double number;
    switch (f->kind) {
    case HY_CONFIG_NUMBER:
    case HY_CONFIG_COUNT:
    case HY_CONFIG_OPTIONAL:
    case HY_CONFIG_FACTOR:
        memcpy(&number, at, sizeof number);
        return number == (f->kind == HY_CONFIG_FACTOR && f->fallback == 1 ? 0 : f->fallback);
    case HY_CONFIG_SWITCH: return *(const bool *)at == (f->fallback != 0);
    case HY_CONFIG_FUNCTION: return s->more.function == family->base->more.function;
    case HY_CONFIG_POSITIONS: return s->more.rope.layers[0] == 0;
    default: return false;
    }
}

void hy_arch_write_options(const hy_shape *shape, hy_text *out) {
    const hy_family *family = hy_shape_family(shape);
    hy_json_writer w;
    bool has_any = false;
    hy_json_begin(&w, out, false);
    hy_json_open_object(&w, NULL);
    for (const hy_config_field *f = family->fields; f->key; f++) {
        bool has_rope = f->kind == HY_CONFIG_ROPE && hy_config_has_rope_options(shape, family);
        bool is_written = is_option(f) && !is_usual(shape, family, f);
        has_any |= has_rope || is_written;
        if (is_written) write_field(shape, family, f, &w);
        if (has_rope) hy_config_write_rope(shape, family, &w);
    }
    hy_json_close_object(&w);
    if (!has_any) hy_text_clear(out);
}

/* The flags of the setting that a field of config.json has; NULL: it has none. */
static const char *flag_of(const hy_family *family, const char *key) {
    static const struct {
        size_t at;
        const char *flag;
    } known[] = {{HY_AT(vocab), "--vocab"},           {HY_AT(layers), "--layers"},
                 {HY_AT(width), "--width"},           {HY_AT(heads), "--heads"},
                 {HY_AT(kv_heads), "--kv-heads"},     {HY_AT(head_size), "--head-size"},
                 {HY_AT(mlp_width), "--mlp-width"},   {HY_AT(context), "--context"},
                 {HY_AT(norm_eps), "--norm-eps"},     {HY_AT(has_tied_head), "--tied-head"},
                 {HY_AT(rope_theta), "--rope-theta"}, {HY_AT(sliding_window), "--sliding-window"},
                 {HY_AT(init_std), "--init-std"}};
    const hy_config_field *f = hy_family_field(family, key);
    if (strcmp(key, "layer_types") == 0) return "--sliding-layers";
    if (!f || f->kind == HY_CONFIG_PART) return NULL;
    if (f->kind == HY_CONFIG_ATTENTION_BIAS) return "--qkv-bias and --proj-bias";
    if (f->kind == HY_CONFIG_MLP_BIAS) return "--proj-bias";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].at == f->at) return known[i].flag;
    return NULL;
}

static hy_status refuse_option(const hy_family *family, const char *key) {
    enum { MOST = 64 };
    const char *words[MOST];
    size_t count = 0;
    hy_text known = {0};
    const char *flag = flag_of(family, key);
    HY_FAIL_IF(flag, HY_ERR_INPUT, "shape.arch_options: \"%.80s\" has a setting of its own; use %s",
               key, flag);
    for (const hy_config_field *f = family->fields; f->key; f++) {
        if (!is_option(f) || count + 1 == MOST) continue;
        words[count++] = f->key;
        hy_text_addf(&known, "%s, ", f->key);
    }
    words[count++] = "rope_scaling";
    hy_status status =
        hy_fail(HY_ERR_INPUT,
                "shape.arch_options: \"%.80s\" is not an option of %s; accepted: %srope_scaling%s",
                key, family->name, hy_text_string(&known),
                hy_did_you_mean(hy_nearest_word(key, words, count)).text);
    hy_text_free(&known);
    return status;
}

static hy_status read_options(const hy_json_node *node, hy_shape *shape) {
    const hy_family *family = hy_family_of(shape->arch);
    hy_config_reader r = {
        .name = "shape.arch_options", .node = node, .within = "", .family = family, .shape = shape};
    HY_FAIL_IF(hy_json_type_of(node) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "shape.arch_options is not a JSON object such as {\"final_logit_softcapping\": 30}");
    for (const hy_json_node *m = hy_json_first(node); m; m = hy_json_next(m)) {
        const hy_config_field *f = hy_family_field(family, hy_json_key(m));
        bool is_rope =
            shape->has_rope && hy_word_is_in(" rope_scaling rope_parameters ", hy_json_key(m));
        if (!is_rope && (!f || !is_option(f))) return refuse_option(family, hy_json_key(m));
    }
    bool has_rope = hy_json_get(node, "rope_scaling") || hy_json_get(node, "rope_parameters");
    for (const hy_config_field *f = family->fields; f->key; f++) {
        bool is_rope = f->kind == HY_CONFIG_ROPE;
        /* the key positions says rope; only config.json without the field means none */
        if (f->kind == HY_CONFIG_POSITIONS && !hy_json_get(node, f->key)) continue;
        if (is_option(f) || (is_rope && has_rope)) HY_TRY(read_field(&r, f));
    }
    return HY_OK;
}

hy_status hy_arch_read_options(const char *options, hy_shape *shape) {
    hy_json *json;
    if (shape->arch == HY_ARCH_NONE && !options[0]) return HY_OK;
    if (!options[0]) options = "{}";
    HY_FAIL_IF(shape->arch == HY_ARCH_NONE, HY_ERR_INPUT,
               "shape.arch_options is set, but shape.architecture is auto; name the architecture");
    HY_TRY(hy_json_parse(options, strlen(options), "shape.arch_options", &json));
    hy_status status = read_options(hy_json_root(json), shape);
    hy_json_free(json);
    return status;
}
