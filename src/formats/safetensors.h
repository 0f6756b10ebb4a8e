/* safetensors.h: named tensors in one file, read and written piece by piece.
 *
 * The reader first checks the whole header: length, UTF-8 JSON, no duplicate names, known
 * dtypes, byte counts that match the shapes, no gaps, no overlap, and an end exactly at the end
 * of the file. Tensors of types that we do not compute with are listed with the format's name:
 * code that needs one rejects it. The writer takes the list of tensors first and then their
 * bytes in that order, so that nothing needs a second copy in memory. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_SAFETENSORS_DIMS 8

typedef struct hy_safetensors_entry {
    const char *name;
    /* F32 BF16 F16 F64 I32 U16 U8 I8 F8_E4M3 F8_E5M2 F4; HY_DTYPE_COUNT: another type */
    hy_dtype dtype;
    const char *other_type; /* the name of another type: I64, BOOL, ...; otherwise NULL */
    int ndim;
    int64_t shape[HY_SAFETENSORS_DIMS];
    uint64_t offset, bytes; /* from the start of the data; set by reader and writer */
} hy_safetensors_entry;

typedef struct hy_safetensors hy_safetensors;

hy_status hy_safetensors_open(const char *path, hy_safetensors **out);
void hy_safetensors_close(hy_safetensors *file);
const char *hy_safetensors_path(const hy_safetensors *file);
/* The tensor's type in words: "bf16", "I64". */
const char *hy_safetensors_type(const hy_safetensors_entry *entry);
size_t hy_safetensors_count(const hy_safetensors *file);
const hy_safetensors_entry *hy_safetensors_at(const hy_safetensors *file, size_t i); /* by offset */
/* By name; NULL when there is none. */
const hy_safetensors_entry *hy_safetensors_find(const hy_safetensors *file, const char *name);
const char *hy_safetensors_metadata(const hy_safetensors *file, const char *key);
/* Reads bytes [first, first + size) of a tensor. */
hy_status hy_safetensors_read(const hy_safetensors *file, const hy_safetensors_entry *entry,
                              uint64_t first, void *dst, uint64_t size);
/* Whether two tensors have the same type and bytes. */
hy_status hy_safetensors_compare(const hy_safetensors *file, const hy_safetensors_entry *entry,
                                 const hy_safetensors *other_file,
                                 const hy_safetensors_entry *other, bool *is_same);
/* fp32, bf16 or fp16: numbers that need no scale. */
static inline bool hy_is_real(hy_dtype dtype) {
    return dtype == HY_F32 || dtype == HY_BF16 || dtype == HY_F16;
}
/* "(3, 4)", for messages. */
typedef struct hy_dims_text {
    char text[HY_SAFETENSORS_DIMS * 22 + 3];
} hy_dims_text;
hy_dims_text hy_dims_to_text(const int64_t *shape, int32_t ndim);
/* The file of a tensor, and the offset of its bytes there. */
struct hy_reader;
const struct hy_reader *hy_safetensors_place(const hy_safetensors *file,
                                             const hy_safetensors_entry *entry, uint64_t *offset);

/* Is this a valid tensor name: UTF-8, and not reserved by the format? */
bool hy_safetensors_can_name(const char *name);

/* The beginning of a file of these tensors: the header and its length, and the total bytes of the
 * tensors after it. The path is for messages. */
struct hy_text;
hy_status hy_safetensors_header(const char *path, const hy_safetensors_entry *entries, size_t count,
                                const char *const *metadata, struct hy_text *text, uint64_t *total);

typedef struct hy_safetensors_writer hy_safetensors_writer;
/* `metadata` is pairs of strings: key, value, key, value, NULL; may be NULL. Entries are copied. */
hy_status hy_safetensors_create(const char *path, const hy_safetensors_entry *entries, size_t count,
                                const char *const *metadata, hy_safetensors_writer **out);
hy_status hy_safetensors_put(hy_safetensors_writer *w, const void *data, uint64_t size);
/* As above without a copy (hy_writer_room): the caller writes the next bytes there. */
void *hy_safetensors_room(hy_safetensors_writer *w, size_t *size);
hy_status hy_safetensors_commit(hy_safetensors_writer *w, size_t size);
/* Fails if more or fewer bytes were written than the header says. Syncs. Frees w in any case.
 * hash and size, if given, receive the file's XXH64 and length. */
hy_status hy_safetensors_finish(hy_safetensors_writer *w, uint64_t *hash, uint64_t *size);
/* Closes without finishing; the file stays partial. w may be NULL. */
void hy_safetensors_abandon(hy_safetensors_writer *w);

/* One file that several processes write together. One process creates the file with header and
 * size; then each opens it and writes bytes of tensors at their offsets. The result equals a file
 * written by one process. */
typedef struct hy_shared_tensors hy_shared_tensors;

/* Creates the file, all zero after its header, synced. */
hy_status hy_shared_tensors_make(const char *path, const hy_safetensors_entry *entries,
                                 size_t count, const char *const *metadata);
/* Opens the file for writing. Entries and metadata must be those of hy_shared_tensors_make. */
hy_status hy_shared_tensors_open(const char *path, const hy_safetensors_entry *entries,
                                 size_t count, const char *const *metadata,
                                 hy_shared_tensors **out);
/* Writes bytes [first, first + size) of a tensor. */
hy_status hy_shared_tensors_put(hy_shared_tensors *shared, size_t entry, uint64_t first,
                                const void *data, uint64_t size);
/* Syncs and closes; shared may be NULL. */
hy_status hy_shared_tensors_close(hy_shared_tensors *shared);
