/* safetensors_layout.h: what reader and writer of safetensors must agree on.
 *
 * The file: u64 little-endian length N of the header; N bytes of JSON, padded with spaces; the
 * data. The header maps each name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets
 * counted from the start of the data; "__metadata__", where present, maps strings to strings. */
#ifndef HY_FORMATS_SAFETENSORS_LAYOUT_H
#define HY_FORMATS_SAFETENSORS_LAYOUT_H

#include <stdbool.h>
#include <string.h>

#include "formats/safetensors.h"

#define HY_SAFETENSORS_HEADER_MAX 100000000 /* the format's own limit */
#define HY_SAFETENSORS_METADATA "__metadata__"

static inline const char *hy_safetensors_dtype_name(hy_dtype dtype) {
    static const char *const names[HY_DTYPE_COUNT] = {
        [HY_F32] = "F32", [HY_BF16] = "BF16", [HY_F16] = "F16", [HY_F64] = "F64",
        [HY_I32] = "I32", [HY_U16] = "U16",   [HY_U8] = "U8",   [HY_I8] = "I8"};
    return (size_t)dtype < HY_DTYPE_COUNT ? names[dtype] : NULL;
}

static inline bool hy_safetensors_dtype_named(const char *name, hy_dtype *dtype) {
    for (int i = 0; i < HY_DTYPE_COUNT; i++) {
        *dtype = (hy_dtype)i;
        if (strcmp(name, hy_safetensors_dtype_name(*dtype)) == 0) return true;
    }
    return false;
}

/* Types of the format that nothing here computes with, and the bytes of an element. */
static const struct {
    const char *name;
    uint32_t size;
} hy_safetensors_others[] = {{"I64", 8},     {"BOOL", 1}, {"I8", 1},      {"I16", 2},
                             {"U32", 4},     {"U64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
                             {"F8_E8M0", 1}, {"C64", 8}};

/* The format's own text for it, which stays; NULL: there is no such type. */
static inline const char *hy_safetensors_other_named(const char *name) {
    for (size_t i = 0; i < sizeof hy_safetensors_others / sizeof hy_safetensors_others[0]; i++) {
        if (strcmp(name, hy_safetensors_others[i].name) == 0) return hy_safetensors_others[i].name;
    }
    return NULL;
}

static inline uint64_t hy_safetensors_element_bytes(const hy_safetensors_entry *entry) {
    const char *name = entry->other_type;
    for (size_t i = 0; name && i < sizeof hy_safetensors_others / sizeof hy_safetensors_others[0];
         i++) {
        if (strcmp(name, hy_safetensors_others[i].name) == 0) return hy_safetensors_others[i].size;
    }
    return hy_dtype_size(entry->dtype);
}

/* Bytes of a tensor of this shape and dtype. False when a dimension is negative or 64 bits are not
 * enough, even where a later zero would make the product small. */
static inline bool hy_safetensors_bytes(const hy_safetensors_entry *entry, uint64_t *bytes) {
    *bytes = hy_safetensors_element_bytes(entry);
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
    return true;
}

#endif
