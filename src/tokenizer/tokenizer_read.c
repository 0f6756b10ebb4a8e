/* tokenizer_read.c: reads a whole tokenizer.json: added tokens, post-processor, and the other
 * parts.
 *
 * "truncation" and "padding" are ignored: they describe how rows were batched, and encoding here
 * always returns all ids of a text and no others. Any other unknown key is an error that names
 * it. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

/* ---- post-processor -------------------------------------------------------------------------- */

static const char post_known[] = "ByteLevel, TemplateProcessing and Sequence";

static hy_status fail_template(const hy_tokenizer *t, const char *what) {
    return hy_fail(HY_ERR_INPUT, "%s: post_processor TemplateProcessing: %s", t->name, what);
}

static hy_status add_special(const hy_tokenizer *t, const hy_json_node *special,
                             const hy_json_node *item, hy_ids *out) {
    const char *name;
    if (!hy_json_as_string(hy_json_get(item, "id"), &name, NULL)) {
        return fail_template(t, "a SpecialToken has no id");
    }
    const hy_json_node *ids = hy_json_get(hy_json_get(special, name), "ids");
    if (hy_json_type_of(ids) != HY_JSON_ARRAY) {
        return fail_template(t, "a SpecialToken is not listed in special_tokens");
    }
    for (const hy_json_node *node = hy_json_first(ids); node; node = hy_json_next(node)) {
        int64_t id;
        if (!hy_json_as_int(node, &id) || id < 0 || id >= t->vocab.ids) {
            return fail_template(t, "special_tokens has an id without a token");
        }
        HY_TRY(hy_ids_append(out, &(int32_t){(int32_t)id}, 1));
    }
    return HY_OK;
}

static hy_status read_template(hy_tokenizer *t, const hy_json_node *node) {
    const hy_json_node *single = hy_json_get(node, "single");
    const hy_json_node *special = hy_json_get(node, "special_tokens");
    bool has_text = false;
    if (t->before.count || t->after.count) {
        return fail_template(t, "there are two of them; only one is supported");
    }
    if (hy_json_type_of(single) != HY_JSON_ARRAY) {
        return fail_template(t, "\"single\" must be an array of SpecialToken and Sequence");
    }
    for (const hy_json_node *item = hy_json_first(single); item; item = hy_json_next(item)) {
        const hy_json_node *token = hy_json_get(item, "SpecialToken");
        const hy_json_node *text = hy_json_get(item, "Sequence");
        const char *id = "";
        if (token) {
            HY_TRY(add_special(t, special, token, has_text ? &t->after : &t->before));
            continue;
        }
        bool is_text =
            hy_json_as_string(hy_json_get(text, "id"), &id, NULL) && strcmp(id, "A") == 0;
        if (!is_text || has_text) {
            return fail_template(
                t, "\"single\" must contain Sequence A exactly once, and special tokens");
        }
        has_text = true;
    }
    return has_text ? HY_OK : fail_template(t, "\"single\" lacks Sequence A");
}

static hy_status read_post_processor(hy_tokenizer *t, const hy_json_node *node, int depth) {
    const char *type = "";
    if (hy_json_type_of(node) == HY_JSON_NULL) return HY_OK;
    hy_json_as_string(hy_json_get(node, "type"), &type, NULL);
    if (strcmp(type, "ByteLevel") == 0) return HY_OK; /* changes offsets, never ids */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, node);
    const hy_json_node *inner = hy_json_get(node, "processors");
    HY_FAIL_IF(strcmp(type, "Sequence") != 0 || !inner || depth > 0, HY_ERR_INPUT,
               "%s: post_processor \"%.60s\" is not supported; supported are %s", t->name, type,
               post_known);
    for (node = hy_json_first(inner); node; node = hy_json_next(node)) {
        HY_TRY(read_post_processor(t, node, depth + 1));
    }
    return HY_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static hy_status read_added(hy_tokenizer *t, const hy_json_node *node, hy_workspace *space,
                            hy_added *token) {
    const char *text;
    size_t size;
    int64_t id;
    /* The reader of the model has checked both. */
    if (!hy_json_as_string(hy_json_get(node, "content"), &text, &size)) return HY_OK;
    if (!hy_json_as_int(hy_json_get(node, "id"), &id)) return HY_OK;
    token->id = (int32_t)id;
    HY_TRY(hy_tokenizer_read_bool(t, node, "special", false, &token->is_special));
    HY_TRY(
        hy_tokenizer_read_bool(t, node, "normalized", !token->is_special, &token->is_normalized));
    HY_TRY(hy_tokenizer_read_bool(t, node, "single_word", false, &token->is_single_word));
    HY_TRY(hy_tokenizer_read_bool(t, node, "lstrip", false, &token->strips_left));
    HY_TRY(hy_tokenizer_read_bool(t, node, "rstrip", false, &token->strips_right));
    if (token->is_special) t->is_special[token->id] = true;
    /* The search uses the text as the normaliser leaves it. */
    bool is_kept = t->normalizer.count > 0 && t->normalizer.step[0].kind == HY_STEP_CHARSMAP;
    if (token->is_normalized && !is_kept) {
        space->left = hy_allowance_of(t->name, size);
        HY_TRY(hy_steps_normalize(&t->normalizer, space, text, size, &text, &size));
    }
    token->size = size;
    token->text = malloc(size + 1);
    if (!token->text) return hy_fail(HY_ERR_MEMORY, "not enough memory for an added token");
    memcpy(token->text, text, size);
    return HY_OK;
}

/* ---- the whole file -------------------------------------------------------------------------- */

hy_status hy_tokenizer_read_bool(const hy_tokenizer *t, const hy_json_node *object, const char *key,
                                 bool fallback, bool *out) {
    *out = fallback;
    if (hy_json_type_of(hy_json_get(object, key)) == HY_JSON_NULL) return HY_OK;
    return hy_json_bool(t->json, object, key, out);
}

hy_status hy_tokenizer_fill(hy_tokenizer *t, const hy_json *json) {
    const hy_json_node *root = hy_json_root(json);
    t->json = json;
    static const char known[] = " version truncation padding added_tokens normalizer pre_tokenizer"
                                " post_processor decoder model ";
    HY_FAIL_IF(hy_json_type_of(root) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "%s: the file must contain a JSON object", t->name);
    for (const hy_json_node *part = hy_json_first(root); part; part = hy_json_next(part)) {
        bool is_known =
            hy_json_type_of(part) == HY_JSON_NULL || hy_word_is_in(known, hy_json_key(part));
        HY_FAIL_IF(!is_known, HY_ERR_INPUT,
                   "%s: the key \"%.60s\" is unknown and might change the tokens; supported are "
                   "version, truncation, padding, added_tokens, normalizer, pre_tokenizer, "
                   "post_processor, decoder and model",
                   t->name, hy_json_key(part));
    }
    const hy_json_node *added = hy_json_get(root, "added_tokens"), *node = hy_json_first(added);
    HY_FAIL_IF(hy_json_type_of(added) != HY_JSON_ARRAY && hy_json_type_of(added) != HY_JSON_NULL,
               HY_ERR_INPUT, "%s: added_tokens must be an array", t->name);
    HY_TRY(hy_tokenizer_read_steps(t, root));
    HY_TRY(hy_tokenizer_read_model(t, hy_json_get(root, "model"), added));
    HY_TRY(read_post_processor(t, hy_json_get(root, "post_processor"), 0));
    size_t count = hy_json_size(added), i = 0;
    hy_added *tokens = calloc(count + 1, sizeof *tokens);
    hy_workspace space = {0};
    hy_status status = HY_OK;
    t->is_special = calloc((size_t)t->vocab.ids + 1, sizeof *t->is_special);
    if (!tokens || !t->is_special) {
        status = hy_fail(HY_ERR_MEMORY, "not enough memory for %zu added tokens", count);
        goto done;
    }
    for (; node; node = hy_json_next(node), i++) {
        HY_TRY_TO(done, status, read_added(t, node, &space, &tokens[i]));
    }
    HY_TRY_TO(done, status, hy_added_set_init(&t->raw, tokens, count, HY_ADDED_RAW));
    HY_TRY_TO(done, status, hy_added_set_init(&t->normalized, tokens, count, HY_ADDED_NORMALIZED));
    for (int k = 0; k < t->normalizer.count; k++) {
        if (t->normalizer.step[k].map) t->normalizer.step[k].map->kept = &t->normalized;
    }
    HY_TRY_TO(done, status, hy_added_set_init(&t->special, tokens, count, HY_ADDED_SPECIAL));
done:
    for (i = 0; tokens && i < count; i++) free(tokens[i].text);
    free(tokens);
    hy_text_free(&space.normal[0]);
    hy_text_free(&space.normal[1]);
    HY_TRY(status);
    t->json = NULL;
    return HY_OK;
}
