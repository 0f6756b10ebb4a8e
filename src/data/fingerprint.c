/* fingerprint.c: hashes of data and weights. See fingerprint.h.
 *
 * The record of a run stores them, and a resumed run compares them. The hash of a list of files
 * depends on their content and order, not on their names. */
#include "data/fingerprint.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/mixture.h"

#define CHUNK ((uint64_t)1 << 20)
#define CHUNKS 64

hy_status hy_fingerprint_file(const char *path, hy_hash *hash) {
    hy_reader *reader;
    uint8_t size_bytes[8];
    HY_TRY(hy_reader_open(path, &reader));
    uint64_t size = hy_reader_size(reader);
    uint64_t chunks = size <= CHUNKS * CHUNK ? (size + CHUNK - 1) / CHUNK : CHUNKS;
    char *chunk = malloc(CHUNK);
    hy_status status = chunk ? HY_OK : hy_fail(HY_ERR_MEMORY, "not enough memory to read %s", path);
    for (int i = 0; i < 8; i++) size_bytes[i] = (uint8_t)(size >> 8 * i);
    hy_hash_add(hash, size_bytes, sizeof size_bytes);
    for (uint64_t i = 0; i < chunks && status == HY_OK; i++) {
        uint64_t at = size <= CHUNKS * CHUNK ? i * CHUNK : (size - CHUNK) / (CHUNKS - 1) * i;
        if (i == CHUNKS - 1 && size > CHUNKS * CHUNK) at = size - CHUNK;
        uint64_t some = size - at < CHUNK ? size - at : CHUNK;
        status = hy_reader_get(reader, at, chunk, some);
        if (status == HY_OK) hy_hash_add(hash, chunk, some);
    }
    free(chunk);
    hy_reader_close(reader);
    return status;
}

static hy_status add_part(const hy_mixture *mixture, size_t i, hy_data_format format,
                          hy_hash *hash) {
    const hy_mixture_part *part = &mixture->parts[i];
    hy_file_list list;
    hy_file_kind kind;
    if (mixture->has_weights) hy_hash_add(hash, &part->weight, sizeof part->weight);
    HY_TRY(hy_file_list_find(part->path, format, &list));
    /* removes notes for people from a list of rows */
    hy_status status = hy_file_list_kind(part->path, &list, &kind);
    for (size_t f = 0; f < list.count && status == HY_OK; f++) {
        status = hy_fingerprint_file(list.files[f].path, hash);
    }
    hy_file_list_free(&list);
    return status;
}

hy_status hy_fingerprint_data(const char *data, hy_data_format format, uint64_t *out) {
    hy_mixture mixture;
    hy_hash hash;
    *out = 0;
    if (!data[0] || strcmp(data, "builtin") == 0) return HY_OK;
    HY_TRY(hy_mixture_parse(data, &mixture));
    hy_hash_init(&hash, 0);
    hy_status status = HY_OK;
    for (size_t i = 0; i < mixture.count && status == HY_OK; i++) {
        status = add_part(&mixture, i, format, &hash);
    }
    hy_mixture_free(&mixture);
    *out = hy_hash_value(&hash);
    return status;
}
