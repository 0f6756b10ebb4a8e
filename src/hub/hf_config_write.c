/* hf_config_write.c: writes config.json for a shape. See hf_config.h.
 *
 * The file is readable by transformers 4 and 5 (torch_dtype; the shape's fields: see
 * model/arch/config.h). Fields of the source that mean the same as a written field are omitted. */
#include <string.h>

#include "base/error.h"
#include "hub/hf_config.h"
#include "model/arch/config.h"

/* ---- fields that follow from the shape ------------------------------------------------------- */

static void put_shape(hy_json_writer *w, const hy_family *family, const hy_shape *s,
                      hy_dtype dtype) {
    hy_json_open_array(w, "architectures");
    hy_json_put_string(w, NULL, family->class_name);
    hy_json_close_array(w);
    hy_json_put_string(w, "model_type", family->name);
    hy_json_put_string(w, "torch_dtype", hy_hf_dtype_word(dtype));
    hy_arch_write(s, w);
}

/* ---- fields of the source -------------------------------------------------------------------- */

static void put_node(hy_json_writer *w, const char *key, const hy_json_node *node) {
    int64_t integer;
    double number;
    bool is_on;
    const char *string;
    if (hy_json_as_bool(node, &is_on)) {
        hy_json_put_bool(w, key, is_on);
    } else if (hy_json_as_string(node, &string, NULL)) {
        hy_json_put_string(w, key, string);
    } else if (hy_json_is_integer(node) && hy_json_as_int(node, &integer)) {
        hy_json_put_int(w, key, integer);
    } else if (hy_json_type_of(node) == HY_JSON_NUMBER && hy_json_as_double(node, &number)) {
        hy_json_put_real(w, key, number);
    } else if (hy_json_type_of(node) == HY_JSON_ARRAY) {
        hy_json_open_array(w, key);
        for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
            put_node(w, NULL, n);
        }
        hy_json_close_array(w);
    } else if (hy_json_type_of(node) == HY_JSON_OBJECT) {
        hy_json_open_object(w, key);
        for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
            put_node(w, hy_json_key(n), n);
        }
        hy_json_close_object(w);
    } else {
        hy_json_put_null(w, key);
    }
}

#define DEEPEST 32 /* nesting depth of a kept field, which the writer supports */

static int depth_of(const hy_json_node *node) {
    int deepest = 0;
    for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
        int below = depth_of(n);
        if (below > deepest) deepest = below;
    }
    return deepest + 1;
}

/* null if there is none, because otherwise transformers uses its own defaults. */
static void put_token(hy_json_writer *w, const char *key, int32_t id) {
    if (id >= 0) {
        hy_json_put_int(w, key, id);
    } else {
        hy_json_put_null(w, key);
    }
}

static void put_tokens(hy_json_writer *w, const hy_hf_tokens *tokens) {
    put_token(w, "bos_token_id", tokens ? tokens->bos : -1);
    put_token(w, "eos_token_id", tokens ? tokens->eos : -1);
}

static bool is_token(const char *key) {
    return strcmp(key, "bos_token_id") == 0 || strcmp(key, "eos_token_id") == 0;
}

hy_status hy_hf_json_filter(const hy_json_node *source, const char *key, bool is_kept,
                            hy_text *out) {
    hy_json_writer w;
    hy_json_begin(&w, out, true);
    hy_json_open_object(&w, NULL);
    for (const hy_json_node *m = hy_json_first(source); m; m = hy_json_next(m)) {
        bool is_it = strcmp(hy_json_key(m), key) == 0;
        if (is_it == is_kept && depth_of(m) <= DEEPEST) put_node(&w, hy_json_key(m), m);
    }
    hy_json_close_object(&w);
    hy_text_add(out, "\n");
    return hy_text_status(out);
}

hy_status hy_hf_json_merge(const hy_json_node *source, const hy_json_node *more, hy_text *out) {
    hy_json_writer w;
    hy_json_begin(&w, out, true);
    hy_json_open_object(&w, NULL);
    for (const hy_json_node *m = hy_json_first(source); m; m = hy_json_next(m)) {
        if (depth_of(m) <= DEEPEST) put_node(&w, hy_json_key(m), m);
    }
    for (const hy_json_node *m = hy_json_first(more); m; m = hy_json_next(m)) {
        if (!hy_json_get(source, hy_json_key(m))) put_node(&w, hy_json_key(m), m);
    }
    hy_json_close_object(&w);
    hy_text_add(out, "\n");
    return hy_text_status(out);
}

hy_status hy_hf_generation_write(const hy_hf_tokens *tokens, hy_text *out) {
    hy_json_writer w;
    hy_json_begin(&w, out, true);
    hy_json_open_object(&w, NULL);
    put_tokens(&w, tokens);
    hy_json_close_object(&w);
    hy_text_add(out, "\n");
    return hy_text_status(out);
}

hy_status hy_hf_config_write(const hy_shape *shape, hy_dtype dtype, const hy_json_node *source,
                             const hy_hf_tokens *tokens, hy_text *out) {
    static const char other_names[] = " rope_parameters layer_types partial_rotary_factor "
                                      "sliding_window_pattern ";
    const hy_family *family = hy_shape_family(shape);
    hy_json_writer w;
    hy_json_begin(&w, out, true);
    hy_json_open_object(&w, NULL);
    put_shape(&w, family, shape, dtype);
    if (!source || tokens) put_tokens(&w, tokens);
    if (!source)
        hy_json_put_null(&w, "pad_token_id"); /* Phi-3's default may exceed the vocabulary */
    for (const hy_json_node *m = hy_json_first(source); m; m = hy_json_next(m)) {
        bool is_written = hy_hf_is_used(family, hy_json_key(m)) ||
                          hy_word_is_in(other_names, hy_json_key(m)) ||
                          (tokens && is_token(hy_json_key(m)));
        if (!is_written && depth_of(m) <= DEEPEST) put_node(&w, hy_json_key(m), m);
    }
    hy_json_close_object(&w);
    hy_text_add(out, "\n");
    return hy_text_status(out);
}

hy_status hy_hf_config_copy(const hy_json_node *source, hy_dtype dtype, const hy_hf_tokens *tokens,
                            hy_text *out) {
    const char *key = hy_json_get(source, "dtype") ? "dtype" : "torch_dtype";
    hy_json_writer w;
    hy_json_begin(&w, out, true);
    hy_json_open_object(&w, NULL);
    for (const hy_json_node *m = hy_json_first(source); m; m = hy_json_next(m)) {
        if (strcmp(hy_json_key(m), key) == 0 || depth_of(m) > DEEPEST) continue;
        if (tokens && is_token(hy_json_key(m))) continue;
        if (strcmp(hy_json_key(m), "quantization_config") == 0)
            continue; /* the weights are not quantised any more */
        put_node(&w, hy_json_key(m), m);
    }
    if (tokens) put_tokens(&w, tokens);
    hy_json_put_string(&w, key, hy_hf_dtype_word(dtype));
    hy_json_close_object(&w);
    hy_text_add(out, "\n");
    return hy_text_status(out);
}
