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
        [HY_I32] = "I32", [HY_U16] = "U16",   [HY_U8] = "U8"};
    return (size_t)dtype < HY_DTYPE_COUNT ? names[dtype] : NULL;
}

static inline bool hy_safetensors_dtype_named(const char *name, hy_dtype *dtype) {
    for (int i = 0; i < HY_DTYPE_COUNT; i++) {
        *dtype = (hy_dtype)i;
        if (strcmp(name, hy_safetensors_dtype_name(*dtype)) == 0) return true;
    }
    return false;
}

/* Bytes of a tensor of this shape and dtype. False when a dimension is negative or 64 bits are not
 * enough, even where a later zero would make the product small. */
static inline bool hy_safetensors_bytes(const hy_safetensors_entry *entry, uint64_t *bytes) {
    *bytes = hy_dtype_size(entry->dtype);
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
