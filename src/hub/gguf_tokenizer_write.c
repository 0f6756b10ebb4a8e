/* gguf_tokenizer_write.c: writes a tokenizer for llama.cpp. See gguf_tokenizer.h.
 *
 * All tokenizers are read as the text of a tokenizer.json (hy_tokenizer_json). What llama.cpp does
 * with a text is derived from its steps: their names and patterns identify the split. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/say.h"
#include "base/utf8.h"
#include "hub/end_tokens.h"
#include "hub/gguf_tokenizer.h"
#include "hub/hf_folder.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_vocab_files.h"

typedef struct vocabulary {
    const char *path; /* of the tokenizer */
    const hy_observer *observer;
    hy_json *json;
    const hy_json_node *root, *model;
    hy_tokenizer *tokens;
    const char *kind, *split; /* tokenizer.ggml.model and .pre */
    bool has_prefix;          /* a blank comes before a text */
    int32_t count;            /* ids of the model */
    uint8_t *types;           /* (count) */
    bool *has_blanks;        /* (count) U+2581 in this added token stands for a blank of the text */
    float *scores;           /* (count) */
    const char *blank_after; /* the first added token that llama.cpp puts a blank behind */
    int32_t blanks_after;    /* the number of such tokens */
} vocabulary;

static const char *text_of(const hy_json_node *object, const char *key) {
    const char *text = "";
    (void)hy_json_as_string(hy_json_get(object, key), &text, NULL);
    return text;
}

static bool is_on(const hy_json_node *object, const char *key, bool fallback) {
    (void)hy_json_as_bool(hy_json_get(object, key), &fallback);
    return fallback;
}

/* ---- what the steps mean --------------------------------------------------------------------- */

/* Describes the steps of a normalizer or pre_tokenizer, one per line. */
static void describe(const hy_json_node *node, hy_text *out) {
    const char *type = text_of(node, "type"), *regex;
    const hy_json_node *list = hy_json_get(node, "pretokenizers");
    if (!list) list = hy_json_get(node, "normalizers");
    if (hy_json_type_of(node) == HY_JSON_NULL) return;
    if (strcmp(type, "Sequence") == 0) {
        for (list = hy_json_first(list); list; list = hy_json_next(list)) describe(list, out);
        return;
    }
    const hy_json_node *pattern = hy_json_get(node, "pattern");
    bool has_regex = hy_json_as_string(hy_json_get(pattern, "Regex"), &regex, NULL);
    if (strcmp(type, "ByteLevel") == 0) { /* spells bytes; alone it also splits */
        if (is_on(node, "add_prefix_space", true)) hy_text_add(out, "ByteLevel add_prefix_space\n");
        if (is_on(node, "use_regex", true)) hy_text_add(out, "ByteLevel\n");
    } else if (strcmp(type, "Split") == 0 && has_regex) {
        const char *behavior = text_of(node, "behavior");
        bool is_inverted = is_on(node, "invert", false);
        const char *usual = is_inverted ? "Removed" : "Isolated";
        bool is_usual = strcmp(behavior, usual) == 0;
        hy_text_addf(out, "Split %s%s%s\n", is_usual ? "" : behavior, is_usual ? "" : " ", regex);
    } else if (strcmp(type, "Digits") == 0) {
        hy_text_add(out,
                    is_on(node, "individual_digits", false) ? "Digits\n" : "Digits together\n");
    } else if (strcmp(type, "Replace") == 0 || strcmp(type, "Split") == 0) {
        hy_text_addf(out, "%s \"%s\" %s\n", type, text_of(pattern, "String"),
                     type[0] == 'R' ? text_of(node, "content") : text_of(node, "behavior"));
    } else if (strcmp(type, "Prepend") == 0) {
        hy_text_addf(out, "Prepend %s\n", text_of(node, "prepend"));
    } else if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = text_of(node, "prepend_scheme");
        if (!*scheme) scheme = is_on(node, "add_prefix_space", true) ? "always" : "never";
        hy_text_addf(out, "Metaspace %s %s\n", text_of(node, "replacement"), scheme);
    } else {
        bool has_map = text_of(node, "precompiled_charsmap")[0];
        bool collapses = is_on(node, "remove_extra_whitespaces", false);
        hy_text_addf(out, "%s%s%s\n", type, has_map ? " precompiled_charsmap" : "",
                     collapses ? " remove_extra_whitespaces" : "");
    }
}

/* Fails with what was found and what is accepted. */
static hy_status refuse_steps(const vocabulary *v, const char *part, const hy_text *found) {
    hy_text text = {0};
    hy_text_addf(&text, "the %s has ", part);
    for (size_t i = 0; i + 1 < found->size; i++) {
        hy_text_add_bytes(&text, found->data[i] == '\n' ? ", " : found->data + i,
                          found->data[i] == '\n' ? 2 : 1);
    }
    hy_text_add(&text,
                found->size ? "; accepted are those of " : "nothing; accepted are those of ");
    for (const hy_gguf_split *s = hy_gguf_splits; s->name; s++)
        hy_text_addf(&text, "%s, ", s->name);
    hy_text_add(&text, "and of SentencePiece's BPE and Unigram");
    hy_status status = hy_fail(HY_ERR_INPUT, "%s: llama.cpp cannot compute these tokens: %s",
                               v->path, hy_text_string(&text));
    hy_text_free(&text);
    return status;
}

static hy_status find_split(vocabulary *v, const hy_text *normal, const hy_text *split) {
    bool ignores_merges = is_on(v->model, "ignore_merges", false);
    bool has_nfc = strcmp(hy_text_string(normal), "NFC\n") == 0;
    v->kind = "gpt2";
    if (normal->size > 0 && !has_nfc) return refuse_steps(v, "normalizer", normal);
    if (has_nfc)
        hy_say_to(v->observer, HY_NOTE,
                  "the tokenizer brings text into form NFC; llama.cpp does not, so it may read "
                  "decomposed letters as other tokens");
    const hy_gguf_split *found = NULL;
    bool has_steps = false;
    for (const hy_gguf_split *s = hy_gguf_splits; s->name; s++) {
        if (strcmp(s->steps, hy_text_string(split)) != 0) continue;
        has_steps = true;
        if (s->ignores_merges != ignores_merges) continue;
        if (!found || (found->has_nfc != has_nfc && s->has_nfc == has_nfc)) found = s;
    }
    if (!has_steps) return refuse_steps(v, "pre_tokenizer", split);
    HY_FAIL_IF(!found, HY_ERR_INPUT,
               "%s: llama.cpp cannot compute these tokens: the tokenizer has ignore_merges %s, but "
               "llama.cpp has its pre_tokenizer only with %s",
               v->path, ignores_merges ? "true" : "false", ignores_merges ? "false" : "true");
    if (strstr(found->steps, "\\p{M}"))
        hy_say_to(
            v->observer, HY_NOTE,
            "llama.cpp splits words at combining marks, and the tokenizer does not, so a text "
            "with marks may have other tokens there");
    v->split = found->name;
    return HY_OK;
}

/* SentencePiece: blanks become U+2581, and perhaps one is put before a text. */
static hy_status find_blanks(vocabulary *v, const hy_text *normal, const hy_text *split) {
    const char *n = hy_text_string(normal), *s = hy_text_string(split);
    const hy_json_node *library = hy_json_get(v->root, "normalizer");
    bool is_unigram = strcmp(text_of(v->model, "type"), "Unigram") == 0;
    v->kind = is_unigram ? "t5" : "llama";
    v->split = "default";
    if (strncmp(n, "SentencePiece", 13) == 0 && !*s) {
        bool is_plain = strcmp(n, "SentencePiece\n") == 0;
        bool collapses = is_on(library, "remove_extra_whitespaces", false);
        v->has_prefix = is_on(library, "add_dummy_prefix", false);
        HY_FAIL_IF(collapses && !v->has_prefix, HY_ERR_INPUT,
                   "%s: llama.cpp cannot compute these tokens: remove_extra_whitespaces needs "
                   "add_dummy_prefix there",
                   v->path);
        return is_unigram || is_plain ? HY_OK : refuse_steps(v, "normalizer", normal);
    }
    bool is_replaced = strcmp(n, "Replace \" \" " HY_BLANK "\n") == 0;
    bool is_prefixed = strcmp(n, "Prepend " HY_BLANK "\nReplace \" \" " HY_BLANK "\n") == 0;
    bool is_metaspace = !*n && strncmp(s, "Metaspace " HY_BLANK " ", 14) == 0;
    bool splits = *s && !is_metaspace && strcmp(s, "Split \" \" MergedWithPrevious\n") != 0;
    if (!is_replaced && !is_prefixed && !is_metaspace) return refuse_steps(v, "normalizer", normal);
    if (splits) return refuse_steps(v, "pre_tokenizer", split);
    v->has_prefix = is_prefixed || (is_metaspace && strcmp(s + 14, "never\n") != 0);
    if (v->has_prefix && is_metaspace)
        hy_say_to(v->observer, HY_WARNING,
                  "llama.cpp puts a blank before every text%s; the tokenizer puts none before a "
                  "text that begins with a blank",
                  strcmp(s + 14, "first\n") == 0 ? " and after every special token (the tokenizer: "
                                                   "only at the start)"
                                                 : "");
    return HY_OK;
}

static bool has_byte_level(const hy_json_node *node) {
    const hy_json_node *list = hy_json_get(node, "pretokenizers");
    if (strcmp(text_of(node, "type"), "ByteLevel") == 0) return true;
    for (list = hy_json_first(list); list; list = hy_json_next(list)) {
        if (has_byte_level(list)) return true;
    }
    return false;
}

static hy_status identify(vocabulary *v) {
    hy_text normal = {0}, split = {0};
    const hy_json_node *splitting = hy_json_get(v->root, "pre_tokenizer");
    describe(hy_json_get(v->root, "normalizer"), &normal);
    describe(splitting, &split);
    hy_status status = hy_text_status(&normal);
    if (status == HY_OK) status = hy_text_status(&split);
    if (status == HY_OK)
        status = has_byte_level(splitting) ? find_split(v, &normal, &split)
                                           : find_blanks(v, &normal, &split);
    hy_text_free(&normal);
    hy_text_free(&split);
    return status;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool is_between(const char *text, const char *begin, const char *end) {
    return strncmp(text, begin, strlen(begin)) == 0 && hy_has_ending(text, end);
}

/* Tokenizers mark some control tokens as normal; llama.cpp's converter goes by their form, too. */
static bool looks_special(const char *text) {
    return hy_word_is_in(" <pad> <mask> <2mass> [@BOS@] ", text) || is_between(text, "<|", "|>") ||
           is_between(text, "<\xEF\xBD\x9C", "\xEF\xBD\x9C>") || is_between(text, "<unused", ">");
}

/* A piece that no map of characters changes, as far as one can see. */
static bool is_plain(const char *text) {
    for (; *text > ' ' && *text < 127; text++) {
        if (*text >= 'A' && *text <= 'Z') return false;
    }
    return !*text;
}

/* The type of an added token. llama.cpp cuts a text at those that are not normal, and may put a
 * blank before each part; a normaliser puts one before the whole text. In Unigram, user-defined
 * pieces compete by their scores, which a normal piece does as well. */
static hy_gguf_token_type type_of_added(vocabulary *v, const hy_json_node *added) {
    const char *text = text_of(added, "content");
    bool is_special = is_on(added, "special", false);
    bool is_inside = !is_special && is_on(added, "normalized", true) && v->has_prefix &&
                     hy_json_type_of(hy_json_get(v->root, "normalizer")) != HY_JSON_NULL;
    bool is_unigram = strcmp(v->kind, "t5") == 0;
    if (is_unigram && !is_special && is_plain(text)) return HY_GGUF_TOKEN_NORMAL;
    if (is_inside && v->blanks_after++ == 0) v->blank_after = text;
    return is_special || looks_special(text) ? HY_GGUF_TOKEN_CONTROL : HY_GGUF_TOKEN_USER_DEFINED;
}

static void set_types(vocabulary *v) {
    const hy_json_node *added = hy_json_first(hy_json_get(v->root, "added_tokens"));
    bool has_bytes = is_on(v->model, "byte_fallback", false), has_warned = false;
    int32_t unknown = hy_tokenizer_find(v->tokens, text_of(v->model, "unk_token"));
    for (int32_t id = 0; id < v->count; id++) {
        const char *text = hy_tokenizer_token(v->tokens, id, NULL);
        bool is_byte = has_bytes && text && strlen(text) == 6 && is_between(text, "<0x", ">");
        v->types[id] = !text     ? HY_GGUF_TOKEN_UNUSED
                       : is_byte ? HY_GGUF_TOKEN_BYTE
                                 : HY_GGUF_TOKEN_NORMAL;
    }
    for (; added; added = hy_json_next(added)) {
        const char *text = text_of(added, "content");
        int32_t id = hy_tokenizer_find(v->tokens, text);
        if (id < 0 || id >= v->count) continue;
        v->types[id] = type_of_added(v, added);
        v->has_blanks[id] = v->types[id] == HY_GGUF_TOKEN_USER_DEFINED &&
                            strcmp(v->kind, "llama") == 0 && is_on(added, "normalized", true);
        bool strips = is_on(added, "lstrip", false) || is_on(added, "rstrip", false) ||
                      is_on(added, "single_word", false);
        if (strips && !has_warned)
            hy_say_to(v->observer, HY_WARNING,
                      "llama.cpp ignores lstrip, rstrip and single_word, which the token %s has: "
                      "blanks beside it stay",
                      text);
        has_warned |= strips;
    }
    if (v->blanks_after > 0)
        hy_say_to(v->observer, HY_WARNING,
                  "llama.cpp puts a blank after %d added token%s (%s%s); the tokenizer does not",
                  v->blanks_after, v->blanks_after > 1 ? "s" : "", v->blank_after,
                  v->blanks_after > 1 ? " and others" : "");
    bool has_unknown = unknown >= 0 && unknown < v->count && strcmp(v->kind, "gpt2") != 0;
    if (has_unknown) v->types[unknown] = HY_GGUF_TOKEN_UNKNOWN;
}

/* The two halves of a merge, "a b" or ["a", "b"]. */
static bool read_merge(const hy_json_node *node, hy_text *left, hy_text *right) {
    const char *text, *second;
    const hy_json_node *first = hy_json_first(node);
    hy_text_clear(left);
    hy_text_clear(right);
    if (hy_json_as_string(node, &text, NULL)) {
        const char *blank = text[0] ? strchr(text + 1, ' ') : NULL;
        if (!blank) return false;
        hy_text_add_bytes(left, text, (size_t)(blank - text));
        hy_text_add(right, blank + 1);
        return true;
    }
    if (!hy_json_as_string(first, &text, NULL)) return false;
    if (!hy_json_as_string(hy_json_next(first), &second, NULL)) return false;
    hy_text_add(left, text);
    hy_text_add(right, second);
    return true;
}

/* In how many ways a token is two other tokens. */
static int64_t count_splits(const vocabulary *v, int32_t id, hy_text *part) {
    size_t size;
    int64_t count = 0;
    const char *text = hy_tokenizer_token(v->tokens, id, &size);
    for (size_t at = 1; at < size; at++) {
        if (((uint8_t)text[at] & 0xC0) == 0x80) continue;
        hy_text_clear(part);
        hy_text_add_bytes(part, text, at);
        bool has_left = hy_tokenizer_find(v->tokens, hy_text_string(part)) >= 0;
        count += has_left && hy_tokenizer_find(v->tokens, text + at) >= 0;
    }
    return count;
}

/* Is a token one character again and again? */
static bool is_run(const vocabulary *v, int32_t id) {
    size_t size;
    const char *text = hy_tokenizer_token(v->tokens, id, &size);
    size_t one = (size_t)hy_utf8_length((const uint8_t *)text, size);
    for (size_t at = one; at < size && one > 0; at += one) {
        if (size - at < one || memcmp(text, text + at, one) != 0) return false;
    }
    return one > 0;
}

/* The tokens that merges make, in order (-1: not a token), and the last merge of each token. */
static size_t list_merges(const vocabulary *v, int32_t *made, int32_t *last) {
    hy_text left = {0}, right = {0};
    size_t count = 0;
    const hy_json_node *n = hy_json_first(hy_json_get(v->model, "merges"));
    for (; n; n = hy_json_next(n), count++) {
        bool is_merge = read_merge(n, &left, &right);
        hy_text_add(&left, hy_text_string(&right));
        int32_t id = is_merge ? hy_tokenizer_find(v->tokens, hy_text_string(&left)) : -1;
        made[count] = id < v->count ? id : -1;
        if (made[count] >= 0) last[id] = (int32_t)count;
    }
    hy_text_free(&left);
    hy_text_free(&right);
    return count;
}

/* llama.cpp merges any two pieces that make a token, the one with the largest score first, and of
 * equal ones the left one. That is the list of merges if it has all such pairs and those of a token
 * one after the other. Runs of blanks have one score in SentencePiece, so their pairs are mixed. */
static bool follow_merges(vocabulary *v, const int32_t *made, const int32_t *last, size_t count) {
    hy_text part = {0};
    int64_t merges = 0, splits = 0, next = 0, end = -1;
    bool is_mixed = false, is_good = true;
    for (size_t i = 0; i < count; i++) {
        int32_t id = made[i];
        if (id < 0) continue;
        merges++;
        if ((int64_t)i > end) {
            next++;
            end = last[id];
            is_mixed = false;
        } else if (i > 0 && made[i - 1] != id) {
            is_mixed = true;
        }
        is_good &= !is_mixed || is_run(v, id);
        if (last[id] > end) end = last[id];
        if (!isnan(v->scores[id])) continue;
        v->scores[id] = -(float)(next - 1);
        splits += count_splits(v, id, &part);
    }
    for (int32_t id = 0; id < v->count; id++) {
        bool is_left = isnan(v->scores[id]) && v->types[id] == HY_GGUF_TOKEN_NORMAL;
        if (is_left) v->scores[id] = -(float)next++;
    }
    hy_text_free(&part);
    return is_good && merges == splits;
}

static hy_status score_merges(vocabulary *v) {
    size_t count = hy_json_size(hy_json_get(v->model, "merges"));
    int32_t *made = calloc(count + 1, sizeof *made);
    int32_t *last = calloc((size_t)v->count, sizeof *last);
    hy_status status = HY_OK;
    if (!made || !last) {
        status = hy_fail(HY_ERR_MEMORY, "not enough memory for %zu merges", count);
    } else if (!follow_merges(v, made, last, list_merges(v, made, last))) {
        status = hy_fail(HY_ERR_INPUT,
                         "%s: llama.cpp cannot compute these tokens: it merges pieces by their "
                         "scores, and this list of merges follows no scores",
                         v->path);
    }
    free(made);
    free(last);
    return status;
}

static hy_status set_scores(vocabulary *v) {
    const hy_json_node *scores = hy_json_get(v->model, "scores");
    const hy_json_node *n = hy_json_first(scores);
    for (int32_t id = 0; id < v->count; id++) {
        double score;
        v->scores[id] = hy_json_as_double(n, &score) ? (float)score : NAN;
        if (n) n = hy_json_next(n);
    }
    if (!scores) HY_TRY(score_merges(v));
    for (int32_t id = 0; id < v->count; id++) {
        uint8_t type = v->types[id];
        bool is_added = type == HY_GGUF_TOKEN_CONTROL || type == HY_GGUF_TOKEN_USER_DEFINED;
        if (!isnan(v->scores[id])) continue;
        if (scores && type == HY_GGUF_TOKEN_NORMAL) /* an unused piece of Unigram */
            v->types[id] = type = HY_GGUF_TOKEN_UNUSED;
        v->scores[id] = type == HY_GGUF_TOKEN_UNUSED ? -10000 : is_added ? -1000 : 0;
    }
    return HY_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* llama.cpp looks for user-defined tokens before blanks become U+2581. */
static void put_with_blanks(const char *text, hy_gguf_keys *keys) {
    hy_text spelled = {0};
    for (const char *at; (at = strstr(text, HY_BLANK)); text = at + strlen(HY_BLANK)) {
        hy_text_add_bytes(&spelled, text, (size_t)(at - text));
        hy_text_add(&spelled, " ");
    }
    hy_text_add(&spelled, text);
    hy_gguf_put_string(keys, NULL, hy_text_string(&spelled));
    hy_text_free(&spelled);
}

static void put_tokens(const vocabulary *v, hy_gguf_keys *keys) {
    hy_gguf_open_array(keys, "tokenizer.ggml.tokens", HY_GGUF_STRING, (uint64_t)v->count);
    for (int32_t id = 0; id < v->count; id++) {
        char pad[32];
        size_t size;
        const char *text = hy_tokenizer_token(v->tokens, id, &size);
        snprintf(pad, sizeof pad, "[PAD%d]", id);
        if (text && v->has_blanks[id])
            put_with_blanks(text, keys);
        else if (text)
            hy_gguf_put_bytes(keys, NULL, text, size);
        else
            hy_gguf_put_string(keys, NULL, pad);
    }
    hy_gguf_open_array(keys, "tokenizer.ggml.token_type", HY_GGUF_I32, (uint64_t)v->count);
    for (int32_t id = 0; id < v->count; id++)
        hy_gguf_put_int(keys, NULL, HY_GGUF_I32, v->types[id]);
    if (!v->scores) return;
    hy_gguf_open_array(keys, "tokenizer.ggml.scores", HY_GGUF_F32, (uint64_t)v->count);
    for (int32_t id = 0; id < v->count; id++) hy_gguf_put_f32(keys, NULL, v->scores[id]);
}

/* In the printable alphabet a blank is U+0120, and merges are written with a blank between. */
static void put_merges(const vocabulary *v, hy_gguf_keys *keys) {
    const hy_json_node *list = hy_json_get(v->model, "merges");
    hy_text left = {0}, right = {0};
    hy_gguf_open_array(keys, "tokenizer.ggml.merges", HY_GGUF_STRING, hy_json_size(list));
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        (void)read_merge(n, &left, &right); /* the tokenizer was opened: all are merges */
        hy_text_addf(&left, " %s", hy_text_string(&right));
        hy_gguf_put_string(keys, NULL, hy_text_string(&left));
    }
    hy_text_free(&left);
    hy_text_free(&right);
}

/* The id that tokenizer_config.json gives a role, such as pad_token; -1: none. */
static hy_status role_of(const vocabulary *v, const char *folder, const char *role, int32_t *out) {
    hy_json *config;
    *out = -1;
    HY_TRY(hy_tokenizer_read_beside(folder, "tokenizer_config.json", &config));
    const hy_json_node *node = config ? hy_json_get(hy_json_root(config), role) : NULL;
    const char *text;
    if (hy_json_type_of(node) == HY_JSON_OBJECT) node = hy_json_get(node, "content");
    if (hy_json_as_string(node, &text, NULL)) *out = hy_tokenizer_find(v->tokens, text);
    hy_json_free(config);
    return HY_OK;
}

static void put_id(const vocabulary *v, const char *key, int32_t id, hy_gguf_keys *keys) {
    if (id >= 0 && id < v->count) hy_gguf_put_int(keys, key, HY_GGUF_U32, id);
}

/* The special tokens, and which of them come before and after a text. */
static hy_status put_special(const vocabulary *v, const char *source, hy_gguf_keys *keys) {
    hy_ids around = {0};
    hy_end_tokens ends = {0};
    char folder[HY_HF_PATH_MAX];
    int32_t pad, bos = hy_tokenizer_bos(v->tokens), eos = hy_tokenizer_eos(v->tokens);
    bool is_whole = hy_path_is_dir(v->path) || hy_gguf_is_file(v->path);
    HY_TRY(is_whole ? hy_path_join(folder, sizeof folder, "", v->path)
                    : hy_path_parent(folder, sizeof folder, v->path));
    HY_TRY(role_of(v, folder, "pad_token", &pad));
    HY_TRY(hy_end_tokens_read(source, &ends));
    if (eos < 0 && ends.count > 0) eos = ends.ids[0];
    put_id(v, "tokenizer.ggml.bos_token_id", bos, keys);
    put_id(v, "tokenizer.ggml.eos_token_id", eos, keys);
    for (int32_t i = 0; i < ends.count; i++) {
        if (ends.ids[i] == eos) continue;
        put_id(v, "tokenizer.ggml.eot_token_id", ends.ids[i], keys);
        break;
    }
    int32_t unknown = hy_tokenizer_find(v->tokens, text_of(v->model, "unk_token"));
    put_id(v, "tokenizer.ggml.unknown_token_id", unknown, keys);
    put_id(v, "tokenizer.ggml.padding_token_id", pad, keys);
    hy_status status = hy_tokenizer_encode(v->tokens, "", 0, HY_TOKENS_SPECIAL, &around);
    bool has_bos = around.count > 0 && around.data[0] == bos;
    size_t others = around.count - (has_bos ? 1 : 0); /* bos and eos may be one token */
    bool has_eos = others > 0 && around.data[around.count - 1] == eos;
    hy_ids_free(&around);
    HY_TRY(status);
    hy_gguf_put_bool(keys, "tokenizer.ggml.add_bos_token", has_bos);
    hy_gguf_put_bool(keys, "tokenizer.ggml.add_eos_token", has_eos);
    return HY_OK;
}

static uint8_t nibble(char digit) {
    return (uint8_t)(digit <= '9' ? digit - '0' : digit - 'a' + 10);
}

/* How the normaliser of SentencePiece changes a text. */
static void put_normalizer(const vocabulary *v, hy_gguf_keys *keys) {
    const hy_json_node *node = hy_json_get(v->root, "normalizer");
    const char *map = text_of(node, "precompiled_charsmap");
    size_t bytes = strlen(map) / 2;
    hy_gguf_put_bool(keys, "tokenizer.ggml.add_space_prefix", v->has_prefix);
    if (strcmp(v->kind, "t5") != 0) return;
    hy_gguf_put_bool(keys, "tokenizer.ggml.remove_extra_whitespaces",
                     is_on(node, "remove_extra_whitespaces", false));
    if (bytes == 0) return;
    hy_gguf_open_array(keys, "tokenizer.ggml.precompiled_charsmap", HY_GGUF_U8, bytes);
    for (size_t i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)(nibble(map[2 * i]) << 4 | nibble(map[2 * i + 1]));
        hy_gguf_put_int(keys, NULL, HY_GGUF_U8, byte);
    }
}

static hy_status put_vocabulary(vocabulary *v, const char *source, hy_gguf_keys *keys) {
    bool has_scores = strcmp(v->kind, "gpt2") != 0;
    bool has_bytes = is_on(v->model, "byte_fallback", false);
    HY_FAIL_IF(has_scores && has_bytes != (strcmp(v->kind, "llama") == 0), HY_ERR_INPUT,
               "%s: llama.cpp cannot compute these tokens: it needs byte tokens in BPE, and none "
               "in Unigram",
               v->path);
    v->types = calloc((size_t)v->count, sizeof *v->types);
    v->has_blanks = calloc((size_t)v->count, sizeof *v->has_blanks);
    if (has_scores) v->scores = calloc((size_t)v->count, sizeof *v->scores);
    if (!v->types || !v->has_blanks || (has_scores && !v->scores))
        return hy_fail(HY_ERR_MEMORY, "not enough memory for %d tokens", v->count);
    set_types(v);
    if (has_scores) HY_TRY(set_scores(v));
    hy_gguf_put_string(keys, "tokenizer.ggml.model", v->kind);
    hy_gguf_put_string(keys, "tokenizer.ggml.pre", v->split);
    put_tokens(v, keys);
    if (has_scores)
        put_normalizer(v, keys);
    else
        put_merges(v, keys);
    return put_special(v, source, keys);
}

/* ---- chat template --------------------------------------------------------------------------- */

/* "chat_template" of a file: a string, or a list of which one is called default. */
static void find_template(const hy_json_node *node, hy_text *out) {
    const char *text;
    if (hy_json_as_string(node, &text, NULL)) {
        hy_text_add(out, text);
        return;
    }
    for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n)) {
        if (strcmp(text_of(n, "name"), "default") == 0) hy_text_add(out, text_of(n, "template"));
    }
}

/* The template in the model's folder; nothing if it has none. */
static hy_status read_template(const char *folder, hy_text *out) {
    static const char *const files[] = {"chat_template.json", "tokenizer_config.json"};
    char path[HY_HF_PATH_MAX];
    hy_file_map map;
    HY_TRY(hy_path_join(path, sizeof path, folder, "chat_template.jinja"));
    if (hy_path_exists(path)) {
        HY_TRY(hy_file_map_open(path, &map));
        hy_text_add_bytes(out, map.data ? (const void *)map.data : "", map.size);
        hy_file_map_close(&map);
    }
    for (int i = 0; i < 2 && out->size == 0; i++) {
        hy_json *json;
        HY_TRY(hy_tokenizer_read_beside(folder, files[i], &json));
        if (json) find_template(hy_json_get(hy_json_root(json), "chat_template"), out);
        hy_json_free(json);
    }
    return HY_OK;
}

/* The format of the rows, or else the template of the folder. */
static hy_status put_template(const hy_hf_writing *w, const hy_tokenizer *tokens,
                              hy_gguf_keys *keys) {
    hy_text text = {0};
    hy_chat_template chat = {0};
    hy_status status = HY_OK;
    const char *folder = w->source && w->source[0] ? w->source : NULL;
    if (hy_prompt_format_is_built_in(&w->prompt)) {
        status = hy_chat_template_open(HY_CHAT_AUTO, tokens, folder, &chat);
        chat.kind = w->prompt.chat;
        if (status == HY_OK) status = hy_chat_template_jinja(&chat, tokens, &text);
        if (status == HY_OK && text.size == 0)
            hy_say_to(w->observer, HY_WARNING,
                      "the file has no chat template: the rows were written as %s, which cannot be "
                      "one; choose that format in llama.cpp",
                      hy_chat_kind_name(w->prompt.chat));
        hy_chat_template_close(&chat);
    } else if (folder) {
        status = read_template(folder, &text);
    }
    if (status == HY_OK) status = hy_text_status(&text);
    if (status == HY_OK && text.size > 0)
        hy_gguf_put_string(keys, "tokenizer.chat_template", hy_text_string(&text));
    hy_text_free(&text);
    return status;
}

/* ---- all together ---------------------------------------------------------------------------- */

/* A model of bytes: byte-level BPE without merges; byte 0 ends a text. */
static void put_bytes(int32_t vocab, hy_gguf_keys *keys) {
    hy_gguf_put_string(keys, "tokenizer.ggml.model", "gpt2");
    hy_gguf_put_string(keys, "tokenizer.ggml.pre", "gpt-2");
    hy_gguf_open_array(keys, "tokenizer.ggml.tokens", HY_GGUF_STRING, (uint64_t)vocab);
    for (int32_t id = 0; id < vocab; id++) {
        char text[32];
        int size = id < 256 ? hy_utf8_encode(hy_byte_spelling((uint8_t)id), text)
                            : snprintf(text, sizeof text, "[PAD%d]", id);
        hy_gguf_put_bytes(keys, NULL, text, (size_t)size);
    }
    hy_gguf_open_array(keys, "tokenizer.ggml.token_type", HY_GGUF_I32, (uint64_t)vocab);
    for (int32_t id = 0; id < vocab; id++)
        hy_gguf_put_int(keys, NULL, HY_GGUF_I32,
                        id < 256 ? HY_GGUF_TOKEN_NORMAL : HY_GGUF_TOKEN_UNUSED);
    hy_gguf_open_array(keys, "tokenizer.ggml.merges", HY_GGUF_STRING, 0);
    hy_gguf_put_int(keys, "tokenizer.ggml.bos_token_id", HY_GGUF_U32, 0);
    hy_gguf_put_int(keys, "tokenizer.ggml.eos_token_id", HY_GGUF_U32, 0);
    hy_gguf_put_bool(keys, "tokenizer.ggml.add_bos_token", false);
    hy_gguf_put_bool(keys, "tokenizer.ggml.add_eos_token", false);
}

/* Names tokens with ids that the model does not have; `count`: the tokenizer's ids. */
static void warn_left_out(const vocabulary *v, int32_t count) {
    const char *first = NULL;
    int32_t missing = 0;
    for (int32_t id = v->count; id < count; id++) {
        const char *text = hy_tokenizer_token(v->tokens, id, NULL);
        if (text && missing++ == 0) first = text;
    }
    if (missing > 0)
        hy_say_to(v->observer, HY_WARNING,
                  "the model has %d ids, so %d added token%s left out: %s%s", v->count, missing,
                  missing > 1 ? "s of the tokenizer are" : " of the tokenizer is", first,
                  missing > 1 ? " and others" : "");
}

static hy_status open_vocabulary(vocabulary *v) {
    hy_text text = {0};
    hy_status status = hy_tokenizer_json(v->path, &text);
    if (status == HY_OK) status = hy_json_parse(text.data, text.size, v->path, &v->json);
    hy_text_free(&text);
    HY_TRY(status);
    v->root = hy_json_root(v->json);
    v->model = hy_json_get(v->root, "model");
    HY_TRY(hy_tokenizer_open(v->path, &v->tokens));
    int32_t count = hy_tokenizer_vocab(v->tokens);
    HY_FAIL_IF((int64_t)hy_json_size(hy_json_get(v->model, "vocab")) > v->count, HY_ERR_INPUT,
               "%s has %d tokens, but the model only %d", v->path, count, v->count);
    warn_left_out(v, count);
    return identify(v);
}

hy_status hy_gguf_put_tokenizer(const hy_hf_writing *w, int32_t vocab, hy_gguf_keys *keys) {
    char found[HY_HF_PATH_MAX] = "";
    const char *source = w->source ? w->source : "";
    bool is_named = w->tokenizer && w->tokenizer[0];
    if (!is_named && source[0]) HY_TRY(hy_tokenizer_file(source, found, sizeof found));
    vocabulary v = {
        .path = is_named ? w->tokenizer : found, .observer = w->observer, .count = vocab};
    if (!v.path[0]) {
        HY_FAIL_IF(vocab > HY_BYTE_VOCAB, HY_ERR_INPUT,
                   "the model has %d token ids and no tokenizer, and llama.cpp needs one; name the "
                   "model's folder (--base FOLDER), or train with --tokenizer",
                   vocab);
        hy_say_to(w->observer, HY_NOTE,
                  "the model has no tokenizer: its tokens are written as bytes");
        put_bytes(vocab, keys);
        return HY_OK;
    }
    hy_status status = open_vocabulary(&v);
    /* the end tokens of a folder are those of its own tokenizer */
    if (status == HY_OK) status = put_vocabulary(&v, is_named ? "" : source, keys);
    if (status == HY_OK) status = put_template(w, v.tokens, keys);
    hy_tokenizer_close(v.tokens);
    hy_json_free(v.json);
    free(v.types);
    free(v.has_blanks);
    free(v.scores);
    return status;
}
