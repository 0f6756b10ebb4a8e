/* writer.c: writes files through a buffer, hashes them, and renames complete files. See file.h.
 *
 * The first failure is kept as its errno, and every later call returns it again: bytes after a gap
 * are never written. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bulk.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"

#define BUFFER_SIZE ((size_t)64 << 10)

struct hy_writer {
    int fd;
    int error;         /* errno of the first failure; 0: none */
    const char *doing; /* the failed action: "cannot write" */
    char *path;        /* path of the file that is written */
    char *target;      /* its final path; NULL: the same */
    hy_bulk *bulk;     /* a large file: replaces the buffer */
    size_t buffered;
    hy_hash hash;
    char buffer[BUFFER_SIZE];
};

static void free_writer(hy_writer *w) {
    free(w->path);
    free(w->target);
    free(w);
}

static hy_status open_writer(const char *path, const char *target, hy_writer **out) {
    *out = NULL;
    hy_writer *w = malloc(sizeof *w);
    if (!w) return hy_fail(HY_ERR_MEMORY, "out of memory writing %s", path);
    memset(w, 0, sizeof *w); /* touch the buffer's pages now, not during training */
    w->fd = -1;
    w->path = strdup(path);
    w->target = target ? strdup(target) : NULL;
    hy_hash_init(&w->hash, 0);
    bool has_names = w->path && (w->target || !target);
    if (has_names) w->fd = hy_disk_create(path);
    if (w->fd >= 0) {
        *out = w;
        return HY_OK;
    }
    hy_status status;
    if (!has_names) {
        status = hy_fail(HY_ERR_MEMORY, "out of memory writing %s", path);
    } else {
        status = hy_fail_path("cannot write", target ? target : path);
    }
    free_writer(w);
    return status;
}

hy_status hy_writer_create(const char *path, hy_writer **out) {
    return open_writer(path, NULL, out);
}

hy_status hy_writer_replace(const char *path, hy_writer **out) {
    *out = NULL;
    if (hy_path_is_dir(path)) {
        errno = EISDIR;
        return hy_fail_path("cannot write", path);
    }
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t size = strlen(path) + sizeof "..partial";
    char *partial = malloc(size);
    if (!partial) return hy_fail(HY_ERR_MEMORY, "out of memory writing %s", path);
    snprintf(partial, size, "%.*s.%s.partial", (int)(name - path), path, name);
    hy_status status = open_writer(partial, path, out);
    free(partial);
    return status;
}

static hy_status tell(const hy_writer *w) {
    if (!w->error) return HY_OK;
    errno = w->error;
    return hy_fail_path(w->doing, w->target ? w->target : w->path);
}

/* Records a failure unless there is one already. */
static void note(hy_writer *w, int result, const char *doing) {
    if (result == 0 || w->error) return;
    w->error = errno;
    w->doing = doing;
}

static void write_out(hy_writer *w, const void *data, size_t size) {
    if (size == 0 || w->error) return;
    int result = w->bulk ? hy_bulk_put(w->bulk, data, size) : hy_disk_write(w->fd, data, size);
    note(w, result, "cannot write");
}

hy_status hy_writer_expect(hy_writer *w, uint64_t size) {
    if (size < HY_BULK_LEAST || w->error || w->bulk || w->hash.total > 0) return tell(w);
    w->bulk = hy_bulk_begin(w->fd, size);
    if (!w->bulk && errno) note(w, -1, "cannot write");
    return tell(w);
}

static void drain(hy_writer *w) {
    write_out(w, w->buffer, w->buffered);
    w->buffered = 0;
}

hy_status hy_writer_put(hy_writer *w, const void *data, size_t size) {
    if (size == 0) return tell(w);
    hy_hash_add(&w->hash, data, size);
    if (size > BUFFER_SIZE - w->buffered) drain(w);
    if (size >= BUFFER_SIZE) {
        write_out(w, data, size);
    } else {
        memcpy(w->buffer + w->buffered, data, size);
        w->buffered += size;
    }
    return tell(w);
}

void *hy_writer_room(hy_writer *w, size_t *size) {
    if (w->bulk || w->buffered == BUFFER_SIZE) drain(w);
    if (w->bulk) return hy_bulk_room(w->bulk, size);
    *size = BUFFER_SIZE - w->buffered;
    return w->buffer + w->buffered;
}

hy_status hy_writer_commit(hy_writer *w, size_t size) {
    size_t room;
    hy_hash_add(&w->hash, hy_writer_room(w, &room), size);
    if (w->bulk && !w->error) {
        note(w, hy_bulk_commit(w->bulk, size), "cannot write");
    } else if (!w->bulk) {
        w->buffered += size;
    }
    return tell(w);
}

hy_status hy_writer_flush(hy_writer *w) {
    drain(w);
    return tell(w);
}

uint64_t hy_writer_hash(const hy_writer *w) { return hy_hash_value(&w->hash); }

uint64_t hy_writer_size(const hy_writer *w) { return w->hash.total; }

hy_status hy_writer_close(hy_writer *w, bool sync) {
    if (!w) return HY_OK;
    drain(w);
    if (w->bulk) note(w, hy_bulk_end(w->bulk), "cannot write");
    if ((sync || w->target) && !w->error) note(w, hy_disk_sync(w->fd), "cannot sync");
    bool is_ours = hy_disk_has_name(w->fd, w->path);
    note(w, hy_disk_close(w->fd), "cannot write");
    if (w->target && !is_ours && !w->error) {
        errno = EBUSY; /* the other process's file gets the name */
        note(w, -1, "cannot replace");
    }
    if (w->target && !w->error) note(w, hy_disk_rename(w->path, w->target), "cannot replace");
    hy_status status = tell(w);
    if (w->target && is_ours && status != HY_OK) hy_disk_unlink_at(AT_FDCWD, w->path, 0);
    if (w->target && status == HY_OK) status = hy_path_sync_parent(w->target);
    free_writer(w);
    return status;
}

void hy_writer_abandon(hy_writer *w) {
    if (!w) return;
    hy_bulk_abandon(w->bulk);
    bool is_ours = hy_disk_has_name(w->fd, w->path);
    close(w->fd);
    if (w->target && is_ours) hy_disk_unlink_at(AT_FDCWD, w->path, 0);
    free_writer(w);
}

hy_status hy_file_write_atomic(const char *path, const void *data, size_t size) {
    hy_writer *w; /* NULL if it could not be opened */
    hy_status status = hy_writer_replace(path, &w);
    if (w) status = hy_writer_put(w, data, size);
    hy_status closed = hy_writer_close(w, true);
    return status != HY_OK ? status : closed;
}

hy_status hy_file_put_at(const char *path, uint64_t *offset, const void *data, size_t size) {
    struct stat info;
    int fd = hy_disk_open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
    bool is_file = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    if (!is_file && (fd >= 0 || errno == ELOOP || errno == ENXIO)) {
        if (fd >= 0) close(fd);
        return hy_fail(HY_ERR_INPUT, "cannot write %s: it is not a regular file", path);
    }
    if (fd < 0) return hy_fail_path("cannot write", path);
    uint64_t at = *offset < (uint64_t)info.st_size ? *offset : (uint64_t)info.st_size;
    *offset = at; /* where to try again */
    int written = hy_disk_write_at(fd, data, size, at), error = errno;
    if (hy_disk_close(fd) != 0 && written == 0) written = -1, error = errno;
    errno = error;
    if (written != 0) return hy_fail_path("cannot write", path);
    *offset = at + size;
    return HY_OK;
}
