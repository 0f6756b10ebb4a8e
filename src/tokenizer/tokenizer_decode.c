/* tokenizer_decode.c: ids become text again.
 *
 * Bytes are given as they are: where a token ends within a character, so does the text, and text
 * that was no UTF-8 comes back as it was. */

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

/* ---- the printable alphabet ------------------------------------------------------------------ */

/* Bytes that can be seen stand for themselves; the others, in order, for U+0100 and on. */
static bool is_seen(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

uint32_t hy_byte_spelling(uint8_t byte) {
    if (is_seen(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    return byte == 0xAD ? 0x143u : 0x121u + (byte - 0x7Fu);
}

static int hy_byte_of_spelling(uint32_t code) {
    if (code < 0x100) return is_seen(code) ? (int)code : -1;
    if (code <= 0x120) return (int)(code - 0x100);
    if (code <= 0x142) return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}

/* Adds a token spelled in the alphabet as its bytes; one that is not, as it is. */
static void add_spelled(hy_text *out, const char *text, size_t size) {
    size_t before = out->size;
    for (size_t i = 0; i < size;) {
        uint32_t code;
        i += (size_t)hy_unicode_next(text + i, size - i, &code);
        int byte = hy_byte_of_spelling(code);
        if (byte < 0) {
            out->size = before;
            hy_text_add_bytes(out, text, size);
            return;
        }
        char c = (char)byte;
        hy_text_add_bytes(out, &c, 1);
    }
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static void add_replaced(hy_text *out, const char *text, size_t size, const hy_decoder *d,
                         size_t to_size) {
    const char *end = text + size, *hit;
    while ((hit = memmem(text, (size_t)(end - text), d->from, d->from_size))) {
        hy_text_add_bytes(out, text, (size_t)(hit - text));
        hy_text_add_bytes(out, d->to, to_size);
        text = hit + d->from_size;
    }
    hy_text_add_bytes(out, text, (size_t)(end - text));
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* The byte that a token <0xNN> stands for, -1: it is none. */
static int byte_of_token(const char *text, size_t size) {
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static void add_token(const hy_tokenizer *t, hy_text *out, const char *text, size_t size,
                      bool is_first) {
    const hy_decoder *d = &t->decoder;
    if (d->is_byte_level) {
        add_spelled(out, text, size);
        return;
    }
    if (d->joins_with_blanks && !is_first) hy_text_add(out, " ");
    int byte = d->has_byte_fallback ? byte_of_token(text, size) : -1;
    if (byte >= 0) {
        char c = (char)byte;
        hy_text_add_bytes(out, &c, 1);
        return;
    }
    if (d->from) {
        add_replaced(out, text, size, d, is_first && d->strips_first ? 0 : d->to_size);
    } else {
        hy_text_add_bytes(out, text, size);
    }
}

static void strip_blanks(hy_text *out, size_t from, int most) {
    size_t blanks = 0;
    while (blanks < (size_t)most && from + blanks < out->size && out->data[from + blanks] == ' ') {
        blanks++;
    }
    if (blanks == 0) return;
    memmove(out->data + from, out->data + from + blanks, out->size - from - blanks + 1);
    out->size -= blanks;
}

hy_status hy_tokenizer_decode(const hy_tokenizer *t, const int32_t *ids, size_t count, int flags,
                              hy_text *out) {
    size_t before = out->size;
    bool is_first = true;
    for (size_t i = 0; i < count; i++) {
        int32_t id = ids[i];
        HY_FAIL_IF(id < 0 || id >= t->vocab.ids, HY_ERR_INPUT,
                   "%s: token id %d at place %zu: ids are 0 to %d", t->name, (int)id, i,
                   (int)t->vocab.ids - 1);
        if (t->vocab.places[id].start == UINT32_MAX) continue;
        if ((flags & HY_TOKENS_SKIP_SPECIAL) && t->is_special[id]) continue;
        add_token(t, out, t->vocab.bytes + t->vocab.places[id].start, t->vocab.places[id].size,
                  is_first);
        is_first = false;
    }
    HY_TRY(hy_text_status(out));
    strip_blanks(out, before, t->decoder.strip_start);
    return HY_OK;
}
