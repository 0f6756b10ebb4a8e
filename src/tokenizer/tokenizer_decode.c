/* tokenizer_decode.c: converts ids to text.
 *
 * The output is exact bytes: if a token ends inside a character, so does the text, and text that
 * was not valid UTF-8 is reproduced unchanged. */
#include <ctype.h>
#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

/* ---- the printable alphabet ------------------------------------------------------------------ */

/* Printable bytes are spelled as themselves, the others, in order, as U+0100 and up. */
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

/* Adds a token that is spelled in the alphabet as its bytes; any other text unchanged. */
static void add_spelled(hy_text *out, const char *text, size_t size) {
    size_t before = out->size;
    for (size_t i = 0; i < size;) {
        uint32_t code;
        i += hy_unicode_next(text + i, size - i, &code);
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

#define GROWTH_MAX 16 /* limit on how much the decoder's Replace may enlarge a token */
#define GROWTH_FREE 256

/* ---- tokens ---------------------------------------------------------------------------------- */

static void add_token(const hy_tokenizer *t, hy_text *out, const char *text, size_t size,
                      bool is_first, size_t most) {
    const hy_decoder *d = &t->decoder;
    if (d->is_byte_level) {
        add_spelled(out, text, size);
        return;
    }
    if (d->joins_with_blanks && !is_first) hy_text_add(out, " ");
    bool is_byte = d->has_byte_fallback && size == 6 && memcmp(text, "<0x", 3) == 0 &&
                   text[5] == '>' && isxdigit((unsigned char)text[3]) &&
                   isxdigit((unsigned char)text[4]);
    if (is_byte) {
        char c = (char)strtol(text + 3, NULL, 16);
        hy_text_add_bytes(out, &c, 1);
        return;
    }
    if (d->text.from) {
        hy_replacement by = d->text;
        if (is_first && d->strips_first) by.to_size = 0;
        hy_add_replaced(out, text, size, &by, most);
    } else {
        hy_text_add_bytes(out, text, size);
    }
}

hy_status hy_tokenizer_decode(const hy_tokenizer *t, const int32_t *ids, size_t count, int flags,
                              hy_text *out) {
    size_t before = out->size;
    bool is_first = true;
    for (size_t i = 0; i < count; i++) {
        int32_t id = ids[i];
        HY_FAIL_IF(id < 0 || id >= t->vocab.ids, HY_ERR_INPUT,
                   "%s: token id %d at position %zu is out of range; expected 0 to %d", t->name,
                   (int)id, i, (int)t->vocab.ids - 1);
        if (t->vocab.places[id].start == UINT32_MAX) continue;
        if ((flags & HY_TOKENS_SKIP_SPECIAL) && t->is_special[id]) continue;
        size_t token_size = t->vocab.places[id].size;
        size_t most = out->size + token_size * GROWTH_MAX + GROWTH_FREE;
        add_token(t, out, t->vocab.bytes + t->vocab.places[id].start, token_size, is_first, most);
        HY_FAIL_IF(out->size > most, HY_ERR_INPUT,
                   "%s: the decoder enlarges the text more than %d times at token %d", t->name,
                   GROWTH_MAX, (int)id);
        is_first = false;
    }
    HY_TRY(hy_text_status(out));
    size_t blanks = 0, most = (size_t)t->decoder.strip_start, size = out->size - before;
    while (blanks < most && blanks < size && out->data[before + blanks] == ' ') blanks++;
    if (blanks == 0) return HY_OK;
    memmove(out->data + before, out->data + before + blanks, size - blanks + 1);
    out->size -= blanks;
    return HY_OK;
}
