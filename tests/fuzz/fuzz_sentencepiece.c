/* fuzz_sentencepiece.c: a SentencePiece file of any bytes, and a text with what opens.
 *
 * An input that begins with a brace is a tokenizer_config.json up to the first zero byte, beside the
 * file. What is converted opens or is refused by name; whatever is encoded must decode, and encoding
 * must answer the same twice. */
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "scratch.h"
#include "tokenizer/tokenizer_sentencepiece.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_sentencepiece: %s\n", what);
    abort();
}

static void encode(const hy_tokenizer *t, const char *text, size_t size) {
    hy_ids first = {0}, second = {0};
    hy_text back = {0};
    if (hy_tokenizer_encode(t, text, size, HY_TOKENS_SPECIAL, &first) == HY_OK) {
        bool is_same = hy_tokenizer_encode(t, text, size, HY_TOKENS_SPECIAL, &second) == HY_OK &&
                       first.count == second.count;
        for (size_t i = 0; is_same && i < first.count; i++) {
            is_same = first.data[i] == second.data[i];
            require(first.data[i] >= 0 && first.data[i] < hy_tokenizer_vocab(t),
                    "an id outside the vocabulary");
        }
        require(is_same, "other ids the second time");
        require(hy_tokenizer_decode(t, first.data, first.count, 0, &back) == HY_OK,
                "what was encoded does not decode");
    }
    hy_ids_free(&first);
    hy_ids_free(&second);
    hy_text_free(&back);
}

static void open_and_encode(const hy_text *json, const uint8_t *data, size_t size) {
    static const char text[] = "  The caf\xC3\xA9 isn't   open, aaabab <sep> <s> \xEF\xAC\x81n\t\n "
                               "\xE6\x97\xA5 e\xCC\x81 \xFF\xE2\x96\x81x ";
    hy_tokenizer *t;
    if (hy_tokenizer_parse(json->data, json->size, "fuzz", &t) != HY_OK) {
        require(hy_error_message()[0] != 0, "a refusal without a word");
        return;
    }
    encode(t, text, sizeof text - 1);
    encode(t, (const char *)data, size < 300 ? size : 300);
    hy_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char folder[64], config[96];
    const uint8_t *zero = size && data[0] == '{' ? memchr(data, 0, size) : NULL;
    size_t begin = zero ? (size_t)(zero - data) + 1 : 0;
    hy_sentencepiece pieces = {.is_published = size % 2};
    if (!folder[0]) make_scratch(folder, sizeof folder);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", folder);
    if (zero) put_scratch(config, data, begin - 1);
    hy_status status = hy_sentencepiece_convert(data + begin, size - begin, "fuzz",
                                                zero ? folder : "/no/such", &pieces);
    if (status == HY_OK && !pieces.is_published) {
        open_and_encode(&pieces.json, data + begin, size - begin);
    } else if (status != HY_OK) {
        require(hy_error_message()[0] != 0, "a refusal without a word");
    }
    if (zero) unlink(config);
    hy_text_free(&pieces.json);
    return 0;
}
