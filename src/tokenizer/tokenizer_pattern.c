/* tokenizer_pattern.c: split patterns that are not written out by hand, through PCRE2.
 *
 * Built without PCRE2 (HY_HAS_PCRE2 is not set) such a tokenizer is refused by name. A match that
 * would take too long is an error, never a hang: PCRE2's own limits hold. */
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

#ifdef HY_HAS_PCRE2

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct hy_pattern {
    pcre2_code *code;
    char *name; /* of the tokenizer */
};

static hy_status fail_pattern(const char *name, const char *doing, int error) {
    PCRE2_UCHAR8 reason[160] = "unknown error";
    pcre2_get_error_message(error, reason, sizeof reason);
    return hy_fail(HY_ERR_INPUT, "%s: %s: %s", name, doing, (const char *)reason);
}

/* PCRE2 counts U+180E among the blanks, the tokenizers' patterns do not: \s and \S are written out.
 * \S inside brackets, which no known pattern has, is left as it is. */
static void spell_blanks(const char *pattern, hy_text *out) {
    static const char blanks[] = "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}"
                                 "\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
    bool is_inside = false;
    for (const char *p = pattern; *p; p++) {
        bool is_escape = p[0] == '\\' && p[1];
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
}

hy_status hy_pattern_compile(const char *pattern, const char *name, hy_pattern **out) {
    int error;
    PCRE2_SIZE where;
    hy_pattern *p = calloc(1, sizeof *p);
    if (p) p->name = strdup(name);
    if (!p || !p->name) {
        free(p);
        return hy_fail(HY_ERR_MEMORY, "out of memory for a split pattern");
    }
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF;
    hy_text spelled = {0};
    spell_blanks(pattern, &spelled);
    hy_status is_spelled = hy_text_status(&spelled); /* half a pattern is another pattern */
    if (is_spelled != HY_OK) {
        hy_text_free(&spelled);
        hy_pattern_free(p);
        return is_spelled;
    }
    PCRE2_SPTR text = (PCRE2_SPTR)hy_text_string(&spelled);
    p->code = pcre2_compile(text, spelled.size, options, &error, &where, NULL);
    hy_text_free(&spelled);
    if (!p->code) {
        hy_status status = fail_pattern(name, "the pattern of pre_tokenizer", error);
        hy_pattern_free(p);
        return status;
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* slower without, the same result */
    *out = p;
    return HY_OK;
}

void hy_pattern_free(hy_pattern *pattern) {
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern->name);
    free(pattern);
}

void *hy_pattern_state(const hy_pattern *pattern) {
    return pcre2_match_data_create_from_pattern(pattern->code, NULL);
}

void hy_pattern_state_free(void *state) { pcre2_match_data_free(state); }

hy_status hy_pattern_find(const hy_pattern *pattern, void *state, const char *text, size_t size,
                          size_t from, bool *found, size_t *begin, size_t *end) {
    int count = pcre2_match(pattern->code, (PCRE2_SPTR)text, size, from, 0, state, NULL);
    *found = count >= 0;
    if (count == PCRE2_ERROR_NOMATCH) return HY_OK;
    if (count < 0) return fail_pattern(pattern->name, "splitting by the pattern", count);
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(state);
    *begin = place[0];
    *end = place[1];
    return HY_OK;
}

#else

struct hy_pattern {
    char unused;
};

hy_status hy_pattern_compile(const char *pattern, const char *name, hy_pattern **out) {
    (void)out;
    return hy_fail(HY_ERR_INPUT,
                   "%s: pre_tokenizer has the pattern \"%.200s\"; built in are those of GPT-2, "
                   "Llama 3 and Qwen, and any other needs PCRE2, which was not there when this "
                   "program was built (package libpcre2-dev)",
                   name, pattern);
}

void hy_pattern_free(hy_pattern *pattern) { (void)pattern; }
void *hy_pattern_state(const hy_pattern *pattern) { return (void *)pattern; }
void hy_pattern_state_free(void *state) { (void)state; }

hy_status hy_pattern_find(const hy_pattern *pattern, void *state, const char *text, size_t size,
                          size_t from, bool *found, size_t *begin, size_t *end) {
    (void)pattern, (void)state, (void)text, (void)size, (void)from, (void)begin, (void)end;
    *found = false;
    return HY_OK;
}

#endif
