/* unicode.h: characters of UTF-8 text, their classes, and text in normal form C or in small letters.
 *
 * Classes of Unicode 16, normal form C of 9 and small letters of 17: what Hugging Face's tokenizers know.
 * Bytes that are no UTF-8 are characters of their own, without a class, and pass through
 * every change of the text as they are. */
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

#define HY_UNICODE_STRAY 0xFFFFFFFFu /* what stands for a byte that is no UTF-8 */

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

/* The character at p, of which `left` (at least 1) bytes may be read; returns its bytes. */
static inline int hy_unicode_next(const char *text, size_t left, uint32_t *code) {
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

/* The last character of text[0 .. size), size at least 1; returns its bytes. */
int hy_unicode_previous(const char *text, size_t size, uint32_t *code);

/* True when the text is surely in normal form C already: all of it below U+0300. */
bool hy_unicode_is_plain(const char *text, size_t size);
void hy_unicode_add_nfc(hy_text *out, const char *text, size_t size);
void hy_unicode_add_lower(hy_text *out, const char *text, size_t size);
