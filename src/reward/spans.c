/* spans.c: see spans.h. */
#include "reward/spans.h"

#include <string.h>

#include "base/number.h"

#define NUMBER_MOST 400 /* characters of a number; the largest double has 309 digits */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c; }

hy_span hy_span_trim(hy_span text) {
    while (text.size > 0 && is_space(text.data[text.size - 1])) text.size--;
    while (text.size > 0 && is_space(text.data[0])) {
        text.data++;
        text.size--;
    }
    return text;
}

bool hy_span_is_equal(hy_span a, hy_span b, bool ignores_case) {
    if (a.size != b.size) return false;
    if (!ignores_case) return a.size == 0 || memcmp(a.data, b.data, a.size) == 0;
    for (size_t i = 0; i < a.size; i++) {
        if (lower(a.data[i]) != lower(b.data[i])) return false;
    }
    return true;
}

bool hy_span_contains(hy_span text, hy_span part, bool ignores_case) {
    if (part.size > text.size) return false;
    if (part.size == 0) return true;
    if (!ignores_case) return memmem(text.data, text.size, part.data, part.size) != NULL;
    for (size_t i = 0; i + part.size <= text.size; i++) {
        if (hy_span_is_equal((hy_span){text.data + i, part.size}, part, true)) return true;
    }
    return false;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static size_t skip_digits(hy_span text, size_t at) {
    while (at < text.size && is_digit(text.data[at])) at++;
    return at;
}

/* Skips ",ddd" as often as it comes; a group of more digits is another number. */
static size_t skip_groups(hy_span text, size_t at) {
    while (at < text.size && text.data[at] == ',' && skip_digits(text, at + 1) == at + 4) at += 4;
    return at;
}

/* The end of the number that begins at `at`, with a digit or a point. */
static size_t find_number_end(hy_span text, size_t at) {
    size_t end = skip_digits(text, at);
    if (end > at && end - at <= 3) end = skip_groups(text, end);
    if (end < text.size && text.data[end] == '.' && skip_digits(text, end + 1) > end + 1)
        end = skip_digits(text, end + 1);
    size_t power = end;
    if (power < text.size && lower(text.data[power]) == 'e') {
        power++;
        if (power < text.size && (text.data[power] == '-' || text.data[power] == '+')) power++;
        if (skip_digits(text, power) > power) end = skip_digits(text, power);
    }
    return end;
}

/* Whether a minus before the number at `at` makes it negative: '-' or U+2212, also before '$'. */
static bool has_minus(hy_span text, size_t at) {
    static const char unicode[] = "\xE2\x88\x92";
    if (at > 0 && text.data[at - 1] == '$') at--;
    size_t size = at >= 1 && text.data[at - 1] == '-'                      ? 1
                  : at >= 3 && memcmp(text.data + at - 3, unicode, 3) == 0 ? 3
                                                                           : 0;
    if (size == 0) return false;
    char before = at > size ? text.data[at - size - 1] : ' ';
    bool is_letter = lower(before) >= 'a' && lower(before) <= 'z';
    return !is_letter && !is_digit(before) && before != ')' && before != ']' && before != '}';
}

/* Whether a fraction without whole digits begins here: the last point of "1.2.3" is none. */
static bool is_leading_point(hy_span text, size_t at) {
    bool is_behind_digit = at > 0 && is_digit(text.data[at - 1]);
    return text.data[at] == '.' && !is_behind_digit && skip_digits(text, at + 1) > at + 1;
}

bool hy_last_number(hy_span text, double *out) {
    char digits[NUMBER_MOST + 1];
    size_t begin = 0, end = 0, size = 0;
    for (size_t i = 0; i < text.size;) {
        bool is_point = is_leading_point(text, i);
        if (is_digit(text.data[i]) || is_point) {
            begin = i;
            i = end = find_number_end(text, i);
        } else {
            i++;
        }
    }
    if (end == 0 || end - begin > NUMBER_MOST - 1) return false;
    if (has_minus(text, begin)) digits[size++] = '-';
    for (size_t i = begin; i < end; i++) {
        if (text.data[i] != ',') digits[size++] = text.data[i];
    }
    digits[size] = '\0';
    return hy_number_parse(digits, size, out);
}

/* ---- boxes ----------------------------------------------------------------------------------- */

bool hy_last_boxed(hy_span text, hy_span *content) {
    static const char opening[] = "\\boxed{";
    size_t begin = 0, size = sizeof opening - 1;
    for (size_t i = 0; i + size <= text.size; i++) {
        if (memcmp(text.data + i, opening, size) == 0) begin = i + size;
    }
    if (begin == 0) return false;
    size_t depth = 1;
    for (size_t i = begin; i < text.size; i++) {
        char c = text.data[i];
        if (c == '\\') i++;
        if (c == '{') depth++;
        if (c == '}' && --depth == 0) {
            *content = hy_span_trim((hy_span){text.data + begin, i - begin});
            return true;
        }
    }
    return false;
}
