/* pattern.c: see pattern.h. */
#include "reward/pattern.h"

#include <locale.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define ANY_BYTES "([^a]|a)*" /* a dot does not match a zero byte */

/* Where the bracket expression at `at` has ended: "]", "[^]...]" and "[[:x:]]" do not end where they
 * seem to. */
static const char *skip_brackets(const char *at) {
    at++;
    if (*at == '^') at++;
    if (*at == ']') at++;
    while (*at && *at != ']') {
        bool is_class = at[0] == '[' && at[1] && strchr(":.=", at[1]);
        char ending[] = {is_class ? at[1] : '\0', ']', '\0'};
        const char *end = is_class ? strstr(at + 2, ending) : NULL;
        at = end ? end + 2 : at + 1;
    }
    return *at ? at + 1 : at;
}

/* What a walk over an expression finds outside of bracket expressions and escapes. */
typedef struct scan {
    char plain[2 * HY_PATTERN_MOST + 1]; /* the expression, its ^ and $ as \` and \' */
    bool has_back_reference;
    bool has_open_end; /* a ) without a ( */
} scan;

/* glibc takes ^ behind a newline for the beginning of a line even without REG_NEWLINE, if something
 * precedes it in the expression; \` and \' are only ever the ends of the text. */
static void scan_expression(const char *expression, scan *out) {
    char *to = out->plain;
    int depth = 0;
    *out = (scan){0};
    for (const char *at = expression, *next; *at; at = next) {
        char c = *at;
        bool is_anchor = c == '^' || c == '$';
        next = c == '[' ? skip_brackets(at) : c == '\\' && at[1] ? at + 2 : at + 1;
        depth += c == '(' ? 1 : c == ')' ? -1 : 0;
        if (depth < 0) out->has_open_end = true;
        if (c == '\\' && at[1] >= '1' && at[1] <= '9') out->has_back_reference = true;
        memcpy(to, is_anchor ? (c == '^' ? "\\`" : "\\'") : at,
               is_anchor ? 2 : (size_t)(next - at));
        to += is_anchor ? 2 : next - at;
    }
}

/* Compiles with the "C" locale, which must also be the locale of regexec. */
static hy_status compile(regex_t *compiled, const char *expression) {
    char reason[256];
    int code = regcomp(compiled, expression, REG_EXTENDED | REG_NOSUB);
    if (code == 0) return HY_OK;
    regerror(code, compiled, reason, sizeof reason);
    return hy_fail(code == REG_ESPACE ? HY_ERR_MEMORY : HY_ERR_INPUT,
                   "\"%s\" is not an extended regular expression: %s", expression, reason);
}

static hy_status match_in_locale(const char *anchored, hy_span text, bool *matches) {
    regex_t compiled;
    /* REG_STARTEND: the text has a size instead of a zero at its end. */
    regmatch_t range = {.rm_so = 0, .rm_eo = (regoff_t)text.size};
    HY_TRY(compile(&compiled, anchored));
    int code = regexec(&compiled, text.size ? text.data : "", 1, &range, REG_STARTEND);
    regfree(&compiled);
    HY_FAIL_IF(code != 0 && code != REG_NOMATCH, HY_ERR_MEMORY,
               "not enough memory to match \"%s\" with an answer of %zu bytes", anchored,
               text.size);
    *matches = code == 0;
    return HY_OK;
}

/* Sets the "C" locale for this thread. */
static hy_status enter_locale(locale_t *plain, locale_t *before) {
    *before = (locale_t)0;
    *plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    HY_FAIL_IF(!*plain, HY_ERR_MEMORY, "not enough memory for a locale");
    *before = uselocale(*plain);
    return HY_OK;
}

static void leave_locale(locale_t plain, locale_t before) {
    uselocale(before);
    freelocale(plain);
}

static hy_status check_scan(const char *expression, const scan *s) {
    HY_FAIL_IF(s->has_back_reference, HY_ERR_INPUT,
               "\"%s\" has a back-reference such as \\1, for which matching can take exponential "
               "time",
               expression);
    HY_FAIL_IF(s->has_open_end, HY_ERR_INPUT,
               "\"%s\" is not an extended regular expression: Unmatched ); write \\) for a bracket",
               expression);
    return HY_OK;
}

hy_status hy_pattern_check(const char *expression) {
    scan s;
    regex_t compiled;
    locale_t plain, before;
    HY_FAIL_IF(strlen(expression) > HY_PATTERN_MOST, HY_ERR_INPUT,
               "the expression has %zu bytes; at most %d are accepted", strlen(expression),
               HY_PATTERN_MOST);
    scan_expression(expression, &s);
    HY_TRY(check_scan(expression, &s));
    HY_TRY(enter_locale(&plain, &before));
    hy_status status = compile(&compiled, expression);
    if (status == HY_OK) regfree(&compiled);
    if (status == HY_OK && (status = compile(&compiled, s.plain)) == HY_OK) regfree(&compiled);
    leave_locale(plain, before);
    return status;
}

hy_status hy_pattern_match(const char *expression, bool is_whole, hy_span text, bool *matches) {
    scan s;
    char anchored[sizeof s.plain + 32];
    locale_t plain, before;
    bool is_cut = text.size > HY_PATTERN_BYTES;
    *matches = false;
    if (is_cut && is_whole) return HY_OK;
    if (is_cut) text.size = HY_PATTERN_BYTES;
    scan_expression(expression, &s);
    snprintf(anchored, sizeof anchored, is_whole ? "\\`(%s)\\'" : "\\`" ANY_BYTES "(%s)", s.plain);
    HY_TRY(enter_locale(&plain, &before));
    hy_status status = match_in_locale(anchored, text, matches);
    leave_locale(plain, before);
    return status;
}
