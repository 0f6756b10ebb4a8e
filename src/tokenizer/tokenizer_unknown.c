/* tokenizer_unknown.c: text that a tokenizer cannot spell: counts, an example, and how messages
 * describe it. */
#include <stdio.h>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

#define EXAMPLE_BYTES 24

/* Copies the beginning of the text, up to the end of its line. */
static void copy_example(const char *text, size_t size, char *out, size_t room) {
    size_t used = 0;
    for (int length; used < size && used < EXAMPLE_BYTES; used += (size_t)length) {
        length = hy_utf8_length((const uint8_t *)text + used, size - used);
        if (length <= 0 || (uint8_t)text[used] < ' ') break;
    }
    while (used > 0 && text[used - 1] == ' ') used--;
    if (used > 0) snprintf(out, room, "\"%.*s\"", (int)used, text);
    if (used == 0) snprintf(out, room, "byte 0x%02X", (uint8_t)text[0]);
}

/* Encodes characters one by one; each of ASCII only once. */
hy_status hy_tokenizer_find_unknown(const hy_tokenizer *t, const char *text, size_t size,
                                    hy_unknown_text *out) {
    hy_ids ids = {.unknown.example = "?"}; /* no example of an example */
    bool is_known[128] = {false};
    hy_status status = HY_OK;
    uint32_t code;
    for (size_t i = 0, length; i < size && status == HY_OK; i += length) {
        uint8_t first = (uint8_t)text[i];
        length = hy_unicode_next(text + i, size - i, &code);
        if (first < 128 && is_known[first]) continue;
        ids.count = 0;
        status = hy_tokenizer_encode(t, text + i, length, HY_TOKENS_PLAIN | HY_TOKENS_INSIDE, &ids);
        if (ids.unknown.count > 0) {
            copy_example(text + i, size - i, out->example, sizeof out->example);
            break;
        }
        if (first < 128) is_known[first] = true;
    }
    /* characters that are unknown only beside others */
    if (status == HY_OK && !out->example[0])
        copy_example(text, size, out->example, sizeof out->example);
    hy_ids_free(&ids);
    return status;
}

void hy_unknown_text_add(hy_unknown_text *sum, const hy_unknown_text *more) {
    sum->count += more->count;
    sum->tokens += more->tokens;
    sum->is_partial |= more->is_partial;
    if (!sum->example[0]) memcpy(sum->example, more->example, sizeof sum->example);
}

void hy_unknown_text_move(hy_unknown_text *sum, hy_unknown_text *from) {
    hy_unknown_text_add(sum, from);
    from->count = from->tokens = 0;
}

bool hy_unknown_text_is_much(const hy_unknown_text *unknown) {
    return unknown->count > unknown->tokens / 10;
}

void hy_unknown_text_describe(const hy_unknown_text *unknown, const hy_tokenizer *t, hy_text *out) {
    if (unknown->count == 0) return;
    hy_text_addf(out, "%llu of %llu tokens%s are %s%s: the tokenizer has no pieces for this text",
                 (unsigned long long)unknown->count, (unsigned long long)unknown->tokens,
                 unknown->is_partial ? " since the resume" : "",
                 hy_tokenizer_token(t, t->unknown, NULL),
                 hy_unknown_text_is_much(unknown) ? ", more than a tenth" : "");
    if (unknown->example[0]) hy_text_addf(out, ", for example %s", unknown->example);
}
