/* config_window.c: sliding windows and kinds of layers in config.json. See config_parts.h. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/arch/config_parts.h"

bool hy_config_pattern(const char *letters, int32_t layers, char *out, size_t size) {
    size_t period = 1;
    for (size_t i = period; i < (size_t)layers; i++) {
        if (letters[i] != letters[i - period])
            i = period++; /* try again with a period that is one longer */
    }
    if (period >= size) return false;
    memcpy(out, letters, period);
    out[period] = 0;
    return true;
}

/* One letter per layer, as in hy_shape.sliding_layers, from the list of layer types. */
static hy_status read_layer_types(const hy_config_reader *r, char *letters, int32_t layers) {
    const hy_json_node *list = hy_config_value(r, "layer_types");
    const char *kind;
    if (!list) return HY_OK;
    if (hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) != (size_t)layers)
        return hy_config_refuse(r, "layer_types", "a list with one word per layer");
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

/* A window in some layers that no sequence exceeds is left out, unless these layers have their own
 * rope. A window in all layers is kept. */
static hy_status set_window(const hy_config_reader *r, const char *letters, int32_t window) {
    hy_shape *s = r->shape;
    size_t layers = (size_t)s->layers;
    bool has_full = memchr(letters, 'f', layers), has_sliding = memchr(letters, 's', layers);
    bool is_needed = window < s->context || hy_shape_rope_count(s) > 1;
    if (!has_sliding || (has_full && !is_needed)) return HY_OK;
    s->sliding_window = window;
    if (!has_full) return HY_OK;
    HY_FAIL_IF(
        !hy_config_pattern(letters, s->layers, s->sliding_layers, sizeof s->sliding_layers),
        HY_ERR_INPUT,
        "%s: the pattern of sliding windows in its %d layers repeats after more than %zu layers",
        r->name, s->layers, sizeof s->sliding_layers - 1);
    return HY_OK;
}

/* Which layers have the window: those that layer_types lists. Without the list, they are the layers
 * from max_window_layers on (Qwen), all but every window_period-th (Gemma, OLMo 3), those without
 * rope (SmolLM3), or all. */
static hy_status fill_letters(const hy_config_reader *r, char *letters) {
    int64_t first = 0;
    int32_t period = r->family->window_period;
    const hy_config_field *from = hy_family_field(r->family, "max_window_layers");
    bool by_rope = hy_family_field(r->family, "no_rope_layers") != NULL;
    const hy_json_node *node = from ? hy_config_value(r, from->key) : NULL;
    if (from) first = (int64_t)from->fallback;
    if (node && (!hy_json_as_int(node, &first) || first < 0))
        return hy_config_refuse(r, from->key, "a whole number of at least 0");
    if (hy_family_field(r->family, "sliding_window_pattern"))
        HY_TRY(hy_config_size(r, "sliding_window_pattern", period, &period));
    for (int32_t l = 0; l < r->shape->layers; l++) {
        bool is_full = l < first || (period > 0 && (l + 1) % period == 0) ||
                       (by_rope && hy_shape_rope(r->shape, l) != HY_ROPE_ABSENT);
        letters[l] = is_full ? 'f' : 's';
    }
    return r->family->has_one_window ? HY_OK : read_layer_types(r, letters, r->shape->layers);
}

/* Without the key there is the default window; null means none. */
hy_status hy_config_read_window(hy_config_reader *r, const hy_config_field *f) {
    bool is_used = true;
    int32_t window;
    if (hy_family_field(r->family, "use_sliding_window"))
        HY_TRY(hy_config_switch(r, "use_sliding_window", false, &is_used));
    const hy_json_node *given = hy_json_get(r->node, f->key);
    bool is_null = given && hy_json_type_of(given) == HY_JSON_NULL;
    HY_TRY(hy_config_size(r, f->key, f->fallback, &window));
    char *letters = malloc((size_t)r->shape->layers);
    if (!letters)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a list of %d layers",
                       r->shape->layers);
    hy_status status = fill_letters(r, letters);
    if (status == HY_OK && is_used && !is_null && window > 0)
        status = set_window(r, letters, window);
    free(letters);
    return status;
}

static void put_types(const hy_config_writer *w, const char *key, const char *full,
                      const char *sliding) {
    hy_json_open_array(w->json, key);
    for (int32_t l = 0; l < w->shape->layers; l++)
        hy_json_put_string(w->json, NULL, hy_shape_window(w->shape, l) ? sliding : full);
    hy_json_close_array(w->json);
}

/* A family with a pattern of its own needs the list even without a window. */
void hy_config_write_window(const hy_config_writer *w, const hy_config_field *f) {
    const hy_shape *s = w->shape;
    int32_t window = s->sliding_window, period = w->family->window_period;
    if ((window && s->sliding_layers[0]) || period)
        put_types(w, "layer_types", "full_attention", "sliding_attention");
    if (window || period)
        hy_json_put_int(w->json, f->key, window ? window : s->context);
    else
        hy_json_put_null(w->json, f->key);
    if (hy_family_field(w->family, "use_sliding_window"))
        hy_json_put_bool(w->json, "use_sliding_window", window > 0);
    if (!hy_family_field(w->family, "max_window_layers")) return;
    int32_t first = 0; /* the closest setting for versions of transformers without layer_types */
    while (first < s->layers && hy_shape_window(s, first) == 0) first++;
    hy_json_put_int(w->json, "max_window_layers", first);
}

hy_status hy_config_read_attentions(hy_config_reader *r, const hy_config_field *f) {
    const hy_json_node *list = hy_config_value(r, f->key);
    if (!list) return HY_OK;
    if (hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) != (size_t)r->shape->layers)
        return hy_config_refuse(r, f->key, "a list with one word per layer");
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        const char *kind = "";
        bool is_known = hy_json_as_string(n, &kind, NULL) &&
                        (strcmp(kind, "attention") == 0 || strcmp(kind, "full_attention") == 0);
        HY_FAIL_IF(!is_known, HY_ERR_INPUT, "%s: \"%s\" has %.40s; supported: attention", r->name,
                   f->key, kind[0] ? kind : "an entry that is not a string");
    }
    return HY_OK;
}

void hy_config_write_attentions(const hy_config_writer *w, const hy_config_field *f) {
    put_types(w, f->key, "attention", NULL); /* such a family has no windows */
}

/* ---- linear attention ------------------------------------------------------------------------ */

/* Sets the pattern from the letters of all layers. */
static hy_status set_linears(const hy_config_reader *r, const char *letters) {
    hy_linear_options *o = &r->shape->more.linear;
    memset(o->layers, 0, sizeof o->layers);
    if (!memchr(letters, 'l', (size_t)r->shape->layers)) return HY_OK;
    HY_FAIL_IF(!hy_config_pattern(letters, r->shape->layers, o->layers, sizeof o->layers),
               HY_ERR_INPUT,
               "%s: the pattern of linear attention in its %d layers repeats after more than %zu "
               "layers",
               r->name, r->shape->layers, sizeof o->layers - 1);
    return HY_OK;
}

hy_status hy_config_read_interval(hy_config_reader *r, const hy_config_field *f) {
    int32_t interval;
    HY_TRY(hy_config_size(r, f->key, f->fallback, &interval));
    HY_FAIL_IF(!hy_shape_set_interval(r->shape, interval), HY_ERR_INPUT,
               "%s: \"%s\" is %d; supported: up to %d", r->name, f->key, interval,
               HY_INTERVAL_MAX);
    return HY_OK;
}

static hy_status read_linear_types(const hy_config_reader *r, const hy_json_node *list,
                                   char *letters) {
    const char *kind;
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        if (!hy_json_as_string(n, &kind, NULL)) kind = "";
        bool is_full = strcmp(kind, "full_attention") == 0;
        HY_FAIL_IF(!is_full && strcmp(kind, "linear_attention") != 0, HY_ERR_INPUT,
                   "%s: \"layer_types\" has %.40s; supported: full_attention, linear_attention",
                   r->name, kind[0] ? kind : "an entry that is not a string");
        *letters++ = is_full ? 'f' : 'l';
    }
    return HY_OK;
}

/* Without the list, the interval says which layers they are. */
hy_status hy_config_read_linears(hy_config_reader *r, const hy_config_field *f) {
    const hy_json_node *list = hy_config_value(r, f->key);
    char *letters;
    if (!list) return HY_OK;
    if (hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) != (size_t)r->shape->layers)
        return hy_config_refuse(r, f->key, "a list with one word per layer");
    letters = malloc((size_t)r->shape->layers);
    HY_FAIL_IF(!letters, HY_ERR_MEMORY, "not enough memory for a list of %d layers",
               r->shape->layers);
    hy_status status = read_linear_types(r, list, letters);
    if (status == HY_OK) status = set_linears(r, letters);
    free(letters);
    return status;
}

void hy_config_write_interval(const hy_config_writer *w, const hy_config_field *f) {
    int32_t interval = hy_shape_interval(w->shape);
    if (interval > 0) hy_json_put_int(w->json, f->key, interval);
}

/* Options name the layers only where no interval does. */
void hy_config_write_linears(const hy_config_writer *w, const hy_config_field *f) {
    if (w->is_options && hy_shape_interval(w->shape) > 0) return;
    hy_json_open_array(w->json, f->key);
    for (int32_t l = 0; l < w->shape->layers; l++)
        hy_json_put_string(w->json, NULL,
                           hy_shape_is_linear(w->shape, l) ? "linear_attention" : "full_attention");
    hy_json_close_array(w->json);
}
