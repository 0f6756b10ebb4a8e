/* fuzz_gguf_model.c: a GGUF file of any bytes as a model: its shape, weights and tokenizer.
 *
 * Each gives a named error, or a model with weights that can all be read, and a tokenizer that
 * encodes. Numbers of the header are changed as in fuzz_gguf.c. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../gguf_fields.h"
#include "base/error.h"
#include "base/hash.h"
#include "hub/end_tokens.h"
#include "hub/gguf_load.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FIELDS_MAX = 4096, LARGEST = 64 };

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_gguf_model: %s\n", what);
    abort();
}

/* Every element of every parameter of a small model. */
static void read_weights(const char *path, const hy_shape *shape) {
    hy_model *model = NULL;
    hy_weight_files files = {0};
    float numbers[LARGEST * LARGEST];
    bool is_small = shape->layers <= 4 && shape->width <= 16 && shape->mlp_width <= 16 &&
                    shape->vocab <= 64 && shape->heads * shape->head_size <= 16 &&
                    shape->context <= LARGEST && shape->kv_heads <= shape->heads;
    if (!is_small) return;
    hy_status status = hy_model_create(shape, &model);
    if (status == HY_OK) status = hy_gguf_open_weights(path, model, &files);
    for (int32_t i = 0; i < files.count && status == HY_OK; i++) {
        const hy_weight_part *part = &files.parts[i];
        require(part->rows * part->cols <= LARGEST * LARGEST, "a part is larger than the model");
        require(hy_part_read(part, 0, part->rows * part->cols, numbers) == HY_OK,
                "weights cannot be read");
    }
    hy_weight_files_close(&files);
    hy_model_destroy(model);
}

static void use_tokenizer(const char *path) {
    static const char text[] = "ab <s>a\xC3\xA9 ba";
    hy_tokenizer *t;
    hy_ids ids = {0};
    hy_text config = {0};
    hy_end_tokens ends;
    (void)hy_end_tokens_read(path, &ends);
    (void)hy_gguf_tokenizer_json(path, "tokenizer_config.json", &config);
    hy_text_free(&config);
    if (hy_tokenizer_open(path, &t) != HY_OK) {
        require(hy_error_message()[0] != 0, "a refusal without a word");
        return;
    }
    (void)hy_tokenizer_encode(t, text, sizeof text - 1, HY_TOKENS_SPECIAL, &ids);
    hy_ids_free(&ids);
    hy_tokenizer_close(t);
}

static void try_bytes(const uint8_t *data, size_t size) {
    char path[64];
    hy_gguf *file;
    hy_shape shape;
    hy_text notes = {0};
    int fd = memfd_create("fuzz", 0);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (hy_gguf_open(path, &file) == HY_OK) {
        hy_status status = hy_gguf_read_shape(file, &shape, &notes);
        hy_gguf_close(file);
        hy_text_free(&notes);
        if (status == HY_OK) read_weights(path, &shape);
        use_tokenizer(path);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gguf_field fields[FIELDS_MAX];
    size_t count = gguf_fields(data, size, fields, FIELDS_MAX);
    uint64_t hash = hy_hash_bytes(data, size, 0);
    uint8_t *changed = malloc(size + 1);
    require(changed != NULL, "no memory");
    memcpy(changed, data, size);
    if (hash % 4 != 0 && count > 0) gguf_put_odd(changed, fields[hash / 4 % count], hash >> 40);
    try_bytes(changed, size);
    free(changed);
    return 0;
}
