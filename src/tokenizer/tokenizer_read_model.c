/* tokenizer_read_model.c: reads the vocabulary and merges of a tokenizer.json.
 *
 * Memory is a small multiple of the file, so the largest id must not be much larger than the number
 * of tokens. Every merge must join two tokens, neither of them empty, into a third, so merging
 * always ends. */
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

/* ---- settings -------------------------------------------------------------------------------- */

/* Null, false, zero and the empty string count as absent. */
static bool is_absent(const hy_json_node *node) {
    const char *text;
    size_t size;
    double number;
    bool is_set;
    if (hy_json_as_bool(node, &is_set)) return !is_set;
    if (hy_json_as_string(node, &text, &size)) return size == 0;
    if (hy_json_as_double(node, &number)) return number == 0;
    return hy_json_type_of(node) == HY_JSON_NULL;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

#define TOKEN_MAX 65536 /* bytes; keeps a text of few ids from filling the memory */

typedef struct extent {
    size_t tokens, bytes;
    int64_t largest; /* largest id; -1: none */
} extent;

static hy_status extend(const hy_tokenizer *t, extent *e, const char *text, size_t size,
                        const hy_json_node *id_node) {
    int64_t id;
    HY_FAIL_IF(!hy_json_as_int(id_node, &id) || id < 0 || id > INT32_MAX - 1, HY_ERR_INPUT,
               "%s: the id of token \"%.60s\" must be an integer of at least 0", t->name, text);
    HY_FAIL_IF(size > TOKEN_MAX, HY_ERR_INPUT,
               "%s: the token \"%.60s...\" has %zu bytes; the limit is %d", t->name, text, size,
               TOKEN_MAX);
    e->tokens++;
    e->bytes += size;
    if (id > e->largest) e->largest = id;
    return HY_OK;
}

static hy_status measure(const hy_tokenizer *t, const hy_json_node *vocab,
                         const hy_json_node *added, extent *e) {
    *e = (extent){.largest = -1};
    for (const hy_json_node *m = hy_json_first(vocab); m; m = hy_json_next(m)) {
        HY_TRY(extend(t, e, hy_json_key(m), hy_json_key_size(m), m));
    }
    for (const hy_json_node *a = hy_json_first(added); a; a = hy_json_next(a)) {
        const char *text;
        size_t size;
        HY_FAIL_IF(!hy_json_as_string(hy_json_get(a, "content"), &text, &size), HY_ERR_INPUT,
                   "%s: an entry of added_tokens has no content", t->name);
        HY_TRY(extend(t, e, text, size, hy_json_get(a, "id")));
    }
    int64_t limit = 4 * (int64_t)e->tokens + 1024;
    HY_FAIL_IF(e->largest >= limit, HY_ERR_INPUT,
               "%s: id %lld is too large for a vocabulary of %zu tokens; expected ids below %lld",
               t->name, (long long)e->largest, e->tokens, (long long)limit);
    return HY_OK;
}

static hy_status add_token(hy_tokenizer *t, const char *text, size_t size,
                           const hy_json_node *id_node, bool is_added) {
    int64_t id = 0;
    hy_json_as_int(id_node, &id);
    if (hy_vocab_add(&t->vocab, text, size, (int32_t)id)) return HY_OK;
    if (is_added && hy_vocab_find(&t->vocab, text, size) == id) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s: token \"%.60s\" has the id %lld, but another token has the same text or id",
                   t->name, text, (long long)id);
}

/* ---- merges ---------------------------------------------------------------------------------- */

#define JOINED_BYTES 4096

typedef struct merge_reader {
    hy_tokenizer *tokenizer;
    uint32_t rank; /* of the next merge */
    char *joined;  /* the text of the joined token */
    size_t room;
    bool crosses_blanks; /* some merge puts U+2581 after another character */
} merge_reader;

static hy_status fail_merge(const merge_reader *r, const char *what) {
    return hy_fail(HY_ERR_INPUT, "%s: merge number %u: %s", r->tokenizer->name, r->rank + 1, what);
}

bool hy_crosses_blank(const char *text, size_t size) {
    static const char blank[] = HY_BLANK;
    for (size_t i = 1; i + 3 <= size; i++) {
        if (memcmp(text + i, blank, 3) != 0) continue;
        if (i < 3 || memcmp(text + i - 3, blank, 3) != 0) return true;
    }
    return false;
}

static hy_status add_merge(merge_reader *r, const char *left, size_t left_size, const char *right,
                           size_t right_size) {
    hy_tokenizer *t = r->tokenizer;
    size_t size = left_size + right_size;
    if (left_size == 0 || right_size == 0) return fail_merge(r, "one of its parts is empty");
    HY_TRY(hy_array_reserve(&r->joined, &r->room, size, 1, "merges"));
    memcpy(r->joined, left, left_size);
    memcpy(r->joined + left_size, right, right_size);
    int32_t left_id = hy_vocab_find(&t->vocab, left, left_size),
            right_id = hy_vocab_find(&t->vocab, right, right_size),
            id = hy_vocab_find(&t->vocab, r->joined, size);
    if (left_id < 0 || right_id < 0 || id < 0) {
        return fail_merge(r, "both parts and the joined token must be in the vocabulary");
    }
    hy_merges_put(&t->merges, left_id, right_id, r->rank++, id);
    if (!t->is_byte_level && !r->crosses_blanks)
        r->crosses_blanks = hy_crosses_blank(r->joined, size);
    return HY_OK;
}

/* Reads a merge: "a b", or ["a", "b"]. */
static hy_status read_merge(merge_reader *r, const hy_json_node *node) {
    static const char form[] = "expected \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]";
    const hy_json_node *first = hy_json_first(node);
    const char *left, *right = NULL;
    size_t size, right_size = 0;
    bool is_pair = false;
    if (hy_json_as_string(node, &left, &size)) {
        right = memchr(left, ' ', size);
        if (right) {
            right_size = size - (size_t)(++right - left);
            size -= right_size + 1;
        }
        is_pair = right && !memchr(right, ' ', right_size);
    } else if (hy_json_type_of(node) == HY_JSON_ARRAY && hy_json_size(node) == 2) {
        is_pair = hy_json_as_string(first, &left, &size) &&
                  hy_json_as_string(hy_json_next(first), &right, &right_size);
    }
    if (!is_pair) return fail_merge(r, form);
    return add_merge(r, left, size, right, right_size);
}

static hy_status read_merges(hy_tokenizer *t, const hy_json_node *merges) {
    HY_FAIL_IF(hy_json_type_of(merges) != HY_JSON_ARRAY, HY_ERR_INPUT,
               "%s: model.merges must be an array", t->name);
    HY_TRY(hy_merges_init(&t->merges, hy_json_size(merges)));
    merge_reader r = {.tokenizer = t};
    hy_status status = hy_array_reserve(&r.joined, &r.room, JOINED_BYTES, 1, "merges");
    for (const hy_json_node *m = hy_json_first(merges); m && status == HY_OK; m = hy_json_next(m)) {
        status = read_merge(&r, m);
    }
    free(r.joined);
    t->cuts_blanks = !t->is_byte_level && !r.crosses_blanks;
    return status;
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Finds the tokens of single bytes; returns whether all exist. */
static bool find_bytes(hy_tokenizer *t) {
    bool has_all = true;
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        int size = snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        if (t->is_byte_level) size = hy_utf8_encode(hy_byte_spelling((uint8_t)byte), text);
        t->byte_id[byte] = hy_vocab_find(&t->vocab, text, (size_t)size);
        has_all = has_all && t->byte_id[byte] >= 0;
    }
    return has_all;
}

hy_status hy_tokenizer_read_model(hy_tokenizer *t, const hy_json_node *model,
                                  const hy_json_node *added) {
    const char *unknown;
    size_t size;
    static const char known[] =
        " type vocab merges unk_token fuse_unk byte_fallback ignore_merges scores split_ranks ";
    const hy_json_node *scores = hy_json_get(model, "scores"); /* see tokenizer_sentencepiece.h */
    const char *type = "BPE";                                  /* old files have no type */
    HY_FAIL_IF(hy_json_type_of(model) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "%s: the key \"model\" is missing", t->name);
    hy_json_as_string(hy_json_get(model, "type"), &type, NULL);
    bool is_known = strcmp(type, "BPE") == 0 || (strcmp(type, "Unigram") == 0 && scores);
    HY_FAIL_IF(!is_known, HY_ERR_INPUT,
               "%s: the model has the type \"%.60s\"; only BPE is supported", t->name, type);
    for (const hy_json_node *m = hy_json_first(model); m; m = hy_json_next(m)) {
        HY_FAIL_IF(!is_absent(m) && !hy_word_is_in(known, hy_json_key(m)), HY_ERR_INPUT,
                   "%s: model has the key \"%.60s\", which changes the tokens and is not supported",
                   t->name, hy_json_key(m));
    }
    HY_TRY(hy_tokenizer_read_bool(t, model, "byte_fallback", false, &t->has_byte_fallback));
    HY_TRY(hy_tokenizer_read_bool(t, model, "fuse_unk", false, &t->fuses_unknown));
    HY_TRY(hy_tokenizer_read_bool(t, model, "ignore_merges", false, &t->ignores_merges));
    const hy_json_node *vocab = hy_json_get(model, "vocab");
    extent e;
    HY_FAIL_IF(hy_json_type_of(vocab) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "%s: model.vocab must be an object that maps tokens to ids", t->name);
    HY_TRY(measure(t, vocab, added, &e));
    if (e.tokens == 0) return hy_fail(HY_ERR_INPUT, "%s: the vocabulary is empty", t->name);
    HY_TRY(hy_vocab_init(&t->vocab, (int32_t)e.largest + 1, e.tokens, e.bytes));
    for (const hy_json_node *m = hy_json_first(vocab); m; m = hy_json_next(m)) {
        HY_TRY(add_token(t, hy_json_key(m), hy_json_key_size(m), m, false));
    }
    HY_TRY(scores ? hy_tokenizer_read_scores(t, model)
                  : read_merges(t, hy_json_get(model, "merges")));
    bool has_all_bytes = find_bytes(t) && t->has_byte_fallback;
    t->unknown = -1;
    if (hy_json_as_string(hy_json_get(model, "unk_token"), &unknown, &size) && size > 0) {
        t->unknown = hy_vocab_find(&t->vocab, unknown, size);
        HY_FAIL_IF(t->unknown < 0, HY_ERR_INPUT,
                   "%s: model.unk_token \"%.60s\" is not in the vocabulary", t->name, unknown);
    }
    /* Then a blank is always a symbol of its own, and so is the character before it. (If a
     * character could be dropped, two blanks could become neighbours.) */
    bool knows_blank = hy_vocab_find(&t->vocab, HY_BLANK, 3) >= 0;
    t->cuts_blanks =
        t->cuts_blanks && knows_blank && !t->ignores_merges && (t->unknown >= 0 || has_all_bytes);
    for (const hy_json_node *a = hy_json_first(added); a; a = hy_json_next(a)) {
        const char *text = "";
        hy_json_as_string(hy_json_get(a, "content"), &text, &size);
        HY_TRY(add_token(t, text, size, hy_json_get(a, "id"), true));
    }
    return HY_OK;
}
