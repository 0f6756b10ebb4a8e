/* utf8.h: the length of a UTF-8 character.
 *
 * Used wherever text is read or written. Overlong forms, surrogates and values above U+10FFFF are
 * not well-formed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Length of the character at p, 1 to 4; `left` bytes (at least 1) are available. 0: not
 * well-formed. */
static inline int hy_utf8_length(const uint8_t *p, size_t left) {
    uint8_t lead = p[0];
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (left < (size_t)length) return 0;
    /* Only the second byte has a narrower range, after four lead bytes (Unicode, table 3-7). */
    uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < low || p[1] > high) return 0;
    for (int i = 2; i < length; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
    }
    return length;
}

/* Writes a valid code point as UTF-8; returns its length, 1 to 4. */
static inline int hy_utf8_encode(uint32_t code, char *out) {
    int length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(length == 1 ? code : 0xF00u >> length | code); /* as many one bits as bytes */
    return length;
}
