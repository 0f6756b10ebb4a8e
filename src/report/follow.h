/* follow.h: the whole lines of a file that somebody else is writing.
 *
 * Each call hands out the lines that were completed since the last one; a last line without its newline
 * waits. The file is kept open, and before reading on it is compared with what lies under its name: a file
 * that was replaced, shortened or written anew is read from its beginning, and the caller is told so. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_FOLLOW_TAIL 64 /* bytes before the place reached that must not have changed */

typedef struct hy_follow {
    char *path;
    int fd;         /* -1: not open */
    int64_t offset; /* all before it was handed out */
    double changed; /* unix seconds of the last write */
    char tail[HY_FOLLOW_TAIL];
    size_t tail_size;
    char *buffer;
    size_t capacity;
} hy_follow;

/* What is done with the lines; `line` ends before its newline and is followed by it in memory. */
typedef struct hy_follow_sink {
    hy_status (*restart)(void *user); /* what was handed out before is void */
    hy_status (*line)(void *user, const char *line, size_t size);
    void *user;
} hy_follow_sink;

hy_status hy_follow_init(hy_follow *it, const char *path);
/* A file that is gone for the moment is no failure: nothing is handed out. */
hy_status hy_follow_read(hy_follow *it, const hy_follow_sink *sink);
void hy_follow_fini(hy_follow *it);
