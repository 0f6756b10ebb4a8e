/* lexer.c: splits the text of a template into tokens. See parts.h.
 *
 * The lexer handles all blanks around tags: it drops a line end after %} and #}, and blanks before
 * {% and {# at the start of a line. '-' and '+' inside a tag override this. */
#include <string.h>

#include "base/utf8.h"
#include "jinja/parts.h"
#include "tokenizer/unicode.h"

typedef struct lexer {
    hy_jinja_run *run;
    const char *text;
    size_t size, at;
    hy_jinja_token *tokens;
    size_t count, room;
    char open[64]; /* open brackets; a tag cannot end before they are closed */
    size_t open_count;
} lexer;

static void push(lexer *l, hy_jinja_token_type type, const char *text, size_t size) {
    if (l->count == l->room) {
        l->room = l->room ? 2 * l->room : 256;
        l->tokens = hy_jinja_grow(l->run, l->tokens, l->count, l->room, sizeof *l->tokens);
    }
    l->tokens[l->count++] = (hy_jinja_token){type, l->run->line, text, size};
}

static bool has(const lexer *l, size_t at, const char *mark) {
    size_t length = strlen(mark);
    return length <= l->size - at && memcmp(l->text + at, mark, length) == 0;
}

static size_t skip_blanks(const lexer *l, size_t at) {
    return hy_jinja_skip(l->text, l->size, at, true);
}

/* Moves to `to` and counts lines. */
static void move(lexer *l, size_t to) {
    for (; l->at < to; l->at++) l->run->line += l->text[l->at] == '\n';
}

/* ---- inside of tags -------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool begins_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}

/* The code of \xHH, \uHHHH, \UHHHHHHHH or \OOO after the backslash; *used is its length, 0:
 * none. */
static uint32_t numbered(const char *s, size_t left, size_t *used) {
    static const char hex[] = "0123456789abcdef";
    size_t length = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    uint32_t code = 0;
    *used = 0;
    if (length == 0) {
        for (; *used < 3 && *used < left && s[*used] >= '0' && s[*used] <= '7'; ++*used) {
            code = code * 8 + (uint32_t)(s[*used] - '0');
        }
        return code;
    }
    for (size_t i = 1; i <= length; i++) {
        const char *digit = i < left && s[i] ? strchr(hex, s[i] | 32) : NULL;
        if (!digit) return 0;
        code = code << 4 | (uint32_t)(digit - hex);
    }
    *used = length + 1;
    return code;
}

/* Reads a string literal with Python's escapes. */
static void lex_string(lexer *l) {
    static const char letters[] = "ntr\\'\"abfv", codes[] = "\n\t\r\\'\"\a\b\f\v";
    char quote = l->text[l->at];
    size_t end = l->at + 1, size = 0;
    while (end < l->size && l->text[end] != quote) end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->size) hy_jinja_fail(l->run, "a string has no closing quote");
    const char *from = l->text + l->at + 1;
    size_t left = end - l->at - 1;
    char *out = hy_jinja_take(l->run, left + 1);
    for (size_t i = 0; i < left; i++) {
        if (from[i] != '\\') {
            out[size++] = from[i];
            continue;
        }
        size_t used;
        const char *letter = from[++i] ? strchr(letters, from[i]) : NULL;
        uint32_t code = numbered(from + i, left - i, &used);
        if (letter) {
            out[size++] = codes[letter - letters];
        } else if (used > 0) {
            if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
                hy_jinja_fail(l->run, "a string has an escape that is not a character");
            }
            size += (size_t)hy_utf8_encode(code, out + size);
            i += used - 1;
        } else if (from[i] == 'x' || from[i] == 'u' || from[i] == 'U') {
            hy_jinja_fail(l->run, "a string has \\%c without its digits", from[i]);
        } else if (from[i] == 'N') {
            hy_jinja_fail(l->run, "\\N in a string is not supported");
        } else if (from[i] != '\n') {
            out[size++] = '\\';
            out[size++] = from[i];
        }
    }
    push(l, HY_TOKEN_STRING, out, size);
    move(l, end + 1);
}

static void lex_number(lexer *l) {
    size_t end = l->at, size = 0;
    bool is_float = false;
    while (end < l->size && (is_digit(l->text[end]) || l->text[end] == '_')) end++;
    bool follows_dot = l->at > 0 && l->text[l->at - 1] == '.';
    if (!follows_dot && end + 1 < l->size && l->text[end] == '.' && is_digit(l->text[end + 1])) {
        is_float = true;
        for (end++; end < l->size && (is_digit(l->text[end]) || l->text[end] == '_');) end++;
    }
    if (!follows_dot && end + 1 < l->size && (l->text[end] | 32) == 'e') {
        size_t digits = end + 1 + (l->text[end + 1] == '+' || l->text[end + 1] == '-');
        if (digits < l->size && is_digit(l->text[digits])) {
            is_float = true;
            for (end = digits; end < l->size && is_digit(l->text[end]);) end++;
        }
    }
    char *out = hy_jinja_take(l->run, end - l->at + 1);
    for (size_t i = l->at; i < end; i++) {
        if (l->text[i] != '_') out[size++] = l->text[i];
    }
    push(l, is_float ? HY_TOKEN_FLOAT : HY_TOKEN_INT, out, size);
    l->at = end;
}

static void lex_sign(lexer *l) {
    static const char pairs[][3] = {"==", "!=", ">=", "<=", "//", "**"};
    char c = l->text[l->at];
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (!has(l, l->at, pairs[i])) continue;
        push(l, HY_TOKEN_SIGN, pairs[i], 2);
        l->at += 2;
        return;
    }
    if (!c || !strchr("+-*/%~[](){}<>=.:|,", c)) {
        hy_jinja_fail(l->run, "\"%c\" is not allowed in an expression", c ? c : ' ');
    }
    if (strchr("([{", c)) {
        if (l->open_count == sizeof l->open) hy_jinja_fail(l->run, "too many open brackets");
        l->open[l->open_count++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c)) {
        bool is_open = l->open_count > 0 && l->open[--l->open_count] == c;
        if (!is_open) hy_jinja_fail(l->run, "\"%c\" has no opening bracket", c);
    }
    push(l, HY_TOKEN_SIGN, hy_jinja_copy(l->run, &c, 1), 1);
    l->at++;
}

/* The length of a tag's end at this position, including the blanks it strips; 0: none. */
static size_t end_of_tag(const lexer *l, size_t at, const char *mark, bool trims) {
    if (l->text[at] == '-' && has(l, at + 1, mark)) return skip_blanks(l, at + 3) - at;
    if (trims && l->text[at] == '+' && has(l, at + 1, mark)) return 3;
    if (!has(l, at, mark)) return 0;
    return trims && at + 2 < l->size && l->text[at + 2] == '\n' ? 3 : 2;
}

static void lex_tag(lexer *l, bool is_block) {
    const char *mark = is_block ? "%}" : "}}";
    uint32_t first = l->run->line;
    for (;;) {
        move(l, skip_blanks(l, l->at));
        if (l->at == l->size) {
            l->run->line = first;
            hy_jinja_fail(l->run, "%s has no end", is_block ? "{%" : "{{");
        }
        char c = l->text[l->at];
        size_t end = l->open_count ? 0 : end_of_tag(l, l->at, mark, is_block);
        if (end) {
            push(l, is_block ? HY_TOKEN_BLOCK_END : HY_TOKEN_PRINT_END, mark, 2);
            move(l, l->at + end);
            return;
        }
        if (begins_name(c)) {
            size_t to = l->at;
            while (to < l->size && (begins_name(l->text[to]) || is_digit(l->text[to]))) to++;
            push(l, HY_TOKEN_NAME, hy_jinja_copy(l->run, l->text + l->at, to - l->at), to - l->at);
            l->at = to;
        } else if (is_digit(c)) {
            lex_number(l);
        } else if (c == '\'' || c == '"') {
            lex_string(l);
        } else {
            lex_sign(l);
        }
    }
}

/* ---- text between tags ----------------------------------------------------------------------- */

/* Adds the text before a tag; the sign of the tag may strip blanks from it. */
static void put_text(lexer *l, size_t begin, size_t end, bool begins_line, char sign, bool strips) {
    const char *text = l->text;
    uint32_t code;
    if (sign == '-') {
        while (end > begin) {
            size_t length = hy_unicode_previous(text + begin, end - begin, &code);
            if (!hy_jinja_is_space(code)) break;
            end -= length;
        }
    } else if (sign != '+' && strips) {
        size_t line = end;
        while (line > begin && text[line - 1] != '\n') line--;
        if ((line > begin || begins_line) && skip_blanks(l, line) >= end) end = line;
    }
    if (end > begin) push(l, HY_TOKEN_TEXT, text + begin, end - begin);
}

/* If {% raw %} is at this position, returns where its text begins; otherwise 0. `word` is raw or
 * endraw. */
static size_t find_raw(const lexer *l, size_t at, const char *word, bool trims) {
    if (!has(l, at, "{%")) return 0;
    at += 2;
    if (at < l->size && (l->text[at] == '-' || l->text[at] == '+')) at++;
    at = skip_blanks(l, at);
    if (at >= l->size || !has(l, at, word)) return 0;
    at = skip_blanks(l, at + strlen(word));
    size_t end = at < l->size ? end_of_tag(l, at, "%}", trims) : 0;
    if (!trims && end == 3 && l->text[at] == '+') end = 0;
    return end ? at + end : 0;
}

static char sign_at(const lexer *l, size_t at) {
    char c = at < l->size ? l->text[at] : 0;
    return c == '-' || c == '+' ? c : 0;
}

static void lex_raw(lexer *l, size_t text) {
    move(l, text);
    for (size_t at = text; at < l->size; at++) {
        size_t end = l->text[at] == '{' ? find_raw(l, at, "endraw", true) : 0;
        if (!end) continue;
        bool begins_line = l->text[text - 1] == '\n';
        put_text(l, text, at, begins_line, sign_at(l, at + 2), true);
        move(l, end);
        return;
    }
    hy_jinja_fail(l->run, "{%% raw %%} has no end");
}

static void lex_comment(lexer *l) {
    size_t begin = l->at + 2 + (sign_at(l, l->at + 2) != 0);
    for (size_t at = begin; at < l->size; at++) {
        size_t end = strchr("-+#", l->text[at]) ? end_of_tag(l, at, "#}", true) : 0;
        if (!end) continue;
        move(l, at + end);
        return;
    }
    hy_jinja_fail(l->run, "{# has no end");
}

/* Line ends become \n, and a last one at the end of the template is dropped. */
static void take_text(lexer *l, const char *text, size_t size) {
    char *copy = hy_jinja_take(l->run, size + 1);
    l->text = copy;
    for (size_t i = 0; i < size; i++) {
        bool is_pair = text[i] == '\r' && i + 1 < size && text[i + 1] == '\n';
        if (!is_pair) copy[l->size++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (l->size > 0 && copy[l->size - 1] == '\n') copy[--l->size] = 0;
    for (size_t i = 0, length; i < l->size; i += length) {
        length = (size_t)hy_utf8_length((const uint8_t *)copy + i, l->size - i);
        if (length > 0 && copy[i] != 0) continue;
        move(l, i);
        hy_jinja_fail(l->run, "the template is not valid UTF-8");
    }
}

hy_jinja_token *hy_jinja_lex(hy_jinja_run *run, const char *text, size_t size) {
    lexer l = {.run = run};
    run->line = 1;
    take_text(&l, text, size);
    while (l.at < l.size) {
        size_t begin = l.at, tag = begin;
        bool begins_line = begin == 0 || l.text[begin - 1] == '\n';
        while (tag < l.size && !(l.text[tag] == '{' && tag + 1 < l.size && l.text[tag + 1] &&
                                 strchr("{%#", l.text[tag + 1]))) {
            tag++;
        }
        char kind = tag < l.size ? l.text[tag + 1] : 0, sign = kind ? sign_at(&l, tag + 2) : 0;
        put_text(&l, begin, tag, begins_line, kind ? sign : '+', kind != '{');
        move(&l, tag);
        if (!kind) break;
        size_t raw = find_raw(&l, tag, "raw", false);
        if (raw) {
            lex_raw(&l, raw);
        } else if (kind == '#') {
            lex_comment(&l);
        } else {
            push(&l, kind == '%' ? HY_TOKEN_BLOCK : HY_TOKEN_PRINT, "", 0);
            l.at += 2 + (sign != 0);
            lex_tag(&l, kind == '%');
        }
    }
    push(&l, HY_TOKEN_END, "", 0);
    return l.tokens;
}
