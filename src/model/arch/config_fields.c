/* config_fields.c: the kinds of fields of config.json, and how each is read and written. See
 * config_parts.h.
 *
 * Rope and windows are spread over several keys, and versions of transformers write them
 * differently: config_rope.c and config_window.c. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "model/arch/config_parts.h"

#define LARGEST_SIZE (1 << 24)

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

static hy_status read_function(hy_config_reader *r, const hy_config_field *f) {
    const char *word;
    hy_shape *s = r->shape;
    s->more.function = r->family->base->more.function;
    HY_TRY(hy_config_word(r, f->key, "", &word));
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
                f->key, word, r->family->class_name, hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

static void write_function(const hy_config_writer *w, const hy_config_field *f) {
    const hy_shape *s = w->shape;
    for (size_t i = 0; i < FUNCTIONS; i++) {
        if (functions[i].is_gated != s->is_gated || functions[i].function != s->more.function)
            continue;
        hy_json_put_string(w->json, f->key, functions[i].word);
        return;
    }
}

static hy_status read_silu(hy_config_reader *r, const hy_config_field *f) {
    const char *word;
    HY_TRY(hy_config_word(r, f->key, "silu", &word));
    HY_FAIL_IF(strcmp(word, "silu") != 0 && strcmp(word, "swish") != 0, HY_ERR_INPUT,
               "%s: \"%s\" %.40s is not supported for %s; supported: silu", r->name, f->key, word,
               r->family->class_name);
    return HY_OK;
}

static void write_silu(const hy_config_writer *w, const hy_config_field *f) {
    hy_json_put_string(w->json, f->key, "silu");
}

/* ---- numbers and switches -------------------------------------------------------------------- */

#define MEMBER(type, shape, f) (*(type *)((char *)(shape) + (f)->at))

static hy_status read_size(hy_config_reader *r, const hy_config_field *f) {
    return hy_config_size(r, f->key, f->fallback, &MEMBER(int32_t, r->shape, f));
}

/* Dynamic rope grows from the context in the file, which a run may exceed. */
static void write_size(const hy_config_writer *w, const hy_config_field *f) {
    const hy_shape *s = w->shape;
    bool is_original = f->at == HY_AT(context) && s->rope_scaling == HY_ROPE_SCALED_DYNAMIC;
    hy_json_put_int(w->json, f->key,
                    is_original ? s->rope_original_context : MEMBER(const int32_t, s, f));
}

static hy_status read_number(hy_config_reader *r, const hy_config_field *f) {
    double *number = &MEMBER(double, r->shape, f);
    bool is_null = hy_json_get(r->node, f->key) && !hy_config_value(r, f->key);
    bool is_off = f->kind == HY_CONFIG_OPTIONAL && is_null;
    HY_TRY(hy_config_number(r, f->key, is_off ? 0 : f->fallback, number));
    if (f->kind == HY_CONFIG_FACTOR && *number == 1) *number = 0;
    return HY_OK;
}

static void write_number(const hy_config_writer *w, const hy_config_field *f) {
    double number = MEMBER(const double, w->shape, f);
    if (f->kind == HY_CONFIG_FACTOR && number == 0) number = 1;
    if (f->kind == HY_CONFIG_OPTIONAL && number == 0)
        hy_json_put_null(w->json, f->key);
    else
        (f->kind == HY_CONFIG_COUNT ? hy_json_put_double : hy_json_put_real)(w->json, f->key,
                                                                             number);
}

/* Only new weights need it: a strange one does no harm. */
static hy_status read_std(hy_config_reader *r, const hy_config_field *f) {
    double *std = &MEMBER(double, r->shape, f);
    if (!hy_json_as_double(hy_config_value(r, f->key), std) || !(*std >= 0 && *std <= 10))
        *std = f->fallback;
    return HY_OK;
}

static hy_status read_switch(hy_config_reader *r, const hy_config_field *f) {
    return hy_config_switch(r, f->key, f->fallback != 0, &MEMBER(bool, r->shape, f));
}

static void write_switch(const hy_config_writer *w, const hy_config_field *f) {
    hy_json_put_bool(w->json, f->key, MEMBER(const bool, w->shape, f));
}

static hy_status read_bias(hy_config_reader *r, const hy_config_field *f) {
    hy_shape *s = r->shape;
    bool has_bias, out = hy_shape_out_bias(s), mlp = hy_shape_mlp_bias(s);
    HY_TRY(hy_config_switch(r, f->key, f->fallback != 0, &has_bias));
    if (f->kind != HY_CONFIG_MLP_BIAS) s->has_qkv_bias = out = has_bias;
    if (f->kind != HY_CONFIG_ATTENTION_BIAS) mlp = has_bias;
    s->has_proj_bias = out || mlp;
    s->lacks_out_bias = mlp && !out;
    s->lacks_mlp_bias = out && !mlp;
    return HY_OK;
}

static void write_bias(const hy_config_writer *w, const hy_config_field *f) {
    bool is_mlp = f->kind == HY_CONFIG_MLP_BIAS;
    hy_json_put_bool(w->json, f->key,
                     is_mlp ? hy_shape_mlp_bias(w->shape) : w->shape->has_qkv_bias);
}

static hy_status read_fixed(hy_config_reader *r, const hy_config_field *f) {
    int64_t value;
    char expected[48];
    if (hy_json_as_int(hy_config_value(r, f->key), &value) && value == f->fallback) return HY_OK;
    snprintf(expected, sizeof expected, "%g, which alone is supported", f->fallback);
    return hy_config_refuse(r, f->key, expected);
}

static void write_fallback(const hy_config_writer *w, const hy_config_field *f) {
    hy_json_put_int(w->json, f->key, (int64_t)f->fallback);
}

/* ---- all kinds ------------------------------------------------------------------------------- */

const hy_config_rules hy_config_kinds[] = {
    [HY_CONFIG_SIZE] = {sizeof(int32_t), read_size, write_size},
    [HY_CONFIG_NUMBER] = {sizeof(double), read_number, write_number},
    [HY_CONFIG_COUNT] = {sizeof(double), read_number, write_number},
    [HY_CONFIG_OPTIONAL] = {sizeof(double), read_number, write_number},
    [HY_CONFIG_FACTOR] = {sizeof(double), read_number, write_number},
    [HY_CONFIG_SWITCH] = {sizeof(bool), read_switch, write_switch},
    [HY_CONFIG_STD] = {sizeof(double), read_std, write_number},
    [HY_CONFIG_FUNCTION] = {sizeof(hy_mlp_function), read_function, write_function},
    [HY_CONFIG_SILU] = {0, read_silu, write_silu},
    [HY_CONFIG_ATTENTION_BIAS] = {0, read_bias, write_bias},
    [HY_CONFIG_MLP_BIAS] = {0, read_bias, write_bias},
    [HY_CONFIG_BIAS] = {0, read_bias, write_bias},
    [HY_CONFIG_ROPE] = {sizeof(double), hy_config_read_rope, hy_config_write_rope},
    [HY_CONFIG_ROPE_LAYERS] = {HY_SLIDING_LAYERS_MAX, hy_config_read_rope_layers,
                               hy_config_write_rope_layers},
    [HY_CONFIG_WINDOW] = {sizeof(int32_t), hy_config_read_window, hy_config_write_window},
    [HY_CONFIG_POSITIONS] = {HY_SLIDING_LAYERS_MAX, hy_config_read_positions,
                             hy_config_write_positions},
    [HY_CONFIG_ATTENTIONS] = {0, hy_config_read_attentions, hy_config_write_attentions},
    [HY_CONFIG_INTERVAL] = {HY_SLIDING_LAYERS_MAX, hy_config_read_interval,
                            hy_config_write_interval},
    [HY_CONFIG_LINEARS] = {HY_SLIDING_LAYERS_MAX, hy_config_read_linears, hy_config_write_linears},
    [HY_CONFIG_FIXED] = {0, read_fixed, write_fallback},
    [HY_CONFIG_UNUSED] = {0, NULL, write_fallback},
    [HY_CONFIG_PART] = {sizeof(double), NULL, NULL},
};
