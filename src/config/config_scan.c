/* config_scan.c: what must be set right in a text before libconfig may read it.
 *
 * libconfig 1.5, which Debian and Ubuntu ship, cuts whole numbers beyond 32 bits down without a
 * word unless they end in L, ends the whole program when an @include names something it cannot
 * read, and leaks a string that is never closed or stands where none may. So a text is walked once:
 * long numbers get their L; numbers beyond 64 bits, includes and such strings are refused. Lines
 * stay where they are. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/config_file.h"

static const char digits[] = "0123456789";
static const char word_letters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-*";
static const char number_letters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._";

typedef struct scan {
    const char *text, *name;
    hy_text *out;
    char before; /* first sign of the last piece that was not blank or a comment */
} scan;

static unsigned line_of(const scan *s, const char *place) {
    unsigned line = 1;
    for (const char *p = s->text; p < place; p++) line += *p == '\n';
    return line;
}

static hy_status refuse(const scan *s, const char *place, const char *why) {
    return hy_fail(HY_ERR_INPUT, "%s:%u: %s", s->name, line_of(s, place), why);
}

static bool begins_comment(const char *p) {
    return *p == '#' || (p[0] == '/' && (p[1] == '/' || p[1] == '*'));
}

/* Bytes of the string that begins at p, its quotes included; 0 when it is never closed. */
static size_t string_size(const char *p) {
    const char *end = p + 1;
    while (*end && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
    return *end ? (size_t)(end + 1 - p) : 0;
}

/* Bytes of the comment that begins at p; 0 when it is never closed. */
static size_t comment_size(const char *p) {
    if (*p == '#' || p[1] == '/') return strcspn(p, "\n");
    const char *end = strstr(p + 2, "*/");
    return end ? (size_t)(end + 2 - p) : 0;
}

/* Bytes of the number that begins at p. The sign of an exponent belongs to it: "1e-5". */
static size_t number_size(const char *p) {
    bool is_hex = p[0] == '0' && (p[1] == 'x' || p[1] == 'X');
    size_t size = strspn(p, number_letters);
    bool ends_in_e = !is_hex && (p[size - 1] == 'e' || p[size - 1] == 'E');
    if (ends_in_e && (p[size] == '+' || p[size] == '-')) size += 1 + strspn(p + size + 1, digits);
    return size;
}

static hy_status add_number(scan *s, const char *number, size_t size) {
    char *end;
    errno = 0;
    bool is_hex = number[0] == '0' && (number[1] == 'x' || number[1] == 'X');
    unsigned long long value = strtoull(number, &end, is_hex ? 16 : 10);
    size_t suffix = (size_t)(number + size - end);
    bool is_whole = end <= number + size && strspn(end, "L") >= suffix;
    HY_FAIL_IF(is_whole && (errno == ERANGE || value > INT64_MAX), HY_ERR_INPUT,
               "%s:%u: %.*s is too large; accepted: at most %" PRId64, s->name, line_of(s, number),
               (int)size, number, INT64_MAX);
    hy_text_add_bytes(s->out, number, size);
    if (is_whole && !suffix && value > INT32_MAX) hy_text_add(s->out, "L");
    return HY_OK;
}

/* Copies what begins at p, be it a string, a comment, a number, a word or a single sign, and says how
 * many bytes it was. */
static hy_status add_piece(scan *s, const char *p, size_t *taken) {
    bool is_string = *p == '"', is_comment = begins_comment(p);
    if (*p == '@') return refuse(s, p, "@include is not accepted; load several files instead");
    if (is_string && !strchr("=:,([\"", s->before)) {
        return refuse(s, p, "a string with no key and = in front of it");
    }
    if (strchr(digits, *p)) {
        *taken = number_size(p);
        return add_number(s, p, *taken);
    }
    if (is_string || is_comment) {
        *taken = is_string ? string_size(p) : comment_size(p);
        if (!*taken) {
            return refuse(s, p,
                          is_string ? "the string that begins here is never closed"
                                    : "the comment that begins here is never closed");
        }
    } else {
        *taken = strspn(p, word_letters);
        if (!*taken) *taken = 1;
    }
    hy_text_add_bytes(s->out, p, *taken);
    return HY_OK;
}

hy_status hy_config_file_prepare(const char *text, size_t size, const char *name, hy_text *out) {
    scan s = {.text = text, .name = name, .out = out, .before = ';'};
    size_t length = strlen(text);
    if (length != size) return refuse(&s, text + length, "a zero byte; expected a text file");
    for (size_t at = 0, taken = 0; at < size; at += taken) {
        const char *piece = text + at;
        HY_TRY(add_piece(&s, piece, &taken));
        if (!begins_comment(piece) && !strchr(" \t\r\n\f", *piece)) s.before = *piece;
    }
    return hy_text_status(out);
}
