/* tokenizer_cut.c: where a long text may be cut so that its parts, encoded apart, give the same ids.
 *
 * That is known for the hand-written splitters: a line that ends in something other than a blank,
 * followed by a letter of ASCII. There no word, no merge and no normalisation reaches across, unless
 * an added token holds a newline or strips blanks. Other tokenizers have no such place. */
#include "tokenizer/tokenizer_parts.h"

static bool is_letter(char c) { return (unsigned)((c | 32) - 'a') < 26; }

static bool leaves_lines_alone(const hy_added_set *set) {
    for (size_t i = 0; i < set->count; i++) {
        const hy_added *token = &set->tokens[i];
        if (token->strips_left || token->strips_right || token->is_single_word) return false;
        if (memchr(token->text, '\n', token->size)) return false;
    }
    return true;
}

static bool has_places(const hy_tokenizer *t) {
    const hy_step *step = &t->splitting.step[0];
    bool splits_lines = t->splitting.count > 0 && step->kind == HY_STEP_SPLIT && step->splitter &&
                        !step->is_inverted && step->behavior == HY_ISOLATED;
    for (int i = 0; i < t->normalizer.count; i++) {
        if (t->normalizer.step[i].kind != HY_STEP_NFC) return false;
    }
    for (int i = 1; i < t->splitting.count; i++) {
        hy_step_kind kind = t->splitting.step[i].kind;
        if (kind != HY_STEP_SPLIT && kind != HY_STEP_DIGITS) return false;
    }
    return splits_lines && leaves_lines_alone(&t->raw) && leaves_lines_alone(&t->normalized);
}

size_t hy_tokenizer_cut(const hy_tokenizer *t, const char *text, size_t size, size_t from) {
    if (!has_places(t)) return size;
    for (size_t i = from < 2 ? 2 : from; i < size; i++) {
        const char *line = memchr(text + i - 1, '\n', size - i);
        if (!line) return size;
        i = (size_t)(line - text) + 1;
        unsigned char before = (unsigned char)line[-1];
        if (before > ' ' && before < 0x7F && is_letter(line[1])) return i;
    }
    return size;
}
