/* safetensors.c: the reader and the writer. See safetensors.h.
 *
 * The file: u64 little-endian length N of the header; N bytes of JSON, padded with spaces; the
 * data. The header maps each name to {"dtype", "shape", "data_offsets": [begin, end]}, with
 * offsets from the start of the data; "__metadata__", if present, maps strings to strings.
 * hy_safetensors_open checks everything in the header; after that, an entry's bytes are inside
 * the file. Names and metadata are in the header's JSON tree, which lives as long as the file. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "formats/safetensors.h"
#include "kernels/tensor.h"

#define HEADER_MAX 100000000 /* the format's own limit */
#define METADATA "__metadata__"

/* The format's types and their bytes per element: first ours, then those that we do not compute
 * with. */
static const struct {
    const char *name;
    uint32_t size;
} types[] = {[HY_F32] = {"F32", 4},
             [HY_BF16] = {"BF16", 2},
             [HY_F16] = {"F16", 2},
             [HY_F64] = {"F64", 8},
             [HY_I32] = {"I32", 4},
             [HY_U16] = {"U16", 2},
             [HY_U8] = {"U8", 1},
             [HY_I8] = {"I8", 1},
             [HY_E4M3] = {"F8_E4M3", 1},
             [HY_E5M2] = {"F8_E5M2", 1},
             [HY_NF4] = {"F4", 1}, /* two elements: the format's 4-bit type, whatever they encode */
             [HY_DTYPE_COUNT] = {"I64", 8},
             {"BOOL", 1},
             {"I16", 2},
             {"U32", 4},
             {"U64", 8},
             {"F8_E8M0", 1},
             {"C64", 8}};
enum { TYPES = sizeof types / sizeof types[0] };

/* Bytes of a tensor of this shape and type. False: a dimension is negative or 64 bits are not
 * enough, even if a later zero would make the product small. */
static bool bytes_of(const hy_safetensors_entry *entry, size_t type, uint64_t *bytes) {
    *bytes = types[type].size;
    bool is_empty = false;
    for (int i = 0; i < entry->ndim; i++) {
        if (entry->shape[i] < 0) return false;
        if (entry->shape[i] == 0) {
            is_empty = true;
        } else if (__builtin_mul_overflow(*bytes, (uint64_t)entry->shape[i], bytes)) {
            return false;
        }
    }
    if (is_empty) *bytes = 0;
    if (type == HY_NF4) *bytes = *bytes / 2 + *bytes % 2;
    return true;
}

typedef unsigned long long ull; /* what %llu prints */

struct hy_safetensors {
    char *path;
    hy_reader *reader;
    hy_json *header;
    const hy_json_node *metadata;       /* NULL: none */
    uint64_t data_start;                /* in the file */
    uint64_t data_size;                 /* bytes from data_start to the end of the file */
    hy_safetensors_entry *entries;      /* by offset */
    const hy_safetensors_entry **names; /* by name */
    size_t count;
};

/* ---- one tensor's entry ---------------------------------------------------------------------- */

/* The start of every message about a tensor. */
#define TENSOR "%s: tensor \"%.200s\": "

static hy_status read_entry(const hy_safetensors *file, const hy_json_node *info,
                            hy_safetensors_entry *entry) {
    *entry = (hy_safetensors_entry){.name = hy_json_key(info)};
    HY_FAIL_IF(strlen(entry->name) != hy_json_key_size(info), HY_ERR_INPUT,
               "a zero byte in a name is not supported");
    HY_FAIL_IF(hy_json_type_of(info) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "its description is not an object");
    const char *type;
    size_t at = 0;
    HY_FAIL_IF(!hy_json_as_string(hy_json_get(info, "dtype"), &type, NULL), HY_ERR_INPUT,
               "\"dtype\" is missing or not a string");
    while (at < TYPES && strcmp(type, types[at].name) != 0)
        at++; /* a test checks that all types have names */
    HY_FAIL_IF(at == TYPES, HY_ERR_INPUT, "dtype %.40s is unknown; expected F32, BF16, I64, ...",
               type);
    entry->dtype = at < HY_DTYPE_COUNT ? (hy_dtype)at : HY_DTYPE_COUNT;
    if (at >= HY_DTYPE_COUNT) entry->other_type = types[at].name;
    const hy_json_node *shape = hy_json_get(info, "shape");
    HY_FAIL_IF(hy_json_type_of(shape) != HY_JSON_ARRAY, HY_ERR_INPUT,
               "\"shape\" is missing or not an array");
    HY_FAIL_IF(hy_json_size(shape) > HY_SAFETENSORS_DIMS, HY_ERR_INPUT,
               "%zu dimensions, at most %d are supported", hy_json_size(shape),
               HY_SAFETENSORS_DIMS);
    for (const hy_json_node *d = hy_json_first(shape); d; d = hy_json_next(d)) {
        HY_FAIL_IF(!hy_json_as_int(d, &entry->shape[entry->ndim]) || entry->shape[entry->ndim] < 0,
                   HY_ERR_INPUT, "dimension %d is not a whole number of at least 0", entry->ndim);
        entry->ndim++;
    }
    const hy_json_node *offsets = hy_json_get(info, "data_offsets"),
                       *first = hy_json_first(offsets);
    int64_t begin, end;
    HY_FAIL_IF(hy_json_type_of(offsets) != HY_JSON_ARRAY || hy_json_size(offsets) != 2 ||
                   !hy_json_as_int(first, &begin) || !hy_json_as_int(hy_json_next(first), &end) ||
                   begin < 0 || end < begin,
               HY_ERR_INPUT, "\"data_offsets\" is not [begin, end] with begin <= end");
    HY_FAIL_IF((uint64_t)end > file->data_size, HY_ERR_INPUT,
               "its data ends at byte %lld, but the file has only %llu", (long long)end,
               (ull)file->data_size);
    entry->offset = (uint64_t)begin;
    entry->bytes = (uint64_t)end - (uint64_t)begin;
    uint64_t needed;
    HY_FAIL_IF(
        !bytes_of(entry, at, &needed), HY_ERR_INPUT,
        "shape and dtype do not give a valid size (a negative dimension, or more than 2^64 bytes)");
    HY_FAIL_IF(needed != entry->bytes, HY_ERR_INPUT,
               "shape and dtype need %llu bytes, but data_offsets has %llu", (ull)needed,
               (ull)entry->bytes);
    return HY_OK;
}

/* ---- the header ------------------------------------------------------------------------------ */

static hy_status load_header(hy_safetensors *file) {
    uint64_t file_size = hy_reader_size(file->reader);
    HY_FAIL_IF(file_size < 8, HY_ERR_INPUT, "%s: %llu bytes are too few for a safetensors file",
               file->path, (ull)file_size);
    uint8_t raw[8];
    HY_TRY(hy_reader_get(file->reader, 0, raw, sizeof raw));
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | raw[i];
    HY_FAIL_IF(
        length < 2 || length > HEADER_MAX || length > file_size - 8, HY_ERR_INPUT,
        "%s: header length %llu is wrong: expected 2 to %llu (not a safetensors file, or cut "
        "off)",
        file->path, (ull)length, (ull)(file_size - 8 < HEADER_MAX ? file_size - 8 : HEADER_MAX));
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

/* By offset; empty tensors come before the one at the same offset. Tensors that are equal in
 * both keep the order of the header: their names point into its text. */
static int compare_offsets(const void *a, const void *b) {
    const hy_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return x->name < y->name ? -1 : x->name > y->name;
}

static int compare_names(const void *a, const void *b) {
    const hy_safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The entries sorted by name; NULL: no memory. */
static const hy_safetensors_entry **sort_names(const hy_safetensors_entry *entries, size_t count) {
    const hy_safetensors_entry **names = calloc(count + 1, sizeof *names);
    for (size_t i = 0; names && i < count; i++) names[i] = &entries[i];
    if (names) qsort(names, count, sizeof *names, compare_names);
    return names;
}

static hy_status read_entries(hy_safetensors *file) {
    const hy_json_node *root = hy_json_root(file->header);
    size_t members = hy_json_size(root);
    file->entries = calloc(members + 1, sizeof *file->entries);
    HY_FAIL_IF(!file->entries, HY_ERR_MEMORY, "%s: out of memory for %zu tensors", file->path,
               members);
    for (const hy_json_node *m = hy_json_first(root); m; m = hy_json_next(m)) {
        if (strcmp(hy_json_key(m), METADATA) == 0) {
            file->metadata = m;
            continue;
        }
        hy_status status = read_entry(file, m, &file->entries[file->count++]);
        if (status != HY_OK) {
            return hy_fail_context(status, "%s: tensor \"%.200s\"", file->path, hy_json_key(m));
        }
    }
    HY_FAIL_IF(file->metadata && hy_json_type_of(file->metadata) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "%s: \"__metadata__\" is not an object", file->path);
    for (const hy_json_node *m = hy_json_first(file->metadata); m; m = hy_json_next(m)) {
        HY_FAIL_IF(hy_json_type_of(m) != HY_JSON_STRING, HY_ERR_INPUT,
                   "%s: \"__metadata__\": the value of \"%.200s\" is not a string", file->path,
                   hy_json_key(m));
    }
    qsort(file->entries, file->count, sizeof *file->entries, compare_offsets);
    file->names = sort_names(file->entries, file->count);
    HY_FAIL_IF(!file->names, HY_ERR_MEMORY, "%s: out of memory for %zu tensors", file->path,
               members);
    /* The tensors must cover the data exactly, one after another. */
    uint64_t reached = 0;
    for (size_t i = 0; i < file->count; i++) {
        const hy_safetensors_entry *entry = &file->entries[i];
        HY_FAIL_IF(entry->offset != reached, HY_ERR_INPUT,
                   TENSOR "its data begins at %llu, expected %llu: %s", file->path, entry->name,
                   (ull)entry->offset, (ull)reached,
                   entry->offset > reached ? "there is a gap" : "tensors overlap");
        reached += entry->bytes;
    }
    if (reached == file->data_size) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s: the tensors end at byte %llu of the data, but the file ends at byte %llu",
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
    if (status == HY_OK) *out = file;
    if (status != HY_OK) hy_safetensors_close(file);
    return status;
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

/* ---- queries --------------------------------------------------------------------------------- */

const char *hy_safetensors_type(const hy_safetensors_entry *entry) {
    return entry->other_type ? entry->other_type : hy_dtype_name(entry->dtype);
}

const char *hy_safetensors_path(const hy_safetensors *file) { return file->path; }

size_t hy_safetensors_count(const hy_safetensors *file) { return file->count; }

const hy_safetensors_entry *hy_safetensors_at(const hy_safetensors *file, size_t i) {
    return i < file->count ? &file->entries[i] : NULL;
}

const hy_safetensors_entry *hy_safetensors_find(const hy_safetensors *file, const char *name) {
    const hy_safetensors_entry wanted = {.name = name}, *key = &wanted, **found;
    found = bsearch(&key, file->names, file->count, sizeof *file->names, compare_names);
    return found ? *found : NULL;
}

const char *hy_safetensors_metadata(const hy_safetensors *file, const char *key) {
    const char *value;
    return hy_json_as_string(hy_json_get(file->metadata, key), &value, NULL) ? value : NULL;
}

hy_status hy_safetensors_read(const hy_safetensors *file, const hy_safetensors_entry *entry,
                              uint64_t first, void *dst, uint64_t size) {
    HY_FAIL_IF(first > entry->bytes || size > entry->bytes - first, HY_ERR_INPUT,
               TENSOR "bytes %llu + %llu were requested, but it has %llu", file->path, entry->name,
               (ull)first, (ull)size, (ull)entry->bytes);
    return hy_reader_get(file->reader, file->data_start + entry->offset + first, dst, size);
}

hy_status hy_safetensors_compare(const hy_safetensors *file, const hy_safetensors_entry *entry,
                                 const hy_safetensors *other_file,
                                 const hy_safetensors_entry *other, bool *is_same) {
    enum { SOME = 16384 };
    char one[SOME], two[SOME];
    *is_same = entry->dtype == other->dtype && entry->bytes == other->bytes;
    for (uint64_t at = 0; at < entry->bytes && *is_same; at += SOME) {
        uint64_t size = entry->bytes - at < SOME ? entry->bytes - at : SOME;
        HY_TRY(hy_safetensors_read(file, entry, at, one, size));
        HY_TRY(hy_safetensors_read(other_file, other, at, two, size));
        *is_same = memcmp(one, two, size) == 0;
    }
    return HY_OK;
}

hy_dims_text hy_dims_to_text(const int64_t *shape, int32_t ndim) {
    hy_dims_text out = {"("};
    size_t at = 1, size = sizeof out.text;
    for (int32_t i = 0; i < ndim && i < HY_SAFETENSORS_DIMS; i++) {
        at += (size_t)snprintf(out.text + at, size - at, "%s%lld", i ? ", " : "",
                               (long long)shape[i]);
    }
    snprintf(out.text + at, size - at, ")");
    return out;
}

const hy_reader *hy_safetensors_place(const hy_safetensors *file, const hy_safetensors_entry *entry,
                                      uint64_t *offset) {
    *offset = file->data_start + entry->offset;
    return file->reader;
}

/* ---- the writer ------------------------------------------------------------------------------ */

/* The header is complete before the first byte of data: offsets follow from the shapes, in the
 * order of the list. Spaces after the JSON align the data to 64 bytes, so that a mapped file can
 * be used in place. */

#define DATA_ALIGN 64

struct hy_safetensors_writer {
    hy_writer *out;
    char *path;
    uint64_t promised, put; /* bytes of data */
};

static hy_status check_names(const char *path, const hy_safetensors_entry *entries, size_t count) {
    const hy_safetensors_entry **names = sort_names(entries, count);
    if (!names) return hy_fail(HY_ERR_MEMORY, "out of memory writing %s", path);
    hy_status status = HY_OK;
    for (size_t i = 1; i < count && status == HY_OK; i++) {
        if (strcmp(names[i - 1]->name, names[i]->name) != 0) continue;
        status =
            hy_fail(HY_ERR_INPUT, "%s: two tensors are named \"%.200s\"", path, names[i]->name);
    }
    free(names);
    return status;
}

bool hy_safetensors_can_name(const char *string) {
    if (strcmp(string, METADATA) == 0) return false;
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

hy_status hy_safetensors_header(const char *path, const hy_safetensors_entry *entries, size_t count,
                                const char *const *metadata, hy_text *text, uint64_t *total) {
    hy_json_writer json;
    uint8_t length[8] = {0};
    hy_text_add_bytes(text, length, sizeof length); /* known at the end */
    hy_json_begin(&json, text, false);
    hy_json_open_object(&json, NULL);
    if (metadata && metadata[0]) {
        hy_json_open_object(&json, METADATA);
        for (; metadata[0]; metadata += 2) hy_json_put_string(&json, metadata[0], metadata[1]);
        hy_json_close_object(&json);
    }
    *total = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = *total, bytes = 0;
        const hy_safetensors_entry *entry = &entries[i];
        HY_FAIL_IF(!hy_safetensors_can_name(entry->name), HY_ERR_INPUT,
                   "%s: \"%.200s\" cannot be the name of a tensor", path, entry->name);
        HY_FAIL_IF((size_t)entry->dtype >= HY_DTYPE_COUNT, HY_ERR_INPUT, TENSOR "unknown dtype %d",
                   path, entry->name, (int)entry->dtype);
        HY_FAIL_IF(entry->ndim < 0 || entry->ndim > HY_SAFETENSORS_DIMS, HY_ERR_INPUT,
                   TENSOR "%d dimensions, expected 0 to %d", path, entry->name, entry->ndim,
                   HY_SAFETENSORS_DIMS);
        HY_FAIL_IF(!bytes_of(entry, entry->dtype, &bytes), HY_ERR_INPUT,
                   TENSOR "the shape is negative or too large", path, entry->name);
        HY_FAIL_IF(__builtin_add_overflow(begin, bytes, total) || *total > INT64_MAX, HY_ERR_INPUT,
                   "%s: the tensors have more than 2^63 bytes", path);
        hy_json_open_object(&json, entry->name);
        hy_json_put_string(&json, "dtype", types[entry->dtype].name);
        hy_json_open_array(&json, "shape");
        for (int k = 0; k < entry->ndim; k++) hy_json_put_int(&json, NULL, entry->shape[k]);
        hy_json_close_array(&json);
        hy_json_open_array(&json, "data_offsets");
        hy_json_put_int(&json, NULL, (int64_t)begin);
        hy_json_put_int(&json, NULL, (int64_t)*total);
        hy_json_close_array(&json);
        hy_json_close_object(&json);
    }
    hy_json_close_object(&json);
    while (text->size % DATA_ALIGN != 0 && !text->has_failed) hy_text_add(text, " ");
    HY_TRY(hy_text_status(text));
    size_t size = text->size - sizeof length;
    HY_FAIL_IF(size > HEADER_MAX, HY_ERR_INPUT,
               "%s: a header of %zu bytes is too long, at most %d are allowed", path, size,
               HEADER_MAX);
    for (int i = 0; i < 8; i++) text->data[i] = (char)((uint64_t)size >> (8 * i));
    return HY_OK;
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
        status = hy_safetensors_header(path, entries, count, metadata, &header, &w->promised);
    }
    if (status == HY_OK) status = hy_writer_create(path, &w->out);
    if (status == HY_OK) status = hy_writer_expect(w->out, header.size + w->promised);
    if (status == HY_OK) status = hy_writer_put(w->out, header.data, header.size);
    hy_text_free(&header);
    if (status == HY_OK) *out = w;
    if (status != HY_OK) hy_safetensors_abandon(w);
    return status;
}

static hy_status count_in(hy_safetensors_writer *w, uint64_t size) {
    HY_FAIL_IF(size > w->promised - w->put, HY_ERR_STATE,
               "%s: %" PRIu64 " bytes of data were put, the header says %" PRIu64, w->path,
               w->put + size, w->promised);
    w->put += size;
    return HY_OK;
}

hy_status hy_safetensors_put(hy_safetensors_writer *w, const void *data, uint64_t size) {
    HY_TRY(count_in(w, size));
    return hy_writer_put(w->out, data, (size_t)size);
}

void *hy_safetensors_room(hy_safetensors_writer *w, size_t *size) {
    return hy_writer_room(w->out, size);
}

hy_status hy_safetensors_commit(hy_safetensors_writer *w, size_t size) {
    HY_TRY(count_in(w, size));
    return hy_writer_commit(w->out, size);
}

hy_status hy_safetensors_finish(hy_safetensors_writer *w, uint64_t *hash, uint64_t *size) {
    if (!w) return HY_OK;
    hy_status status = HY_OK;
    if (w->put != w->promised) {
        status = hy_fail(HY_ERR_STATE,
                         "%s: %" PRIu64 " bytes of data were put, the header says %" PRIu64,
                         w->path, w->put, w->promised);
    } else {
        if (hash) *hash = hy_writer_hash(w->out);
        if (size) *size = hy_writer_size(w->out);
        status = hy_writer_close(w->out, true);
        w->out = NULL;
    }
    hy_safetensors_abandon(w);
    return status;
}

void hy_safetensors_abandon(hy_safetensors_writer *w) {
    if (!w) return;
    hy_writer_abandon(w->out);
    free(w->path);
    free(w);
}

/* ---- one file, written by several processes -------------------------------------------------- */

struct hy_shared_tensors {
    int fd;
    uint64_t *begin; /* (count + 1) offsets of tensors in the file, and its end */
    size_t count;
    char path[]; /* for messages */
};

static hy_status fail_path(const char *path) {
    return hy_fail(HY_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

hy_status hy_shared_tensors_make(const char *path, const hy_safetensors_entry *entries,
                                 size_t count, const char *const *metadata) {
    hy_text header = {0};
    uint64_t total = 0;
    int fd = -1;
    hy_status status = hy_safetensors_header(path, entries, count, metadata, &header, &total);
    if (status == HY_OK && (fd = hy_disk_create(path)) < 0) status = fail_path(path);
    uint64_t size = header.size + total;
    bool is_written = status == HY_OK && hy_disk_reserve(fd, size) == 0 &&
                      hy_disk_write(fd, header.data, header.size) == 0;
    /* If no space could be reserved, the last byte sets the file's size. */
    if (is_written && total > 0) is_written = hy_disk_write_at(fd, "", 1, size - 1) == 0;
    if (is_written) is_written = hy_disk_sync(fd) == 0;
    if (status == HY_OK && !is_written) status = fail_path(path);
    if (fd >= 0 && hy_disk_close(fd) != 0 && status == HY_OK) status = fail_path(path);
    hy_text_free(&header);
    return status;
}

hy_status hy_shared_tensors_open(const char *path, const hy_safetensors_entry *entries,
                                 size_t count, const char *const *metadata,
                                 hy_shared_tensors **out) {
    hy_text header = {0};
    uint64_t total = 0;
    *out = NULL;
    hy_shared_tensors *s = calloc(1, sizeof *s + strlen(path) + 1);
    if (s) s->begin = calloc(count + 1, sizeof *s->begin);
    if (!s || !s->begin) {
        free(s);
        return hy_fail(HY_ERR_MEMORY, "not enough memory to write %s", path);
    }
    memcpy(s->path, path, strlen(path) + 1);
    s->count = count;
    s->fd = -1;
    hy_status status = hy_safetensors_header(path, entries, count, metadata, &header, &total);
    s->begin[0] = header.size;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        int64_t elements = 1;
        for (int k = 0; k < entries[i].ndim; k++) elements *= entries[i].shape[k];
        s->begin[i + 1] = s->begin[i] + hy_dtype_bytes(entries[i].dtype, elements);
    }
    hy_text_free(&header);
    if (status == HY_OK && (s->fd = hy_disk_open(path, O_WRONLY)) < 0) status = fail_path(path);
    if (status == HY_OK) *out = s;
    if (status != HY_OK) (void)hy_shared_tensors_close(s);
    return status;
}

hy_status hy_shared_tensors_put(hy_shared_tensors *s, size_t entry, uint64_t first,
                                const void *data, uint64_t size) {
    uint64_t bytes = entry < s->count ? s->begin[entry + 1] - s->begin[entry] : 0;
    HY_FAIL_IF(entry >= s->count || size > bytes || first > bytes - size, HY_ERR_STATE,
               "%s: bytes were written beyond tensor %zu", s->path, entry);
    uint64_t at = s->begin[entry] + first;
    return hy_disk_write_at(s->fd, data, size, at) == 0 ? HY_OK : fail_path(s->path);
}

hy_status hy_shared_tensors_close(hy_shared_tensors *s) {
    if (!s) return HY_OK;
    bool is_open = s->fd >= 0;
    bool is_done = !is_open || hy_disk_sync(s->fd) == 0;
    if (is_open) is_done &= hy_disk_close(s->fd) == 0;
    hy_status status = is_done ? HY_OK : fail_path(s->path);
    free(s->begin);
    free(s);
    return status;
}
