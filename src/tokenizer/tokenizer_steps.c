/* tokenizer_steps.c: normalises a text and splits it into words, step by step.
 *
 * Normalising steps use two buffers in turn: each step reads one and writes the other. A text that
 * no step changes is not copied. A splitting step passes each of its pieces to the next step, and
 * the last step returns words. A splitting step that changes text writes to its own buffer, so a
 * piece stays valid while later steps process it. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

/* Real tokenizers write a few times the size of a text: three bytes for a blank, in one or two
 * steps. */
#define GROWTH_MAX 32
#define GROWTH_FREE 1024
#define STEPS_MAX 8192
#define STEPS_FREE (1 << 20)

void hy_steps_fini(hy_steps *steps) {
    for (int i = 0; i < steps->count; i++) {
        free(steps->step[i].text.from);
        free(steps->step[i].text.to);
        hy_pattern_free(steps->step[i].pattern);
        hy_charsmap_free(steps->step[i].map);
    }
    steps->count = 0;
}

/* ---- normalising ----------------------------------------------------------------------------- */

hy_allowance hy_allowance_of(const char *name, size_t text_size) {
    return (hy_allowance){.name = name,
                          .text = text_size,
                          .bytes = text_size * GROWTH_MAX + GROWTH_FREE,
                          .steps = text_size * (uint64_t)STEPS_MAX + STEPS_FREE};
}

hy_status hy_allowance_take(hy_allowance *left, size_t bytes) {
    HY_FAIL_IF(bytes > left->bytes, HY_ERR_INPUT,
               "%s: normalizer and pre_tokenizer write more than %zu bytes for a text of %zu "
               "bytes; the limit is %d times its size",
               left->name, left->text * GROWTH_MAX + GROWTH_FREE, left->text, GROWTH_MAX);
    left->bytes -= bytes;
    return HY_OK;
}

hy_status hy_allowance_walk(hy_allowance *left, uint64_t steps) {
    HY_FAIL_IF(steps > left->steps, HY_ERR_INPUT,
               "%s: a text of %zu bytes needs too many steps with this tokenizer", left->name,
               left->text);
    left->steps -= steps;
    return HY_OK;
}

void hy_add_replaced(hy_text *out, const char *text, size_t size, const hy_replacement *by,
                     size_t most) {
    const char *end = text + size, *hit;
    while (out->size <= most &&
           (hit = memmem(text, (size_t)(end - text), by->from, by->from_size))) {
        hy_text_add_bytes(out, text, (size_t)(hit - text));
        hy_text_add_bytes(out, by->to, by->to_size);
        text = hit + by->from_size;
    }
    hy_text_add_bytes(out, text, (size_t)(end - text));
}

hy_status hy_steps_normalize(const hy_steps *steps, hy_workspace *space, const char *text,
                             size_t size, const char **out, size_t *out_size) {
    int side = 0;
    for (int i = 0; i < steps->count && size > 0; i++) {
        const hy_step *step = &steps->step[i];
        bool is_replacing = step->kind == HY_STEP_REPLACE;
        if (is_replacing && !memmem(text, size, step->text.from, step->text.from_size)) continue;
        if (step->kind == HY_STEP_NFC && hy_unicode_is_plain(text, size)) continue;
        hy_text *to = &space->normal[side];
        hy_text_clear(to);
        switch (step->kind) {
        case HY_STEP_PREPEND:
            hy_text_add_bytes(to, step->text.to, step->text.to_size);
            hy_text_add_bytes(to, text, size);
            break;
        case HY_STEP_REPLACE:
            hy_add_replaced(to, text, size, &step->text, space->left.bytes);
            break;
        case HY_STEP_NFC: hy_unicode_add_nfc(to, text, size); break;
        case HY_STEP_LOWER: hy_unicode_add_lower(to, text, size); break;
        case HY_STEP_CHARSMAP: HY_TRY(hy_charsmap_apply(step->map, space, text, size, to)); break;
        default: break;
        }
        HY_TRY(hy_text_status(to));
        HY_TRY(hy_allowance_take(&space->left, to->size));
        text = hy_text_string(to);
        size = to->size;
        side = !side;
    }
    *out = text;
    *out_size = size;
    return HY_OK;
}

/* ---- splitting ------------------------------------------------------------------------------- */

typedef struct split_call {
    const hy_steps *steps;
    hy_workspace *space;
    hy_word_taker take;
    void *context;
} split_call;

/* Collects the pieces of one step; the behaviour of the step decides which are joined. */
typedef struct joiner {
    const split_call *call;
    int step; /* the step that receives them */
    const char *text;
    bool is_first;
    hy_behavior behavior;
    bool has_piece, is_match; /* a piece is pending; whether it is a match */
    size_t begin, end;
} joiner;

static hy_status split_on(const split_call *call, int number, const char *text, size_t size,
                          bool is_first);

static hy_status flush(joiner *j) {
    if (!j->has_piece) return HY_OK;
    j->has_piece = false;
    return split_on(j->call, j->step, j->text + j->begin, j->end - j->begin,
                    j->is_first && j->begin == 0);
}

/* Whether this piece joins the pending one; the result is a match if the behaviour says so. */
static bool joins(const joiner *j, bool is_match) {
    switch (j->behavior) {
    case HY_CONTIGUOUS: return j->is_match == is_match;
    case HY_MERGED_WITH_PREVIOUS: return is_match && !j->is_match;
    case HY_MERGED_WITH_NEXT: return !is_match && j->is_match;
    default: return false;
    }
}

static hy_status add_piece(joiner *j, size_t begin, size_t end, bool is_match) {
    if (j->behavior == HY_REMOVED && is_match) return HY_OK;
    if (!j->has_piece || !joins(j, is_match)) {
        HY_TRY(flush(j));
        j->has_piece = true;
        j->begin = begin;
    }
    j->is_match = is_match;
    j->end = end;
    return HY_OK;
}

/* Finds the next match at or after `from`; *end SIZE_MAX: none. */
static hy_status find_match(const split_call *call, int number, const char *text, size_t size,
                            size_t from, size_t *begin, size_t *end) {
    const hy_step *step = &call->steps->step[number];
    *begin = from;
    *end = SIZE_MAX;
    if (step->pattern) {
        bool found;
        void **state = &call->space->state[number];
        if (!*state) *state = hy_pattern_state(step->pattern);
        if (!*state) return hy_fail(HY_ERR_MEMORY, "not enough memory for a split pattern");
        HY_TRY(hy_pattern_find(step->pattern, *state, text, size, from, &call->space->left.steps,
                               &found, begin, end));
        if (!found) *end = SIZE_MAX;
        return HY_OK;
    }
    if (from == size) return HY_OK;
    if (step->splitter) {
        *end = from + step->splitter(text + from, size - from);
        return HY_OK;
    }
    const char *hit = memmem(text + from, size - from, step->text.from, step->text.from_size);
    if (!hit) return HY_OK;
    *begin = (size_t)(hit - text);
    *end = *begin + step->text.from_size;
    return HY_OK;
}

/* Adds matches and the text between them. An empty match also cuts, but not directly after another
 * match. */
static hy_status add_matches(joiner *j, int number, size_t size, bool is_inverted) {
    size_t from = 0, done = 0, last_end = SIZE_MAX;
    while (from <= size) {
        size_t begin, end;
        HY_TRY(find_match(j->call, number, j->text, size, from, &begin, &end));
        if (end == SIZE_MAX) break;
        if (begin == end && end == last_end) {
            uint32_t code;
            from += from < size ? hy_unicode_next(j->text + from, size - from, &code) : 1;
            continue;
        }
        if (begin > done) HY_TRY(add_piece(j, done, begin, is_inverted));
        if (end > begin) {
            HY_TRY(add_piece(j, begin, end, !is_inverted));
        } else {
            HY_TRY(flush(j));
        }
        from = done = last_end = end;
    }
    if (done < size) HY_TRY(add_piece(j, done, size, is_inverted));
    return flush(j);
}

static hy_status add_digits(joiner *j, size_t size) {
    for (size_t i = 0, length; i < size; i += length) {
        uint32_t code;
        size_t begin = i;
        length = hy_unicode_next(j->text + i, size - i, &code);
        bool is_number = hy_unicode_class_of(code) == HY_UNICODE_NUMBER;
        /* Other characters stay together: only digits can be isolated. */
        bool goes_on = j->behavior == HY_ISOLATED && !is_number && j->has_piece && !j->is_match;
        if (goes_on) {
            j->end = begin + length;
        } else {
            HY_TRY(add_piece(j, begin, begin + length, is_number));
        }
    }
    return flush(j);
}

static hy_status split_metaspace(const split_call *call, int number, const char *text, size_t size,
                                 bool is_first) {
    const hy_step *step = &call->steps->step[number];
    hy_text *out = &call->space->step[number];
    hy_text_clear(out);
    bool wants_prefix =
        step->prepend == HY_PREPEND_ALWAYS || (step->prepend == HY_PREPEND_FIRST && is_first);
    hy_replacement by = {" ", step->text.to, 1, step->text.to_size};
    bool has_prefix =
        text[0] == ' ' || (size >= by.to_size && memcmp(text, by.to, by.to_size) == 0);
    if (wants_prefix && !has_prefix) hy_text_add_bytes(out, by.to, by.to_size);
    hy_add_replaced(out, text, size, &by, call->space->left.bytes);
    HY_TRY(hy_text_status(out));
    HY_TRY(hy_allowance_take(&call->space->left, out->size));
    if (!step->splits) return split_on(call, number + 1, out->data, out->size, is_first);
    joiner j = {call, number + 1, out->data, is_first, .behavior = HY_MERGED_WITH_NEXT};
    return add_matches(&j, number, out->size, false);
}

static hy_status split_prefixed(const split_call *call, int number, const char *text, size_t size,
                                bool is_first) {
    if (text[0] == ' ') return split_on(call, number + 1, text, size, is_first);
    hy_text *out = &call->space->step[number];
    hy_text_clear(out);
    hy_text_add(out, " ");
    hy_text_add_bytes(out, text, size);
    HY_TRY(hy_text_status(out));
    return split_on(call, number + 1, out->data, out->size, is_first);
}

static hy_status split_on(const split_call *call, int number, const char *text, size_t size,
                          bool is_first) {
    if (size == 0) return HY_OK;
    if (number == call->steps->count) return call->take(call->context, text, size);
    const hy_step *step = &call->steps->step[number];
    joiner j = {call, number + 1, text, is_first, .behavior = step->behavior};
    switch (step->kind) {
    case HY_STEP_PREFIX_SPACE: return split_prefixed(call, number, text, size, is_first);
    case HY_STEP_METASPACE: return split_metaspace(call, number, text, size, is_first);
    case HY_STEP_DIGITS: return add_digits(&j, size);
    default: break;
    }
    bool keeps_all =
        step->is_inverted ? step->behavior == HY_REMOVED : step->behavior == HY_ISOLATED;
    /* A hand-written splitter returns adjacent words. */
    if (step->splitter && keeps_all) {
        bool is_last = number + 1 == call->steps->count;
        for (size_t at = 0, length; at < size; at += length) {
            length = step->splitter(text + at, size - at);
            if (is_last) {
                HY_TRY(call->take(call->context, text + at, length));
            } else {
                HY_TRY(split_on(call, number + 1, text + at, length, is_first && at == 0));
            }
        }
        return HY_OK;
    }
    return add_matches(&j, number, size, step->is_inverted);
}

hy_status hy_steps_split(const hy_steps *steps, hy_workspace *space, const char *text, size_t size,
                         bool is_first, hy_word_taker take, void *context) {
    split_call call = {.steps = steps, .space = space, .take = take, .context = context};
    return split_on(&call, 0, text, size, is_first);
}
