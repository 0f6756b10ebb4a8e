/* config_guard.c: makes a configuration text safe for libconfig.
 *
 * libconfig 1.5, which Debian and Ubuntu ship, opens the files that an @include names, truncates
 * integers to 32 bits, compares each key with all keys before it, and leaks a string that it does
 * not expect. So this file limits size, nesting and the number of settings, and rewrites or rejects
 * the rest. It splits the text into comments, strings, numbers, names and single characters exactly
 * as libconfig's scanner does, and copies them one by one. libconfig interprets the result.
 * config_file.c calls this for every text, built-in files included. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "config/config_file.h"

enum { BYTES_MAX = 256 << 10, SETTINGS_MAX = 1024, DEPTH_MAX = 8 };

static const char digits[] = "0123456789";
static const char hex_digits[] = "0123456789abcdefABCDEF";
static const char name_signs[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-*";

typedef struct guard {
    const char *text, *name;
    hy_text *out;
    char before; /* first byte of the last token that was not a blank or comment */
    int depth, settings;
} guard;

static bool is_one_of(char c, const char *signs) { return c && strchr(signs, c); }

static unsigned line_of(const guard *g, const char *place) {
    unsigned line = 1;
    for (const char *p = g->text; p < place; p++) line += *p == '\n';
    return line;
}

static hy_status refuse(const guard *g, const char *place, const char *why) {
    return hy_fail(HY_ERR_INPUT, "%s:%u: %s", g->name, line_of(g, place), why);
}

static bool begins_comment(const char *p) {
    return *p == '#' || (p[0] == '/' && (p[1] == '/' || p[1] == '*'));
}

/* Each of these four functions copies the token at `begin` and moves *at behind it. */

/* A comment becomes a blank and keeps its line ends. */
static hy_status add_comment(guard *g, const char *begin, const char **at) {
    bool is_line = *begin == '#' || begin[1] == '/';
    const char *end = is_line ? begin + strcspn(begin, "\n") : strstr(begin + 2, "*/");
    if (!end) return refuse(g, begin, "the comment that starts here is not closed");
    hy_text_add(g->out, " ");
    for (const char *p = begin; p < end; p++)
        if (*p == '\n') hy_text_add(g->out, "\n");
    *at = end + (is_line ? 0 : 2);
    return HY_OK;
}

/* '@' is written as its code, so that @include in a string is plain text for every version. */
static hy_status add_string(guard *g, const char *begin, const char **at) {
    if (!is_one_of(g->before, "=:\""))
        return refuse(g, begin, "this string has no KEY = before it (lists are not accepted)");
    hy_text_add(g->out, "\"");
    const char *p = begin + 1;
    while (*p && *p != '"') {
        size_t size = *p == '\\' && is_one_of(p[1], "\"\\") ? 2 : 1;
        if (!strncasecmp(p, "\\x00", 4)) return refuse(g, p, "a string contains a zero byte");
        if (*p == '@') {
            hy_text_add(g->out, "\\x40");
        } else if (!strncmp(p, "\\@", 2)) { /* this backslash must not combine with the one of
                                             * \x40 */
            hy_text_add(g->out, "\\\\");
        } else {
            hy_text_add_bytes(g->out, p, size);
        }
        p += size;
    }
    if (!*p) return refuse(g, begin, "the string that starts here is not closed");
    hy_text_add(g->out, "\"");
    *at = p + 1;
    return HY_OK;
}

/* A number without its sign. Integers get an L, so that libconfig reads all 64 bits. */
static hy_status add_number(guard *g, const char *begin, const char **at) {
    bool is_hex = *begin == '0' && is_one_of(begin[1], "xX") && is_one_of(begin[2], hex_digits);
    const char *end = begin + (is_hex ? 2 + strspn(begin + 2, hex_digits) : strspn(begin, digits));
    const char *whole = end;
    if (!is_hex && *end == '.') end += 1 + strspn(end + 1, digits);
    size_t sign = is_one_of(*end, "eE") && is_one_of(end[1], "+-");
    bool has_exponent = !is_hex && is_one_of(*end, "eE") && is_one_of(end[1 + sign], digits);
    if (has_exponent) end += 1 + sign + strspn(end + 1 + sign, digits);
    if (*begin == '.' && !is_one_of(begin[1], digits))
        return refuse(g, begin, "this number has no digits");
    hy_text_add_bytes(g->out, begin, (size_t)(end - begin));
    if (end == whole) {
        /* strtoull returns ULLONG_MAX if the number exceeds 64 bits */
        HY_FAIL_IF(strtoull(begin, NULL, is_hex ? 16 : 10) > INT64_MAX, HY_ERR_INPUT,
                   "%s:%u: %.*s is too large; accepted: at most %" PRId64, g->name,
                   line_of(g, begin), end - begin < 60 ? (int)(end - begin) : 60, begin, INT64_MAX);
        if (*end != 'L') hy_text_add(g->out, "L");
    }
    *at = end;
    return HY_OK;
}

/* A name, or a single character of any other kind. */
static hy_status add_sign(guard *g, const char *begin, const char **at) {
    g->depth += is_one_of(*begin, "{[(") - is_one_of(*begin, "}])");
    g->settings += is_one_of(*begin, "=:");
    if (*begin == '@')
        return refuse(g, begin,
                      "@include is not accepted; pass several configuration files instead");
    if (g->depth > DEPTH_MAX)
        return refuse(g, begin, "groups or lists are nested more than 8 levels deep");
    if (g->settings > SETTINGS_MAX) return refuse(g, begin, "the file has more than 1024 settings");
    size_t size = is_one_of(*begin, "-_") ? 1 : strspn(begin, name_signs);
    size += size == 0;
    hy_text_add_bytes(g->out, begin, size);
    *at = begin + size;
    return HY_OK;
}

hy_status hy_config_guard(const char *text, size_t size, const char *name, hy_text *out) {
    guard g = {.text = text, .name = name, .out = out, .before = ';'};
    HY_FAIL_IF(size > BYTES_MAX, HY_ERR_INPUT,
               "%s is too large: %zu bytes; a configuration file can have at most %d", name, size,
               BYTES_MAX);
    size_t length = strlen(text);
    if (length != size)
        return refuse(&g, text + length, "the file contains a zero byte; expected a text file");
    for (const char *at = text; *at;) {
        const char *begin = at;
        bool is_comment = begins_comment(begin);
        HY_TRY(is_comment                                   ? add_comment(&g, begin, &at)
               : *begin == '"'                              ? add_string(&g, begin, &at)
               : is_one_of(*begin, digits) || *begin == '.' ? add_number(&g, begin, &at)
                                                            : add_sign(&g, begin, &at));
        if (!is_comment && !is_one_of(*begin, " \t\r\n\f")) g.before = *begin;
    }
    return hy_text_status(out);
}
