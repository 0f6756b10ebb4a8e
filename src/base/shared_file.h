/* shared_file.h: a file that others may change while a run reads it for days.
 *
 * It is read at any offset and never mapped, because the process would be killed if a mapped file
 * became shorter. If another file takes its name, the opened file is still read. Only a few
 * descriptors stay open, however many files there are; the other files are opened for each read,
 * and must then still be the same file. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_shared_file hy_shared_file;

hy_status hy_shared_file_open(const char *path, hy_shared_file **out); /* must be a regular file */
void hy_shared_file_close(hy_shared_file *file);                       /* file may be NULL */
const char *hy_shared_file_path(const hy_shared_file *file);
uint64_t hy_shared_file_size(const hy_shared_file *file); /* its size on opening */
/* Reads exactly `size` bytes at `offset`; thread-safe. HY_ERR_IO names the file if it has become
 * shorter or was replaced. */
hy_status hy_shared_file_read(const hy_shared_file *file, uint64_t offset, void *dst,
                              uint64_t size);
