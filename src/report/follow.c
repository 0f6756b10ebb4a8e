/* follow.c: reads a file while it grows. See follow.h.
 *
 * A replaced file has a new inode: the old file stays open here, so its inode number cannot be
 * reused. A file that was rewritten in place is detected by its size, or by comparing the last
 * bytes again. */
#include "report/follow.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"

#define CHUNK ((size_t)1 << 20)
#define LINE_MAX_BYTES ((size_t)1 << 26) /* limits memory for a file without newlines */

hy_status hy_follow_init(hy_follow *it, const char *path) {
    *it = (hy_follow){.fd = -1, .capacity = CHUNK};
    it->path = strdup(path);
    it->buffer = malloc(it->capacity);
    if (it->path && it->buffer) return HY_OK;
    hy_follow_fini(it);
    return hy_fail(HY_ERR_MEMORY, "out of memory opening %s", path);
}

void hy_follow_fini(hy_follow *it) {
    if (it->fd >= 0) close(it->fd);
    free(it->path);
    free(it->buffer);
    *it = (hy_follow){.fd = -1};
}

/* ---- detecting a new file -------------------------------------------------------------------- */

static ssize_t read_at(int fd, char *dst, size_t size, int64_t offset) {
    for (;;) {
        ssize_t got = pread(fd, dst, size, offset);
        if (got >= 0 || errno != EINTR) return got;
    }
}

static bool is_continued(const hy_follow *it, const struct stat *named) {
    struct stat held;
    char tail[HY_FOLLOW_TAIL];
    if (it->fd < 0 || fstat(it->fd, &held) != 0) return false;
    if (held.st_dev != named->st_dev || held.st_ino != named->st_ino) return false;
    if (held.st_size < it->offset) return false;
    ssize_t got = read_at(it->fd, tail, it->tail_size, it->offset - (int64_t)it->tail_size);
    return got == (ssize_t)it->tail_size && memcmp(tail, it->tail, it->tail_size) == 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Passes on the complete lines among `size` bytes; *used counts their bytes. A line counts even if
 * its handler fails. */
static hy_status pass_lines(hy_follow *it, size_t size, const hy_follow_sink *sink, size_t *used) {
    hy_status status = HY_OK;
    *used = 0;
    while (status == HY_OK) {
        const char *line = it->buffer + *used;
        const char *newline = memchr(line, '\n', size - *used);
        if (!newline) break;
        status = sink->line(sink->user, line, (size_t)(newline - line));
        *used += (size_t)(newline - line) + 1;
    }
    if (*used > 0) {
        it->tail_size = *used < HY_FOLLOW_TAIL ? *used : HY_FOLLOW_TAIL;
        memcpy(it->tail, it->buffer + *used - it->tail_size, it->tail_size);
    }
    it->offset += (int64_t)*used;
    return status;
}

hy_status hy_follow_read(hy_follow *it, const hy_follow_sink *sink) {
    struct stat named;
    if (stat(it->path, &named) != 0)
        return errno == ENOENT ? HY_OK : hy_fail_path("cannot open", it->path);
    HY_FAIL_IF(!S_ISREG(named.st_mode), HY_ERR_INPUT, "cannot read %s: it is not a regular file",
               it->path);
    it->changed = (double)named.st_mtim.tv_sec + 1e-9 * (double)named.st_mtim.tv_nsec;
    if (!is_continued(it, &named)) {
        int fd = open(it->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) return hy_fail_path("cannot open", it->path);
        if (it->fd >= 0) close(it->fd);
        it->fd = fd;
        it->offset = 0;
        it->tail_size = 0;
        HY_TRY(sink->restart(sink->user));
    }
    size_t held = 0; /* bytes of an incomplete line at the start of the buffer */
    for (;;) {
        /* Grows the buffer for a long line. */
        if (held == it->capacity) {
            HY_FAIL_IF(it->capacity >= LINE_MAX_BYTES, HY_ERR_INPUT,
                       "%s has a line of more than %zu MiB, so it is not a metrics file", it->path,
                       LINE_MAX_BYTES >> 20);
            size_t wanted = 2 * it->capacity + CHUNK;
            char *buffer = realloc(it->buffer, wanted);
            if (!buffer) return hy_fail(HY_ERR_MEMORY, "out of memory reading %s", it->path);
            it->buffer = buffer;
            it->capacity = wanted;
        }
        ssize_t got =
            read_at(it->fd, it->buffer + held, it->capacity - held, it->offset + (int64_t)held);
        if (got < 0) return hy_fail_path("cannot read", it->path);
        if (got == 0) return HY_OK;
        size_t size = held + (size_t)got, used;
        HY_TRY(pass_lines(it, size, sink, &used));
        held = size - used;
        memmove(it->buffer, it->buffer + used, held);
    }
}
