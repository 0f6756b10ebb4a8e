/* tokenizer_piece_classes.c: SentencePiece files of folders that name a tokenizer_class, or a
 * model_type that has one.
 *
 * transformers merges such pieces in the order of their ids, and takes the steps before the merges
 * from the class; of the file it uses only the pieces. Added tokens come from several files:
 * tokenizer_config.json, or the older special_tokens_map.json and added_tokens.json. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_pieces.h"
#include "tokenizer/tokenizer_sentencepiece.h"
#include "tokenizer/tokenizer_vocab_files.h"

/* ---- classes --------------------------------------------------------------------------------- */

#define ROLES 7
static const char *const role_keys[ROLES] = {"unk_token",  "bos_token", "eos_token", "pad_token",
                                             "mask_token", "sep_token", "cls_token"};

/* A class, how the model_types begin that have it without being told, and the tokens that it has
 * where the configuration does not name them. */
typedef struct piece_class {
    const char *name, *model, *roles[ROLES];
} piece_class;

/* transformers gives the other model_types no class of SentencePiece files. */
static const piece_class classes[] = {
    {"LlamaTokenizer", NULL, {"<unk>", "<s>", "</s>"}},
    {"GemmaTokenizer", "gemma", {"<unk>", "<bos>", "<eos>", "<pad>", "<mask>"}},
};

/* The files beside a SentencePiece file; a missing one is NULL. */
typedef struct beside {
    hy_json *config, *map, *added, *model;
    const piece_class *class;              /* NULL: the configuration names none */
    const hy_json_node *settings, *listed; /* of the configuration: all, and added_tokens_decoder */
    const hy_json_node *roles[ROLES];      /* flags of the named tokens; may be NULL */
    const hy_json_node *extras;    /* further special tokens of the configuration; may be NULL */
    bool has_extras;               /* the configuration has such a list */
    const char *role_texts[ROLES]; /* NULL: no such token */
} beside;

static const hy_json_node *root_of(const hy_json *json) { return json ? hy_json_root(json) : NULL; }

static void find_extras(beside *b) {
    const hy_json_node *extra = hy_json_get(b->settings, "extra_special_tokens");
    const hy_json_node *older = hy_json_get(b->settings, "additional_special_tokens");
    b->extras = hy_json_size(extra) > 0 ? extra : older;
    b->has_extras = (extra || older) && hy_json_type_of(b->extras) != HY_JSON_OBJECT;
    if (!b->has_extras) b->extras = NULL;
}

static void find_roles(beside *b) {
    for (int i = 0; i < ROLES; i++) {
        const hy_json_node *node = hy_json_get(b->settings, role_keys[i]);
        const hy_json_node *older = hy_json_get(root_of(b->map), role_keys[i]);
        if (older && !b->listed) node = older;
        if (b->class) b->role_texts[i] = b->class->roles[i];
        if (node) b->role_texts[i] = NULL;
        b->roles[i] = hy_json_type_of(node) == HY_JSON_OBJECT ? node : NULL;
        if (b->roles[i]) node = hy_json_get(node, "content");
        (void)hy_json_as_string(node, &b->role_texts[i], NULL);
    }
}

static hy_status read_beside(const hy_pieces *m, const char *folder, beside *b) {
    const char *name = NULL, *model = "";
    HY_TRY(hy_tokenizer_read_beside(folder, "tokenizer_config.json", &b->config));
    HY_TRY(hy_tokenizer_read_beside(folder, "special_tokens_map.json", &b->map));
    HY_TRY(hy_tokenizer_read_beside(folder, "added_tokens.json", &b->added));
    HY_TRY(hy_tokenizer_read_beside(folder, "config.json", &b->model));
    b->settings = root_of(b->config);
    b->listed = hy_json_get(b->settings, "added_tokens_decoder");
    /* our own export: tokenizer.json, which the class is for, has the same meaning */
    if (hy_json_get(b->settings, HY_SOURCE_FILE)) return HY_OK;
    (void)hy_json_as_string(hy_json_get(root_of(b->model), "model_type"), &model, NULL);
    (void)hy_json_as_string(hy_json_get(b->settings, "tokenizer_class"), &name, NULL);
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        const char *begins = classes[i].model;
        bool is_model = begins && !name && m->type == HY_PIECES_BPE &&
                        strncmp(model, begins, strlen(begins)) == 0;
        if (is_model || (name && hy_tokenizer_is_class(name, classes[i].name)))
            b->class = &classes[i];
    }
    HY_FAIL_IF(name && (!b->class || m->type != HY_PIECES_BPE), HY_ERR_INPUT,
               "%s: tokenizer_config.json names the tokenizer_class %.60s for a SentencePiece file "
               "with %s pieces; without a tokenizer.json, only LlamaTokenizer and GemmaTokenizer "
               "with BPE pieces are supported (without a tokenizer_class, the file means what the "
               "sentencepiece library makes of it)",
               m->name, name, m->type == HY_PIECES_BPE ? "BPE" : "Unigram or character");
    if (b->class) find_extras(b);
    return HY_OK;
}

static bool has_role(const beside *b, const char *text) {
    for (int i = 0; i < ROLES; i++) {
        if (b->role_texts[i] && strcmp(b->role_texts[i], text) == 0) return true;
    }
    return false;
}

static const char *content_of(const hy_json_node *node) {
    const char *text = NULL;
    if (hy_json_type_of(node) == HY_JSON_OBJECT) node = hy_json_get(node, "content");
    (void)hy_json_as_string(node, &text, NULL);
    return text;
}

static bool is_extra(const beside *b, const char *text) {
    for (const hy_json_node *n = hy_json_first(b->extras); n; n = hy_json_next(n)) {
        const char *one = content_of(n);
        if (one && strcmp(one, text) == 0) return true;
    }
    return false;
}

/* The added tokens that are written, and the id for the next new one. */
typedef struct added_list {
    const hy_pieces *model;
    hy_json_writer *w;
    bool *has_piece; /* (pieces) */
    int64_t next;
} added_list;

/* Puts a token, which is a piece or has the id `id` (-1: the next free one). */
static void put_token(added_list *list, const char *text, int64_t id, const hy_json_node *flags,
                      bool is_special, bool is_normalized) {
    int32_t piece = hy_vocab_find(&list->model->vocab, text, strlen(text));
    if (piece >= 0 && list->has_piece[piece]) return;
    if (piece >= 0) list->has_piece[piece] = true;
    if (piece >= 0) id = piece;
    if (id < 0) id = list->next;
    if (id >= list->next) list->next = id < INT32_MAX ? id + 1 : INT32_MAX;
    hy_tokenizer_put_added(list->w, id, text, flags, is_special, is_normalized);
}

static bool is_listed(const beside *b, const char *text) {
    for (const hy_json_node *n = hy_json_first(b->listed); n; n = hy_json_next(n)) {
        const char *one = content_of(n);
        if (one && strcmp(one, text) == 0) return true;
    }
    return !b->listed && hy_json_get(root_of(b->added), text);
}

/* Puts the tokens of added_tokens_decoder, or else of added_tokens.json. */
static void put_listed(const beside *b, added_list *list) {
    int64_t id;
    for (const hy_json_node *n = hy_json_first(b->listed); n; n = hy_json_next(n)) {
        const char *text = content_of(n);
        bool is_special = false;
        if (!text) continue;
        (void)hy_json_as_bool(hy_json_get(n, "special"), &is_special);
        is_special = is_special || has_role(b, text);
        put_token(list, text, strtoll(hy_json_key(n), NULL, 10), n, is_special, !is_special);
    }
    const hy_json_node *older = b->listed ? NULL : root_of(b->added);
    for (const hy_json_node *n = hy_json_first(older); n; n = hy_json_next(n)) {
        const char *text = hy_json_key(n);
        bool is_special = has_role(b, text) || is_extra(b, text);
        if (hy_json_as_int(n, &id)) put_token(list, text, id, NULL, is_special, !is_special);
    }
}

/* In the order in which transformers gives new ids: listed tokens, named tokens, and those that the
 * configuration lists as special, or else the pieces that are not normal text. */
static void put_added_tokens(const beside *b, added_list *list) {
    const hy_pieces *m = list->model;
    hy_json_open_array(list->w, "added_tokens");
    put_listed(b, list);
    for (int i = 0; i < ROLES; i++) {
        const char *text = b->role_texts[i];
        bool is_done = !text || is_listed(b, text);
        for (int k = 0; k < i && !is_done; k++) {
            is_done = b->role_texts[k] && strcmp(b->role_texts[k], text) == 0;
        }
        if (!is_done) put_token(list, text, -1, b->roles[i], true, false);
    }
    for (const hy_json_node *n = hy_json_first(b->extras); n; n = hy_json_next(n)) {
        const char *text = content_of(n);
        bool is_done = !text || is_listed(b, text) || has_role(b, text);
        if (!is_done) put_token(list, text, -1, n, true, false);
    }
    for (int32_t i = 0; i < m->count && !b->has_extras; i++) {
        if (m->types[i] != HY_PIECE_CONTROL && m->types[i] != HY_PIECE_USER_DEFINED) continue;
        put_token(list, hy_piece_text(m, i), i, NULL, m->types[i] == HY_PIECE_CONTROL, false);
    }
    hy_json_close_array(list->w);
}

static bool setting(const beside *b, const char *key, bool fallback) {
    (void)hy_json_as_bool(hy_json_get(b->settings, key), &fallback);
    return fallback;
}

static void put_llama_steps(const beside *b, hy_json_writer *w) {
    bool has_prefix = setting(b, "add_prefix_space", true);
    const char *scheme = setting(b, "legacy", false) ? "always" : "first";
    hy_text_addf(w->text,
                 "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"" HY_BLANK
                 "\", \"prepend_scheme\": \"%s\", \"split\": false}, ",
                 has_prefix ? scheme : "never");
    hy_pieces_put_decoder(w->text, has_prefix);
}

#define SEQUENCE(name) "{\"Sequence\": {\"id\": \"" name "\", \"type_id\": 0}}"
#define SPECIAL(name) "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": 0}}"

/* The template: the tokens that begin and end a text, if the configuration asks for them. */
static hy_status put_template(const hy_pieces *m, const beside *b, hy_json_writer *w) {
    int32_t ids[2] = {-1, -1};
    for (int i = 0; i < 2; i++) {
        const char *text = b->role_texts[1 + i];
        if (!setting(b, i ? "add_eos_token" : "add_bos_token", false)) continue;
        ids[i] = text ? hy_vocab_find(&m->vocab, text, strlen(text)) : -1;
        /* without a class, the settings may be another tokenizer's */
        HY_FAIL_IF(ids[i] < 0 && b->class, HY_ERR_INPUT,
                   "%s: tokenizer_config.json sets %s, but the %s is not a piece", m->name,
                   i ? "add_eos_token" : "add_bos_token", role_keys[1 + i]);
    }
    hy_text_add(w->text, "\"post_processor\": ");
    if (ids[0] < 0 && ids[1] < 0) {
        hy_text_add(w->text, "null, ");
        return HY_OK;
    }
    hy_text_addf(w->text,
                 "{\"type\": \"TemplateProcessing\", \"single\": [%s" SEQUENCE(
                     "A") "%s], "
                          "\"pair\": [" SEQUENCE("A") ", " SEQUENCE("B") "], \"special_tokens\": {",
                 ids[0] < 0 ? "" : SPECIAL("bos") ", ", ids[1] < 0 ? "" : ", " SPECIAL("eos"));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "eos" : "bos";
        if (ids[i] >= 0)
            hy_text_addf(w->text, "%s\"%s\": {\"id\": \"%s\", \"ids\": [%d], \"tokens\": [\"%s\"]}",
                         i && ids[0] >= 0 ? ", " : "", name, name, ids[i], name);
    }
    hy_text_add(w->text, "}}, ");
    return HY_OK;
}

static hy_status write_transformers(const hy_pieces *m, const beside *b, hy_json_writer *w) {
    added_list list = {m, w, calloc((size_t)m->count, sizeof(bool)), m->count};
    bool is_gemma = b->class == &classes[1];
    if (!list.has_piece) return hy_fail(HY_ERR_MEMORY, "not enough memory for %d pieces", m->count);
    if (is_gemma) {
        hy_text_add(w->text, "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": "
                             "\" \"}, \"content\": \"" HY_BLANK "\"}, ");
        hy_pieces_put_decoder(w->text, false);
    } else {
        put_llama_steps(b, w);
    }
    put_added_tokens(b, &list);
    free(list.has_piece);
    hy_json_open_object(w, "model");
    hy_json_put_string(w, "type", "BPE");
    hy_json_put_string(w, "unk_token", is_gemma ? b->role_texts[0] : NULL);
    hy_json_put_bool(w, "fuse_unk", true);
    hy_json_put_bool(w, "byte_fallback", true);
    hy_pieces_put_vocab(m, w);
    hy_json_put_bool(w, "split_ranks", true);
    hy_json_open_array(w, "scores"); /* pieces merge in the order of their ids */
    for (int32_t i = 0; i < m->count; i++) hy_json_put_int(w, NULL, -i);
    hy_json_close_array(w);
    hy_json_close_object(w);
    return HY_OK;
}

hy_status hy_pieces_write_class(const hy_pieces *m, const char *folder, const int32_t ends[2],
                                hy_json_writer *w, const char **class) {
    beside b = {0};
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) b.role_texts[1 + i] = hy_piece_text(m, ends[i]);
    }
    hy_status status = read_beside(m, folder, &b);
    *class = b.class ? b.class->name : NULL;
    if (status == HY_OK) {
        find_roles(&b);
        status = put_template(m, &b, w);
    }
    if (status == HY_OK && b.class) status = write_transformers(m, &b, w);
    hy_json_free(b.config);
    hy_json_free(b.map);
    hy_json_free(b.added);
    hy_json_free(b.model);
    return status;
}
