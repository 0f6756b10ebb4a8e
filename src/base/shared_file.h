/* shared_file.h: a file that others may change while a run reads it for days.
 *
 * It is read at any place, never mapped: of a mapped file that becomes shorter the process would be
 * killed. What was opened stays what is read when another file takes its name. Few descriptors are
 * held however many files there are; the others are opened for each reading, and must then still be
 * the file they were. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_shared_file hy_shared_file;

hy_status hy_shared_file_open(const char *path, hy_shared_file **out); /* a regular file */
void hy_shared_file_close(hy_shared_file *file);                       /* file may be NULL */
const char *hy_shared_file_path(const hy_shared_file *file);
uint64_t hy_shared_file_size(const hy_shared_file *file); /* when it was opened */
/* Exactly `size` bytes from `offset`; thread-safe. HY_ERR_IO names the file when it has become shorter
 * or another. */
hy_status hy_shared_file_read(const hy_shared_file *file, uint64_t offset, void *dst,
                              uint64_t size);
