/* disk.c: counted system calls and the fault hook. See disk.h and, for the hook, file.h.
 *
 * The hook is the only process-wide state in this module: a fault must hit whichever thread writes
 * next. It consists of atomics; while disarmed it costs one load per call. */
#include "base/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"

static struct {
    atomic_bool is_armed, is_lasting, is_kill, lacks_exchange;
    atomic_long at, count;
    atomic_ullong free_bytes;
    atomic_int code; /* errno, or the exit status for a kill */
} fault;

static void arm(long at, int code, bool is_lasting, bool is_kill) {
    atomic_store(&fault.at, at);
    atomic_store(&fault.code, code);
    atomic_store(&fault.is_lasting, is_lasting);
    atomic_store(&fault.is_kill, is_kill);
    atomic_store(&fault.count, 0);
    atomic_store(&fault.is_armed, true);
}

void hy_fault_arm(long at, int error_number, bool is_lasting) {
    arm(at, error_number, is_lasting, false);
}

void hy_fault_arm_kill(long at, int exit_status) { arm(at, exit_status, false, true); }

void hy_fault_limit_disk(uint64_t bytes) { atomic_store(&fault.free_bytes, bytes); }

void hy_fault_lack_exchange(bool lacks) { atomic_store(&fault.lacks_exchange, lacks); }

long hy_fault_disarm(void) {
    bool was_armed = atomic_exchange(&fault.is_armed, false);
    return was_armed ? atomic_load(&fault.count) : 0;
}

/* Counts a call. True if this call must fail. */
static bool is_due(void) {
    if (!atomic_load(&fault.is_armed)) return false;
    long number = atomic_fetch_add(&fault.count, 1);
    long at = atomic_load(&fault.at);
    return number == at || (number > at && atomic_load(&fault.is_lasting));
}

/* Executes the fault: ends the process, or sets errno and returns -1. */
static int strike(void) {
    int code = atomic_load(&fault.code);
    if (atomic_load(&fault.is_kill)) _exit(code);
    errno = code;
    return -1;
}

int hy_disk_open(const char *path, int flags) {
    if (is_due()) return strike();
    return open(path, flags | O_CLOEXEC, 0666);
}

int hy_disk_create(const char *path) {
    enum { TRIES = 8 }; /* if another process keeps creating this name, it is an error */
    int fd = -1;
    for (int i = 0; i < TRIES; i++) {
        struct stat info;
        fd = hy_disk_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
        if (fd >= 0 || errno != EEXIST || lstat(path, &info) != 0) return fd;
        if (S_ISCHR(info.st_mode)) return hy_disk_open(path, O_WRONLY | O_NOFOLLOW);
        if (S_ISDIR(info.st_mode)) errno = EISDIR;
        if (S_ISDIR(info.st_mode) || hy_disk_unlink_at(AT_FDCWD, path, 0) != 0) return -1;
        errno = EEXIST;
    }
    return fd;
}

/* Writes at the position of the file, or at `offset` unless it is NULL. A due fault writes half of
 * the bytes, as on a full disk or when a process is killed. */
static int write_all(int fd, const char *data, size_t size, const uint64_t *offset) {
    bool fails = is_due();
    size_t end = fails ? size / 2 : size;
    for (size_t at = 0; at < end;) {
        ssize_t done = offset ? pwrite(fd, data + at, end - at, (off_t)(*offset + at))
                              : write(fd, data + at, end - at);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        at += (size_t)done;
    }
    return fails ? strike() : 0;
}

int hy_disk_write(int fd, const void *data, size_t size) { return write_all(fd, data, size, NULL); }

int hy_disk_write_at(int fd, const void *data, size_t size, uint64_t offset) {
    return write_all(fd, data, size, &offset);
}

bool hy_disk_has_name(int fd, const char *path) {
    struct stat ours, named;
    return fstat(fd, &ours) == 0 && lstat(path, &named) == 0 && ours.st_dev == named.st_dev &&
           ours.st_ino == named.st_ino;
}

int hy_disk_reserve(int fd, uint64_t size) {
    if (is_due()) return strike();
    int result;
    do result = fallocate(fd, 0, 0, (off_t)size);
    while (result != 0 && errno == EINTR);
    return result != 0 && errno != ENOSPC && errno != EFBIG && errno != EDQUOT ? 0 : result;
}

int hy_disk_sync(int fd) {
    if (is_due()) return strike();
    int result;
    do result = fsync(fd);
    while (result != 0 && errno == EINTR);
    return result != 0 && (errno == EINVAL || errno == ENOTSUP || errno == EROFS) ? 0 : result;
}

int hy_disk_close(int fd) {
    bool fails = is_due();
    int result = close(fd);
    if (fails) return strike();
    return result != 0 && errno == EINTR ? 0 : result; /* Linux has closed it anyway */
}

int hy_disk_mkdir(const char *path) { return is_due() ? strike() : mkdir(path, 0777); }

int hy_disk_rename(const char *from, const char *to) {
    return is_due() ? strike() : rename(from, to);
}

int hy_disk_symlink(const char *target, const char *path) {
    return is_due() ? strike() : symlink(target, path);
}

int hy_disk_exchange(const char *a, const char *b) {
    if (is_due()) return strike();
    if (atomic_load(&fault.lacks_exchange)) {
        errno = EINVAL;
        return -1;
    }
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

uint64_t hy_disk_free(const char *path) {
    struct statvfs disk;
    uint64_t played = atomic_load(&fault.free_bytes);
    if (played) return played;
    bool is_known = statvfs(path, &disk) == 0 && disk.f_blocks > 0;
    return is_known ? (uint64_t)disk.f_bavail * disk.f_frsize : UINT64_MAX;
}

int hy_disk_unlink_at(int folder, const char *name, int flags) {
    return is_due() ? strike() : unlinkat(folder, name, flags);
}

hy_status hy_fail_errno(const char *doing, const char *path) {
    int error = errno;
    hy_status status = HY_ERR_IO;
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case EEXIST:
    case ENOTEMPTY:
    case ELOOP:
    case ENAMETOOLONG: status = HY_ERR_INPUT; break;
    case ENOMEM: status = HY_ERR_MEMORY; break;
    default: break;
    }
    char reason[128];
    return hy_fail(status, "%s %s: %s", doing, path, strerror_r(error, reason, sizeof reason));
}
