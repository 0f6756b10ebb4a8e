/* tokenizer_added.c: finds added tokens in a text: the first position, and the longest token there.
 *
 * One automaton for all tokens (Aho-Corasick, of the reversed tokens) reads the text backwards,
 * block by block. Each byte costs a step or two, whatever the tokens are. Afterwards the longest
 * token that begins at each position of the block is known. A block is read only if it contains a
 * byte that some token begins with. */
#include <stdlib.h>

#include "base/array.h"
#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

#define BYTES_MAX (16 << 20) /* of all tokens of a set; a byte becomes a state of 20 bytes */
#define BLOCK 128 /* positions read at once, or the bytes of the longest token if that is more */

static inline uint8_t byte_from_end(const hy_added *token, size_t depth) {
    return (uint8_t)token->text[token->size - 1 - depth];
}

/* Orders by reversed text; of equal texts, the smaller id first, which is the one that is found. */
static int compare(const void *a, const void *b) {
    const hy_added *x = a, *y = b;
    for (size_t i = 0; i < x->size && i < y->size; i++) {
        int order = byte_from_end(x, i) - byte_from_end(y, i);
        if (order) return order;
    }
    if (x->size != y->size) return x->size > y->size ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The state after reading a byte. */
static inline uint32_t next_state(const hy_added_node *nodes, uint32_t at, uint8_t byte) {
    for (;; at = nodes[at].fallback) {
        uint32_t next = hy_added_follow(nodes, at, byte);
        if (next || at == 0) return next;
    }
}

/* Builds states by increasing depth, because the fallback of a state has a smaller depth and must
 * be complete first. Until a state is processed, its low and high are the tokens that pass through
 * it. */
static hy_status build(hy_added_set *set, size_t bytes) {
    const hy_added *tokens = set->tokens;
    hy_added_node *nodes = set->nodes = calloc(bytes + 1, sizeof *set->nodes);
    if (!nodes) return hy_fail(HY_ERR_MEMORY, "not enough memory for %zu added tokens", set->count);
    uint32_t made = 1, level = 1;
    size_t depth = 0;
    nodes[0].high = (uint32_t)set->count;
    for (uint32_t at = 0; at < made; at++) {
        if (at == level) {
            depth++;
            level = made;
        }
        uint32_t token = nodes[at].low, end = nodes[at].high;
        nodes[at].longest = nodes[nodes[at].fallback].longest;
        if (tokens[token].size == depth) nodes[at].longest = token + 1;
        while (token < end && tokens[token].size == depth) token++;
        nodes[at].low = made;
        while (token < end) {
            hy_added_node *child = &nodes[made++];
            child->byte = byte_from_end(&tokens[token], depth);
            child->low = token;
            while (token < end && byte_from_end(&tokens[token], depth) == child->byte) token++;
            child->high = token;
            if (at > 0) child->fallback = next_state(nodes, nodes[at].fallback, child->byte);
        }
        nodes[at].high = made;
    }
    return HY_OK;
}

hy_status hy_added_set_init(hy_added_set *set, const hy_added *tokens, size_t count,
                            hy_added_kind kind) {
    size_t bytes = 0;
    *set = (hy_added_set){.tokens = calloc(count ? count : 1, sizeof *set->tokens)};
    if (!set->tokens)
        return hy_fail(HY_ERR_MEMORY, "not enough memory for %zu added tokens", count);
    for (size_t i = 0; i < count; i++) {
        bool is_in = kind == HY_ADDED_SPECIAL
                         ? tokens[i].is_special
                         : tokens[i].is_normalized == (kind == HY_ADDED_NORMALIZED);
        if (!is_in || tokens[i].size == 0) continue;
        hy_added *token = &set->tokens[set->count];
        *token = tokens[i];
        token->text = malloc(token->size);
        if (!token->text) return hy_fail(HY_ERR_MEMORY, "not enough memory for an added token");
        memcpy(token->text, tokens[i].text, token->size);
        set->begins[(uint8_t)token->text[0]] = true;
        if (token->size > set->longest) set->longest = token->size;
        bytes += token->size;
        set->count++;
    }
    HY_FAIL_IF(bytes > BYTES_MAX, HY_ERR_INPUT,
               "the added tokens have %zu bytes in total; the limit is %d", bytes, BYTES_MAX);
    if (set->count == 0) return HY_OK;
    qsort(set->tokens, set->count, sizeof *set->tokens, compare);
    return build(set, bytes);
}

void hy_added_set_fini(hy_added_set *set) {
    for (size_t i = 0; i < set->count; i++) free(set->tokens[i].text);
    free(set->tokens);
    free(set->nodes);
    *set = (hy_added_set){0};
}

/* Reads the block at `at`. A token that begins in the block ends at most `longest` bytes after
 * it. */
static hy_status look_ahead(const hy_added_set *set, hy_added_search *search, const char *text,
                            size_t size, size_t at) {
    size_t block = set->longest > BLOCK ? set->longest : BLOCK;
    if (search->room < block) {
        HY_TRY(hy_array_reserve(&search->longest, &search->room, block, sizeof *search->longest,
                                "added tokens"));
    }
    search->begin = at;
    search->end = size - at > block ? at + block : size;
    size_t i = size - search->end > set->longest ? search->end + set->longest : size;
    uint32_t state = 0;
    while (i-- > at) {
        state = next_state(set->nodes, state, (uint8_t)text[i]);
        if (i < search->end) search->longest[i - at] = set->nodes[state].longest;
    }
    return HY_OK;
}

static bool stands_alone(const char *text, size_t size, size_t begin, size_t end) {
    uint32_t code;
    if (begin > 0) {
        hy_unicode_previous(text, begin, &code);
        if (hy_unicode_is_word(code)) return false;
    }
    if (end == size) return true;
    hy_unicode_next(text + end, size - end, &code);
    return !hy_unicode_is_word(code);
}

hy_status hy_added_find(const hy_added_set *set, hy_added_search *search, const char *text,
                        size_t size, size_t from, bool without_special, hy_added_match *match) {
    *match = (hy_added_match){0};
    for (size_t i = from; set->count && i < size;) {
        if (!set->begins[(uint8_t)text[i]]) {
            i++;
            continue;
        }
        if (i >= search->end) HY_TRY(look_ahead(set, search, text, size, i));
        uint32_t found = search->longest[i - search->begin];
        if (!found) {
            i++;
            continue;
        }
        const hy_added *token = &set->tokens[found - 1];
        size_t end = i + token->size;
        bool counts = !(token->is_special && without_special) &&
                      (!token->is_single_word || stands_alone(text, size, i, end));
        if (!counts) { /* the text it covers is skipped all the same */
            i = end;
            continue;
        }
        *match = (hy_added_match){i, end, token};
        uint32_t code;
        while (token->strips_left && match->begin > from) {
            size_t length = hy_unicode_previous(text, match->begin, &code);
            if (hy_unicode_class_of(code) != HY_UNICODE_SPACE) break;
            match->begin -= length;
        }
        while (token->strips_right && match->end < size) {
            size_t length = hy_unicode_next(text + match->end, size - match->end, &code);
            if (hy_unicode_class_of(code) != HY_UNICODE_SPACE) break;
            match->end += length;
        }
        return HY_OK;
    }
    return HY_OK;
}
