/* disk_file.c: creates, reserves, tests and removes the offload file. See disk_engine.h.
 *
 * A file without a name (O_TMPFILE) is the first choice, a file that is unlinked at once the
 * second, a file that is removed on closing the last. Space is reserved first, so a full disk is
 * detected here. O_DIRECT is set after opening (opening with it can fail and still create a file)
 * and used only if writing and reading a block works. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/text.h"
#include "memory/disk_engine.h"

void *hy_spill_alloc(uint64_t bytes) {
    return aligned_alloc(HY_SPILL_BLOCK, (size_t)hy_spill_room(bytes));
}

uint64_t hy_spill_room(uint64_t bytes) {
    return (bytes + HY_SPILL_BLOCK - 1) / HY_SPILL_BLOCK * HY_SPILL_BLOCK;
}

/* ---- creating the file ----------------------------------------------------------------------- */

static void remove_name(hy_spill_file *file) {
    if (!file->name[0]) return;
    int folder = open(file->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    if (hy_disk_unlink_at(folder, file->name, 0) == 0) file->name[0] = '\0';
    close(folder);
}

static int open_named(hy_spill_file *file) {
    size_t size = strlen(file->folder) + sizeof file->name + 2;
    char *path = malloc(size);
    if (!path) {
        errno = ENOMEM;
        return -1;
    }
    int fd = -1;
    for (int i = 0; i < 1000 && fd < 0; i++) {
        snprintf(file->name, sizeof file->name, ".hybrid-offload-%ld-%d", (long)getpid(), i);
        snprintf(path, size, "%s/%s", file->folder, file->name);
        fd = hy_disk_open(path, O_RDWR | O_CREAT | O_EXCL);
        if (fd < 0 && errno != EEXIST) break;
    }
    int error = errno;
    free(path);
    if (fd < 0) file->name[0] = '\0'; /* the file is not ours */
    remove_name(file);                /* if this fails, closing tries again */
    errno = error;
    return fd;
}

static int open_anyhow(hy_spill_file *file, unsigned lacks) {
    if (!(lacks & HY_SPILL_LACKS_NAMELESS)) {
        int fd = hy_disk_open(file->folder, O_RDWR | O_TMPFILE);
        /* The errors of systems that do not support such files. */
        bool is_unknown =
            errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT;
        if (fd >= 0 || !is_unknown) return fd;
    }
    return open_named(file);
}

/* ---- reserving space ------------------------------------------------------------------------- */

static hy_status fail_room(const hy_spill_file *file, int error) {
    char free_now[32], reason[128];
    struct statvfs about;
    bool is_known = fstatvfs(file->fd, &about) == 0;
    double left = is_known ? (double)about.f_bavail * (double)about.f_frsize : 0;
    return hy_fail(HY_ERR_IO, "the offload folder %s needs %s (free: %s): %s", file->folder,
                   hy_bytes_as_text(file->bytes).text,
                   is_known ? hy_format_bytes(left, free_now, sizeof free_now) : "unknown",
                   strerror_r(error, reason, sizeof reason));
}

/* If space cannot be reserved, only the free space is checked and the file stays sparse. */
static hy_status take_room(hy_spill_file *file, unsigned lacks) {
    struct rlimit limit; /* exceeding the limit would end the process with a signal */
    HY_FAIL_IF(
        getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < file->bytes, HY_ERR_IO,
        "the offload folder %s needs a file of %s, but the limit on file size (ulimit -f) is %s",
        file->folder, hy_bytes_as_text(file->bytes).text, hy_bytes_as_text(limit.rlim_cur).text);
    /* Checked first: reserving until it fails would briefly fill the disk for others. */
    struct statvfs about;
    struct stat now;
    double missing = (double)file->bytes;
    if (fstat(file->fd, &now) == 0) missing -= 512.0 * (double)now.st_blocks;
    if (fstatvfs(file->fd, &about) == 0 && about.f_blocks > 0 &&
        (double)about.f_bavail * (double)about.f_frsize < missing) {
        return fail_room(file, ENOSPC);
    }
    int error = lacks & HY_SPILL_LACKS_RESERVE ? EOPNOTSUPP : EINTR;
    while (error == EINTR) error = fallocate(file->fd, 0, 0, (off_t)file->bytes) == 0 ? 0 : errno;
    file->is_reserved = error == 0;
    if (error == EOPNOTSUPP || error == ENOSYS) {
        error = ftruncate(file->fd, (off_t)file->bytes) == 0 ? 0 : errno;
    }
    return error == 0 ? HY_OK : fail_room(file, error);
}

/* ---- O_DIRECT -------------------------------------------------------------------------------- */

static bool set_direct(const hy_spill_file *file, bool is_on) {
    int flags = fcntl(file->fd, F_GETFL);
    return flags >= 0 &&
           fcntl(file->fd, F_SETFL, is_on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

static bool moves_a_block(const hy_spill_file *file) {
    void *block = hy_spill_alloc(HY_SPILL_BLOCK);
    if (!block) return false;
    memset(block, 0, HY_SPILL_BLOCK);
    bool moves = pwrite(file->fd, block, HY_SPILL_BLOCK, 0) == HY_SPILL_BLOCK &&
                 pread(file->fd, block, HY_SPILL_BLOCK, 0) == HY_SPILL_BLOCK;
    free(block);
    return moves;
}

static hy_status choose_direct(hy_spill_file *file, unsigned lacks) {
    file->is_direct = !(lacks & HY_SPILL_LACKS_DIRECT) && set_direct(file, true);
    if (file->is_direct && moves_a_block(file)) return HY_OK;
    if (file->is_direct) set_direct(file, false);
    file->is_direct = false;
    if (moves_a_block(file)) return HY_OK;
    return hy_fail_errno("cannot write to a new file in the offload folder", file->folder);
}

/* Errors of write-back are errors of the disk; a file system without this call is not an error. */
int hy_spill_file_drop(const hy_spill_file *file, bool is_write, uint64_t offset, uint64_t bytes) {
    unsigned all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (is_write && sync_file_range(file->fd, (off_t)offset, (off_t)bytes, all) != 0 &&
        (errno == EIO || errno == ENOSPC || errno == EDQUOT)) {
        return errno;
    }
    posix_fadvise(file->fd, (off_t)offset, (off_t)bytes, POSIX_FADV_DONTNEED);
    return 0;
}

/* ---- opening and closing --------------------------------------------------------------------- */

hy_status hy_spill_file_open(hy_spill_file *file, const char *folder, uint64_t bytes,
                             unsigned lacks) {
    *file = (hy_spill_file){.fd = -1};
    HY_FAIL_IF(bytes == 0 || bytes > (uint64_t)INT64_MAX - HY_SPILL_BLOCK, HY_ERR_INTERNAL,
               "an offload file of %llu bytes was requested", (unsigned long long)bytes);
    struct stat about;
    if (stat(folder, &about) != 0) return hy_fail_errno("cannot use the offload folder", folder);
    HY_FAIL_IF(!S_ISDIR(about.st_mode), HY_ERR_INPUT, "the offload folder %s is not a folder",
               folder);
    file->bytes = hy_spill_room(bytes);
    file->folder = strdup(folder);
    if (!file->folder) return hy_fail(HY_ERR_MEMORY, "not enough memory for the name of a folder");
    file->fd = open_anyhow(file, lacks);
    hy_status status = HY_OK;
    if (file->fd < 0) status = hy_fail_errno("cannot make a file in the offload folder", folder);
    if (status == HY_OK) status = take_room(file, lacks);
    if (status == HY_OK) status = choose_direct(file, lacks);
    if (status != HY_OK) hy_spill_file_close(file);
    return status;
}

hy_status hy_spill_file_grow(hy_spill_file *file, uint64_t bytes) {
    uint64_t before = file->bytes;
    if (bytes <= before) return HY_OK;
    file->bytes = hy_spill_room(bytes);
    hy_status status = take_room(file, 0);
    if (status != HY_OK) file->bytes = before;
    return status;
}

void hy_spill_file_close(hy_spill_file *file) {
    if (file->fd >= 0) hy_disk_close(file->fd);
    if (file->folder) remove_name(file);
    free(file->folder);
    *file = (hy_spill_file){.fd = -1};
}
