/* safetensors_shared.h: one file that several processes write together.
 *
 * One process creates the file with header and size; then each opens it and writes bytes of
 * tensors at their offsets. The result equals a file written by one process. */
#pragma once

#include "formats/safetensors.h"

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
