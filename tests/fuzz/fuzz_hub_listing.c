/* fuzz_hub_listing.c: what a hub says of a model's files, of any bytes; and an index of weights.
 *
 * A list is refused by name, or every file in it has a name that stays in its folder and a checksum
 * of digits, and config.json is the last. An index may follow behind a zero byte. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "hub/hub_listing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_hub_listing: %s\n", what);
    abort();
}

static void check(const hy_hub_file *file) {
    size_t digits = strspn(file->hash, "0123456789abcdef");
    require(file->name[0] && file->name[0] != '.' && !strchr(file->name, '/'), "a name leads away");
    require(digits == (file->kind == HY_SHA1 ? 40 : 64) && !file->hash[digits], "no checksum");
    require(file->size <= INT64_MAX, "a size that cannot be");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data, *zero = size ? memchr(text, 0, size) : NULL;
    size_t list_size = zero ? (size_t)(zero - text) : size;
    hy_hub_listing list;
    if (hy_hub_listing_read(text, list_size, "list", &list) != HY_OK) {
        require(hy_error_message()[0] != 0, "a refusal without a word");
        return 0;
    }
    for (size_t i = 0; i < list.count; i++) check(&list.files[i]);
    require(strcmp(list.files[list.count - 1].name, "config.json") == 0, "the config is not last");
    const char *index = zero ? zero + 1 : "";
    if (hy_hub_listing_want_weights(&list, index, zero ? size - list_size - 1 : 0) != HY_OK)
        require(hy_error_message()[0] != 0, "a refusal without a word");
    hy_hub_listing_free(&list);
    return 0;
}
