/* spool.c: temporary arrays on disk. See spool.h.
 *
 * A spool is written in order through a small buffer, then mapped read-only; never both. A full
 * disk is an error of the write that names the folder, not a fault while reading. */
#include "data/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"

#define PATH_BYTES 4096

/* /var/tmp is on disk; /tmp may be in memory. */
static const char *folder_name(void) {
    const char *given = getenv("TMPDIR");
    if (given && given[0]) return given;
    return access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}

/* For file systems without O_TMPFILE: creates a file and removes its name at once. */
static int open_named(const char *folder) {
    char path[PATH_BYTES];
    for (int i = 0; i < 1000; i++) {
        int length =
            snprintf(path, sizeof path, "%s/.hybrid-data-%ld-%d", folder, (long)getpid(), i);
        if (length < 0 || (size_t)length >= sizeof path) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = hy_disk_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC);
        if (fd >= 0) (void)hy_disk_unlink_at(AT_FDCWD, path, 0);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

hy_status hy_spool_open(hy_spool *s) {
    *s = (hy_spool){.fd = -1};
    s->buffer = malloc(HY_SPOOL_BUFFER);
    if (!s->buffer) return hy_fail(HY_ERR_MEMORY, "not enough memory for a temporary file");
    const char *folder = folder_name();
    int fd = hy_disk_open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC);
    bool is_unknown = errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT;
    s->fd = fd >= 0 || !is_unknown ? fd : open_named(folder);
    if (s->fd >= 0) return HY_OK;
    hy_status status =
        hy_fail_path("cannot write a temporary file (TMPDIR chooses its folder) in", folder_name());
    hy_spool_close(s);
    return status;
}

static hy_status drain(hy_spool *s) {
    if (s->buffered == 0) return HY_OK;
    if (hy_disk_write(s->fd, s->buffer, s->buffered) != 0) {
        return hy_fail_path("cannot write a temporary file (TMPDIR chooses its folder) in",
                            folder_name());
    }
    s->buffered = 0;
    return HY_OK;
}

hy_status hy_spool_put(hy_spool *s, const void *data, size_t size) {
    const char *bytes = data;
    while (size > 0) {
        size_t room = HY_SPOOL_BUFFER - s->buffered, here = size < room ? size : room;
        memcpy(s->buffer + s->buffered, bytes, here);
        s->buffered += here;
        s->size += here;
        bytes += here;
        size -= here;
        if (s->buffered == HY_SPOOL_BUFFER) HY_TRY(drain(s));
    }
    return HY_OK;
}

hy_status hy_spool_map(hy_spool *s) {
    HY_TRY(drain(s));
    free(s->buffer);
    s->buffer = NULL;
    if (s->size == 0) return HY_OK;
    void *data = mmap(NULL, (size_t)s->size, PROT_READ, MAP_SHARED, s->fd, 0);
    if (data == MAP_FAILED)
        return hy_fail_path("cannot map a temporary file (TMPDIR chooses its folder) in",
                            folder_name());
    s->data = data;
    return HY_OK;
}

void hy_spool_release_file(hy_spool *s) {
    if (s->data && s->fd >= 0) (void)hy_disk_close(s->fd);
    if (s->data) s->fd = -1;
}

void hy_spool_close(hy_spool *s) {
    if (s->data) munmap((void *)s->data, (size_t)s->size);
    bool is_open = s->fd > 0 || (s->fd == 0 && s->buffer); /* an all-zero spool has no file */
    if (is_open) (void)hy_disk_close(s->fd);
    free(s->buffer);
    *s = (hy_spool){.fd = -1};
}
