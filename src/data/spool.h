/* spool.h: an array that is written once and lies in a file without a name.
 *
 * What is made from data when it is opened (tokens, where examples end, which share a sequence) may be
 * larger than memory, so it goes to disk and is mapped: the system keeps what is used and may drop the
 * rest. The file is in $TMPDIR, else /var/tmp, else /tmp, and is gone when the process is. */
#pragma once

#include "hybrid_types.h"

#define HY_SPOOL_BUFFER ((size_t)256 << 10)

typedef struct hy_spool {
    int fd;
    uint64_t size; /* bytes put so far */
    char *buffer;  /* those that are not in the file yet */
    size_t buffered;
    const void *data; /* once mapped; NULL before, and for an empty one */
} hy_spool;

hy_status hy_spool_open(hy_spool *spool);
hy_status hy_spool_put(hy_spool *spool, const void *data, size_t size);
/* Ends writing and maps what was put: spool->data. */
hy_status hy_spool_map(hy_spool *spool);
/* Of a mapped one: gives the descriptor back, of which a process has few; what is mapped stays. */
void hy_spool_release_file(hy_spool *spool);
void hy_spool_close(hy_spool *spool); /* a zeroed one too */
