/* bulk.h: a large file written from its beginning by several threads, past the page cache where that works.
 *
 * Whoever puts bytes copies them into a block; a thread writes it while the next is filled, so that a disk
 * always has several writes to do, and nothing waits in the system's cache to be synced at the end. Answers
 * like the calls of disk.h: 0, or -1 with errno. */
#pragma once

#include "hybrid_types.h"

typedef struct hy_bulk hy_bulk;

/* For a file that is open and empty and will have `size` bytes; room for them is reserved where the file
 * system can do that. NULL with errno 0: no memory or threads for it, write in the usual way. NULL with
 * another errno: there is no room on the disk. */
hy_bulk *hy_bulk_begin(int fd, uint64_t size);
int hy_bulk_put(hy_bulk *b, const void *data, size_t size);
/* The same without a copy: where the next bytes go, *size of them at the most, and how many went there. */
void *hy_bulk_room(hy_bulk *b, size_t *size);
int hy_bulk_commit(hy_bulk *b, size_t size);
/* Waits for all of it, writes what is left and frees it in any case. */
int hy_bulk_end(hy_bulk *b);
void hy_bulk_abandon(hy_bulk *b); /* what is not written yet never is; b may be NULL */
