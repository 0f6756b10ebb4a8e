/* gguf_fields.h: finds the numbers of a GGUF header that say how long, how many, of which kind or
 * where, and replaces one by a value that a hostile file would have.
 *
 * It trusts nothing: it stops where the bytes no longer are a header. */
#ifndef HY_TESTS_GGUF_FIELDS_H
#define HY_TESTS_GGUF_FIELDS_H

#include <stdint.h>
#include <string.h>

typedef struct gguf_field {
    size_t at, size;
} gguf_field;

typedef struct gguf_walk {
    const uint8_t *data;
    size_t at, size;
    gguf_field *fields;
    size_t count, room;
} gguf_walk;

static inline int gguf_skip(gguf_walk *w, uint64_t size) {
    if (size > w->size - w->at) return 0;
    w->at += (size_t)size;
    return 1;
}

/* Notes a number and reads it. */
static inline int gguf_number(gguf_walk *w, size_t size, uint64_t *out) {
    if (size > w->size - w->at || w->count == w->room) return 0;
    *out = 0;
    memcpy(out, w->data + w->at, size);
    w->fields[w->count++] = (gguf_field){w->at, size};
    w->at += size;
    return 1;
}

static inline int gguf_text(gguf_walk *w) {
    uint64_t length;
    return gguf_number(w, 8, &length) && gguf_skip(w, length);
}

static inline int gguf_value(gguf_walk *w) {
    static const uint8_t sizes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t kind, count = 1;
    if (!gguf_text(w) || !gguf_number(w, 4, &kind)) return 0;
    int is_array = kind == 9;
    if (is_array && (!gguf_number(w, 4, &kind) || !gguf_number(w, 8, &count))) return 0;
    if (kind > 12 || kind == 9 || count > w->size) return 0;
    if (kind != 8 && is_array) return gguf_skip(w, count * sizes[kind]);
    if (kind != 8) return gguf_number(w, sizes[kind], &kind);
    for (uint64_t i = 0; i < count; i++) {
        if (!gguf_text(w)) return 0;
    }
    return 1;
}

static inline int gguf_tensor(gguf_walk *w) {
    uint64_t dims, value;
    if (!gguf_text(w) || !gguf_number(w, 4, &dims) || dims > 8) return 0;
    for (uint64_t i = 0; i < dims; i++) {
        if (!gguf_number(w, 8, &value)) return 0;
    }
    return gguf_number(w, 4, &value) && gguf_number(w, 8, &value);
}

/* Returns how many numbers were found, `room` at most. */
static inline size_t gguf_fields(const uint8_t *data, size_t size, gguf_field *out, size_t room) {
    gguf_walk w = {.data = data, .size = size, .fields = out, .room = room};
    uint64_t version, tensors, keys;
    if (!gguf_skip(&w, 4) || !gguf_number(&w, 4, &version) || !gguf_number(&w, 8, &tensors) ||
        !gguf_number(&w, 8, &keys))
        return w.count;
    for (uint64_t i = 0; i < keys; i++) {
        if (!gguf_value(&w)) return w.count;
    }
    for (uint64_t i = 0; i < tensors; i++) {
        if (!gguf_tensor(&w)) return w.count;
    }
    return w.count;
}

/* Replaces a number by one of GGUF_ODD values, which depend on what it was. */
#define GGUF_ODD 20
static inline void gguf_put_odd(uint8_t *data, gguf_field field, uint64_t choice) {
    uint64_t old = 0;
    memcpy(&old, data + field.at, field.size);
    const uint64_t odd[GGUF_ODD] = {0,
                                    1,
                                    old + 1,
                                    old - 1,
                                    old * 2,
                                    old / 2,
                                    old ^ 1,
                                    9,
                                    8,
                                    old + 32,
                                    old + ((uint64_t)1 << 32),
                                    0x7F,
                                    0xFF,
                                    0xFFFF,
                                    INT32_MAX,
                                    UINT32_MAX,
                                    (uint64_t)1 << 62,
                                    INT64_MAX,
                                    (uint64_t)INT64_MAX + 1,
                                    UINT64_MAX};
    memcpy(data + field.at, &odd[choice % GGUF_ODD], field.size);
}

#endif
