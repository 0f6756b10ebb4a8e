/* strings.c: Python's string functions: strip, replace, upper and lower case, formats. See parts.h.
 *
 * Filters and methods share them. Every byte of a result has the mark of the byte it came from. */
#include <string.h>

#include "jinja/parts.h"
#include "tokenizer/unicode.h"

bool hy_jinja_is_space(uint32_t code) {
    return (code >= 0x1C && code <= 0x1F) || hy_unicode_class_of(code) == HY_UNICODE_SPACE;
}

size_t hy_jinja_skip(const char *text, size_t size, size_t at, bool blanks) {
    uint32_t code;
    for (size_t length; at < size; at += length) {
        length = hy_unicode_next(text + at, size - at, &code);
        if (hy_jinja_is_space(code) != blanks) break;
    }
    return at;
}

/* Whether a character is one of `chars`; NULL: whether it is a blank. */
static bool is_stripped(uint32_t code, const char *at, size_t length,
                        const hy_jinja_string *chars) {
    if (!chars) return hy_jinja_is_space(code);
    return memmem(chars->data, chars->size, at, length) != NULL;
}

value hy_jinja_strip(hy_jinja_run *run, const hy_jinja_call *c) {
    const hy_jinja_string *s = hy_jinja_to_string(run, c->self).as.string;
    const hy_jinja_string *chars =
        hy_jinja_string_or_null(run, c->given[0], "the characters to strip");
    size_t begin = 0, end = s->size;
    uint32_t code;
    size_t price = chars ? chars->size / 64 : 0; /* cost of testing one character */
    while (c->how & HY_LEFT && begin < end) {
        hy_jinja_spend(run, price);
        size_t length = hy_unicode_next(s->data + begin, end - begin, &code);
        if (!is_stripped(code, s->data + begin, length, chars)) break;
        begin += length;
    }
    while (c->how & HY_RIGHT && end > begin) {
        hy_jinja_spend(run, price);
        size_t length = hy_unicode_previous(s->data, end, &code);
        if (!is_stripped(code, s->data + end - length, length, chars)) break;
        end -= length;
    }
    hy_jinja_spend(run, (s->size - (end - begin)) / 64);
    return hy_jinja_part(run, s, begin, end);
}

value hy_jinja_replace(hy_jinja_run *run, const hy_jinja_string *s, const hy_jinja_string *from,
                       const hy_jinja_string *to, int64_t count) {
    hy_jinja_builder b = {.run = run};
    size_t at = 0;
    hy_jinja_spend(run, s->size / 64);
    if (from->size == 0) hy_jinja_fail(run, "replacing an empty string is not supported");
    for (size_t found; count != 0 && (found = hy_jinja_find(s, from, at)) != SIZE_MAX; count--) {
        hy_jinja_spend(run, 1);
        hy_jinja_add_part(&b, s, at, found);
        hy_jinja_add_part(&b, to, 0, to->size);
        at = found + from->size;
    }
    hy_jinja_add_part(&b, s, at, s->size);
    return hy_jinja_built(&b);
}

size_t hy_jinja_line_end(const hy_jinja_string *s, size_t at, size_t *next) {
    uint32_t code;
    for (size_t length; at < s->size; at += length) {
        length = hy_unicode_next(s->data + at, s->size - at, &code);
        bool is_end = (code >= '\n' && code <= '\r') || (code >= 0x1C && code <= 0x1E) ||
                      code == 0x85 || code == 0x2028 || code == 0x2029;
        if (!is_end) continue;
        bool is_pair = code == '\r' && at + 1 < s->size && s->data[at + 1] == '\n';
        *next = at + length + is_pair;
        return at;
    }
    return *next = s->size;
}

/* ---- letters --------------------------------------------------------------------------------- */

static void add_lower(hy_jinja_builder *b, const hy_jinja_string *s, size_t begin, size_t end) {
    char c = s->data[begin], small[16] = {(char)(c >= 'A' && c <= 'Z' ? c + 32 : c)};
    size_t size = 1;
    if (c & 0x80) {
        hy_text out = {0};
        hy_unicode_add_lower(&out, s->data + begin, end - begin);
        size = out.size < sizeof small ? out.size : 0;
        if (size) memcpy(small, out.data, size);
        hy_text_free(&out);
        if (size == 0) hy_jinja_fail(b->run, "not enough memory for lower case");
    }
    hy_jinja_add(b, small, size, hy_jinja_mark_at(s, begin));
}

/* Whether a letter outside ASCII may belong to a script with upper and lower case. */
static bool may_have_case(uint32_t code) {
    static const uint32_t ranges[][2] = {{0x80, 0x58F},    {0x10A0, 0x10FF}, {0x13A0, 0x13FF},
                                         {0x1C80, 0x1CBF}, {0x1D00, 0x1FFF}, {0x2100, 0x218F},
                                         {0x2C00, 0x2D2F}, {0xA640, 0xA7FF}, {0xAB30, 0xABBF},
                                         {0xFB00, 0xFB17}, {0xFF21, 0xFF5A}, {0x10400, 0x1E943}};
    bool may = false;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        may |= code >= ranges[i][0] && code <= ranges[i][1];
    }
    return may && hy_unicode_class_of(code) == HY_UNICODE_LETTER;
}

static void add_upper(hy_jinja_builder *b, const hy_jinja_string *s, size_t begin, size_t end,
                      uint32_t code) {
    char large = (char)(code >= 'a' && code <= 'z' ? code - 32 : code);
    if (may_have_case(code)) {
        hy_jinja_fail(b->run, "upper case outside ASCII is not supported");
    }
    if (code < 0x80)
        hy_jinja_add(b, &large, 1, hy_jinja_mark_at(s, begin));
    else
        hy_jinja_add_part(b, s, begin, end);
}

value hy_jinja_change_case(hy_jinja_run *run, const hy_jinja_call *c) {
    const hy_jinja_string *s = hy_jinja_to_string(run, c->self).as.string;
    hy_jinja_case how = (hy_jinja_case)c->how;
    hy_jinja_builder b = {.run = run};
    bool begins = true; /* the next letter begins a word */
    for (size_t i = 0, length; i < s->size; i += length) {
        uint32_t code;
        length = hy_unicode_next(s->data + i, s->size - i, &code);
        bool is_letter = (code < 0x80 && ((code | 32) - 'a') < 26) || may_have_case(code);
        bool is_large = how == HY_UPPER || (how != HY_LOWER && begins);
        if (is_large)
            add_upper(&b, s, i, i + length, code);
        else
            add_lower(&b, s, i, i + length);
        bool is_border =
            hy_jinja_is_space(code) || (code < 0x80 && code && strchr("-({[<", (int)code));
        if (how == HY_TITLE) begins = !is_letter; /* str.title() */
        if (how == HY_WORDS) begins = is_border;  /* the filter title */
        if (how == HY_CAPITAL) begins = false;
    }
    return hy_jinja_built(&b);
}

/* ---- % --------------------------------------------------------------------------------------- */

value hy_jinja_format(hy_jinja_run *run, const hy_jinja_string *s, const value *items,
                      size_t count) {
    hy_jinja_builder b = {.run = run};
    size_t used = 0;
    for (size_t i = 0; i < s->size; i++) {
        char kind = s->data[i] == '%' && i + 1 < s->size ? s->data[++i] : 0;
        if (s->data[i] != '%' && !kind) {
            hy_jinja_add_part(&b, s, i, i + 1);
            continue;
        }
        if (kind == '%') {
            hy_jinja_add(&b, "%", 1, 0);
            continue;
        }
        if (kind != 's' && kind != 'd') {
            hy_jinja_fail(run, "%%%c in a format is not supported; use %%s or %%d",
                          kind > ' ' ? kind : ' ');
        }
        if (used == count) hy_jinja_fail(run, "a format needs more than %zu values", count);
        value v = items[used++];
        if (kind == 'd') v = hy_jinja_int(hy_jinja_as_int(run, v, "the value for %d"));
        hy_jinja_print(&b, v);
    }
    if (used < count) hy_jinja_fail(run, "a format does not use all %zu values", count);
    return hy_jinja_built(&b);
}
