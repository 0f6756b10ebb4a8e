/* config_rope.c: rope in config.json. See config_parts.h.
 *
 * transformers 5 writes rope_parameters, with theta inside and, where layers with a window have
 * their own rope, one object for each kind of layer. Older versions write rope_theta and
 * rope_scaling. Both are read; the older form is written, which both versions read, unless only
 * the newer one can say it. */
#include <string.h>

#include "base/error.h"
#include "model/arch/config_parts.h"

#define PAIRS HY_ROPE_PAIRS_MAX
#define QUERY_BETA "llama_4_scaling_beta"
#define ORIGINAL "original_max_position_embeddings"

static const char *const scalings[] = {
    [HY_ROPE_UNSCALED] = "default",     [HY_ROPE_SCALED_LLAMA3] = "llama3",
    [HY_ROPE_SCALED_LINEAR] = "linear", [HY_ROPE_SCALED_DYNAMIC] = "dynamic",
    [HY_ROPE_SCALED_YARN] = "yarn",     [HY_ROPE_SCALED_LONGROPE] = "longrope"};
enum { SCALINGS = sizeof scalings / sizeof scalings[0] };

/* Ministral 3 is scaled unless its file says that it is not. */
static bool must_say_unscaled(const hy_family *family) {
    return hy_family_field(family, QUERY_BETA) != NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

static hy_status read_kind(const hy_config_reader *r, hy_rope_scaling *out) {
    const char *kind;
    HY_TRY(hy_config_word(r, hy_config_value(r, "rope_type") ? "rope_type" : "type", "default",
                          &kind));
    if (strcmp(kind, "su") == 0) kind = "longrope"; /* its name in the first Phi-3 */
    for (int i = 0; i < SCALINGS; i++) {
        *out = (hy_rope_scaling)i;
        if (strcmp(kind, scalings[i]) == 0) return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT,
                   "%s: \"%srope_type\" %.40s is not supported; supported: default, llama3, "
                   "linear, dynamic, yarn, longrope",
                   r->name, r->within, kind);
}

static hy_status read_yarn(const hy_config_reader *r, hy_shape *s) {
    hy_rope_options *o = &s->more.rope;
    bool is_truncated;
    HY_TRY(hy_config_number(r, "beta_fast", 0, &o->beta_fast));
    HY_TRY(hy_config_number(r, "beta_slow", 0, &o->beta_slow));
    HY_TRY(hy_config_switch(r, "truncate", true, &is_truncated));
    o->is_untruncated =
        !is_truncated &&
        !o->scales_full_only; /* in such families, transformers reads no "truncate" */
    HY_TRY(hy_config_number(r, "mscale", 0, &o->mscale));
    HY_TRY(hy_config_number(r, "mscale_all_dim", 0, &o->mscale_all_dim));
    if (hy_family_field(r->family, QUERY_BETA))
        HY_TRY(hy_config_number(r, QUERY_BETA, 0, &o->query_beta));
    return hy_config_number(r, "attention_factor", 0, &o->attention_factor);
}

static hy_status read_factors(const hy_config_reader *r, const char *key, double out[PAIRS]) {
    const hy_json_node *list = hy_config_value(r, key);
    size_t pairs = (size_t)hy_shape_rotary(r->shape) / 2;
    if (hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) != pairs || pairs > PAIRS)
        return hy_config_refuse(r, key, "a list with one number for each rotated pair of a head");
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n), out++) {
        if (!hy_json_as_double(n, out) || !(*out > 0 && *out < 1e30))
            return hy_config_refuse(r, key, "a list of numbers above 0");
    }
    return HY_OK;
}

/* The head size may still be missing: it follows from the width. */
static hy_status read_longrope(const hy_config_reader *r, hy_shape *s) {
    if (s->head_size == 0 && s->heads > 0) s->head_size = s->width / s->heads;
    HY_TRY(read_factors(r, "short_factor", s->more.rope.short_factors));
    HY_TRY(read_factors(r, "long_factor", s->more.rope.long_factors));
    s->rope_factor = (double)s->context / s->rope_original_context;
    return hy_config_number(r, "attention_factor", 0, &s->more.rope.attention_factor);
}

/* `top`: the whole file, in which Phi-3 has the original context. */
static hy_status read_rotations(const hy_config_reader *r, const hy_config_reader *top) {
    hy_shape *s = r->shape;
    double share;
    int32_t original = s->context;
    bool has_share = hy_family_field(r->family, "partial_rotary_factor") ||
                     hy_family_field(r->family, "rotary_pct");
    HY_TRY(hy_config_number(r, "rope_theta", s->rope_theta, &s->rope_theta));
    HY_TRY(hy_config_number(r, "partial_rotary_factor", 0, &share));
    HY_FAIL_IF(share > 1 || (share > 0 && share < 1 && !has_share), HY_ERR_INPUT,
               "%s: \"%spartial_rotary_factor\" is %g; only 1 is supported", r->name, r->within,
               share);
    if (share > 0) s->more.rope.share = share < 1 ? share : 0;
    HY_TRY(read_kind(r, &s->rope_scaling));
    if (s->rope_scaling == HY_ROPE_UNSCALED) {
        double beta;
        bool is_scaled = hy_json_as_double(hy_config_value(r, QUERY_BETA), &beta) && beta != 0;
        return is_scaled ? hy_config_refuse(r, QUERY_BETA, "0, as it must be without yarn") : HY_OK;
    }
    bool is_llama3 = s->rope_scaling == HY_ROPE_SCALED_LLAMA3;
    if (s->rope_scaling != HY_ROPE_SCALED_LONGROPE)
        HY_TRY(hy_config_number(r, "factor", HY_REQUIRED, &s->rope_factor));
    if (hy_family_field(r->family, ORIGINAL))
        HY_TRY(hy_config_size(top, ORIGINAL, original, &original));
    if (s->rope_scaling != HY_ROPE_SCALED_DYNAMIC) /* that one grows from the context itself */
        HY_TRY(hy_config_size(r, ORIGINAL, is_llama3 ? HY_REQUIRED : original, &original));
    s->rope_original_context = original;
    if (is_llama3) {
        HY_TRY(hy_config_number(r, "low_freq_factor", HY_REQUIRED, &s->rope_low_freq));
        return hy_config_number(r, "high_freq_factor", HY_REQUIRED, &s->rope_high_freq);
    }
    if (s->rope_scaling == HY_ROPE_SCALED_YARN) return read_yarn(r, s);
    if (s->rope_scaling == HY_ROPE_SCALED_LONGROPE) return read_longrope(r, s);
    if (s->rope_scaling == HY_ROPE_SCALED_LINEAR && s->rope_factor == 1)
        s->rope_scaling = HY_ROPE_UNSCALED;
    return HY_OK;
}

static hy_status enter(const hy_config_reader *r, const char *key, const char *within,
                       hy_config_reader *out) {
    *out = *r;
    out->node = hy_config_value(r, key);
    out->within = within;
    if (hy_json_type_of(out->node) != HY_JSON_OBJECT) return hy_config_refuse(r, key, "an object");
    return HY_OK;
}

/* Layers with a window have their own base, and no scaling. */
static hy_status read_by_layer(const hy_config_reader *r, const hy_config_reader *top) {
    hy_config_reader full, local;
    hy_rope_scaling scaling;
    hy_rope_options *o = &r->shape->more.rope;
    HY_FAIL_IF(!o->scales_full_only, HY_ERR_INPUT,
               "%s: \"%s...\" differs from layer to layer, which %s does not do", r->name,
               r->within, r->family->class_name);
    HY_TRY(enter(r, "full_attention", "rope_parameters.full_attention.", &full));
    HY_TRY(enter(r, "sliding_attention", "rope_parameters.sliding_attention.", &local));
    HY_TRY(read_rotations(&full, top));
    HY_TRY(read_kind(&local, &scaling));
    HY_FAIL_IF(scaling != HY_ROPE_UNSCALED, HY_ERR_INPUT,
               "%s: \"%srope_type\" is %s; only default is supported", r->name, local.within,
               scalings[scaling]);
    HY_TRY(hy_config_number(&local, "rope_theta", r->shape->rope_theta, &o->local_theta));
    bool is_same = o->local_theta == r->shape->rope_theta;
    if (is_same && !hy_family_field(r->family, "rope_local_base_freq")) o->local_theta = 0;
    return HY_OK;
}

hy_status hy_config_read_rope(hy_config_reader *r, const hy_config_field *f) {
    hy_config_reader inside;
    hy_shape *s = r->shape;
    bool is_new = hy_config_value(r, "rope_parameters") != NULL;
    const char *key = is_new ? "rope_parameters" : "rope_scaling";
    HY_TRY(hy_config_number(r, f->key, f->fallback, &s->rope_theta));
    HY_FAIL_IF(is_new && hy_config_value(r, "rope_scaling"), HY_ERR_INPUT,
               "%s: both \"rope_parameters\" and \"rope_scaling\" are given; expected one",
               r->name);
    if (!hy_config_value(r, key) && must_say_unscaled(r->family))
        return hy_config_refuse(r, "rope_parameters", "an object");
    if (!hy_config_value(r, key)) return HY_OK;
    HY_TRY(enter(r, key, is_new ? "rope_parameters." : "rope_scaling.", &inside));
    bool has_layers = hy_config_value(&inside, "full_attention") != NULL ||
                      hy_config_value(&inside, "sliding_attention") != NULL;
    return has_layers ? read_by_layer(&inside, r) : read_rotations(&inside, r);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Must rope be written as one object per kind of layer? It must if layers with a window have
 * another base and no key for it (rope_local_base_freq). It must also for an OLMo 3 if rope_theta
 * is not the default: otherwise transformers 5 gives its layers with a window the default. */
static bool is_by_layer(const hy_shape *s, const hy_family *family) {
    const hy_config_field *theta = hy_family_field(family, "rope_theta");
    bool has_key = hy_family_field(family, "rope_local_base_freq") != NULL;
    if (has_key || !s->more.rope.scales_full_only || !theta) return false;
    return s->more.rope.local_theta > 0 || s->rope_theta != theta->fallback;
}

bool hy_config_has_rope_options(const hy_shape *s, const hy_family *family) {
    return s->rope_scaling == HY_ROPE_SCALED_YARN || s->rope_scaling == HY_ROPE_SCALED_LONGROPE ||
           is_by_layer(s, family);
}

static void put_if_set(hy_json_writer *w, const char *key, double value) {
    if (value > 0) hy_json_put_real(w, key, value);
}

static void put_factors(hy_json_writer *w, const char *key, const hy_shape *s,
                        const double factors[PAIRS]) {
    hy_json_open_array(w, key);
    for (int32_t i = 0; i < hy_shape_rotary(s) / 2; i++) hy_json_put_real(w, NULL, factors[i]);
    hy_json_close_array(w);
}

static void put_scaling(const hy_shape *s, const hy_family *family, hy_json_writer *w) {
    const hy_rope_options *o = &s->more.rope;
    bool is_long = s->rope_scaling == HY_ROPE_SCALED_LONGROPE;
    bool is_llama3 = s->rope_scaling == HY_ROPE_SCALED_LLAMA3;
    hy_json_put_string(w, "rope_type", scalings[s->rope_scaling]);
    if (s->rope_scaling == HY_ROPE_UNSCALED && must_say_unscaled(family)) {
        hy_json_put_int(w, ORIGINAL, s->context);
        hy_json_put_real(w, QUERY_BETA, 0);
    }
    if (s->rope_scaling == HY_ROPE_UNSCALED) return;
    if (!is_long) hy_json_put_real(w, "factor", s->rope_factor);
    if (is_long) {
        put_factors(w, "short_factor", s, o->short_factors);
        put_factors(w, "long_factor", s, o->long_factors);
    }
    if (is_long || is_llama3 || s->rope_scaling == HY_ROPE_SCALED_YARN)
        hy_json_put_int(w, ORIGINAL, s->rope_original_context);
    if (is_llama3) {
        hy_json_put_real(w, "low_freq_factor", s->rope_low_freq);
        hy_json_put_real(w, "high_freq_factor", s->rope_high_freq);
    }
    put_if_set(w, "beta_fast", o->beta_fast);
    put_if_set(w, "beta_slow", o->beta_slow);
    if (o->is_untruncated) hy_json_put_bool(w, "truncate", false);
    put_if_set(w, "mscale", o->mscale);
    put_if_set(w, "mscale_all_dim", o->mscale_all_dim);
    put_if_set(w, QUERY_BETA, o->query_beta);
    put_if_set(w, "attention_factor", o->attention_factor);
}

void hy_config_write_scaling(const hy_config_writer *writer) {
    const hy_shape *s = writer->shape;
    hy_json_writer *w = writer->json;
    bool has_layers = is_by_layer(s, writer->family);
    if (s->rope_scaling == HY_ROPE_UNSCALED && !has_layers && !must_say_unscaled(writer->family)) {
        hy_json_put_null(w, "rope_scaling");
        return;
    }
    hy_json_open_object(w, has_layers ? "rope_parameters" : "rope_scaling");
    double local = s->more.rope.local_theta > 0 ? s->more.rope.local_theta : s->rope_theta;
    if (has_layers) {
        hy_json_open_object(w, "full_attention");
        hy_json_put_real(w, "rope_theta", s->rope_theta);
    }
    put_scaling(s, writer->family, w);
    if (has_layers) {
        hy_json_close_object(w);
        hy_json_open_object(w, "sliding_attention");
        hy_json_put_real(w, "rope_theta", local);
        hy_json_put_string(w, "rope_type", scalings[HY_ROPE_UNSCALED]);
        hy_json_close_object(w);
    }
    hy_json_close_object(w);
}

void hy_config_write_rope(const hy_config_writer *w, const hy_config_field *f) {
    const hy_shape *s = w->shape;
    hy_json_put_real(w->json, f->key, s->rope_theta);
    hy_config_write_scaling(w);
    if (s->rope_scaling == HY_ROPE_SCALED_LONGROPE && hy_family_field(w->family, ORIGINAL))
        hy_json_put_int(w->json, ORIGINAL, s->rope_original_context);
}

void hy_config_clear_rope(hy_shape *s) {
    hy_rope_options *o = &s->more.rope;
    o->beta_fast = o->beta_slow = o->attention_factor = o->mscale = o->mscale_all_dim = 0;
    o->is_untruncated = false;
    memset(o->short_factors, 0, sizeof o->short_factors);
    memset(o->long_factors, 0, sizeof o->long_factors);
    if (o->scales_full_only) o->local_theta = 0;
}

/* ---- layers without rope --------------------------------------------------------------------- */

hy_status hy_config_read_positions(hy_config_reader *r, const hy_config_field *f) {
    const char *word; /* config.json without the key, or with null, has no rope */
    HY_TRY(hy_config_word(r, f->key, r->is_options ? "rope" : "nope", &word));
    bool is_absent = strcmp(word, "nope") == 0;
    HY_FAIL_IF(!is_absent && strcmp(word, "rope") != 0, HY_ERR_INPUT,
               "%s: \"%s\" %.40s is not supported; supported: rope, nope", r->name, f->key, word);
    r->shape->more.rope.layers[0] = is_absent ? 'n' : 0;
    return HY_OK;
}

void hy_config_write_positions(const hy_config_writer *w, const hy_config_field *f) {
    bool is_absent = w->shape->more.rope.layers[0] == 'n';
    hy_json_put_string(w->json, f->key, is_absent ? "nope" : "rope");
}

/* Without the list, one of every no_rope_layer_interval layers has none. */
hy_status hy_config_read_rope_layers(hy_config_reader *r, const hy_config_field *f) {
    hy_shape *s = r->shape;
    const hy_json_node *list = hy_config_value(r, f->key);
    char letters[HY_SLIDING_LAYERS_MAX];
    int32_t interval, layer = 0;
    HY_TRY(hy_config_size(r, "no_rope_layer_interval", f->fallback, &interval));
    HY_FAIL_IF(s->layers >= HY_SLIDING_LAYERS_MAX, HY_ERR_INPUT,
               "%s: %d layers; layers without rope are supported up to %d", r->name, s->layers,
               HY_SLIDING_LAYERS_MAX - 1);
    for (; layer < s->layers; layer++) letters[layer] = (layer + 1) % interval ? 'r' : 'n';
    if (list && hy_json_size(list) > 0) {
        if (hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) != (size_t)s->layers)
            return hy_config_refuse(r, f->key, "a list with 0 or 1 for each layer");
        layer = 0;
        for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
            int64_t has_rope;
            if (!hy_json_as_int(n, &has_rope) || has_rope < 0 || has_rope > 1)
                return hy_config_refuse(r, f->key, "a list with 0 or 1 for each layer");
            letters[layer++] = has_rope ? 'r' : 'n';
        }
    }
    memset(s->more.rope.layers, 0, sizeof s->more.rope.layers);
    if (memchr(letters, 'n', (size_t)s->layers))
        (void)hy_config_pattern(letters, s->layers, s->more.rope.layers,
                                sizeof s->more.rope.layers);
    return HY_OK;
}

void hy_config_write_rope_layers(const hy_config_writer *w, const hy_config_field *f) {
    hy_json_open_array(w->json, f->key);
    for (int32_t l = 0; l < w->shape->layers; l++)
        hy_json_put_int(w->json, NULL, hy_shape_rope(w->shape, l) != HY_ROPE_ABSENT);
    hy_json_close_array(w->json);
}
