/* fuzz_unpack.c: packed files of any bytes.
 *
 * Unpacking ends: with a named error or with all there is, the same whether it is read in large
 * pieces or in small ones, and never beyond what a text may grow to. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "data/unpack.h"

#define MOST_BYTES ((uint64_t)128 << 20)
#define LARGE ((size_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_unpack: %s\n", what);
    abort();
}

static hy_status unpack(const char *path, hy_packer packer, size_t piece, uint64_t *size,
                        uint64_t *value) {
    static uint8_t buffer[LARGE];
    hy_unpacker *unpacker;
    hy_hash hash;
    size_t got = 1;
    *size = 0;
    hy_hash_init(&hash, 0);
    require(hy_unpacker_open(path, packer, &unpacker) == HY_OK, "it cannot be opened");
    hy_status status = HY_OK;
    while (status == HY_OK && got > 0) {
        status = hy_unpacker_read(unpacker, buffer, piece, &got);
        if (status == HY_OK) hy_hash_add(&hash, buffer, got);
        if (status == HY_OK) *size += got;
        require(*size <= MOST_BYTES, "more than a text may grow to");
    }
    hy_unpacker_close(unpacker);
    *value = hy_hash_value(&hash);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    uint64_t sizes[2], values[2];
    hy_packer packer = hy_packer_of(data, size);
    if (packer == HY_NOT_PACKED || size > MOST_BYTES / 1024) return 0;
    int fd = memfd_create("fuzz", 0);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    hy_status status = unpack(path, packer, LARGE, &sizes[0], &values[0]);
    require(status == HY_OK || (status == HY_ERR_INPUT && hy_error_message()[0]),
            "another failure than a refusal");
    if (status == HY_OK && sizes[0] < LARGE) {
        require(unpack(path, packer, 97, &sizes[1], &values[1]) == HY_OK,
                "refused in small pieces");
        require(sizes[0] == sizes[1] && values[0] == values[1], "other bytes in small pieces");
    }
    close(fd);
    return 0;
}
