/* safetensors_write.c: the writer. See safetensors.h.
 *
 * The header is complete before the first byte of data: offsets follow from shapes, in the order of
 * the list. Spaces behind the JSON let the data begin at a multiple of 64, so that a mapped file
 * can be used in place. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "formats/safetensors.h"
#include "formats/safetensors_layout.h"

#define DATA_ALIGN 64

struct hy_safetensors_writer {
    hy_writer *out;
    char *path;
    uint64_t promised, put; /* bytes of data */
};

static int compare_strings(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static hy_status check_names(const char *path, const hy_safetensors_entry *entries, size_t count) {
    const char **names = calloc(count + 1, sizeof *names);
    if (!names) return hy_fail(HY_ERR_MEMORY, "out of memory writing %s", path);
    for (size_t i = 0; i < count; i++) names[i] = entries[i].name;
    qsort(names, count, sizeof *names, compare_strings);
    hy_status status = HY_OK;
    for (size_t i = 1; i < count && status == HY_OK; i++) {
        if (strcmp(names[i - 1], names[i]) != 0) continue;
        status = hy_fail(HY_ERR_INPUT, "%s: two tensors are named \"%.200s\"", path, names[i]);
    }
    free(names);
    return status;
}

static bool is_utf8(const char *string) {
    const uint8_t *p = (const uint8_t *)string;
    size_t left = strlen(string);
    while (left > 0) {
        int length = hy_utf8_length(p, left);
        if (length == 0) return false;
        p += length;
        left -= (size_t)length;
    }
    return true;
}

static void put_entry(hy_json_writer *json, const hy_safetensors_entry *entry, uint64_t begin,
                      uint64_t end) {
    hy_json_open_object(json, entry->name);
    hy_json_put_string(json, "dtype", hy_safetensors_dtype_name(entry->dtype));
    hy_json_open_array(json, "shape");
    for (int i = 0; i < entry->ndim; i++) hy_json_put_int(json, NULL, entry->shape[i]);
    hy_json_close_array(json);
    hy_json_open_array(json, "data_offsets");
    hy_json_put_int(json, NULL, (int64_t)begin);
    hy_json_put_int(json, NULL, (int64_t)end);
    hy_json_close_array(json);
    hy_json_close_object(json);
}

/* Writes the header into `text` and the bytes of all tensors into *total. */
static hy_status make_header(const char *path, const hy_safetensors_entry *entries, size_t count,
                             const char *const *metadata, hy_text *text, uint64_t *total) {
    hy_json_writer json;
    hy_json_begin(&json, text, false);
    hy_json_open_object(&json, NULL);
    if (metadata && metadata[0]) {
        hy_json_open_object(&json, HY_SAFETENSORS_METADATA);
        for (; metadata[0]; metadata += 2) hy_json_put_string(&json, metadata[0], metadata[1]);
        hy_json_close_object(&json);
    }
    *total = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = *total, bytes = 0;
        const hy_safetensors_entry *entry = &entries[i];
        HY_FAIL_IF(strcmp(entry->name, HY_SAFETENSORS_METADATA) == 0 || !is_utf8(entry->name),
                   HY_ERR_INPUT, "%s: \"%.200s\" cannot be the name of a tensor", path,
                   entry->name);
        HY_FAIL_IF(!hy_safetensors_dtype_name(entry->dtype), HY_ERR_INPUT,
                   "%s: tensor \"%.200s\": unknown dtype %d", path, entry->name, (int)entry->dtype);
        HY_FAIL_IF(entry->ndim < 0 || entry->ndim > HY_SAFETENSORS_DIMS, HY_ERR_INPUT,
                   "%s: tensor \"%.200s\": %d dimensions, expected 0 to %d", path, entry->name,
                   entry->ndim, HY_SAFETENSORS_DIMS);
        HY_FAIL_IF(!hy_safetensors_bytes(entry, &bytes), HY_ERR_INPUT,
                   "%s: tensor \"%.200s\": a negative or too large shape", path, entry->name);
        HY_FAIL_IF(__builtin_add_overflow(begin, bytes, total) || *total > INT64_MAX, HY_ERR_INPUT,
                   "%s: the tensors have more than 2^63 bytes", path);
        put_entry(&json, &entries[i], begin, *total);
    }
    hy_json_close_object(&json);
    while ((8 + text->size) % DATA_ALIGN != 0 && !text->has_failed) hy_text_add(text, " ");
    HY_TRY(hy_text_status(text));
    HY_FAIL_IF(text->size > HY_SAFETENSORS_HEADER_MAX, HY_ERR_INPUT,
               "%s: a header of %zu bytes is too long, at most %d are allowed", path, text->size,
               HY_SAFETENSORS_HEADER_MAX);
    return HY_OK;
}

static hy_status start_file(hy_safetensors_writer *w, const hy_text *header) {
    HY_TRY(hy_writer_create(w->path, &w->out));
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)header->size >> (8 * i));
    HY_TRY(hy_writer_put(w->out, length, sizeof length));
    return hy_writer_put(w->out, header->data, header->size);
}

hy_status hy_safetensors_create(const char *path, const hy_safetensors_entry *entries, size_t count,
                                const char *const *metadata, hy_safetensors_writer **out) {
    *out = NULL;
    hy_safetensors_writer *w = calloc(1, sizeof *w);
    if (!w || !(w->path = strdup(path))) {
        free(w);
        return hy_fail(HY_ERR_MEMORY, "out of memory writing %s", path);
    }
    hy_text header = {0};
    hy_status status = check_names(path, entries, count);
    if (status == HY_OK) {
        status = make_header(path, entries, count, metadata, &header, &w->promised);
    }
    if (status == HY_OK) status = start_file(w, &header);
    hy_text_free(&header);
    if (status != HY_OK) {
        hy_safetensors_abandon(w);
        return status;
    }
    *out = w;
    return HY_OK;
}

hy_status hy_safetensors_put(hy_safetensors_writer *w, const void *data, uint64_t size) {
    HY_FAIL_IF(size > w->promised - w->put, HY_ERR_STATE,
               "%s: %" PRIu64 " bytes of data were put, the header says %" PRIu64, w->path,
               w->put + size, w->promised);
    w->put += size;
    return hy_writer_put(w->out, data, (size_t)size);
}

hy_status hy_safetensors_finish(hy_safetensors_writer *w, uint64_t *hash, uint64_t *size) {
    if (!w) return HY_OK;
    if (w->put != w->promised) {
        hy_status status = hy_fail(
            HY_ERR_STATE, "%s: %" PRIu64 " bytes of data were put, the header says %" PRIu64,
            w->path, w->put, w->promised);
        hy_safetensors_abandon(w);
        return status;
    }
    if (hash) *hash = hy_writer_hash(w->out);
    if (size) *size = hy_writer_size(w->out);
    hy_status status = hy_writer_close(w->out, true);
    w->out = NULL;
    hy_safetensors_abandon(w);
    return status;
}

void hy_safetensors_abandon(hy_safetensors_writer *w) {
    if (!w) return;
    hy_writer_abandon(w->out);
    free(w->path);
    free(w);
}
