/* fuzz_shard.c: a file of tokens of any bytes.
 *
 * Opening gives a named error or a shard whose every token can be read, alone and all together,
 * with no id above the largest one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "formats/shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_shard: %s\n", what);
    abort();
}

static void read_tokens(const hy_shard *shard, size_t size) {
    uint64_t count = hy_shard_count(shard), where = 0;
    require(count <= size, "more tokens than bytes");
    int32_t *tokens = malloc((size_t)(count + 1) * sizeof *tokens), largest, last;
    require(tokens != NULL, "no memory");
    require(hy_shard_read(shard, 0, count, tokens) == HY_OK, "tokens cannot be read");
    require(hy_shard_max_token(shard, &largest, &where) == HY_OK, "tokens cannot be scanned");
    for (uint64_t i = 0; i < count; i++) {
        require(tokens[i] <= largest || largest < 0, "an id above the largest");
    }
    if (count > 0) {
        require(hy_shard_read(shard, count - 1, 1, &last) == HY_OK, "no last token");
        require(last == tokens[count - 1], "a token differs when read alone");
        require(where < count && tokens[where] == largest, "the largest id stands elsewhere");
    }
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    hy_shard *shard;
    int fd = memfd_create("fuzz", 0);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size, "no file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (hy_shard_open(path, &shard) == HY_OK) {
        require(hy_shard_has_magic(path), "it opens, but does not look like one");
        read_tokens(shard, size);
        hy_shard_close(shard);
    } else {
        require(hy_error_message()[0] != 0, "a refusal without a word");
    }
    close(fd);
    return 0;
}
