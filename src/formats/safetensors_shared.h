/* safetensors_shared.h: one file that several processes write together.
 *
 * One of them makes the file, header and size; then each opens it and puts bytes of tensors at
 * their places. What comes out is the file that one process would have written. */
#pragma once

#include "formats/safetensors.h"

typedef struct hy_shared_tensors hy_shared_tensors;

/* Makes the file, all zero behind its header, synced. */
hy_status hy_shared_tensors_make(const char *path, const hy_safetensors_entry *entries,
                                 size_t count, const char *const *metadata);
/* Opens it: with the same entries and metadata. */
hy_status hy_shared_tensors_open(const char *path, const hy_safetensors_entry *entries,
                                 size_t count, const char *const *metadata,
                                 hy_shared_tensors **out);
/* Bytes [first, first + size) of a tensor. */
hy_status hy_shared_tensors_put(hy_shared_tensors *shared, size_t entry, uint64_t first,
                                const void *data, uint64_t size);
/* Synced. NULL is fine. */
hy_status hy_shared_tensors_close(hy_shared_tensors *shared);
