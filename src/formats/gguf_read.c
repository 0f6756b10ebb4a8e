/* gguf_read.c: reads the header of a GGUF file and finds its tensors. See gguf.h.
 *
 * The header is read into one buffer, as much of it as the parser needs; every length is compared
 * with the rest of the file before memory is reserved for it. A string moves one byte ahead in the
 * buffer, over the last byte of its length, which is zero: so it gets a terminating zero in place.
 * After HY_OK all names are unique and valid UTF-8, and all tensors lie one after the other inside
 * the file, as llama.cpp requires. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "formats/gguf.h"

#define MAGIC "GGUF"
#define HEADER_MOST ((uint64_t)256 << 20) /* a vocabulary of a million tokens has 64 MiB */
#define READ_AHEAD ((uint64_t)1 << 20)
#define KEY_MOST 65535
#define LEAST_KEY 14    /* bytes: length, a letter, kind, a value of one byte */
#define LEAST_TENSOR 25 /* bytes: length, a letter, dimensions, type, offset */
#define LENGTH_BYTES 7  /* of a string's length in the buffer */

typedef unsigned long long ull;

struct hy_gguf_value {
    uint32_t key_at, at; /* offsets in the header; of strings: the first in `strings` */
    hy_gguf_kind kind;
    bool is_array;
    size_t count;
    const char *key;
    const char *header;
    const uint32_t *strings;
};

struct hy_gguf {
    hy_reader *reader;
    char *path;
    char *header; /* the bytes that were read so far */
    uint64_t loaded, at, size;
    uint64_t data_start;
    hy_gguf_value *values;
    const hy_gguf_value **by_key;
    size_t keys, key_room;
    uint32_t *strings; /* where the length of each string begins in the header */
    size_t string_count, string_room;
    hy_gguf_tensor *tensors;
    const hy_gguf_tensor **by_name;
    uint32_t *names; /* where each tensor's name begins in the header */
    size_t count;
};

/* ---- bytes of the header --------------------------------------------------------------------- */

/* Loads the header up to `size` bytes behind the current place. */
static hy_status need(hy_gguf *f, uint64_t size) {
    HY_FAIL_IF(size > f->size - f->at, HY_ERR_INPUT,
               "%s: the file ends within its header, at byte %llu; it may be incomplete", f->path,
               (ull)f->size);
    uint64_t end = f->at + size;
    HY_FAIL_IF(end > HEADER_MOST, HY_ERR_INPUT,
               "%s: the header is longer than %llu bytes, the most that is accepted", f->path,
               (ull)HEADER_MOST);
    if (end <= f->loaded) return HY_OK;
    uint64_t wanted = 2 * f->loaded > end ? 2 * f->loaded : end;
    if (wanted < READ_AHEAD) wanted = READ_AHEAD;
    if (wanted > f->size) wanted = f->size;
    char *larger = realloc(f->header, wanted);
    HY_FAIL_IF(!larger, HY_ERR_MEMORY, "not enough memory for the header of %s", f->path);
    f->header = larger;
    HY_TRY(hy_reader_get(f->reader, f->loaded, larger + f->loaded, wanted - f->loaded));
    f->loaded = wanted;
    return HY_OK;
}

/* How many things of this size the rest of the header can hold. */
static uint64_t most_of(const hy_gguf *f, uint64_t bytes) {
    uint64_t end = f->size < HEADER_MOST ? f->size : HEADER_MOST;
    return (end - f->at) / bytes;
}

static hy_status take(hy_gguf *f, void *out, size_t size) {
    HY_TRY(need(f, size));
    memcpy(out, f->header + f->at, size);
    f->at += size;
    return HY_OK;
}

static hy_status take_string(hy_gguf *f, uint32_t *at) {
    uint64_t length;
    HY_TRY(take(f, &length, sizeof length));
    HY_TRY(need(f, length)); /* so it is below 2^32 */
    *at = (uint32_t)(f->at - sizeof length);
    char *text = f->header + *at + LENGTH_BYTES;
    memmove(text, text + 1, length);
    text[length] = 0;
    f->at += length;
    return HY_OK;
}

static const char *string_at(const char *header, uint32_t at, size_t *size) {
    uint64_t length = 0;
    memcpy(&length, header + at, LENGTH_BYTES);
    if (size) *size = (size_t)length;
    return header + at + LENGTH_BYTES;
}

/* A name of a key or tensor: UTF-8 without zeros, 1 to `most` bytes. */
static hy_status take_name(hy_gguf *f, const char *what, size_t most, uint32_t *at) {
    size_t size, done = 0;
    uint64_t begin = f->at;
    HY_TRY(take_string(f, at));
    const uint8_t *name = (const uint8_t *)string_at(f->header, *at, &size);
    HY_FAIL_IF(size == 0 || size > most, HY_ERR_INPUT,
               "%s: the name of a %s at byte %llu has %zu bytes, expected 1 to %zu", f->path, what,
               (ull)begin, size, most);
    while (done < size) {
        int length = name[done] ? hy_utf8_length(name + done, size - done) : 0;
        HY_FAIL_IF(length == 0, HY_ERR_INPUT,
                   "%s: the name of a %s at byte %llu is not UTF-8 text without zeros", f->path,
                   what, (ull)begin);
        done += (size_t)length;
    }
    return HY_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

const uint8_t hy_gguf_kind_bytes[HY_GGUF_KIND_COUNT] = {
    [HY_GGUF_U8] = 1,  [HY_GGUF_I8] = 1,  [HY_GGUF_U16] = 2, [HY_GGUF_I16] = 2,
    [HY_GGUF_U32] = 4, [HY_GGUF_I32] = 4, [HY_GGUF_F32] = 4, [HY_GGUF_BOOL] = 1,
    [HY_GGUF_U64] = 8, [HY_GGUF_I64] = 8, [HY_GGUF_F64] = 8, [HY_GGUF_STRING] = 8};

static hy_status take_kind(hy_gguf *f, const char *key, hy_gguf_kind *out) {
    uint32_t kind;
    HY_TRY(take(f, &kind, sizeof kind));
    HY_FAIL_IF(kind >= HY_GGUF_KIND_COUNT, HY_ERR_INPUT,
               "%s: key \"%.200s\" has a value of kind %u; the kinds of GGUF are 0 to %d", f->path,
               key, kind, HY_GGUF_KIND_COUNT - 1);
    *out = (hy_gguf_kind)kind;
    return HY_OK;
}

static hy_status take_strings(hy_gguf *f, hy_gguf_value *value) {
    value->at = (uint32_t)f->string_count;
    for (size_t i = 0; i < value->count; i++) {
        HY_TRY(hy_array_reserve(&f->strings, &f->string_room, f->string_count + 1,
                                sizeof *f->strings, "the strings of a GGUF file"));
        HY_TRY(take_string(f, &f->strings[f->string_count]));
        f->string_count++;
    }
    return HY_OK;
}

static hy_status take_value(hy_gguf *f, hy_gguf_value *value) {
    uint64_t count = 1;
    HY_TRY(take_name(f, "key", KEY_MOST, &value->key_at));
    uint32_t key = value->key_at;
#define KEY string_at(f->header, key, NULL) /* the buffer moves when it grows */
    HY_TRY(take_kind(f, KEY, &value->kind));
    value->is_array = value->kind == HY_GGUF_ARRAY;
    if (value->is_array) {
        HY_TRY(take_kind(f, KEY, &value->kind));
        HY_FAIL_IF(value->kind == HY_GGUF_ARRAY, HY_ERR_INPUT,
                   "%s: key \"%.200s\" is an array of arrays, which is not supported", f->path,
                   KEY);
        HY_TRY(take(f, &count, sizeof count));
    }
    size_t size = hy_gguf_kind_bytes[value->kind];
    HY_FAIL_IF(count > most_of(f, size), HY_ERR_INPUT,
               "%s: key \"%.200s\" has %llu items, more than the header can hold; the file may be "
               "incomplete",
               f->path, KEY, (ull)count);
    value->count = (size_t)count;
    if (value->kind == HY_GGUF_STRING) return take_strings(f, value);
    HY_TRY(need(f, count * size));
    value->at = (uint32_t)f->at;
    for (size_t i = 0; i < value->count && value->kind == HY_GGUF_BOOL; i++) {
        HY_FAIL_IF((uint8_t)f->header[f->at + i] > 1, HY_ERR_INPUT,
                   "%s: key \"%.200s\" has the bool %d; expected 0 or 1", f->path, KEY,
                   (uint8_t)f->header[f->at + i]);
    }
#undef KEY
    f->at += count * size;
    return HY_OK;
}

static int compare_keys(const void *a, const void *b) {
    return strcmp((*(const hy_gguf_value *const *)a)->key, (*(const hy_gguf_value *const *)b)->key);
}

static hy_status take_keys(hy_gguf *f, uint64_t keys) {
    HY_FAIL_IF(keys > most_of(f, LEAST_KEY), HY_ERR_INPUT,
               "%s has %llu keys, more than the header can hold; the file may be incomplete",
               f->path, (ull)keys);
    for (uint64_t i = 0; i < keys; i++) {
        HY_TRY(hy_array_reserve(&f->values, &f->key_room, f->keys + 1, sizeof *f->values,
                                "the keys of a GGUF file"));
        f->values[f->keys] = (hy_gguf_value){0};
        HY_TRY(take_value(f, &f->values[f->keys]));
        f->keys++;
    }
    return HY_OK;
}

/* The buffers have their final place: sets pointers to them, and sorts by key. */
static hy_status settle_keys(hy_gguf *f) {
    f->by_key = calloc(f->keys + 1, sizeof *f->by_key);
    HY_FAIL_IF(!f->by_key, HY_ERR_MEMORY, "not enough memory for the keys of %s", f->path);
    for (size_t i = 0; i < f->keys; i++) {
        hy_gguf_value *value = &f->values[i];
        value->header = f->header;
        value->strings = f->strings;
        value->key = string_at(f->header, value->key_at, NULL);
        f->by_key[i] = value;
    }
    qsort(f->by_key, f->keys, sizeof *f->by_key, compare_keys);
    for (size_t i = 1; i < f->keys; i++) {
        HY_FAIL_IF(compare_keys(&f->by_key[i - 1], &f->by_key[i]) == 0, HY_ERR_INPUT,
                   "%s: two keys are named \"%.200s\"", f->path, f->by_key[i]->key);
    }
    return HY_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

#define TENSOR "%s: tensor \"%.200s\": "

/* Checks type and sizes, and sets the tensor's bytes. */
static hy_status measure(const hy_gguf *f, const char *name, hy_gguf_tensor *t) {
    const hy_block_traits *traits = hy_block_traits_of((uint32_t)t->type);
    HY_FAIL_IF(!traits, HY_ERR_INPUT, TENSOR "type %u is unknown; readable types: %s", f->path,
               name, (uint32_t)t->type, hy_gguf_readable_types().text);
    uint64_t blocks = 1;
    for (int i = 0; i < t->ndim; i++) {
        uint64_t size = (uint64_t)t->shape[i];
        HY_FAIL_IF(t->shape[i] < 1, HY_ERR_INPUT,
                   TENSOR "dimension %d has the size %lld, expected 1 or more", f->path, name, i,
                   (long long)t->shape[i]);
        bool is_last = i == t->ndim - 1;
        HY_FAIL_IF(is_last && size % (uint64_t)traits->elements != 0, HY_ERR_INPUT,
                   TENSOR "rows of %lld numbers cannot be in blocks of %d (type %s)", f->path, name,
                   (long long)size, traits->elements, traits->name);
        if (is_last) size /= (uint64_t)traits->elements;
        bool fits = !__builtin_mul_overflow(blocks, size, &blocks) &&
                    !__builtin_mul_overflow(blocks, (uint64_t)traits->bytes, &t->bytes);
        HY_FAIL_IF(!fits || t->bytes > f->size, HY_ERR_INPUT,
                   TENSOR "it is larger than the file, which has %llu bytes; the file may be "
                          "incomplete",
                   f->path, name, (ull)f->size);
    }
    return HY_OK;
}

static hy_status take_tensor(hy_gguf *f, uint32_t *name_at, hy_gguf_tensor *t) {
    uint32_t dims, type;
    HY_TRY(take_name(f, "tensor", HY_GGUF_NAME_MAX - 1, name_at));
    HY_TRY(take(f, &dims, sizeof dims));
    HY_FAIL_IF(dims < 1 || dims > HY_GGUF_DIMS, HY_ERR_INPUT,
               TENSOR "%u dimensions, expected 1 to %d", f->path,
               string_at(f->header, *name_at, NULL), dims, HY_GGUF_DIMS);
    t->ndim = (int)dims;
    for (int i = t->ndim - 1; i >= 0; i--) HY_TRY(take(f, &t->shape[i], sizeof t->shape[i]));
    HY_TRY(take(f, &type, sizeof type));
    HY_TRY(take(f, &t->offset, sizeof t->offset));
    t->type = (hy_block_type)type;
    return measure(f, string_at(f->header, *name_at, NULL), t);
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const hy_gguf_tensor *const *)a)->name,
                  (*(const hy_gguf_tensor *const *)b)->name);
}

static hy_status take_tensors(hy_gguf *f, uint64_t count) {
    HY_FAIL_IF(count > most_of(f, LEAST_TENSOR), HY_ERR_INPUT,
               "%s has %llu tensors, more than the header can hold; the file may be incomplete",
               f->path, (ull)count);
    f->tensors = calloc(count + 1, sizeof *f->tensors);
    f->by_name = calloc(count + 1, sizeof *f->by_name);
    f->names = calloc(count + 1, sizeof *f->names);
    HY_FAIL_IF(!f->tensors || !f->by_name || !f->names, HY_ERR_MEMORY,
               "not enough memory for the %llu tensors of %s", (ull)count, f->path);
    for (; f->count < count; f->count++)
        HY_TRY(take_tensor(f, &f->names[f->count], &f->tensors[f->count]));
    return HY_OK;
}

static hy_status settle_tensors(hy_gguf *f) {
    for (size_t i = 0; i < f->count; i++) {
        f->tensors[i].name = string_at(f->header, f->names[i], NULL);
        f->by_name[i] = &f->tensors[i];
    }
    qsort(f->by_name, f->count, sizeof *f->by_name, compare_names);
    for (size_t i = 1; i < f->count; i++) {
        HY_FAIL_IF(compare_names(&f->by_name[i - 1], &f->by_name[i]) == 0, HY_ERR_INPUT,
                   "%s: two tensors are named \"%.200s\"", f->path, f->by_name[i]->name);
    }
    return HY_OK;
}

/* The tensors follow one another, each at the next multiple of the alignment. */
static hy_status place_tensors(hy_gguf *f) {
    const hy_gguf_value *value = hy_gguf_get(f, HY_GGUF_ALIGNMENT_KEY);
    int64_t alignment = HY_GGUF_ALIGNMENT;
    bool is_u32 = !value || (!value->is_array && value->kind == HY_GGUF_U32);
    HY_FAIL_IF(value && !hy_gguf_as_int(value, 0, &alignment), HY_ERR_INPUT,
               "%s: " HY_GGUF_ALIGNMENT_KEY " is not a number", f->path);
    HY_FAIL_IF(!is_u32 || alignment < 1 || (alignment & (alignment - 1)) != 0, HY_ERR_INPUT,
               "%s: " HY_GGUF_ALIGNMENT_KEY " is %lld, expected a power of 2 of kind u32", f->path,
               (long long)alignment);
    uint64_t mask = (uint64_t)alignment - 1, reached = 0;
    f->data_start = (f->at + mask) & ~mask;
    HY_FAIL_IF(f->count > 0 && f->data_start > f->size, HY_ERR_INPUT,
               "%s: the file ends before its tensors; it may be incomplete", f->path);
    for (size_t i = 0; i < f->count; i++) {
        const hy_gguf_tensor *t = &f->tensors[i];
        reached = (reached + mask) & ~mask;
        HY_FAIL_IF(t->offset != reached, HY_ERR_INPUT,
                   TENSOR "its data begins at %llu, expected %llu: %s", f->path, t->name,
                   (ull)t->offset, (ull)reached,
                   t->offset > reached ? "there is a gap" : "tensors overlap");
        HY_FAIL_IF(t->bytes > f->size - f->data_start ||
                       reached > f->size - f->data_start - t->bytes,
                   HY_ERR_INPUT,
                   TENSOR "it ends behind the end of the file, which has %llu bytes; the file is "
                          "incomplete",
                   f->path, t->name, (ull)f->size);
        reached += t->bytes;
    }
    return HY_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static hy_status check_begin(hy_gguf *f) {
    char magic[4] = "";
    uint32_t version = 0;
    if (f->size >= sizeof magic) HY_TRY(take(f, magic, sizeof magic));
    HY_FAIL_IF(memcmp(magic, MAGIC, sizeof magic) != 0, HY_ERR_INPUT,
               "%s is not a GGUF file: it does not begin with \"" MAGIC "\"", f->path);
    HY_TRY(take(f, &version, sizeof version));
    HY_FAIL_IF((version & 0xFFFF) == 0 && version != 0, HY_ERR_INPUT,
               "%s is a big-endian GGUF file; little-endian files are accepted", f->path);
    HY_FAIL_IF(version != 2 && version != 3, HY_ERR_INPUT,
               "%s is a GGUF file of version %u; accepted: 2 and 3", f->path, version);
    return HY_OK;
}

static hy_status check_split(const hy_gguf *f) {
    int64_t parts = 1, part = 0;
    hy_gguf_as_int(hy_gguf_get(f, "split.count"), 0, &parts);
    hy_gguf_as_int(hy_gguf_get(f, "split.no"), 0, &part);
    HY_FAIL_IF(parts > 1, HY_ERR_INPUT,
               "%s is part %lld of %lld of a model (split.count); name one whole file: "
               "llama-gguf-split --merge joins the parts",
               f->path, (long long)part + 1, (long long)parts);
    return HY_OK;
}

static hy_status read_header(hy_gguf *f) {
    uint64_t tensors, keys;
    HY_TRY(check_begin(f));
    HY_TRY(take(f, &tensors, sizeof tensors));
    HY_TRY(take(f, &keys, sizeof keys));
    HY_TRY(take_keys(f, keys));
    HY_TRY(take_tensors(f, tensors));
    HY_TRY(settle_keys(f));
    HY_TRY(check_split(f));
    HY_TRY(settle_tensors(f));
    return place_tensors(f);
}

hy_status hy_gguf_open(const char *path, hy_gguf **out) {
    *out = NULL;
    hy_gguf *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return hy_fail(HY_ERR_MEMORY, "not enough memory to open %s", path);
    }
    hy_status status = hy_reader_open(path, &f->reader);
    if (status == HY_OK) {
        f->size = hy_reader_size(f->reader);
        status = read_header(f);
    }
    if (status == HY_OK) *out = f;
    if (status != HY_OK) hy_gguf_close(f);
    return status;
}

void hy_gguf_close(hy_gguf *f) {
    if (!f) return;
    hy_reader_close(f->reader);
    free(f->header);
    free(f->values);
    free(f->by_key);
    free(f->strings);
    free(f->tensors);
    free(f->by_name);
    free(f->names);
    free(f->path);
    free(f);
}

bool hy_gguf_is_file(const char *path) {
    hy_reader *reader;
    char magic[4] = "";
    if (!hy_path_exists(path) || hy_path_is_dir(path)) return false;
    if (hy_has_ending(path, ".gguf")) return true;
    if (hy_reader_open(path, &reader) != HY_OK) return false;
    bool is_read = hy_reader_size(reader) >= sizeof magic &&
                   hy_reader_get(reader, 0, magic, sizeof magic) == HY_OK;
    hy_reader_close(reader);
    return is_read && memcmp(magic, MAGIC, sizeof magic) == 0;
}

hy_gguf_types hy_gguf_readable_types(void) {
    hy_gguf_types out = {""};
    size_t at = 0;
    for (uint32_t i = 0; i < HY_BLOCK_TYPES; i++) {
        const hy_block_traits *traits = hy_block_traits_of(i);
        if (!traits || !traits->can_decode || at >= sizeof out.text) continue;
        at += (size_t)snprintf(out.text + at, sizeof out.text - at, "%s%s", at ? ", " : "",
                               traits->name);
    }
    return out;
}

/* ---- queries --------------------------------------------------------------------------------- */

const char *hy_gguf_path(const hy_gguf *f) { return f->path; }

size_t hy_gguf_count(const hy_gguf *f) { return f->count; }

const hy_gguf_tensor *hy_gguf_at(const hy_gguf *f, size_t i) {
    return i < f->count ? &f->tensors[i] : NULL;
}

const hy_gguf_tensor *hy_gguf_find(const hy_gguf *f, const char *name) {
    const hy_gguf_tensor wanted = {.name = name}, *key = &wanted, **found;
    found = bsearch(&key, f->by_name, f->count, sizeof *f->by_name, compare_names);
    return found ? *found : NULL;
}

const hy_reader *hy_gguf_place(const hy_gguf *f, const hy_gguf_tensor *tensor, uint64_t *offset) {
    *offset = f->data_start + tensor->offset;
    return f->reader;
}

const hy_gguf_value *hy_gguf_get(const hy_gguf *f, const char *name) {
    const hy_gguf_value wanted = {.key = name}, *key = &wanted, **found;
    found = bsearch(&key, f->by_key, f->keys, sizeof *f->by_key, compare_keys);
    return found ? *found : NULL;
}

size_t hy_gguf_key_count(const hy_gguf *f) { return f->keys; }

const hy_gguf_value *hy_gguf_key_at(const hy_gguf *f, size_t i, const char **key) {
    if (i >= f->keys) return NULL;
    *key = f->values[i].key;
    return &f->values[i];
}

hy_gguf_kind hy_gguf_kind_of(const hy_gguf_value *v) { return v ? v->kind : HY_GGUF_KIND_COUNT; }

bool hy_gguf_is_array(const hy_gguf_value *v) { return v && v->is_array; }

size_t hy_gguf_size(const hy_gguf_value *v) { return v ? v->count : 0; }

/* The bytes of item i in the lowest bytes of the result, zeros above. */
static uint64_t bits_of(const hy_gguf_value *v, size_t i) {
    uint64_t bits = 0;
    size_t size = hy_gguf_kind_bytes[v->kind];
    memcpy(&bits, v->header + v->at + i * size, size);
    return bits;
}

bool hy_gguf_as_int(const hy_gguf_value *v, size_t i, int64_t *out) {
    if (!v || i >= v->count) return false;
    uint64_t bits = v->kind == HY_GGUF_STRING ? 0 : bits_of(v, i);
    switch (v->kind) {
    case HY_GGUF_U8:
    case HY_GGUF_U16:
    case HY_GGUF_U32:
    case HY_GGUF_I64: *out = (int64_t)bits; return true;
    case HY_GGUF_I8: *out = (int8_t)bits; return true;
    case HY_GGUF_I16: *out = (int16_t)bits; return true;
    case HY_GGUF_I32: *out = (int32_t)bits; return true;
    case HY_GGUF_U64: *out = (int64_t)bits; return bits <= INT64_MAX;
    default: return false;
    }
}

bool hy_gguf_as_real(const hy_gguf_value *v, size_t i, double *out) {
    int64_t whole = 0;
    float f32;
    if (!v || i >= v->count) return false;
    if (v->kind == HY_GGUF_F32) {
        memcpy(&f32, v->header + v->at + 4 * i, sizeof f32);
        *out = f32;
    } else if (v->kind == HY_GGUF_F64) {
        memcpy(out, v->header + v->at + 8 * i, sizeof *out);
    } else if (hy_gguf_as_int(v, i, &whole)) {
        *out = (double)whole;
    } else {
        return false;
    }
    return true;
}

bool hy_gguf_as_bool(const hy_gguf_value *v, size_t i, bool *out) {
    if (!v || i >= v->count || v->kind != HY_GGUF_BOOL) return false;
    *out = bits_of(v, i) != 0;
    return true;
}

bool hy_gguf_as_string(const hy_gguf_value *v, size_t i, const char **out, size_t *size) {
    if (!v || i >= v->count || v->kind != HY_GGUF_STRING) return false;
    *out = string_at(v->header, v->strings[v->at + i], size);
    return true;
}
