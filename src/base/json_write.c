/* json_write.c: the JSON writer. See json.h.
 *
 * Every value passes through begin_value, which writes the comma, the line end and the key, so
 * balanced calls always give well-formed text. The hy_text remembers memory failures. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/number.h"
#include "base/utf8.h"

void hy_json_begin(hy_json_writer *w, hy_text *text, bool is_pretty) {
    *w = (hy_json_writer){.text = text, .is_pretty = is_pretty};
}

static void put_quoted(hy_text *text, const char *string, size_t size) {
    static const char codes[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const uint8_t *p = (const uint8_t *)string, *end = p + size;
    hy_text_add(text, "\"");
    while (p < end) {
        const uint8_t *plain = p;
        int length = 0;
        while (p < end && *p >= 0x20 && *p != '"' && *p != '\\' &&
               (length = hy_utf8_length(p, (size_t)(end - p))) > 0) {
            p += length;
        }
        hy_text_add_bytes(text, plain, (size_t)(p - plain));
        if (p == end) break;
        const char *code = *p != 0 ? strchr(codes, *p) : NULL;
        if (code) {
            hy_text_addf(text, "\\%c", letters[code - codes]);
        } else if (*p < 0x80) {
            hy_text_addf(text, "\\u%04x", *p);
        } else {
            hy_text_add(text, "\xEF\xBF\xBD"); /* U+FFFD replaces an invalid UTF-8 byte */
        }
        p++;
    }
    hy_text_add(text, "\"");
}

static void put_line(hy_json_writer *w) {
    if (!w->is_pretty) return;
    hy_text_add(w->text, "\n");
    for (int i = 0; i < w->depth; i++) hy_text_add(w->text, "  ");
}

/* Writes what comes before a value: a comma, a new line, the key. */
static void begin_value(hy_json_writer *w, const char *key) {
    uint64_t bit = (uint64_t)1 << w->depth;
    bool wants_key = (w->is_object & bit) != 0; /* members have keys, elements have none */
    assert((key != NULL) == wants_key);
    assert(w->depth > 0 || !(w->has_members & bit)); /* only one value at the top */
    (void)wants_key;
    if (w->has_members & bit) hy_text_add(w->text, ",");
    if (w->depth > 0) put_line(w);
    w->has_members |= bit;
    if (!key) return;
    put_quoted(w->text, key, strlen(key));
    hy_text_add(w->text, w->is_pretty ? ": " : ":");
}

static void open_level(hy_json_writer *w, const char *key, bool is_object) {
    begin_value(w, key);
    hy_text_add(w->text, is_object ? "{" : "[");
    w->depth++;
    assert(w->depth < 64);
    uint64_t bit = (uint64_t)1 << w->depth;
    w->has_members &= ~bit;
    w->is_object = is_object ? w->is_object | bit : w->is_object & ~bit;
}

static void close_level(hy_json_writer *w, bool is_object) {
    uint64_t bit = (uint64_t)1 << w->depth;
    assert(w->depth > 0 && is_object == ((w->is_object & bit) != 0));
    bool has_members = (w->has_members & bit) != 0;
    w->depth--;
    if (has_members) put_line(w);
    hy_text_add(w->text, is_object ? "}" : "]");
}

void hy_json_open_object(hy_json_writer *w, const char *key) { open_level(w, key, true); }
void hy_json_close_object(hy_json_writer *w) { close_level(w, true); }
void hy_json_open_array(hy_json_writer *w, const char *key) { open_level(w, key, false); }
void hy_json_close_array(hy_json_writer *w) { close_level(w, false); }

void hy_json_put_int(hy_json_writer *w, const char *key, int64_t value) {
    begin_value(w, key);
    hy_text_addf(w->text, "%" PRId64, value);
}

void hy_json_put_double(hy_json_writer *w, const char *key, double value) {
    char digits[HY_NUMBER_MAX];
    begin_value(w, key);
    hy_text_add(w->text, isfinite(value) ? hy_number_format(value, digits) : "null");
}

void hy_json_put_real(hy_json_writer *w, const char *key, double value) {
    char digits[HY_NUMBER_MAX];
    hy_json_put_double(w, key, value);
    bool is_whole = isfinite(value) && !strpbrk(hy_number_format(value, digits), ".e");
    if (is_whole) hy_text_add(w->text, ".0");
}

void hy_json_put_bool(hy_json_writer *w, const char *key, bool value) {
    begin_value(w, key);
    hy_text_add(w->text, value ? "true" : "false");
}

void hy_json_put_string(hy_json_writer *w, const char *key, const char *value) {
    if (value) {
        hy_json_put_bytes(w, key, value, strlen(value));
    } else {
        hy_json_put_null(w, key);
    }
}

void hy_json_put_bytes(hy_json_writer *w, const char *key, const char *value, size_t size) {
    begin_value(w, key);
    put_quoted(w->text, value, size);
}

void hy_json_put_null(hy_json_writer *w, const char *key) {
    begin_value(w, key);
    hy_text_add(w->text, "null");
}
