/* source_shard.c: token shards as tokens.
 *
 * Every id is looked at once, when the shard is opened: an id beyond the vocabulary would read
 * memory that is not there in the middle of a run, and the scan is one pass over mapped memory. */
#include <string.h>

#include "base/error.h"
#include "data/source.h"

/* A file with the name of a shard is opened as one, and fails as one. */
bool hy_source_is_shard(const char *path) {
    size_t size = strlen(path);
    return (size >= 4 && strcmp(path + size - 4, ".bin") == 0) || hy_shard_has_magic(path);
}

static hy_status check_ids(const hy_shard *shard, const char *path, int32_t vocab) {
    uint64_t where;
    int32_t largest = hy_shard_max_token(shard, &where);
    if (largest < vocab) return HY_OK;
    return hy_fail(
        HY_ERR_INPUT,
        "%s: the token at position %llu is %d, but the model's vocabulary has ids 0 to %d", path,
        (unsigned long long)where, largest, vocab - 1);
}

static hy_status add_shard(hy_source *source, const char *path, int32_t vocab) {
    hy_shard *shard;
    HY_TRY(hy_shard_open(path, &shard));
    hy_status status = check_ids(shard, path, vocab);
    uint64_t count = hy_shard_count(shard);
    if (status == HY_OK && count > 0) {
        hy_source_piece piece = {.count = count, .shard = shard};
        status = hy_source_add_piece(source, piece);
        if (status == HY_OK) return HY_OK; /* the source owns it now */
    }
    hy_shard_close(shard);
    return status;
}

hy_status hy_source_add_shards(hy_source *source, const hy_file_list *list, int32_t vocab) {
    for (size_t i = 0; i < list->count; i++) HY_TRY(add_shard(source, list->paths[i], vocab));
    return HY_OK;
}
