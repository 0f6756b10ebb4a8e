/* unpack.h: files packed by gzip or zstd, read as the stream of bytes they hold.
 *
 * Which packer it was is seen by the file's first bytes, never by its name. The libraries are opened when a
 * file needs them (libz.so.1, libzstd.so.1), so the program runs without; what is missing then is an error
 * that names the package. Memory is bounded: 64 KiB of the file, and a packer's window of at most 128 MiB. A
 * file that unpacks to more than 256 times its size is refused once that is more than 64 MiB. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef enum hy_packer { HY_NOT_PACKED, HY_GZIP, HY_ZSTD } hy_packer;

/* By a file's first bytes. */
hy_packer hy_packer_of(const uint8_t *begin, size_t size);

typedef struct hy_unpacker hy_unpacker;

/* A file that hy_packer_of knows. */
hy_status hy_unpacker_open(const char *path, hy_packer packer, hy_unpacker **out);
/* Up to `room` bytes; *got is less only at the end. HY_ERR_INPUT names file and byte where it is damaged or
 * ends too early. */
hy_status hy_unpacker_read(hy_unpacker *u, void *dst, size_t room, size_t *got);
void hy_unpacker_close(hy_unpacker *u); /* u may be NULL */
