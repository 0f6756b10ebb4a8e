/* tokenizer_pattern.c: split patterns without a hand-written splitter, with PCRE2.
 *
 * A build without PCRE2 (HY_HAS_PCRE2 is not set) rejects such a tokenizer with a message.
 *
 * A pattern is untrusted, so its time and memory are limited by the size of the text. PCRE2 counts
 * backtracks but not the characters that each of them may read again; the work of a match is at
 * most the product of the two. So a match begins in a short window of the text with a low limit of
 * backtracks, which is enough for real patterns and words. If it reaches the end of the window
 * (PCRE2's partial matching reports this, so the result is that of the whole text) or the limit, it
 * is repeated with higher limits, and that costs steps from the budget of the text. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

#ifdef HY_HAS_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define FIRST_WINDOW 256 /* bytes */
#define FIRST_LIMIT 64   /* backtracks, as PCRE2 counts them */
#define RETRY_FACTOR 4
#define PATTERN_MAX 65536 /* bytes */
#define HEAP_MAX_KIB 16384

struct hy_pattern {
    pcre2_code *code;
    char *name; /* of the tokenizer */
};

typedef struct pattern_state {
    pcre2_match_data *data;
    pcre2_match_context *context;
} pattern_state;

static hy_status fail_pattern(const char *name, const char *doing, int error) {
    PCRE2_UCHAR8 reason[160] = "unknown error";
    pcre2_get_error_message(error, reason, sizeof reason);
    return hy_fail(HY_ERR_INPUT, "%s: %s: %s", name, doing, (const char *)reason);
}

/* Writes out \s and \S, because PCRE2 counts U+180E as a blank and tokenizers do not. \S inside
 * brackets, which no known pattern has, stays. Returns false for a PCRE2 verb (*...), which
 * tokenizers do not have: some verbs lift limits or disable the compiler. */
static bool spell_blanks(const char *pattern, hy_text *out) {
    static const char blanks[] = "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}"
                                 "\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
    bool is_inside = false;
    for (const char *p = pattern; *p; p++) {
        bool is_escape = p[0] == '\\' && p[1];
        if (!is_inside && p[0] == '(' && p[1] == '*') return false;
        if (is_escape && p[1] == 's') {
            hy_text_addf(out, is_inside ? "%s" : "[%s]", blanks);
        } else if (is_escape && p[1] == 'S' && !is_inside) {
            hy_text_addf(out, "[^%s]", blanks);
        } else {
            hy_text_add_bytes(out, p, is_escape ? 2 : 1);
        }
        if (*p == '[') is_inside = true;
        if (*p == ']') is_inside = false;
        if (is_escape) p++;
    }
    return true;
}

static hy_status compile(hy_pattern *p, const char *pattern, const char *name, hy_text *spelled) {
    static const char part[] = "the pattern of pre_tokenizer";
    int error;
    PCRE2_SIZE where;
    p->name = strdup(name);
    HY_FAIL_IF(!p->name, HY_ERR_MEMORY, "not enough memory for a split pattern");
    HY_FAIL_IF(!spell_blanks(pattern, spelled), HY_ERR_INPUT,
               "%s: %s has a verb (*...); verbs are not supported", name, part);
    HY_FAIL_IF(spelled->size > PATTERN_MAX, HY_ERR_INPUT, "%s: %s has %zu bytes; the limit is %d",
               name, part, spelled->size, PATTERN_MAX);
    HY_TRY(hy_text_status(spelled)); /* an incomplete pattern would have another meaning */
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
    p->code = pcre2_compile((PCRE2_SPTR)hy_text_string(spelled), spelled->size, options, &error,
                            &where, NULL);
    if (!p->code) return fail_pattern(name, part, error);
    /* Optional: only makes matching faster. */
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    return HY_OK;
}

hy_status hy_pattern_compile(const char *pattern, const char *name, hy_pattern **out) {
    hy_pattern *p = calloc(1, sizeof *p);
    if (!p) return hy_fail(HY_ERR_MEMORY, "not enough memory for a split pattern");
    hy_text spelled = {0};
    hy_status status = compile(p, pattern, name, &spelled);
    hy_text_free(&spelled);
    if (status == HY_OK) *out = p;
    if (status != HY_OK) hy_pattern_free(p);
    return status;
}

void hy_pattern_free(hy_pattern *pattern) {
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern->name);
    free(pattern);
}

void *hy_pattern_state(const hy_pattern *pattern) {
    pattern_state *state = calloc(1, sizeof *state);
    if (!state) return NULL;
    state->data = pcre2_match_data_create_from_pattern(pattern->code, NULL);
    state->context = pcre2_match_context_create(NULL);
    if (!state->data || !state->context) {
        hy_pattern_state_free(state);
        return NULL;
    }
    pcre2_set_heap_limit(state->context, HEAP_MAX_KIB);
    return state;
}

void hy_pattern_state_free(void *memory) {
    pattern_state *state = memory;
    pcre2_match_data_free(state->data);
    pcre2_match_context_free(state->context);
    free(state);
}

hy_status hy_pattern_find(const hy_pattern *pattern, void *memory, const char *text, size_t size,
                          size_t from, uint64_t *steps, bool *found, size_t *begin, size_t *end) {
    pattern_state *state = memory;
    size_t window = FIRST_WINDOW;
    uint32_t limit = FIRST_LIMIT;
    for (;;) {
        size_t stop = size - from > window ? from + window : size;
        while (stop < size && ((uint8_t)text[stop] & 0xC0) == 0x80) stop++;
        bool is_cut = stop < size;
        pcre2_set_match_limit(state->context, limit);
        int count = pcre2_match(pattern->code, (PCRE2_SPTR)text, stop, from,
                                is_cut ? PCRE2_PARTIAL_HARD : 0, state->data, state->context);
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(state->data);
        /* An empty match at the end of a window might be longer in the whole text. */
        bool is_none = count == PCRE2_ERROR_NOMATCH || (count >= 0 && is_cut && place[0] >= stop);
        *found = count >= 0 && !is_none;
        if (*found) {
            *begin = place[0];
            *end = place[1];
            bool is_place = *begin >= from && *end >= *begin; /* \K may set another beginning */
            return is_place ? HY_OK
                            : hy_fail(HY_ERR_INPUT,
                                      "%s: cannot split the text by the pattern: a match begins "
                                      "after its end, or before the end of the match before it",
                                      pattern->name);
        }
        if (is_none && !is_cut) return HY_OK;
        if (is_none) {
            from = stop;
            window = FIRST_WINDOW;
            limit = FIRST_LIMIT;
            continue;
        }
        if (count == PCRE2_ERROR_PARTIAL) {
            window *= RETRY_FACTOR;
        } else if (count == PCRE2_ERROR_MATCHLIMIT && limit <= UINT32_MAX / RETRY_FACTOR) {
            limit *= RETRY_FACTOR;
        } else {
            return fail_pattern(pattern->name, "splitting the text by the pattern", count);
        }
        uint64_t charge = (uint64_t)limit * (window < size - from ? window : size - from);
        HY_FAIL_IF(charge > *steps, HY_ERR_INPUT,
                   "%s: splitting the text by the pattern takes too many steps; its nested "
                   "repetitions match this text in too many ways",
                   pattern->name);
        *steps -= charge;
    }
}

#else

struct hy_pattern {
    char unused;
};

hy_status hy_pattern_compile(const char *pattern, const char *name, hy_pattern **out) {
    (void)out;
    return hy_fail(HY_ERR_INPUT,
                   "%s: pre_tokenizer has the pattern \"%.200s\", which needs PCRE2; this program "
                   "was built without PCRE2 and knows only the patterns of GPT-2, Llama 3 and Qwen "
                   "(build it again with the package libpcre2-dev)",
                   name, pattern);
}

void hy_pattern_free(hy_pattern *pattern) { (void)pattern; }
void *hy_pattern_state(const hy_pattern *pattern) { return (void *)pattern; }
void hy_pattern_state_free(void *state) { (void)state; }

hy_status hy_pattern_find(const hy_pattern *pattern, void *state, const char *text, size_t size,
                          size_t from, uint64_t *steps, bool *found, size_t *begin, size_t *end) {
    (void)pattern, (void)state, (void)text, (void)size, (void)from, (void)steps;
    (void)begin, (void)end;
    *found = false;
    return HY_OK;
}

#endif
