/* follow.h: reads the complete lines of a file that another program is writing.
 *
 * Each call passes on the lines that were completed since the last call; a last line without a
 * newline waits. The file stays open and is compared with the current file of the same name before
 * reading on. If it was replaced, shortened or rewritten, it is read from the start, and the caller
 * is notified. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

#define HY_FOLLOW_TAIL 64 /* bytes before the current position that must not have changed */

typedef struct hy_follow {
    char *path;
    int fd;         /* -1: not open */
    int64_t offset; /* everything before was passed on */
    double changed; /* unix seconds of the last write */
    char tail[HY_FOLLOW_TAIL];
    size_t tail_size;
    char *buffer;
    size_t capacity;
} hy_follow;

/* The handlers; `line` ends before its newline, which follows it in memory. */
typedef struct hy_follow_sink {
    hy_status (*restart)(void *user); /* everything passed on before is invalid */
    hy_status (*line)(void *user, const char *line, size_t size);
    void *user;
} hy_follow_sink;

hy_status hy_follow_init(hy_follow *it, const char *path);
/* A file that is temporarily missing is not a failure: no lines are passed on. */
hy_status hy_follow_read(hy_follow *it, const hy_follow_sink *sink);
void hy_follow_fini(hy_follow *it);
