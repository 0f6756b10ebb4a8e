/* disk.h: the system calls that change the disk, one function each, and a hook to make them fail.
 *
 * Nothing else in the library opens for writing, writes, syncs, renames or removes: everything
 * passes the one counter behind hy_fault_arm (file.h). The functions answer like the calls they
 * wrap: 0 (or a descriptor, or a count) when done, -1 with errno when not. Modules use file.h; this
 * header is for those who must see errno themselves. */
#pragma once

#include "hybrid_types.h"

int hy_disk_open(const char *path, int flags); /* new files get mode 0666 less umask */
/* A new file for writing. What had the name (a file that was left, a link, a pipe) is unlinked first and
 * never written through; folders stay, and devices are opened as they are. */
int hy_disk_create(const char *path);
int hy_disk_write(int fd, const void *data, size_t size);                     /* all of it, or -1 */
int hy_disk_write_at(int fd, const void *data, size_t size, uint64_t offset); /* the same there */
int hy_disk_reserve(int fd, uint64_t size); /* 0 too where it is not offered */
int hy_disk_sync(int fd);  /* 0 too where nothing can be synced (pipes, some file systems) */
int hy_disk_close(int fd); /* the descriptor is gone either way */
int hy_disk_mkdir(const char *path); /* mode 0777 less umask */
int hy_disk_rename(const char *from, const char *to);
int hy_disk_symlink(const char *target, const char *path);
int hy_disk_exchange(const char *a, const char *b); /* EINVAL or ENOSYS: not offered here */
uint64_t hy_disk_free(const char *path);            /* UINT64_MAX: not known */
int hy_disk_unlink_at(int folder, const char *name, int flags);

/* Fails with "DOING PATH: REASON" for the current errno, DOING like "cannot open". HY_ERR_INPUT
 * when the path itself is the trouble (missing, forbidden, of another kind), else HY_ERR_IO. */
hy_status hy_fail_errno(const char *doing, const char *path);

/* The same, in a form that lets the compiler and clang-tidy know it is never HY_OK: they then see
 * that what a failed call would have filled is not used. */
static inline hy_status hy_fail_path(const char *doing, const char *path) {
    hy_status status = hy_fail_errno(doing, path);
    if (status == HY_OK) __builtin_unreachable();
    return status;
}
