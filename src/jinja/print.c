/* print.c: prints values as Python does: str(), repr() and json.dumps(). See parts.h.
 *
 * run.c prints the output with it, eval.c joins strings, and the filter tojson writes JSON. Strings
 * keep their marks; quotes, commas and brackets have the mark 0. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "jinja/parts.h"
#include "tokenizer/unicode.h"

static void add_text(hy_jinja_builder *b, const char *text) {
    hy_jinja_add(b, text, strlen(text), 0);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* repr() of a float: the fewest digits that read back exactly, with an exponent below 1e-4 and from
 * 1e16 on. */
static void add_float(hy_jinja_builder *b, double number, bool is_json) {
    char text[64];
    if (isnan(number)) {
        add_text(b, is_json ? "NaN" : "nan");
        return;
    }
    if (isinf(number)) {
        add_text(b,
                 is_json ? (number < 0 ? "-Infinity" : "Infinity") : (number < 0 ? "-inf" : "inf"));
        return;
    }
    int digits = 1;
    for (; digits < 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, number);
        if (strtod(text, NULL) == number) break;
    }
    snprintf(text, sizeof text, "%.*e", digits - 1, number);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int places = digits - 1 - exponent;
        snprintf(text, sizeof text, "%.*f", places > 0 ? places : 1, number);
    }
    add_text(b, text);
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Whether Python prints a character unchanged. Others are escaped, unless they are a letter, a
 * number or a known symbol. */
static bool is_shown(uint32_t code) {
    if (code < 0x7F) return code >= 0x20;
    if (code < 0xA1 || code == 0xAD || hy_jinja_is_space(code)) return false;
    bool is_format = (code >= 0x200B && code <= 0x200F) || (code >= 0x202A && code <= 0x202E) ||
                     (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF ||
                     (code >= 0xFFF0 && code <= 0xFFFB) || (code >= 0xE0000 && code <= 0xE007F);
    bool is_private = (code >= 0xE000 && code <= 0xF8FF) || code >= 0xF0000;
    return !is_format && !is_private;
}

static void add_repr(hy_jinja_builder *b, const hy_jinja_string *s) {
    bool has_single = memchr(s->data, '\'', s->size), has_double = memchr(s->data, '"', s->size);
    char quote = has_single && !has_double ? '"' : '\'', text[16];
    hy_jinja_add(b, &quote, 1, 0);
    for (size_t i = 0, length; i < s->size; i += length) {
        uint32_t code;
        length = hy_unicode_next(s->data + i, s->size - i, &code);
        uint16_t mark = hy_jinja_mark_at(s, i);
        const char *escape = code == '\n'   ? "\\n"
                             : code == '\r' ? "\\r"
                             : code == '\t' ? "\\t"
                                            : "";
        if (escape[0]) {
            hy_jinja_add(b, escape, 2, mark);
        } else if (is_shown(code)) {
            if (code == (uint8_t)quote || code == '\\') hy_jinja_add(b, "\\", 1, mark);
            hy_jinja_add_part(b, s, i, i + length);
        } else {
            const char *format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
            snprintf(text, sizeof text, format, code);
            hy_jinja_add(b, text, strlen(text), mark);
        }
    }
    hy_jinja_add(b, &quote, 1, 0);
}

static void add_json_string(hy_jinja_builder *b, const hy_jinja_string *s, bool ensures_ascii) {
    static const char codes[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    char text[16];
    add_text(b, "\"");
    for (size_t i = 0, length; i < s->size; i += length) {
        uint32_t code;
        length = hy_unicode_next(s->data + i, s->size - i, &code);
        uint16_t mark = hy_jinja_mark_at(s, i);
        const char *at = code && code < 0x80 ? strchr(codes, (int)code) : NULL;
        if (at) {
            snprintf(text, sizeof text, "\\%c", letters[at - codes]);
        } else if (code >= 0x20 && (code < 0x7F || !ensures_ascii)) {
            hy_jinja_add_part(b, s, i, i + length);
            continue;
        } else if (code < 0x10000) {
            snprintf(text, sizeof text, "\\u%04x", code);
        } else { /* a surrogate pair, as in UTF-16 */
            snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD7C0 + (code >> 10),
                     0xDC00 + (code & 0x3FF));
        }
        hy_jinja_add(b, text, strlen(text), mark);
    }
    add_text(b, "\"");
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Prints like repr(), or like json.dumps() with a style. */
typedef struct printer {
    hy_jinja_builder *b;
    const hy_jinja_json_style *json; /* NULL: repr() */
    int level;
} printer;

static void print(printer *p, value v);

/* Begins a new line before an item or before the end of a container. */
static void new_line(printer *p) {
    const hy_jinja_string *indent = p->json ? p->json->indent : NULL;
    if (!indent) return;
    add_text(p->b, "\n");
    for (int i = 0; i < p->level; i++) hy_jinja_add_part(p->b, indent, 0, indent->size);
}

static void print_key(printer *p, value key) {
    bool is_quoted = p->json && key.type != HY_JINJA_STRING;
    if (is_quoted && key.type != HY_JINJA_NONE && !hy_jinja_is_number(key)) {
        hy_jinja_fail(p->b->run, "%s cannot be a JSON key", hy_jinja_type_name(key));
    }
    if (is_quoted) add_text(p->b, "\"");
    print(p, key);
    if (is_quoted) add_text(p->b, "\"");
}

static void print_separator(printer *p, const hy_jinja_string *json, const char *repr) {
    if (p->json)
        hy_jinja_add_part(p->b, json, 0, json->size);
    else
        add_text(p->b, repr);
}

/* The order in which the members of a dict are written. */
static size_t *order_of(printer *p, const hy_jinja_dict *dict) {
    hy_jinja_run *run = p->b->run;
    size_t *order = hy_jinja_take(run, (dict->count + 1) * sizeof *order);
    for (size_t i = 0; i < dict->count; i++) {
        size_t to = i;
        while (p->json && p->json->sorts && to > 0 &&
               hy_jinja_order(run, dict->keys[i], dict->keys[order[to - 1]]) < 0) {
            hy_jinja_spend(run, 1);
            order[to] = order[to - 1];
            to--;
        }
        order[to] = i;
    }
    return order;
}

static void print_items(printer *p, value v, const char *ends) {
    bool is_dict = v.type == HY_JINJA_DICT;
    size_t count = is_dict ? v.as.dict->count : v.as.list->count;
    size_t *order = is_dict ? order_of(p, v.as.dict) : NULL;
    hy_jinja_add(p->b, ends, 1, 0);
    p->level++;
    for (size_t i = 0; i < count; i++) {
        if (i) print_separator(p, p->json ? p->json->comma : NULL, ", ");
        new_line(p);
        if (is_dict) {
            print_key(p, v.as.dict->keys[order[i]]);
            print_separator(p, p->json ? p->json->colon : NULL, ": ");
        }
        print(p, is_dict ? v.as.dict->items[order[i]] : v.as.list->items[i]);
    }
    p->level--;
    if (count) new_line(p);
    if (ends[0] == '(' && count == 1) add_text(p->b, ",");
    hy_jinja_add(p->b, ends + 1, 1, 0);
}

static void print_string(printer *p, const hy_jinja_string *s) {
    if (p->json) {
        add_json_string(p->b, s, p->json->ensures_ascii);
        return;
    }
    if (s->is_safe) add_text(p->b, "Markup(");
    add_repr(p->b, s);
    if (s->is_safe) add_text(p->b, ")");
}

static void print(printer *p, value v) {
    bool is_json = p->json != NULL;
    char text[32];
    hy_jinja_enter(p->b->run);
    switch (v.type) {
    case HY_JINJA_NONE: add_text(p->b, is_json ? "null" : "None"); break;
    case HY_JINJA_BOOL:
        if (is_json)
            add_text(p->b, v.as.truth ? "true" : "false");
        else
            add_text(p->b, v.as.truth ? "True" : "False");
        break;
    case HY_JINJA_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.as.integer);
        add_text(p->b, text);
        break;
    case HY_JINJA_FLOAT: add_float(p->b, v.as.number, is_json); break;
    case HY_JINJA_BIG: hy_jinja_add_part(p->b, v.as.string, 0, v.as.string->size); break;
    case HY_JINJA_STRING: print_string(p, v.as.string); break;
    case HY_JINJA_LIST: print_items(p, v, "[]"); break;
    case HY_JINJA_TUPLE: print_items(p, v, is_json ? "[]" : "()"); break;
    case HY_JINJA_DICT: print_items(p, v, "{}"); break;
    case HY_JINJA_UNDEFINED:
        if (is_json) {
            hy_jinja_fail(p->b->run, "\"%s\" is undefined: tojson cannot write it", v.as.name);
        }
        add_text(p->b, "Undefined");
        break;
    default:
        hy_jinja_fail(p->b->run,
                      is_json ? "tojson cannot write %s" : "%s cannot be written as text",
                      hy_jinja_type_name(v));
    }
    p->b->run->depth--;
}

void hy_jinja_print(hy_jinja_builder *b, value v) {
    if (v.type != HY_JINJA_STRING && v.type != HY_JINJA_UNDEFINED) {
        print(&(printer){.b = b}, v);
        return;
    }
    hy_jinja_enter(b->run);
    if (v.type == HY_JINJA_STRING) hy_jinja_add_part(b, v.as.string, 0, v.as.string->size);
    b->run->depth--;
}

value hy_jinja_to_string(hy_jinja_run *run, value v) {
    if (v.type == HY_JINJA_STRING) return v;
    hy_jinja_builder b = {.run = run};
    hy_jinja_print(&b, v);
    return hy_jinja_built(&b);
}

void hy_jinja_print_json(hy_jinja_builder *b, value v, const hy_jinja_json_style *style) {
    print(&(printer){.b = b, .json = style}, v);
}
