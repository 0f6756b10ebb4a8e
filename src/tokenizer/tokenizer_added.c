/* tokenizer_added.c: added tokens found in a text: the first place, and there the longest.
 *
 * The tokens of a set are sorted, so that those that begin alike lie together: a search at one place
 * narrows the range byte by byte. A place whose byte begins no token costs one look. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

static int compare(const void *a, const void *b) {
    const hy_added *x = a, *y = b;
    size_t both = x->size < y->size ? x->size : y->size;
    int order = memcmp(x->text, y->text, both);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

hy_status hy_added_set_init(hy_added_set *set, const hy_added *tokens, size_t count,
                            bool of_normalized) {
    *set = (hy_added_set){.tokens = calloc(count ? count : 1, sizeof *set->tokens)};
    if (!set->tokens) return hy_fail(HY_ERR_MEMORY, "out of memory for %zu added tokens", count);
    for (size_t i = 0; i < count; i++) {
        if (tokens[i].is_normalized != of_normalized || tokens[i].size == 0) continue;
        hy_added *token = &set->tokens[set->count];
        *token = tokens[i];
        token->text = malloc(token->size);
        if (!token->text) return hy_fail(HY_ERR_MEMORY, "out of memory for an added token");
        memcpy(token->text, tokens[i].text, token->size);
        set->count++;
    }
    qsort(set->tokens, set->count, sizeof *set->tokens, compare);
    for (size_t b = 0, i = 0; b <= 256; b++) {
        while (i < set->count && (uint8_t)set->tokens[i].text[0] < b) i++;
        set->first[b] = i;
    }
    return HY_OK;
}

void hy_added_set_fini(hy_added_set *set) {
    for (size_t i = 0; i < set->count; i++) free(set->tokens[i].text);
    free(set->tokens);
    *set = (hy_added_set){0};
}

/* Of the tokens low .. high - 1, which share their first `depth` bytes and are longer: the first one
 * whose next byte is at least `byte`. */
static size_t narrow(const hy_added_set *set, size_t low, size_t high, size_t depth, int byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)set->tokens[middle].text[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static const hy_added *longest_at(const hy_added_set *set, const char *text, size_t size) {
    const hy_added *found = NULL;
    size_t low = set->first[(uint8_t)text[0]], high = set->first[(uint8_t)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        if (set->tokens[low].size == depth) found = &set->tokens[low]; /* of two equal, the last */
        while (low < high && set->tokens[low].size == depth) low++;
        if (depth == size) break;
        int byte = (uint8_t)text[depth];
        low = narrow(set, low, high, depth, byte);
        high = narrow(set, low, high, depth, byte + 1);
    }
    return found;
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

bool hy_added_find(const hy_added_set *set, const char *text, size_t size, size_t from,
                   bool without_special, hy_added_match *match) {
    for (size_t i = from; set->count && i < size;) {
        uint8_t byte = (uint8_t)text[i];
        const hy_added *token =
            set->first[byte] < set->first[byte + 1] ? longest_at(set, text + i, size - i) : NULL;
        if (!token) {
            i++;
            continue;
        }
        bool counts = !(token->is_special && without_special) &&
                      (!token->is_single_word || stands_alone(text, size, i, i + token->size));
        if (counts) {
            *match = (hy_added_match){i, i + token->size, token};
            uint32_t code;
            while (match->token->strips_left && match->begin > from) {
                int length = hy_unicode_previous(text, match->begin, &code);
                if (hy_unicode_class_of(code) != HY_UNICODE_SPACE) break;
                match->begin -= (size_t)length;
            }
            while (match->token->strips_right && match->end < size) {
                int length = hy_unicode_next(text + match->end, size - match->end, &code);
                if (hy_unicode_class_of(code) != HY_UNICODE_SPACE) break;
                match->end += (size_t)length;
            }
            return true;
        }
        i += token->size; /* one that does not count still covers its text */
    }
    return false;
}
