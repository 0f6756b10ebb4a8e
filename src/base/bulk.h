/* bulk.h: writes a large file sequentially with several threads, bypassing the page cache if
 * possible.
 *
 * The caller copies bytes into a block; a thread writes it while the next one is filled. So the
 * disk always has several writes in flight, and little is left to sync at the end. Functions return
 * like the calls of disk.h: 0, or -1 with errno. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_bulk hy_bulk;

/* For an open, empty file that will have `size` bytes; reserves disk space if the file system can.
 * NULL with errno 0: not enough memory or threads; use normal writes. NULL with another errno: the
 * disk has no space. */
hy_bulk *hy_bulk_begin(int fd, uint64_t size);
int hy_bulk_put(hy_bulk *b, const void *data, size_t size);
/* As hy_bulk_put, without a copy: returns where to write the next bytes, at most *size of them;
 * hy_bulk_commit says how many were written. */
void *hy_bulk_room(hy_bulk *b, size_t *size);
int hy_bulk_commit(hy_bulk *b, size_t size);
/* Waits for all writes, writes the rest, and frees b in any case. */
int hy_bulk_end(hy_bulk *b);
void hy_bulk_abandon(hy_bulk *b); /* drops what is not written yet; b may be NULL */
