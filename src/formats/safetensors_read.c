/* safetensors_read.c: the reader. See safetensors.h.
 *
 * Everything in the header is checked before hy_safetensors_open returns; after that an entry's
 * bytes are known to lie inside the file. Names and metadata live in the header's JSON tree, which
 * stays with the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "formats/safetensors_layout.h"

typedef unsigned long long ull; /* what %llu prints */

/* What finding by name searches in. */
typedef struct by_name {
    const char *name;
    const hy_safetensors_entry *entry;
} by_name;

struct hy_safetensors {
    char *path;
    hy_reader *reader;
    hy_json *header;
    const hy_json_node *metadata;  /* NULL: none */
    uint64_t data_start;           /* in the file */
    uint64_t data_size;            /* from there to the end */
    hy_safetensors_entry *entries; /* by offset */
    by_name *names;                /* sorted */
    size_t count;
};

/* ---- one tensor's entry ---------------------------------------------------------------------- */

/* The start of every message about a tensor. */
#define TENSOR "%s: tensor \"%.200s\": "

static hy_status read_dtype(const hy_safetensors *file, const hy_json_node *info,
                            hy_safetensors_entry *entry) {
    const char *name;
    HY_FAIL_IF(!hy_json_as_string(hy_json_get(info, "dtype"), &name, NULL), HY_ERR_INPUT,
               TENSOR "\"dtype\" is missing or not a string", file->path, entry->name);
    if (hy_safetensors_dtype_named(name, &entry->dtype)) return HY_OK;
    entry->dtype = HY_DTYPE_COUNT;
    entry->other_type = hy_safetensors_other_named(name);
    if (entry->other_type) return HY_OK;
    return hy_fail(HY_ERR_INPUT, TENSOR "dtype %.40s is none of the format's: F32, BF16, I64, ...",
                   file->path, entry->name, name);
}

static hy_status read_entry(const hy_safetensors *file, const hy_json_node *info,
                            hy_safetensors_entry *entry) {
    *entry = (hy_safetensors_entry){.name = hy_json_key(info)};
    HY_FAIL_IF(strlen(entry->name) != hy_json_key_size(info), HY_ERR_INPUT,
               TENSOR "a zero byte in a name is not supported", file->path, entry->name);
    HY_FAIL_IF(hy_json_type_of(info) != HY_JSON_OBJECT, HY_ERR_INPUT,
               TENSOR "its description is not an object", file->path, entry->name);
    HY_TRY(read_dtype(file, info, entry));
    const hy_json_node *shape = hy_json_get(info, "shape");
    HY_FAIL_IF(!shape || hy_json_type_of(shape) != HY_JSON_ARRAY, HY_ERR_INPUT,
               TENSOR "\"shape\" is missing or not an array", file->path, entry->name);
    HY_FAIL_IF(hy_json_size(shape) > HY_SAFETENSORS_DIMS, HY_ERR_INPUT,
               TENSOR "%zu dimensions, at most %d are supported", file->path, entry->name,
               hy_json_size(shape), HY_SAFETENSORS_DIMS);
    for (const hy_json_node *d = hy_json_first(shape); d; d = hy_json_next(d)) {
        HY_FAIL_IF(!hy_json_as_int(d, &entry->shape[entry->ndim]) || entry->shape[entry->ndim] < 0,
                   HY_ERR_INPUT, TENSOR "dimension %d is not a whole number of at least 0",
                   file->path, entry->name, entry->ndim);
        entry->ndim++;
    }
    const hy_json_node *offsets = hy_json_get(info, "data_offsets");
    const hy_json_node *first = NULL;
    int64_t begin, end;
    if (offsets && hy_json_type_of(offsets) == HY_JSON_ARRAY && hy_json_size(offsets) == 2) {
        first = hy_json_first(offsets);
    }
    HY_FAIL_IF(!first || !hy_json_as_int(first, &begin) ||
                   !hy_json_as_int(hy_json_next(first), &end) || begin < 0 || end < begin,
               HY_ERR_INPUT, TENSOR "\"data_offsets\" is not [begin, end] with begin <= end",
               file->path, entry->name);
    HY_FAIL_IF((uint64_t)end > file->data_size, HY_ERR_INPUT,
               TENSOR "its data end at byte %lld, but the file has only %llu", file->path,
               entry->name, (long long)end, (ull)file->data_size);
    entry->offset = (uint64_t)begin;
    entry->bytes = (uint64_t)end - (uint64_t)begin;
    uint64_t needed;
    HY_FAIL_IF(!hy_safetensors_bytes(entry, &needed), HY_ERR_INPUT,
               TENSOR "its shape has more than 2^64 bytes", file->path, entry->name);
    HY_FAIL_IF(needed != entry->bytes, HY_ERR_INPUT,
               TENSOR "shape and dtype make %llu bytes, data_offsets %llu", file->path, entry->name,
               (ull)needed, (ull)entry->bytes);
    return HY_OK;
}

/* ---- the header ------------------------------------------------------------------------------ */

static hy_status check_metadata(hy_safetensors *file, const hy_json_node *metadata) {
    HY_FAIL_IF(hy_json_type_of(metadata) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "%s: \"__metadata__\" is not an object", file->path);
    for (const hy_json_node *m = hy_json_first(metadata); m; m = hy_json_next(m)) {
        HY_FAIL_IF(hy_json_type_of(m) != HY_JSON_STRING, HY_ERR_INPUT,
                   "%s: \"__metadata__\": the value of \"%.200s\" is not a string", file->path,
                   hy_json_key(m));
    }
    file->metadata = metadata;
    return HY_OK;
}

static hy_status load_header(hy_safetensors *file) {
    uint64_t file_size = hy_reader_size(file->reader);
    HY_FAIL_IF(file_size < 8, HY_ERR_INPUT, "%s: %llu bytes are too few for a safetensors file",
               file->path, (ull)file_size);
    uint8_t raw[8];
    HY_TRY(hy_reader_get(file->reader, 0, raw, sizeof raw));
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | raw[i];
    HY_FAIL_IF(length < 2 || length > HY_SAFETENSORS_HEADER_MAX || length > file_size - 8,
               HY_ERR_INPUT,
               "%s: header length %llu is wrong: expected 2 to %d, in a file of %llu bytes "
               "(not a safetensors file, or cut off)",
               file->path, (ull)length, HY_SAFETENSORS_HEADER_MAX, (ull)file_size);
    file->data_start = 8 + length;
    file->data_size = file_size - file->data_start;
    char *text = malloc((size_t)length);
    HY_FAIL_IF(!text, HY_ERR_MEMORY, "%s: out of memory for a header of %llu bytes", file->path,
               (ull)length);
    hy_status status = hy_reader_get(file->reader, 8, text, length);
    if (status == HY_OK && text[0] != '{') {
        status = hy_fail(HY_ERR_INPUT, "%s: the header begins with byte 0x%02X, expected '{'",
                         file->path, (unsigned char)text[0]);
    } else if (status == HY_OK) {
        status = hy_json_parse(text, (size_t)length, "header", &file->header);
        if (status != HY_OK) status = hy_fail_context(status, "%s", file->path);
    }
    free(text);
    return status;
}

/* ---- all entries together -------------------------------------------------------------------- */

/* By offset; empty tensors stand before the one that begins where they do. Equal ones keep the
 * order of the header: their names lie in its text. */
static int compare_offsets(const void *a, const void *b) {
    const hy_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->name < y->name ? -1 : x->name > y->name;
}

static int compare_names(const void *a, const void *b) {
    const by_name *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static hy_status read_entries(hy_safetensors *file) {
    const hy_json_node *root = hy_json_root(file->header);
    size_t members = hy_json_size(root);
    file->entries = calloc(members + 1, sizeof *file->entries);
    file->names = calloc(members + 1, sizeof *file->names);
    HY_FAIL_IF(!file->entries || !file->names, HY_ERR_MEMORY, "%s: out of memory for %zu tensors",
               file->path, members);
    for (const hy_json_node *m = hy_json_first(root); m; m = hy_json_next(m)) {
        if (strcmp(hy_json_key(m), HY_SAFETENSORS_METADATA) == 0) {
            HY_TRY(check_metadata(file, m));
        } else {
            HY_TRY(read_entry(file, m, &file->entries[file->count++]));
        }
    }
    qsort(file->entries, file->count, sizeof *file->entries, compare_offsets);
    for (size_t i = 0; i < file->count; i++) {
        file->names[i] = (by_name){.name = file->entries[i].name, .entry = &file->entries[i]};
    }
    qsort(file->names, file->count, sizeof *file->names, compare_names);
    /* The tensors must cover the data exactly, one after another. */
    uint64_t reached = 0;
    for (size_t i = 0; i < file->count; i++) {
        const hy_safetensors_entry *entry = &file->entries[i];
        HY_FAIL_IF(entry->offset != reached, HY_ERR_INPUT,
                   TENSOR "its data begin at %llu, expected %llu: %s", file->path, entry->name,
                   (ull)entry->offset, (ull)reached,
                   entry->offset > reached ? "there is a hole" : "tensors overlap");
        reached += entry->bytes;
    }
    if (reached == file->data_size) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s: the tensors end at byte %llu of the data, the file at %llu",
                   file->path, (ull)reached, (ull)file->data_size);
}

hy_status hy_safetensors_open(const char *path, hy_safetensors **out) {
    *out = NULL;
    hy_safetensors *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        return hy_fail(HY_ERR_MEMORY, "out of memory opening %s", path);
    }
    hy_status status = hy_reader_open(path, &file->reader);
    if (status == HY_OK) status = load_header(file);
    if (status == HY_OK) status = read_entries(file);
    if (status != HY_OK) {
        hy_safetensors_close(file);
        return status;
    }
    *out = file;
    return HY_OK;
}

void hy_safetensors_close(hy_safetensors *file) {
    if (!file) return;
    hy_reader_close(file->reader);
    hy_json_free(file->header);
    free(file->entries);
    free(file->names);
    free(file->path);
    free(file);
}

/* ---- asking ---------------------------------------------------------------------------------- */

const char *hy_safetensors_type(const hy_safetensors_entry *entry) {
    return entry->other_type ? entry->other_type : hy_dtype_name(entry->dtype);
}

size_t hy_safetensors_count(const hy_safetensors *file) { return file->count; }

const hy_safetensors_entry *hy_safetensors_at(const hy_safetensors *file, size_t i) {
    return i < file->count ? &file->entries[i] : NULL;
}

const hy_safetensors_entry *hy_safetensors_find(const hy_safetensors *file, const char *name) {
    by_name key = {.name = name};
    const by_name *found =
        bsearch(&key, file->names, file->count, sizeof *file->names, compare_names);
    return found ? found->entry : NULL;
}

const char *hy_safetensors_metadata(const hy_safetensors *file, const char *key) {
    const char *value;
    return hy_json_as_string(hy_json_get(file->metadata, key), &value, NULL) ? value : NULL;
}

hy_status hy_safetensors_read(const hy_safetensors *file, const hy_safetensors_entry *entry,
                              uint64_t first, void *dst, uint64_t size) {
    HY_FAIL_IF(first > entry->bytes || size > entry->bytes - first, HY_ERR_INPUT,
               TENSOR "bytes %llu + %llu were asked for, it has %llu", file->path, entry->name,
               (ull)first, (ull)size, (ull)entry->bytes);
    return hy_reader_get(file->reader, file->data_start + entry->offset + first, dst, size);
}

const hy_reader *hy_safetensors_place(const hy_safetensors *file, const hy_safetensors_entry *entry,
                                      uint64_t *offset) {
    *offset = file->data_start + entry->offset;
    return file->reader;
}
