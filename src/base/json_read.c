/* json_read.c: the JSON reader. See json.h for what it accepts, json_node.h for the tree it builds.
 *
 * It is one loop with a stack of 128 open containers, without recursion, so hostile nesting costs
 * nothing. Work and memory are linear in the text, also for duplicate keys; the tree takes at most
 * about twelve times the text, for an array of one-digit numbers. Lines are counted only when an
 * error happens. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_node.h"
#include "base/number.h"
#include "base/utf8.h"

#define DEPTH_MAX 128

typedef struct frame {
    uint32_t container; /* its node */
    uint32_t last;      /* its last child; 0: none yet */
} frame;

typedef struct parser {
    const char *text; /* original text, for error positions */
    char *base;       /* the copy that is decoded in place */
    char *p, *end;    /* in the copy; *end is 0 */
    hy_json *json;
    int depth;
    frame stack[DEPTH_MAX];
} parser;

/* ---- errors ---------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static hy_status fail_at(const parser *s, const char *where,
                                                               const char *format, ...) {
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    size_t offset = (size_t)(where - s->base), line = 1, line_start = 0;
    for (size_t i = 0; i < offset; i++) {
        if (s->text[i] != '\n') continue;
        line++;
        line_start = i + 1;
    }
    return hy_fail(HY_ERR_INPUT, "%s:%zu:%zu: %s", s->json->name, line, offset - line_start + 1,
                   what);
}

static hy_status fail_expected(const parser *s, const char *expected) {
    unsigned char c = (unsigned char)*s->p;
    if (s->p == s->end) return fail_at(s, s->p, "expected %s, found the end of the text", expected);
    if (c > 0x20 && c < 0x7F) return fail_at(s, s->p, "expected %s, found '%c'", expected, c);
    return fail_at(s, s->p, "expected %s, found byte 0x%02X", expected, c);
}

static hy_status fail_memory(const parser *s) {
    HY_FAIL_IF(s->json->count == HY_JSON_NODES_MOST, HY_ERR_INPUT,
               "%s: the JSON text has more than %zu values, which is the limit", s->json->name,
               HY_JSON_NODES_MOST);
    return hy_fail(HY_ERR_MEMORY, "%s: not enough memory for a tree of %zu nodes", s->json->name,
                   s->json->count);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Adds a node at the end of the array; NULL: not enough memory, or too many nodes. */
static hy_json_node *add_node(parser *s, hy_json_type type) {
    hy_json *json = s->json;
    if (json->count == HY_JSON_NODES_MOST) return NULL;
    hy_status status = hy_array_reserve(&json->nodes, &json->capacity, json->count + 1,
                                        sizeof *json->nodes, json->name);
    if (status != HY_OK) return NULL;
    hy_json_node *node = &json->nodes[json->count++];
    *node = (hy_json_node){.type = type};
    return node;
}

/* Adds a value to the innermost open container. */
static hy_json_node *add_value(parser *s, hy_json_type type) {
    hy_json_node *node = add_node(s, type);
    if (!node || s->depth == 0) return node;
    hy_json_node *nodes = s->json->nodes;
    uint32_t at = (uint32_t)(node - nodes);
    frame *top = &s->stack[s->depth - 1];
    hy_json_node *container = &nodes[top->container];
    node->is_member = container->type == HY_JSON_OBJECT;
    container->size++;
    if (top->last) nodes[top->last].next = at - top->last;
    top->last = at;
    return node;
}

static void skip_space(parser *s) {
    char *p = s->p;
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') p++;
    s->p = p;
}

/* ---- strings --------------------------------------------------------------------------------- */

static bool read_hex4(const char *p, uint32_t *code) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    *code = 0;
    for (int i = 0; i < 4; i++) {
        const char *digit = p[i] ? strchr(digits, p[i]) : NULL; /* a zero ends the text */
        if (!digit) return false;
        *code = *code << 4 | (uint32_t)(digit - digits) % 16;
    }
    return true;
}

/* Reads \uXXXX, or two of them for a character beyond the basic plane. *from is at the 'u'. */
static hy_status take_unicode(parser *s, char **from, char **to) {
    char *p = *from;
    uint32_t code, low;
    if (!read_hex4(p + 1, &code)) return fail_at(s, p - 1, "\\u needs four hexadecimal digits");
    p += 5;
    if (code >= 0xD800 && code < 0xDC00) {
        bool is_pair =
            p[0] == '\\' && p[1] == 'u' && read_hex4(p + 2, &low) && low >= 0xDC00 && low < 0xE000;
        if (!is_pair) return fail_at(s, p - 6, "\\u%04X is half of a surrogate pair", code);
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        p += 6;
    } else if (code >= 0xDC00 && code < 0xE000) {
        return fail_at(s, p - 6, "\\u%04X is half of a surrogate pair", code);
    }
    *to += hy_utf8_encode(code, *to);
    *from = p;
    return HY_OK;
}

static hy_status take_escape(parser *s, char **from, char **to) {
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = *++*from;
    if (c == 'u') return take_unicode(s, from, to);
    const char *letter = c ? strchr(letters, c) : NULL;
    if (!letter) {
        return fail_at(
            s, *from - 1,
            "unknown escape; a backslash must be followed by \" \\ / b f n r t or uXXXX");
    }
    *(*to)++ = values[letter - letters];
    ++*from;
    return HY_OK;
}

/* Reads a special character of a string: an escape, or a character of several bytes. */
static hy_status take_special(parser *s, char **from, char **to) {
    char *p = *from;
    if (*p == '\\') return take_escape(s, from, to);
    if (p == s->end) return fail_at(s, s->p, "this string has no closing quote");
    if ((unsigned char)*p < 0x20) {
        return fail_at(s, p, "control character 0x%02X in a string must be escaped", *p);
    }
    int length = hy_utf8_length((const uint8_t *)p, (size_t)(s->end - p));
    if (length == 0) return fail_at(s, p, "byte 0x%02X is not valid UTF-8", (unsigned char)*p);
    memmove(*to, p, (size_t)length);
    *to += length;
    *from += length;
    return HY_OK;
}

/* Reads the string at s->p (at its quote) into a node's value. */
static hy_status take_string(parser *s, const char **string, uint32_t *size) {
    char *start = s->p + 1, *from = start, *to = start;
    for (;;) {
        unsigned char c = (unsigned char)*from;
        if (c == '"') break;
        if (c >= 0x20 && c < 0x80 && c != '\\') {
            *to++ = *from++; /* a no-op until the first escape moves `to` behind `from` */
        } else {
            HY_TRY(take_special(s, &from, &to));
        }
    }
    *to = '\0';
    s->p = from + 1;
    *string = start;
    *size = (uint32_t)(to - start);
    return HY_OK;
}

/* ---- numbers and words ----------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static char *skip_digits(char *p) {
    while (is_digit(*p)) p++;
    return p;
}

/* Finds the end of the number at s->p by the JSON grammar. */
static hy_status scan_number(parser *s, char **number_end, bool *is_whole) {
    char *p = s->p;
    if (*p == '-') p++;
    if (!is_digit(*p)) return fail_at(s, s->p, "a minus sign must be followed by a digit");
    if (*p == '0' && is_digit(p[1])) return fail_at(s, s->p, "a number must not begin with 0");
    p = skip_digits(p);
    *is_whole = true;
    if (*p == '.') {
        if (!is_digit(*++p)) return fail_at(s, p, "a decimal point must be followed by a digit");
        p = skip_digits(p);
        *is_whole = false;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '-' || *p == '+') p++;
        if (!is_digit(*p)) return fail_at(s, p, "an exponent must have a digit");
        p = skip_digits(p);
        *is_whole = false;
    }
    *number_end = p;
    return HY_OK;
}

static hy_status take_number(parser *s) {
    char *end = s->p;
    bool is_whole = false;
    HY_TRY(scan_number(s, &end, &is_whole));
    hy_json_node *node = add_value(s, HY_JSON_NUMBER);
    if (!node) return fail_memory(s);
    double number = 0;
    if (is_whole && strncmp(s->p, "-0", 2) != 0) { /* "-0" becomes a double, which keeps its sign */
        errno = 0;
        node->value.integer = strtoll(s->p, NULL, 10);
        node->is_integer = errno == 0;
    }
    if (!node->is_integer && !hy_number_parse(s->p, (size_t)(end - s->p), &number)) {
        return fail_at(s, s->p, "number %.*s is too large for a double",
                       (int)(end - s->p < 40 ? end - s->p : 40), s->p);
    }
    if (!node->is_integer && is_whole) {
        node->value.string = s->p;
        node->size = (uint32_t)(end - s->p);
    } else if (!node->is_integer) {
        node->value.number = number;
    }
    s->p = end;
    return HY_OK;
}

static hy_status take_word(parser *s, const char *word, hy_json_type type, int64_t value) {
    size_t size = strlen(word);
    if (strncmp(s->p, word, size) != 0) return fail_expected(s, "a value");
    hy_json_node *node = add_value(s, type);
    if (!node) return fail_memory(s);
    node->value.integer = value;
    s->p += size;
    return HY_OK;
}

/* ---- containers ------------------------------------------------------------------------------ */

static hy_status fail_duplicate(const parser *s, const hy_json_node *member) {
    const char *key = member[-1].value.string;
    return fail_at(s, key - 1, "duplicate key \"%.100s\"", key);
}

/* Builds the index of an object's members, and detects duplicates. */
static hy_status index_members(parser *s, hy_json_node *object) {
    uint32_t slots = 64;
    while (slots < object->size * 2) slots *= 2;
    hy_json_index *index = calloc(1, sizeof *index + slots * sizeof index->slot[0]);
    if (!index) return fail_memory(s);
    index->mask = slots - 1;
    index->following = s->json->indexes;
    s->json->indexes = index;
    object->value.index = index;
    for (const hy_json_node *m = hy_json_first(object); m; m = hy_json_next(m)) {
        uint32_t *slot = hy_json_index_slot(object, m[-1].value.string, m[-1].size);
        if (*slot) return fail_duplicate(s, m);
        *slot = (uint32_t)(m - object);
    }
    return HY_OK;
}

static hy_status check_members(parser *s, hy_json_node *object) {
    if (object->size > HY_JSON_SMALL) return index_members(s, object);
    for (const hy_json_node *m = hy_json_first(object); m; m = hy_json_next(m)) {
        for (const hy_json_node *n = hy_json_first(object); n != m; n = hy_json_next(n)) {
            if (n[-1].size == m[-1].size &&
                memcmp(n[-1].value.string, m[-1].value.string, m[-1].size) == 0) {
                return fail_duplicate(s, m);
            }
        }
    }
    return HY_OK;
}

static hy_status open_container(parser *s, hy_json_type type) {
    if (s->depth == DEPTH_MAX) return fail_at(s, s->p, "nested deeper than %d levels", DEPTH_MAX);
    hy_json_node *node = add_value(s, type);
    if (!node) return fail_memory(s);
    s->stack[s->depth++] = (frame){.container = (uint32_t)(node - s->json->nodes)};
    s->p++;
    return HY_OK;
}

/* Reads `"key" :` and stores the key in its own node. */
static hy_status take_key(parser *s) {
    if (*s->p != '"') return fail_expected(s, "a key in double quotes");
    hy_json_node *key = add_node(s, HY_JSON_STRING);
    if (!key) return fail_memory(s);
    HY_TRY(take_string(s, &key->value.string, &key->size));
    skip_space(s);
    if (*s->p != ':') return fail_expected(s, "':' after the key");
    s->p++;
    skip_space(s);
    return HY_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static hy_status take_value(parser *s) {
    switch (*s->p) {
    case '{': return open_container(s, HY_JSON_OBJECT);
    case '[': return open_container(s, HY_JSON_ARRAY);
    case 't': return take_word(s, "true", HY_JSON_BOOL, 1);
    case 'f': return take_word(s, "false", HY_JSON_BOOL, 0);
    case 'n': return take_word(s, "null", HY_JSON_NULL, 0);
    case '"': break;
    default:
        if (*s->p == '-' || is_digit(*s->p)) return take_number(s);
        return fail_expected(s, "a value");
    }
    hy_json_node *node = add_value(s, HY_JSON_STRING);
    if (!node) return fail_memory(s);
    return take_string(s, &node->value.string, &node->size);
}

/* After a value or an opening bracket: closes containers that end here, and stops before the next
 * value or at the end. */
static hy_status step_to_value(parser *s) {
    while (s->depth > 0) {
        skip_space(s);
        frame *top = &s->stack[s->depth - 1];
        hy_json_node *container = &s->json->nodes[top->container];
        bool is_object = container->type == HY_JSON_OBJECT, is_empty = container->size == 0;
        if (*s->p == (is_object ? '}' : ']')) {
            s->p++;
            s->depth--;
            if (is_object) HY_TRY(check_members(s, container));
            continue;
        }
        if (!is_empty) {
            if (*s->p != ',') return fail_expected(s, is_object ? "',' or '}'" : "',' or ']'");
            s->p++;
            skip_space(s);
        }
        return is_object ? take_key(s) : HY_OK;
    }
    return HY_OK;
}

static hy_status parse_text(parser *s) {
    if (strncmp(s->p, "\xEF\xBB\xBF", 3) == 0) {
        return fail_at(s, s->p,
                       "the text begins with a byte order mark, which JSON does not allow");
    }
    skip_space(s);
    do {
        HY_TRY(take_value(s));
        HY_TRY(step_to_value(s));
    } while (s->depth > 0);
    skip_space(s);
    return s->p == s->end ? HY_OK : fail_expected(s, "the end of the text");
}

hy_status hy_json_parse(const char *text, size_t size, const char *name, hy_json **out) {
    *out = NULL;
    HY_FAIL_IF(size >= HY_JSON_TEXT_MAX, HY_ERR_INPUT,
               "%s: the JSON text has %zu bytes; the limit is %zu", name, size,
               HY_JSON_TEXT_MAX - 1);
    hy_json *json = calloc(1, sizeof *json);
    if (!json) return hy_fail(HY_ERR_MEMORY, "%s: out of memory", name);
    json->capacity = size / 32 + 16;
    json->name = strdup(name);
    json->strings = malloc(size + 1);
    json->nodes = malloc(json->capacity * sizeof *json->nodes);
    if (!json->name || !json->strings || !json->nodes) {
        hy_json_free(json);
        return hy_fail(HY_ERR_MEMORY, "%s: not enough memory for %zu bytes of JSON", name, size);
    }
    if (size) memcpy(json->strings, text, size);
    json->strings[size] = '\0';
    parser s = {.text = text, .base = json->strings, .p = json->strings, .json = json};
    s.end = s.base + size;
    hy_status status = parse_text(&s);
    if (status != HY_OK) {
        hy_json_free(json);
        return status;
    }
    hy_json_node *fitting = realloc(json->nodes, json->count * sizeof *fitting);
    if (fitting) json->nodes = fitting;
    *out = json;
    return HY_OK;
}

hy_status hy_json_read_file(const char *path, hy_json **out) {
    char *text;
    size_t size;
    *out = NULL;
    HY_TRY(hy_file_read(path, &text, &size));
    hy_status status = hy_json_parse(text, size, path, out);
    free(text);
    return status;
}
