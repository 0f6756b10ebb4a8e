/* fuzz_gguf.c: a GGUF file of any bytes, and one with other numbers in its header.
 *
 * Opening gives a named error, or a file with tensors that lie inside it and values that can all be
 * read. Memory is limited by the size of the file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../gguf_fields.h"
#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FIELDS_MAX 4096

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_gguf: %s\n", what);
    abort();
}

static void read_value(const hy_gguf *file, size_t i) {
    const char *key, *text;
    const hy_gguf_value *value = hy_gguf_key_at(file, i, &key);
    require(value == hy_gguf_get(file, key), "a key is not found by its name");
    for (size_t k = 0; k <= hy_gguf_size(value); k++) {
        int64_t whole;
        double real;
        bool truth;
        size_t length = 0;
        bool is_text = hy_gguf_as_string(value, k, &text, &length);
        int kinds = is_text + hy_gguf_as_bool(value, k, &truth) + hy_gguf_as_real(value, k, &real);
        require(!hy_gguf_as_int(value, k, &whole) || kinds == 1, "an integer is not a real");
        require(kinds <= 1, "a value of two kinds");
        require(k < hy_gguf_size(value) || kinds == 0, "an item behind the last one");
        require(!is_text || text[length] == 0, "a string without its end");
    }
}

static void read_ends(const hy_gguf *file, const hy_gguf_tensor *tensor, size_t size) {
    uint64_t offset;
    char byte;
    const hy_reader *reader = hy_gguf_place(file, tensor, &offset);
    require(hy_gguf_find(file, tensor->name) == tensor, "a tensor is not found by its name");
    require(tensor->bytes > 0 && offset < size && tensor->bytes <= size - offset,
            "a tensor outside the file");
    require(hy_reader_get(reader, offset + tensor->bytes - 1, &byte, 1) == HY_OK,
            "a tensor cannot be read");
}

static void try_bytes(const uint8_t *data, size_t size) {
    char path[64];
    hy_gguf *file;
    int fd = memfd_create("fuzz", 0);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (hy_gguf_open(path, &file) == HY_OK) {
        for (size_t i = 0; i < hy_gguf_key_count(file); i++) read_value(file, i);
        for (size_t i = 0; i < hy_gguf_count(file); i++) read_ends(file, hy_gguf_at(file, i), size);
        hy_gguf_close(file);
    } else {
        require(hy_error_message()[0] != 0, "a refusal without a word");
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gguf_field fields[FIELDS_MAX];
    try_bytes(data, size);
    size_t count = gguf_fields(data, size, fields, FIELDS_MAX);
    uint64_t hash = hy_hash_bytes(data, size, 0);
    uint8_t *changed = malloc(size + 1);
    require(changed != NULL, "no memory");
    memcpy(changed, data, size);
    for (uint64_t i = 0; i <= hash >> 62 && count > 0; i++) {
        hash = hy_hash_bytes(&hash, sizeof hash, i);
        gguf_put_odd(changed, fields[hash % count], hash >> 32);
    }
    try_bytes(changed, size);
    free(changed);
    return 0;
}
