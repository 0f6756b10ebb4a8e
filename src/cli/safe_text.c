/* safe_text.c: shows what a model wrote without letting it drive the terminal.
 *
 * A model that has not learned much yet emits any byte, escape codes included. What reaches
 * the terminal is printable ASCII, newline, tab and whole UTF-8 characters outside the control
 * range. */
#include "cli/safe_text.h"

#include <stdint.h>
#include <string.h>

typedef struct character {
    size_t length; /* bytes; 0: not well-formed here */
    uint32_t value;
} character;

/* The smallest value a sequence of this length may hold: longer spellings of it are forged. */
static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};

static size_t promised_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return 0;
}

static character decode(const unsigned char *bytes, size_t size) {
    const character broken = {0, 0};
    size_t length = promised_length(bytes[0]);
    if (length == 0 || length > size) return broken;
    if (length == 1) return (character){1, bytes[0]};
    uint32_t value = bytes[0] & (0xFFu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xC0) != 0x80) return broken;
        value = value << 6 | (bytes[i] & 0x3Fu);
    }
    bool is_surrogate = value >= 0xD800 && value <= 0xDFFF;
    if (value < smallest[length] || value > 0x10FFFF || is_surrogate) return broken;
    return (character){length, value};
}

/* C0 and C1 controls, and the marks that reorder text. */
static bool is_control(uint32_t value) {
    return value < 0x20 || (value >= 0x7F && value < 0xA0) ||
           (value >= 0x202A && value <= 0x202E) || (value >= 0x2066 && value <= 0x2069);
}

/* What is shown for the character at `at`, and how many bytes it took. */
static size_t show(const unsigned char *at, size_t size, bool is_utf8, char shown[8]) {
    character next = decode(at, size);
    size_t taken = next.length > 0 ? next.length : 1;
    if (next.length == 0)
        snprintf(shown, 8, "%s", is_utf8 ? "\xEF\xBF\xBD" : "?");
    else if (next.value == '\n' || next.value == '\t')
        snprintf(shown, 8, "%c", (int)next.value);
    else if (is_control(next.value))
        snprintf(shown, 8, next.value < 0x100 ? "\\x%02x" : "\\u%04x",
                 (unsigned)next.value & 0xFFFF);
    else if (next.length > 1 && !is_utf8)
        snprintf(shown, 8, "?");
    else
        snprintf(shown, 8, "%.*s", (int)taken, (const char *)at);
    return taken;
}

void hy_cli_write_safely(FILE *out, const char *bytes, size_t size, bool is_utf8) {
    const unsigned char *at = (const unsigned char *)bytes, *end = at + size;
    char shown[8];
    while (at < end) {
        at += show(at, (size_t)(end - at), is_utf8, shown);
        fputs(shown, out);
    }
}

size_t hy_cli_copy_safely(char *to, size_t size, const char *text, bool is_utf8) {
    const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
    size_t written = 0;
    char shown[8];
    while (at < end) {
        at += show(at, (size_t)(end - at), is_utf8, shown);
        if (shown[0] == '\n' || shown[0] == '\t') shown[0] = ' ';
        if (written + strlen(shown) >= size) break;
        memcpy(to + written, shown, strlen(shown));
        written += strlen(shown);
    }
    to[written] = '\0';
    return written;
}

size_t hy_cli_decode(const char *bytes, size_t size, uint32_t *value) {
    character next = decode((const unsigned char *)bytes, size);
    *value = next.value;
    return next.length;
}
