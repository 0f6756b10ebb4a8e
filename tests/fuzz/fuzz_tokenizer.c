/* fuzz_tokenizer.c: a tokenizer.json of any bytes, and with what opens, a text of any bytes.
 *
 * What stands after the first zero byte of an input is the text. Whatever is encoded must decode,
 * and encoding must answer the same twice (the second time from the table of known words). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encode(const hy_tokenizer *t, const char *text, size_t size) {
    hy_ids first = {0}, second = {0};
    hy_text back = {0};
    int flags = HY_TOKENS_SPECIAL;
    if (hy_tokenizer_encode(t, text, size, flags, &first) == HY_OK) {
        bool is_same = hy_tokenizer_encode(t, text, size, flags, &second) == HY_OK &&
                       first.count == second.count &&
                       (first.count == 0 ||
                        memcmp(first.data, second.data, first.count * sizeof *first.data) == 0);
        if (!is_same) abort();
        if (hy_tokenizer_decode(t, first.data, first.count, 0, &back) != HY_OK) abort();
    }
    hy_ids_free(&first);
    hy_ids_free(&second);
    hy_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] =
        "The caf\xC3\xA9 isn't   open,\n1234 \xE6\x97\xA5\xE6\x9C\xAC e\xCC\x81 "
        "</s> <|end|> \xFF\xE2\x96\x81x";
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t json = zero ? (size_t)(zero - data) : size;
    hy_tokenizer *t;
    if (hy_tokenizer_parse((const char *)data, json, "fuzz", &t) != HY_OK) return 0;
    encode(t, text, sizeof text - 1);
    if (zero) encode(t, (const char *)zero + 1, size - json - 1);
    hy_tokenizer_close(t);
    return 0;
}
