/* shared_file.c: reads a file that other programs may change. See shared_file.h. */
#include "base/shared_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"

#define HELD_MAX 64 /* open descriptors, for all such files together */

struct hy_shared_file {
    char *path;
    int fd; /* -1: it is opened for each reading */
    dev_t device;
    ino_t number;
    uint64_t size;
};

static atomic_int held;

hy_status hy_shared_file_open(const char *path, hy_shared_file **out) {
    struct stat info = {0};
    hy_status status = HY_OK;
    *out = NULL;
    hy_shared_file *f = calloc(1, sizeof *f);
    char *name = strdup(path);
    if (!f || !name) {
        free(f);
        free(name);
        return hy_fail(HY_ERR_MEMORY, "out of memory opening %s", path);
    }
    *f = (hy_shared_file){.path = name, .fd = -1};
    /* O_NONBLOCK: opening a pipe would wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        status = hy_fail_path("cannot open", path);
    } else if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
        if (S_ISDIR(info.st_mode)) errno = EISDIR;
        status = hy_fail_path("cannot read", path);
    } else if (!S_ISREG(info.st_mode)) {
        status = hy_fail(HY_ERR_INPUT, "cannot read %s: it is not a regular file", path);
    } else {
        f->device = info.st_dev;
        f->number = info.st_ino;
        f->size = (uint64_t)info.st_size;
        if (atomic_fetch_add(&held, 1) < HELD_MAX) {
            f->fd = fd;
            fd = -1;
        } else {
            atomic_fetch_sub(&held, 1);
        }
    }
    if (fd >= 0) close(fd);
    if (status == HY_OK) *out = f;
    if (status != HY_OK) hy_shared_file_close(f);
    return status;
}

void hy_shared_file_close(hy_shared_file *f) {
    if (!f) return;
    if (f->fd >= 0) {
        close(f->fd);
        atomic_fetch_sub(&held, 1);
    }
    free(f->path);
    free(f);
}

const char *hy_shared_file_path(const hy_shared_file *f) { return f->path; }

uint64_t hy_shared_file_size(const hy_shared_file *f) { return f->size; }

static hy_status read_from(const hy_shared_file *f, int fd, uint64_t offset, void *dst,
                           uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        ssize_t got = pread(fd, (char *)dst + done, (size_t)(size - done), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return hy_fail_path("cannot read", f->path);
        HY_FAIL_IF(got == 0, HY_ERR_IO,
                   "%s has become shorter since it was opened: byte %llu of %llu is missing",
                   f->path, (unsigned long long)(offset + done), (unsigned long long)f->size);
        done += (uint64_t)got;
    }
    return HY_OK;
}

hy_status hy_shared_file_read(const hy_shared_file *f, uint64_t offset, void *dst, uint64_t size) {
    struct stat info;
    if (f->fd >= 0) return read_from(f, f->fd, offset, dst, size);
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return hy_fail_path("cannot open", f->path);
    bool is_same = fstat(fd, &info) == 0 && info.st_dev == f->device && info.st_ino == f->number;
    hy_status status = is_same ? read_from(f, fd, offset, dst, size)
                               : hy_fail(HY_ERR_IO, "%s was replaced by another file", f->path);
    close(fd);
    return status;
}
