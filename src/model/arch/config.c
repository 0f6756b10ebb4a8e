/* config.c: reads and writes the fields of config.json that describe a shape. See config.h.
 *
 * The tables of the families list the fields; config_fields.c has the rules of each kind. */
#include "model/arch/config.h"

#include <string.h>

#include "base/error.h"
#include "model/arch/config_parts.h"

static hy_status read_field(hy_config_reader *r, const hy_config_field *f) {
    const hy_config_rules *kind = &hy_config_kinds[f->kind];
    return kind->read ? kind->read(r, f) : HY_OK;
}

hy_status hy_arch_read(const hy_json_node *config, const char *name, hy_shape *shape) {
    const hy_family *family = hy_family_of(shape->arch);
    hy_arch arch = shape->arch;
    *shape = *family->base;
    shape->arch = arch;
    hy_config_reader r = {name, config, "", family, shape, false};
    for (const hy_config_field *f = family->fields; f->key; f++) HY_TRY(read_field(&r, f));
    hy_status status = hy_shape_complete(shape);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", name);
}

void hy_arch_write(const hy_shape *shape, hy_json_writer *w) {
    const hy_config_writer writer = {shape, hy_shape_family(shape), w, false};
    for (const hy_config_field *f = writer.family->fields; f->key; f++) {
        if (hy_config_kinds[f->kind].write) hy_config_kinds[f->kind].write(&writer, f);
    }
}

/* ---- options alone --------------------------------------------------------------------------- */

/* Is the field's member one of the options? */
static bool is_inside(const hy_config_field *f) {
    return f->at >= HY_AT(more) && f->at < HY_AT(more) + sizeof(hy_shape_options);
}

static bool is_option(const hy_config_field *f) {
    return is_inside(f) && f->kind != HY_CONFIG_PART;
}

void hy_config_clear_options(const hy_family *family, hy_shape *s) {
    for (const hy_config_field *f = family->fields; f->key; f++) {
        if (is_inside(f)) memset((char *)s + f->at, 0, hy_config_kinds[f->kind].size);
        if (f->kind == HY_CONFIG_ROPE) hy_config_clear_rope(s);
    }
}

/* Would the field's default give the same value? A list of layers is always written. */
static bool is_usual(const hy_shape *s, const hy_family *family, const hy_config_field *f) {
    hy_shape usual = *s;
    hy_config_reader r = {"", NULL, "", family, &usual, true};
    if (f->kind == HY_CONFIG_LINEARS) return hy_shape_interval(s) > 0;
    if (f->kind == HY_CONFIG_ROPE_LAYERS || read_field(&r, f) != HY_OK) return false;
    return !memcmp((char *)&usual + f->at, (const char *)s + f->at, hy_config_kinds[f->kind].size);
}

void hy_arch_write_options(const hy_shape *shape, hy_text *out) {
    const hy_family *family = hy_shape_family(shape);
    hy_json_writer json;
    const hy_config_writer w = {shape, family, &json, true};
    bool has_any = false;
    hy_json_begin(&json, out, false);
    hy_json_open_object(&json, NULL);
    for (const hy_config_field *f = family->fields; f->key; f++) {
        bool has_rope = f->kind == HY_CONFIG_ROPE && hy_config_has_rope_options(shape, family);
        bool is_written = is_option(f) && !is_usual(shape, family, f);
        has_any |= has_rope || is_written;
        if (is_written) hy_config_kinds[f->kind].write(&w, f);
        if (has_rope) hy_config_write_scaling(&w);
    }
    hy_json_close_object(&json);
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
    if (strcmp(key, "layer_types") == 0)
        return hy_family_field(family, "sliding_window") ? "--sliding-layers" : NULL;
    if (!f || f->kind == HY_CONFIG_PART) return NULL;
    if (f->kind == HY_CONFIG_ATTENTION_BIAS || f->kind == HY_CONFIG_BIAS)
        return "--qkv-bias and --proj-bias";
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
    hy_config_reader r = {"shape.arch_options", node, "", family, shape, true};
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
        if (is_option(f) || (f->kind == HY_CONFIG_ROPE && has_rope)) HY_TRY(read_field(&r, f));
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
