/* lock.c: FOLDER/.lock. See lock.h.
 *
 * The holder removes the file before it releases the lock. A process that opened the file before
 * that locks a file without a name, notices this, and tries again. So two processes never hold two
 * files. */
#include "base/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"

#define TRIES 100
#define PAUSE_NANOSECONDS 2000000

struct hy_lock {
    int fd;
    char path[PATH_MAX];
    struct stat folder;
};

typedef struct holder {
    long pid; /* 0: unknown */
    char host[256];
} holder;

static void this_process(holder *out) {
    *out = (holder){.pid = (long)getpid()};
    if (gethostname(out->host, sizeof out->host - 1) != 0) snprintf(out->host, 2, "?");
}

/* Reads the content of the file. It may come from anyone, so only a number and a plain name are
 * accepted. */
static void read_holder(int fd, holder *out) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    char text[320] = "", *end;
    *out = (holder){0};
    if (pread(fd, text, sizeof text - 1, 0) <= 0) return;
    long pid = strtol(text, &end, 10);
    size_t length = *end == ' ' ? strspn(end + 1, plain) : 0;
    if (pid <= 0 || length == 0 || end[1 + length] != '\n') return;
    out->pid = pid;
    snprintf(out->host, sizeof out->host, "%.*s", (int)length, end + 1);
}

/* The holder writes its name directly after it gets the lock; wait for that. */
static hy_status refuse(const char *folder, int fd) {
    holder theirs;
    read_holder(fd, &theirs);
    for (int i = 0; i < TRIES && theirs.pid == 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NANOSECONDS}, NULL);
        read_holder(fd, &theirs);
    }
    HY_FAIL_IF(theirs.pid == 0, HY_ERR_INPUT, "%s is in use by another process", folder);
    return hy_fail(HY_ERR_INPUT,
                   "%s is in use by process %ld on host %s; wait until it ends, stop it, or choose "
                   "another --out",
                   folder, theirs.pid, theirs.host);
}

bool hy_lock_is_there(const hy_lock *lock) { return hy_disk_has_name(lock->fd, lock->path); }

bool hy_lock_folder_is_there(const hy_lock *lock) {
    char folder[PATH_MAX];
    struct stat now;
    return hy_path_parent(folder, sizeof folder, lock->path) == HY_OK && stat(folder, &now) == 0 &&
           now.st_dev == lock->folder.st_dev && now.st_ino == lock->folder.st_ino;
}

/* If the file system has no locks: whether the process in the file is alive on this host. */
static bool is_held_by_living(int fd) {
    holder theirs, ours;
    read_holder(fd, &theirs);
    this_process(&ours);
    bool is_here = theirs.pid != 0 && strcmp(theirs.host, ours.host) == 0;
    return is_here && (kill((pid_t)theirs.pid, 0) == 0 || errno == EPERM);
}

/* HY_OK with *is_ours false: the file was removed meanwhile. */
static hy_status try_once(const char *folder, hy_lock *lock, bool *is_ours) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat info;
    *is_ours = false;
    lock->fd = hy_disk_open(lock->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
    if (lock->fd < 0) return hy_fail_path("cannot open", lock->path);
    HY_FAIL_IF(fstat(lock->fd, &info) != 0 || !S_ISREG(info.st_mode), HY_ERR_INPUT,
               "%s is not a regular file", lock->path);
    if (fcntl(lock->fd, F_OFD_SETLK, &whole) != 0) {
        bool is_taken = errno == EAGAIN || errno == EACCES || is_held_by_living(lock->fd);
        if (is_taken) return hy_lock_is_there(lock) ? refuse(folder, lock->fd) : HY_OK;
    }
    *is_ours = hy_lock_is_there(lock);
    holder before;
    read_holder(lock->fd, &before);
    HY_FAIL_IF(*is_ours && before.pid == 0 && fstat(lock->fd, &info) == 0 && info.st_size > 0,
               HY_ERR_INPUT,
               "%s exists and is not the lock file of a run; remove it or choose another folder",
               lock->path);
    return HY_OK;
}

/* If the disk is full, the file stays empty, but the lock is held. */
static void write_holder(const hy_lock *lock) {
    holder ours;
    char text[320];
    this_process(&ours);
    int size = snprintf(text, sizeof text, "%ld %s\n", ours.pid, ours.host);
    if (ftruncate(lock->fd, 0) == 0) (void)hy_disk_write(lock->fd, text, (size_t)size);
}

hy_status hy_lock_take(const char *folder, hy_lock **out) {
    bool is_ours = false;
    hy_lock *lock = calloc(1, sizeof *lock);
    *out = NULL;
    if (!lock) return hy_fail(HY_ERR_MEMORY, "not enough memory to lock %s", folder);
    lock->fd = -1;
    hy_status status = hy_path_join(lock->path, sizeof lock->path, folder, HY_LOCK_FILE);
    for (int i = 0; i < TRIES && status == HY_OK && !is_ours; i++) {
        if (lock->fd >= 0) close(lock->fd);
        status = try_once(folder, lock, &is_ours);
    }
    if (status == HY_OK && !is_ours) {
        status = hy_fail(HY_ERR_INPUT, "%s is in use: other processes keep locking %s", folder,
                         lock->path);
    }
    if (status == HY_OK) {
        if (stat(folder, &lock->folder) != 0) lock->folder = (struct stat){0};
        write_holder(lock);
        *out = lock;
        return HY_OK;
    }
    if (lock->fd >= 0) close(lock->fd);
    free(lock);
    return status;
}

void hy_lock_release(hy_lock *lock) {
    if (!lock) return;
    if (hy_lock_is_there(lock)) hy_disk_unlink_at(AT_FDCWD, lock->path, 0);
    close(lock->fd);
    free(lock);
}
