/* spool.h: an array that is written once to an unnamed temporary file.
 *
 * The results of opening data (tokens, ends of examples, packing) may be larger than memory. So
 * they are written to disk and mapped: the system caches the used parts and may drop the rest. The
 * file is in $TMPDIR, else /var/tmp, else /tmp, and disappears with the process. */
#pragma once

#include "hybrid_types.h"

#define HY_SPOOL_BUFFER ((size_t)256 << 10)

typedef struct hy_spool {
    int fd;
    uint64_t size; /* bytes written so far */
    char *buffer;  /* bytes that are not in the file yet */
    size_t buffered;
    const void *data; /* set when mapped; NULL before, and if empty */
} hy_spool;

hy_status hy_spool_open(hy_spool *spool);
hy_status hy_spool_put(hy_spool *spool, const void *data, size_t size);
/* Ends writing and maps the content as spool->data. */
hy_status hy_spool_map(hy_spool *spool);
/* Closes the descriptor of a mapped spool, because a process has few of them; the mapping stays. */
void hy_spool_release_file(hy_spool *spool);
void hy_spool_close(hy_spool *spool); /* accepts all zeros */
