/* gguf.h: files of llama.cpp: keys with values, then named tensors.
 *
 * The file is little-endian: "GGUF", u32 version (we write 3), u64 tensors, u64 keys; each key: its
 * name, u32 kind, value; each tensor: its name, u32 dimensions, their u64 sizes (the fastest
 * first), u32 type, u64 offset; padding; the data. A string is a u64 length and its bytes. Offsets
 * count from the start of the data and are multiples of the alignment, as is that start.
 *
 * hy_gguf_open checks the whole header before anything of it is used, with memory of at
 * most four times its size (which is below 256 MiB). The
 * writer takes keys, then the list of tensors, then their bytes in that order; the file appears
 * under its name when it is complete and synced. */
#pragma once

#include <stdbool.h>

#include "base/text.h"
#include "formats/blocks.h"
#include "hybrid_types.h"

#define HY_GGUF_DIMS 4
#define HY_GGUF_ALIGNMENT 32 /* of files that name no other */
#define HY_GGUF_NAME_MAX                                                                           \
    64 /* bytes of a tensor's name with its end: llama.cpp reads no longer one */
#define HY_GGUF_ALIGNMENT_KEY "general.alignment"

/* The kinds of values, as numbered in files. */
typedef enum hy_gguf_kind {
    HY_GGUF_U8 = 0,
    HY_GGUF_I8 = 1,
    HY_GGUF_U16 = 2,
    HY_GGUF_I16 = 3,
    HY_GGUF_U32 = 4,
    HY_GGUF_I32 = 5,
    HY_GGUF_F32 = 6,
    HY_GGUF_BOOL = 7,
    HY_GGUF_STRING = 8,
    HY_GGUF_ARRAY = 9,
    HY_GGUF_U64 = 10,
    HY_GGUF_I64 = 11,
    HY_GGUF_F64 = 12,
    HY_GGUF_KIND_COUNT
} hy_gguf_kind;

typedef struct hy_gguf_tensor {
    const char *name;
    hy_block_type type;
    int ndim;
    int64_t shape[HY_GGUF_DIMS]; /* the slowest first */
    uint64_t offset, bytes;      /* from the start of the data; set by reader and writer */
} hy_gguf_tensor;

/* ---- gguf_read.c ----------------------------------------------------------------------------- */

typedef struct hy_gguf hy_gguf;
struct hy_reader;

/* Whether it is a file with the ending .gguf, or one that begins as GGUF does. */
bool hy_gguf_is_file(const char *path);
hy_status hy_gguf_open(const char *path, hy_gguf **out);
void hy_gguf_close(hy_gguf *file); /* file may be NULL */
const char *hy_gguf_path(const hy_gguf *file);
size_t hy_gguf_count(const hy_gguf *file);
const hy_gguf_tensor *hy_gguf_at(const hy_gguf *file, size_t i); /* by offset */
/* By name; NULL when there is none. */
const hy_gguf_tensor *hy_gguf_find(const hy_gguf *file, const char *name);
/* The file, and the offset of a tensor's bytes there. */
const struct hy_reader *hy_gguf_place(const hy_gguf *file, const hy_gguf_tensor *tensor,
                                      uint64_t *offset);

/* The names of the types that can be decoded, for messages: "f32, f16, ...". */
typedef struct hy_gguf_types {
    char text[160];
} hy_gguf_types;
hy_gguf_types hy_gguf_readable_types(void);

/* A key's value: one of the kinds, or an array of one of them. */
typedef struct hy_gguf_value hy_gguf_value;
/* By name; NULL when there is none. All functions below accept NULL. */
const hy_gguf_value *hy_gguf_get(const hy_gguf *file, const char *key);
size_t hy_gguf_key_count(const hy_gguf *file);
const hy_gguf_value *hy_gguf_key_at(const hy_gguf *file, size_t i, const char **key);
hy_gguf_kind hy_gguf_kind_of(const hy_gguf_value *value); /* of an array: of its items */
bool hy_gguf_is_array(const hy_gguf_value *value);
size_t hy_gguf_size(const hy_gguf_value *value); /* items of an array; 1: not an array; 0: NULL */
/* Item i of an array; 0: the value that is not an array. False if there is none, or if its kind
 * does not fit: integers of all sizes are integers (in the range of int64_t), integers and floats
 * are reals. A string is zero-terminated; `size` (may be NULL) is without the zero. */
bool hy_gguf_as_int(const hy_gguf_value *value, size_t i, int64_t *out);
bool hy_gguf_as_real(const hy_gguf_value *value, size_t i, double *out);
bool hy_gguf_as_bool(const hy_gguf_value *value, size_t i, bool *out);
bool hy_gguf_as_string(const hy_gguf_value *value, size_t i, const char **out, size_t *size);

/* Bytes of a value in files, by its kind; of a string, its length. An array has none. */
extern const uint8_t hy_gguf_kind_bytes[HY_GGUF_KIND_COUNT];

/* ---- gguf_write.c ---------------------------------------------------------------------------- */

/* Keys and values as bytes of a file. {0}: none. */
typedef struct hy_gguf_keys {
    hy_text bytes;
    uint64_t count;
    uint64_t items; /* still missing of the open array */
} hy_gguf_keys;

void hy_gguf_put_int(hy_gguf_keys *keys, const char *key, hy_gguf_kind kind, int64_t value);
void hy_gguf_put_f32(hy_gguf_keys *keys, const char *key, double value);
void hy_gguf_put_bool(hy_gguf_keys *keys, const char *key, bool value);
void hy_gguf_put_string(hy_gguf_keys *keys, const char *key, const char *value);
/* A string that may have zero bytes. */
void hy_gguf_put_bytes(hy_gguf_keys *keys, const char *key, const char *value, size_t size);
/* Exactly `count` items follow: the functions above with the key NULL. */
void hy_gguf_open_array(hy_gguf_keys *keys, const char *key, hy_gguf_kind kind, uint64_t count);
void hy_gguf_keys_free(hy_gguf_keys *keys);

typedef struct hy_gguf_writer hy_gguf_writer;
/* Sets offset and bytes of the tensors, and *size (may be NULL) to the bytes of the whole file. */
hy_status hy_gguf_layout(const char *path, const hy_gguf_keys *keys, hy_gguf_tensor *tensors,
                         size_t count, uint64_t *size);
/* Begins a file of these keys and tensors, with the layout above. HY_ERR_IO if the disk has no
 * space for it. The tensors stay valid until the end. */
hy_status hy_gguf_create(const char *path, const hy_gguf_keys *keys, const hy_gguf_tensor *tensors,
                         size_t count, hy_gguf_writer **out);
/* The next bytes of the tensors; a call may not go over the end of a tensor. Padding is added. */
hy_status hy_gguf_put(hy_gguf_writer *w, const void *data, size_t size);
/* Fails if bytes are missing. Frees w in any case; after a failure there is no file. */
hy_status hy_gguf_finish(hy_gguf_writer *w);
void hy_gguf_abandon(hy_gguf_writer *w); /* leaves no file; w may be NULL */
