/* tokenizer_read.c: a tokenizer.json as a whole: added tokens, post-processor, and its parts in turn.
 *
 * "truncation" and "padding" are left aside: they say how rows were once batched, and whoever encodes
 * a text here wants all of it and nothing more. Everything else that is not known is refused by
 * name. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

/* ---- post-processor -------------------------------------------------------------------------- */

static const char post_known[] = "ByteLevel, TemplateProcessing and Sequence";

static hy_status fail_template(const hy_tokenizer *t, const char *what) {
    return hy_fail(HY_ERR_INPUT, "%s: post_processor TemplateProcessing: %s", t->name, what);
}

static hy_status add_id(const hy_tokenizer *t, int32_t **ids, size_t *count,
                        const hy_json_node *node) {
    int64_t id;
    if (!hy_json_as_int(node, &id) || id < 0 || id >= t->vocab.ids) {
        return fail_template(t, "special_tokens has an id that no token has");
    }
    int32_t *grown = realloc(*ids, (*count + 1) * sizeof *grown);
    if (!grown) return hy_fail(HY_ERR_MEMORY, "out of memory for a template");
    grown[(*count)++] = (int32_t)id;
    *ids = grown;
    return HY_OK;
}

static hy_status add_special(hy_tokenizer *t, const hy_json_node *special, const hy_json_node *item,
                             bool is_after) {
    const char *name;
    hy_template *p = &t->template;
    if (!hy_json_as_string(hy_json_get(item, "id"), &name, NULL)) {
        return fail_template(t, "a SpecialToken has no id");
    }
    const hy_json_node *ids = hy_json_get(hy_json_get(special, name), "ids");
    if (!ids || hy_json_type_of(ids) != HY_JSON_ARRAY) {
        return fail_template(t, "a SpecialToken is not among special_tokens");
    }
    for (const hy_json_node *id = hy_json_first(ids); id; id = hy_json_next(id)) {
        HY_TRY(is_after ? add_id(t, &p->after, &p->after_count, id)
                        : add_id(t, &p->before, &p->before_count, id));
    }
    return HY_OK;
}

static hy_status read_template(hy_tokenizer *t, const hy_json_node *node) {
    const hy_json_node *single = hy_json_get(node, "single");
    const hy_json_node *special = hy_json_get(node, "special_tokens");
    bool has_text = false;
    if (t->template.before_count || t->template.after_count) {
        return fail_template(t, "there are two of them; one is accepted");
    }
    if (!single || hy_json_type_of(single) != HY_JSON_ARRAY) {
        return fail_template(t, "\"single\" must be an array of SpecialToken and Sequence");
    }
    for (const hy_json_node *item = hy_json_first(single); item; item = hy_json_next(item)) {
        const hy_json_node *token = hy_json_get(item, "SpecialToken");
        const hy_json_node *text = hy_json_get(item, "Sequence");
        const char *id = "";
        if (token) {
            HY_TRY(add_special(t, special, token, has_text));
            continue;
        }
        bool is_text =
            hy_json_as_string(hy_json_get(text, "id"), &id, NULL) && strcmp(id, "A") == 0;
        if (!is_text || has_text) {
            return fail_template(t, "\"single\" must hold special tokens and Sequence A once");
        }
        has_text = true;
    }
    return has_text ? HY_OK : fail_template(t, "\"single\" lacks Sequence A");
}

static hy_status read_post_processor(hy_tokenizer *t, const hy_json_node *node, int depth) {
    const char *type = "";
    if (!node || hy_json_type_of(node) == HY_JSON_NULL) return HY_OK;
    hy_json_as_string(hy_json_get(node, "type"), &type, NULL);
    if (strcmp(type, "ByteLevel") == 0) return HY_OK; /* it moves offsets, never ids */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, node);
    const hy_json_node *inner = hy_json_get(node, "processors");
    HY_FAIL_IF(strcmp(type, "Sequence") != 0 || !inner || depth > 0, HY_ERR_INPUT,
               "%s: post_processor \"%.60s\": known are %s", t->name, type, post_known);
    for (node = hy_json_first(inner); node; node = hy_json_next(node)) {
        HY_TRY(read_post_processor(t, node, depth + 1));
    }
    return HY_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/* What is looked for is the text as the normaliser would leave it. */
static hy_status normalize_added(const hy_tokenizer *t, hy_workspace *space, hy_added *token) {
    const char *text;
    size_t size;
    if (!token->is_normalized) return HY_OK;
    HY_TRY(hy_steps_normalize(&t->normalizer, space, token->text, token->size, &text, &size));
    if (text == token->text) return HY_OK;
    char *copy = malloc(size + 1);
    if (!copy) return hy_fail(HY_ERR_MEMORY, "out of memory for an added token");
    memcpy(copy, text, size);
    copy[size] = '\0';
    free(token->text);
    token->text = copy;
    token->size = size;
    return HY_OK;
}

static hy_status read_added(hy_tokenizer *t, const hy_json_node *node, hy_workspace *space,
                            hy_added *token) {
    const char *text;
    size_t size;
    int64_t id;
    /* The model's reader has checked both. */
    if (!hy_json_as_string(hy_json_get(node, "content"), &text, &size)) return HY_OK;
    if (!hy_json_as_int(hy_json_get(node, "id"), &id)) return HY_OK;
    token->id = (int32_t)id;
    HY_TRY(hy_tokenizer_read_bool(t, node, "special", false, &token->is_special));
    HY_TRY(
        hy_tokenizer_read_bool(t, node, "normalized", !token->is_special, &token->is_normalized));
    HY_TRY(hy_tokenizer_read_bool(t, node, "single_word", false, &token->is_single_word));
    HY_TRY(hy_tokenizer_read_bool(t, node, "lstrip", false, &token->strips_left));
    HY_TRY(hy_tokenizer_read_bool(t, node, "rstrip", false, &token->strips_right));
    token->size = size;
    token->text = malloc(size + 1);
    if (!token->text) return hy_fail(HY_ERR_MEMORY, "out of memory for an added token");
    memcpy(token->text, text, size + 1);
    if (token->is_special) t->is_special[token->id] = true;
    return normalize_added(t, space, token);
}

/* ---- the whole ------------------------------------------------------------------------------- */

hy_status hy_tokenizer_read_bool(const hy_tokenizer *t, const hy_json_node *object, const char *key,
                                 bool fallback, bool *out) {
    const hy_json_node *value = hy_json_get(object, key);
    *out = fallback;
    if (!value || hy_json_type_of(value) == HY_JSON_NULL) return HY_OK;
    return hy_json_bool(t->json, object, key, out);
}

hy_status hy_tokenizer_fill(hy_tokenizer *t, const hy_json *json) {
    const hy_json_node *root = hy_json_root(json);
    t->json = json;
    static const char *const known[] = {"version",        "truncation", "padding",
                                        "added_tokens",   "normalizer", "pre_tokenizer",
                                        "post_processor", "decoder",    "model"};
    HY_FAIL_IF(hy_json_type_of(root) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "%s: a tokenizer.json is an object", t->name);
    for (const hy_json_node *part = hy_json_first(root); part; part = hy_json_next(part)) {
        bool is_known = hy_json_type_of(part) == HY_JSON_NULL;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
            is_known = is_known || strcmp(hy_json_key(part), known[i]) == 0;
        }
        HY_FAIL_IF(!is_known, HY_ERR_INPUT,
                   "%s: \"%.60s\" is unknown and might change the tokens; known are "
                   "version, truncation, padding, added_tokens, normalizer, "
                   "pre_tokenizer, post_processor, decoder and model",
                   t->name, hy_json_key(part));
    }
    const hy_json_node *added = hy_json_get(root, "added_tokens");
    if (added && hy_json_type_of(added) == HY_JSON_NULL) added = NULL;
    HY_FAIL_IF(added && hy_json_type_of(added) != HY_JSON_ARRAY, HY_ERR_INPUT,
               "%s: added_tokens must be an array", t->name);
    HY_TRY(hy_tokenizer_read_normalizer(t, hy_json_get(root, "normalizer")));
    HY_TRY(hy_tokenizer_read_splitting(t, hy_json_get(root, "pre_tokenizer")));
    HY_TRY(hy_tokenizer_read_decoder(t, hy_json_get(root, "decoder")));
    HY_TRY(hy_tokenizer_read_model(t, hy_json_get(root, "model"), added));
    HY_TRY(read_post_processor(t, hy_json_get(root, "post_processor"), 0));
    const hy_json_node *node = added;
    size_t count = node ? hy_json_size(node) : 0, i = 0;
    hy_added *tokens = calloc(count + 1, sizeof *tokens);
    hy_workspace space = {0};
    hy_status status = HY_OK;
    t->is_special = calloc((size_t)t->vocab.ids + 1, sizeof *t->is_special);
    if (!tokens || !t->is_special) {
        status = hy_fail(HY_ERR_MEMORY, "out of memory for %zu added tokens", count);
        goto done;
    }
    for (node = count ? hy_json_first(node) : NULL; node; node = hy_json_next(node), i++) {
        HY_TRY_TO(done, status, read_added(t, node, &space, &tokens[i]));
    }
    HY_TRY_TO(done, status, hy_added_set_init(&t->raw, tokens, count, false));
    HY_TRY_TO(done, status, hy_added_set_init(&t->normalized, tokens, count, true));
done:
    for (i = 0; tokens && i < count; i++) free(tokens[i].text);
    free(tokens);
    hy_text_free(&space.normal[0]);
    hy_text_free(&space.normal[1]);
    HY_TRY(status);
    t->json = NULL;
    return HY_OK;
}
