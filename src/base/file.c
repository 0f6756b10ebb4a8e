/* file.c: reads files: whole, mapped or at an offset. See file.h.
 *
 * Only regular files are read. Folders, pipes and devices are errors that name the path, and
 * opening one never blocks. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"

struct hy_reader {
    int fd;
    int direct; /* the same file without the page cache; -1: not supported */
    uint64_t size;
    char *path;
};

/* Opens a regular file for reading. O_NONBLOCK is needed because opening a pipe would wait for its
 * writer. */
static hy_status open_regular(const char *path, int *fd, uint64_t *size) {
    struct stat info = {0};
    *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0 && errno != ENXIO) return hy_fail_path("cannot open", path); /* ENXIO: a socket */
    bool is_known = *fd >= 0 && fstat(*fd, &info) == 0;
    *size = (uint64_t)info.st_size;
    if (is_known && S_ISREG(info.st_mode)) return HY_OK;
    hy_status status = hy_fail(HY_ERR_INPUT, "cannot read %s: it is not a regular file", path);
    if (is_known && S_ISDIR(info.st_mode)) {
        errno = EISDIR;
        status = hy_fail_path("cannot read", path);
    }
    if (*fd >= 0) close(*fd);
    return status;
}

/* Reads up to `size` bytes; fewer only at the end. Returns -1 with errno on failure. */
static ssize_t read_up_to(int fd, char *dst, size_t size) {
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(fd, dst + done, size - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

hy_status hy_file_read(const char *path, char **data, size_t *size) {
    int fd;
    uint64_t expected;
    *data = NULL;
    *size = 0;
    HY_TRY(open_regular(path, &fd, &expected));
    hy_status status = HY_OK;
    bool is_complete = false;
    /* The size is a first guess; one byte more shows the end, another is for the zero. */
    for (size_t room = (size_t)expected + 2; status == HY_OK && !is_complete; room *= 2) {
        bool is_long = expected > HY_FILE_READ_MOST || *size > HY_FILE_READ_MOST;
        char *grown = is_long ? NULL : realloc(*data, room);
        if (grown) *data = grown;
        ssize_t got = grown ? read_up_to(fd, grown + *size, room - 1 - *size) : 0;
        if (is_long) {
            status = hy_fail(HY_ERR_INPUT, "cannot read %s: it is larger than %zu MiB", path,
                             HY_FILE_READ_MOST >> 20);
        } else if (!grown) {
            status = hy_fail(HY_ERR_MEMORY, "out of memory reading %s (%zu bytes)", path, room);
        } else if (got < 0) {
            status = hy_fail_path("cannot read", path);
        } else {
            *size += (size_t)got;
            is_complete = *size < room - 1;
        }
    }
    close(fd);
    if (status == HY_OK) {
        (*data)[*size] = '\0';
    } else {
        free(*data);
        *data = NULL;
        *size = 0;
    }
    return status;
}

hy_status hy_file_map_open(const char *path, hy_file_map *out) {
    int fd;
    uint64_t size;
    *out = (hy_file_map){0};
    HY_TRY(open_regular(path, &fd, &size));
    void *data = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    hy_status status = data == MAP_FAILED ? hy_fail_path("cannot map", path) : HY_OK;
    close(fd);
    if (status == HY_OK) *out = (hy_file_map){.data = data, .size = (size_t)size};
    return status;
}

void hy_file_map_close(hy_file_map *map) {
    if (map->data) munmap((void *)map->data, map->size);
    *map = (hy_file_map){0};
}

hy_status hy_reader_open(const char *path, hy_reader **out) {
    *out = NULL;
    hy_reader *r = calloc(1, sizeof *r);
    char *name = strdup(path);
    hy_status status = r && name ? open_regular(path, &r->fd, &r->size)
                                 : hy_fail(HY_ERR_MEMORY, "out of memory opening %s", path);
    if (status != HY_OK) {
        free(name);
        free(r);
        return status;
    }
    r->path = name;
    char same[32]; /* reopens this file even if its name now belongs to another */
    snprintf(same, sizeof same, "/proc/self/fd/%d", r->fd);
    r->direct = open(same, O_RDONLY | O_DIRECT | O_CLOEXEC);
    *out = r;
    return HY_OK;
}

uint64_t hy_reader_size(const hy_reader *r) { return r->size; }

hy_status hy_reader_get(const hy_reader *r, uint64_t offset, void *dst, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        ssize_t got =
            pread(r->fd, (char *)dst + done, (size_t)(size - done), (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return hy_fail_path("cannot read", r->path);
        HY_FAIL_IF(got == 0, HY_ERR_IO, "cannot read %s: it ends at byte %llu, expected %llu bytes",
                   r->path, (unsigned long long)(offset + done),
                   (unsigned long long)(offset + size));
        done += (uint64_t)got;
    }
    return HY_OK;
}

/* Checks the pages at the beginning: bytes that were read together are cached together. */
bool hy_reader_is_cold(const hy_reader *r, uint64_t offset, uint64_t size) {
    enum { MOST_PAGES = 256 };
    unsigned char is_there[MOST_PAGES];
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = offset / page * page, found = 0;
    uint64_t pages = (offset + size - begin + page - 1) / page;
    if (r->direct < 0 || size == 0 || offset + size > r->size) return false;
    if (pages > MOST_PAGES) pages = MOST_PAGES;
    void *map = mmap(NULL, pages * page, PROT_READ, MAP_SHARED, r->fd, (off_t)begin);
    if (map == MAP_FAILED) return false;
    bool is_known = mincore(map, pages * page, is_there) == 0;
    for (uint64_t i = 0; is_known && i < pages; i++) found += is_there[i] & 1;
    munmap(map, pages * page);
    return is_known && 2 * found < pages;
}

hy_status hy_reader_get_direct(const hy_reader *r, uint64_t offset, uint64_t size, void *buffer,
                               char **data) {
    uint64_t begin = offset / HY_DIRECT * HY_DIRECT, skipped = offset - begin, done = 0;
    uint64_t wanted = (skipped + size + HY_DIRECT - 1) / HY_DIRECT * HY_DIRECT;
    *data = (char *)buffer + skipped;
    while (r->direct >= 0 && done < skipped + size) {
        ssize_t got =
            pread(r->direct, (char *)buffer + done, (size_t)(wanted - done), (off_t)(begin + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (uint64_t)got;
        if (done % HY_DIRECT != 0) break; /* the end of the file, or not supported */
    }
    return done >= skipped + size ? HY_OK : hy_reader_get(r, offset, *data, size);
}

void hy_reader_close(hy_reader *r) {
    if (!r) return;
    close(r->fd);
    if (r->direct >= 0) close(r->direct);
    free(r->path);
    free(r);
}

#define HASH_CHUNK ((size_t)256 << 10)

hy_status hy_file_hash(const char *path, uint64_t *hash, uint64_t *size) {
    int fd;
    uint64_t expected;
    HY_TRY(open_regular(path, &fd, &expected));
    char *chunk = malloc(HASH_CHUNK);
    hy_status status = chunk ? HY_OK : hy_fail(HY_ERR_MEMORY, "out of memory reading %s", path);
    hy_hash h;
    hy_hash_init(&h, 0);
    while (status == HY_OK) {
        ssize_t got = read_up_to(fd, chunk, HASH_CHUNK);
        if (got < 0) status = hy_fail_path("cannot read", path);
        if (got <= 0) break;
        hy_hash_add(&h, chunk, (size_t)got);
    }
    free(chunk);
    close(fd);
    if (hash) *hash = hy_hash_value(&h);
    if (size) *size = h.total;
    return status;
}
