/* gguf_write.c: the writer. See gguf.h.
 *
 * Keys become bytes at once; a failed allocation is reported when the file is begun. The header is
 * made whole in memory, so that the file's size is known before anything is written. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "formats/gguf.h"

#define VERSION 3

struct hy_gguf_writer {
    char *path;
    hy_writer *out;
    const hy_gguf_tensor *tensors;
    size_t count;
    size_t at;    /* the tensor that is written */
    uint64_t put; /* its bytes so far */
};

static uint64_t padding_after(uint64_t bytes) {
    return (HY_GGUF_ALIGNMENT - bytes % HY_GGUF_ALIGNMENT) % HY_GGUF_ALIGNMENT;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void add_u32(hy_text *text, uint32_t value) { hy_text_add_bytes(text, &value, 4); }
static void add_u64(hy_text *text, uint64_t value) { hy_text_add_bytes(text, &value, 8); }

static void add_string(hy_text *text, const char *string, size_t size) {
    add_u64(text, size);
    hy_text_add_bytes(text, string, size);
}

/* The name and the kind of a value, or nothing for an item of the open array. */
static void begin_value(hy_gguf_keys *keys, const char *key, hy_gguf_kind kind) {
    if (!key) {
        assert(keys->items > 0);
        keys->items--;
        return;
    }
    assert(keys->items == 0);
    add_string(&keys->bytes, key, strlen(key));
    add_u32(&keys->bytes, kind);
    keys->count++;
}

void hy_gguf_put_int(hy_gguf_keys *keys, const char *key, hy_gguf_kind kind, int64_t value) {
    assert(kind <= HY_GGUF_I32 || kind == HY_GGUF_U64 || kind == HY_GGUF_I64);
    begin_value(keys, key, kind);
    hy_text_add_bytes(&keys->bytes, &value,
                      hy_gguf_kind_bytes[kind]); /* the low bytes come first */
}

void hy_gguf_put_f32(hy_gguf_keys *keys, const char *key, double value) {
    float number = (float)value;
    begin_value(keys, key, HY_GGUF_F32);
    hy_text_add_bytes(&keys->bytes, &number, sizeof number);
}

void hy_gguf_put_bool(hy_gguf_keys *keys, const char *key, bool value) {
    uint8_t byte = value;
    begin_value(keys, key, HY_GGUF_BOOL);
    hy_text_add_bytes(&keys->bytes, &byte, 1);
}

void hy_gguf_put_bytes(hy_gguf_keys *keys, const char *key, const char *value, size_t size) {
    begin_value(keys, key, HY_GGUF_STRING);
    add_string(&keys->bytes, value, size);
}

void hy_gguf_put_string(hy_gguf_keys *keys, const char *key, const char *value) {
    hy_gguf_put_bytes(keys, key, value, strlen(value));
}

void hy_gguf_open_array(hy_gguf_keys *keys, const char *key, hy_gguf_kind kind, uint64_t count) {
    begin_value(keys, key, HY_GGUF_ARRAY);
    add_u32(&keys->bytes, kind);
    add_u64(&keys->bytes, count);
    keys->items = count;
}

void hy_gguf_keys_free(hy_gguf_keys *keys) {
    hy_text_free(&keys->bytes);
    *keys = (hy_gguf_keys){0};
}

/* ---- the header ------------------------------------------------------------------------------ */

static hy_status lay_out(const char *path, hy_gguf_tensor *tensor, uint64_t offset) {
    int64_t elements = 1, cols = tensor->shape[tensor->ndim - 1];
    const hy_block_traits *traits = hy_block_traits_of(tensor->type);
    HY_FAIL_IF(strlen(tensor->name) >= HY_GGUF_NAME_MAX, HY_ERR_INPUT,
               "%s: the name of tensor %s is longer than llama.cpp reads (%d bytes)", path,
               tensor->name, HY_GGUF_NAME_MAX - 1);
    HY_FAIL_IF(!traits || cols % traits->elements != 0, HY_ERR_INPUT,
               "%s: tensor %s has rows of %" PRId64 " numbers, which type %s cannot hold", path,
               tensor->name, cols, traits ? traits->name : "?");
    for (int i = 0; i < tensor->ndim; i++) elements *= tensor->shape[i];
    tensor->offset = offset;
    tensor->bytes = hy_blocks_bytes(tensor->type, elements);
    return HY_OK;
}

/* Everything before the data, with its padding. */
static void add_header(hy_text *text, const hy_gguf_keys *keys, const hy_gguf_tensor *tensors,
                       size_t count) {
    static const char zeros[HY_GGUF_ALIGNMENT];
    assert(keys->items == 0);
    hy_text_add_bytes(text, "GGUF", 4);
    add_u32(text, VERSION);
    add_u64(text, count);
    add_u64(text, keys->count);
    hy_text_add_bytes(text, keys->bytes.data, keys->bytes.size);
    for (size_t i = 0; i < count; i++) {
        const hy_gguf_tensor *tensor = &tensors[i];
        add_string(text, tensor->name, strlen(tensor->name));
        add_u32(text, (uint32_t)tensor->ndim);
        for (int d = tensor->ndim - 1; d >= 0; d--) add_u64(text, (uint64_t)tensor->shape[d]);
        add_u32(text, tensor->type);
        add_u64(text, tensor->offset);
    }
    hy_text_add_bytes(text, zeros, padding_after(text->size));
}

static uint64_t end_of(const hy_gguf_tensor *tensors, size_t count) {
    if (count == 0) return 0;
    const hy_gguf_tensor *last = &tensors[count - 1];
    return last->offset + last->bytes + padding_after(last->bytes);
}

hy_status hy_gguf_layout(const char *path, const hy_gguf_keys *keys, hy_gguf_tensor *tensors,
                         size_t count, uint64_t *size) {
    hy_text header = {0};
    for (size_t i = 0; i < count; i++) HY_TRY(lay_out(path, &tensors[i], end_of(tensors, i)));
    add_header(&header, keys, tensors, count);
    if (size) *size = header.size + end_of(tensors, count);
    hy_status status = hy_text_status(&header);
    hy_text_free(&header);
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

hy_status hy_gguf_create(const char *path, const hy_gguf_keys *keys, const hy_gguf_tensor *tensors,
                         size_t count, hy_gguf_writer **out) {
    hy_text header = {0};
    *out = NULL;
    hy_gguf_writer *w = calloc(1, sizeof *w);
    if (!w) return hy_fail(HY_ERR_MEMORY, "out of memory writing %s", path);
    w->tensors = tensors;
    w->count = count;
    w->path = strdup(path);
    add_header(&header, keys, tensors, count);
    hy_status status = w->path ? hy_text_status(&keys->bytes) : HY_ERR_MEMORY;
    if (status == HY_OK) status = hy_text_status(&header);
    if (status == HY_OK) {
        status = hy_writer_replace(path, &w->out);
    } else {
        hy_fail(status, "out of memory writing %s", path);
    }
    if (status == HY_OK) {
        status = hy_writer_expect(w->out, header.size + end_of(tensors, count));
    }
    if (status == HY_OK) status = hy_writer_put(w->out, header.data, header.size);
    hy_text_free(&header);
    if (status == HY_OK) *out = w;
    if (status != HY_OK) hy_gguf_abandon(w);
    return status;
}

hy_status hy_gguf_put(hy_gguf_writer *w, const void *data, size_t size) {
    static const char zeros[HY_GGUF_ALIGNMENT];
    uint64_t left = w->at < w->count ? w->tensors[w->at].bytes - w->put : 0;
    HY_FAIL_IF(size > left, HY_ERR_STATE, "%s: more bytes were put than tensor %s has", w->path,
               w->at < w->count ? w->tensors[w->at].name : "(none)");
    HY_TRY(hy_writer_put(w->out, data, size));
    w->put += size;
    if (size < left) return HY_OK;
    w->at++;
    uint64_t padding = padding_after(w->put);
    w->put = 0;
    return hy_writer_put(w->out, zeros, padding);
}

hy_status hy_gguf_finish(hy_gguf_writer *w) {
    if (w->at < w->count) {
        hy_status status = hy_fail(HY_ERR_STATE, "%s: bytes of tensor %s are missing", w->path,
                                   w->tensors[w->at].name);
        hy_gguf_abandon(w);
        return status;
    }
    hy_status status = hy_writer_close(w->out, true);
    w->out = NULL;
    hy_gguf_abandon(w);
    return status;
}

void hy_gguf_abandon(hy_gguf_writer *w) {
    if (!w) return;
    hy_writer_abandon(w->out);
    free(w->path);
    free(w);
}
