/* fuzz_llama2c.c: a llama2.c model, and its tokenizer, of any bytes.
 *
 * Opening gives a named error or a model whose every tensor lies inside the file. Pieces that are
 * read make a tokenizer.json that opens or is refused by name; with what opens a text is encoded
 * and comes back.
 * */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "hub/llama2c.h"
#include "tokenizer/tokenizer_llama2c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_llama2c: %s\n", what);
    abort();
}

static void open_model(const char *path, size_t size) {
    hy_llama2c file;
    if (hy_llama2c_open(path, &file) != HY_OK) {
        require(hy_error_message()[0] != 0, "a refusal without a word");
        return;
    }
    for (int k = 0; k < HY_L2C_KINDS; k++) {
        bool is_there = k != HY_L2C_HEAD || file.has_own_head;
        require(!is_there || file.offset[k] + file.layer[k] <= size, "a tensor lies outside");
    }
    hy_llama2c_close(&file);
}

static void encode(const hy_tokenizer *tokenizer) {
    static const char text[] = "Once upon a caf\xC3\xA9 \xFF\n 12";
    hy_ids ids = {0};
    hy_text back = {0};
    if (hy_tokenizer_encode(tokenizer, text, sizeof text - 1, HY_TOKENS_SPECIAL, &ids) == HY_OK) {
        for (size_t i = 0; i < ids.count; i++) {
            require(ids.data[i] >= 0 && ids.data[i] < hy_tokenizer_vocab(tokenizer),
                    "an id outside the vocabulary");
        }
        require(hy_tokenizer_decode(tokenizer, ids.data, ids.count, 0, &back) == HY_OK,
                "what was encoded does not decode");
    }
    hy_ids_free(&ids);
    hy_text_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    hy_tokenizer *tokenizer;
    int fd = memfd_create("fuzz", 0);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    open_model(path, size);
    if (hy_llama2c_tokenizer_open(path, &tokenizer) == HY_OK) {
        encode(tokenizer);
        hy_tokenizer_close(tokenizer);
    } else {
        require(hy_error_message()[0] != 0, "a refusal without a word");
    }
    close(fd);
    return 0;
}
