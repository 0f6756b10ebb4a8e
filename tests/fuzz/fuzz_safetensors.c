/* fuzz_safetensors.c: a safetensors file of any bytes.
 *
 * Opening gives a named error or a file whose every tensor lies inside it and can be read at both
 * ends; whatever the header says, no more memory is taken than the file is long, give or take its
 * tree. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_safetensors: %s\n", what);
    abort();
}

static void read_ends(const hy_safetensors *file, const hy_safetensors_entry *entry) {
    char byte;
    require(hy_safetensors_find(file, entry->name) == entry, "a tensor is not found by its name");
    require(hy_safetensors_read(file, entry, entry->bytes, &byte, 1) != HY_OK,
            "a byte behind a tensor was given out");
    if (entry->bytes == 0) return;
    require(hy_safetensors_read(file, entry, 0, &byte, 1) == HY_OK &&
                hy_safetensors_read(file, entry, entry->bytes - 1, &byte, 1) == HY_OK,
            "a tensor cannot be read");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    hy_safetensors *file;
    int fd = memfd_create("fuzz", 0);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (hy_safetensors_open(path, &file) == HY_OK) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < hy_safetensors_count(file); i++) {
            read_ends(file, hy_safetensors_at(file, i));
            bytes += hy_safetensors_at(file, i)->bytes;
        }
        require(bytes <= size, "the tensors are larger than the file");
        hy_safetensors_close(file);
    } else {
        require(hy_error_message()[0] != 0, "a refusal without a word");
    }
    close(fd);
    return 0;
}
