/* unicode.h: characters of UTF-8 text, their classes, normal form C and lower case.
 *
 * Character classes are those of Unicode 16, normal form C of Unicode 9 and lower case of Unicode
 * 17, as in Hugging Face's tokenizers. Each invalid byte is a separate character without a class,
 * and every conversion keeps it unchanged. */
#pragma once

#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/unicode_tables.h"

typedef enum hy_unicode_class {
    HY_UNICODE_OTHER = 0,
    HY_UNICODE_LETTER = 1, /* \p{L} */
    HY_UNICODE_NUMBER = 2, /* \p{N} */
    HY_UNICODE_SPACE = 3   /* \s */
} hy_unicode_class;

#define HY_UNICODE_STRAY 0xFFFFFFFFu /* the code of an invalid UTF-8 byte */

static inline uint8_t hy_unicode_bits(uint32_t code) {
    if (code > 0x10FFFF) return HY_UNICODE_OTHER;
    uint8_t two = hy_unicode_classes[(uint32_t)hy_unicode_block[code >> 7] * 64 + (code >> 1 & 63)];
    return code & 1 ? two >> 4 : two & 15;
}

static inline hy_unicode_class hy_unicode_class_of(uint32_t code) {
    return (hy_unicode_class)(hy_unicode_bits(code) & 3);
}

/* \w: letters, marks, digits, connecting punctuation. */
static inline bool hy_unicode_is_word(uint32_t code) { return hy_unicode_bits(code) & 4; }

/* Reads the first character of `text`; `left` bytes (at least 1) are available. Returns its
 * length. */
static inline size_t hy_unicode_next(const char *text, size_t left, uint32_t *code) {
    const uint8_t *p = (const uint8_t *)text;
    int length = hy_utf8_length(p, left);
    switch (length) {
    case 1: *code = p[0]; return 1;
    case 2: *code = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu); return 2;
    case 3: *code = (p[0] & 0xFu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu); return 3;
    case 4:
        *code = (p[0] & 7u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        return 4;
    default: *code = HY_UNICODE_STRAY; return 1;
    }
}

/* Reads the last character of text[0 .. size), size at least 1. Returns its length. */
size_t hy_unicode_previous(const char *text, size_t size, uint32_t *code);

/* True if the text is certainly in normal form C: all of it is below U+0300. */
bool hy_unicode_is_plain(const char *text, size_t size);
void hy_unicode_add_nfc(hy_text *out, const char *text, size_t size);
void hy_unicode_add_lower(hy_text *out, const char *text, size_t size);
