/* unpack.h: reads gzip and zstd files as a stream of decompressed bytes.
 *
 * The first bytes of a file decide the format, never its name. The libraries (libz.so.1,
 * libzstd.so.1) are loaded when a file needs them, so the program runs without them; if one is
 * missing, the error names the package. Memory is limited: 64 KiB of the file, and a window of at
 * most 128 MiB. A file that decompresses to more than 256 times its size is rejected once the
 * output exceeds 64 MiB. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

typedef enum hy_packer { HY_NOT_PACKED, HY_GZIP, HY_ZSTD } hy_packer;

/* The format, by the first bytes of a file. */
hy_packer hy_packer_of(const uint8_t *begin, size_t size);

typedef struct hy_unpacker hy_unpacker;

/* `packer` is the result of hy_packer_of. */
hy_status hy_unpacker_open(const char *path, hy_packer packer, hy_unpacker **out);
/* Reads up to `room` bytes; *got is less only at the end. HY_ERR_INPUT names the file and byte if
 * it is damaged or ends too early. */
hy_status hy_unpacker_read(hy_unpacker *u, void *dst, size_t room, size_t *got);
double hy_unpacker_share(const hy_unpacker *u); /* how much of the file was needed so far, 0 to 1 */
void hy_unpacker_close(hy_unpacker *u);         /* u may be NULL */
