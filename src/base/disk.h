/* disk.h: the system calls that change the disk, one function each, and a hook to make them fail.
 *
 * Nothing else in the library opens files for writing, writes, syncs, renames or removes, so every
 * such call is counted for hy_fault_arm (file.h). The functions return like the calls they wrap: 0
 * (or a descriptor, or a count) on success, -1 with errno on failure. Modules use file.h; this
 * header is for code that needs errno. */
#pragma once

#include <stdbool.h>

#include "hybrid_types.h"

int hy_disk_open(const char *path, int flags); /* new files get mode 0666 minus umask */
/* Creates a file for writing. An old file, link or pipe of that name is unlinked first and never
 * written through; a folder is an error, and a device is opened as it is. */
int hy_disk_create(const char *path);
int hy_disk_write(int fd, const void *data, size_t size); /* all bytes, or -1 */
/* as above, at an offset */
int hy_disk_write_at(int fd, const void *data, size_t size, uint64_t offset);
int hy_disk_reserve(int fd, uint64_t size); /* also 0 if the file system does not support it */
int hy_disk_sync(int fd);            /* also 0 if it cannot be synced (pipes, some file systems) */
int hy_disk_close(int fd);           /* the descriptor is closed even on failure */
int hy_disk_mkdir(const char *path); /* mode 0777 minus umask */
int hy_disk_rename(const char *from, const char *to);
int hy_disk_symlink(const char *target, const char *path);
int hy_disk_exchange(const char *a, const char *b); /* EINVAL or ENOSYS: not supported */
uint64_t hy_disk_free(const char *path);            /* UINT64_MAX: unknown */
int hy_disk_unlink_at(int folder, const char *name, int flags);
/* Whether `path` still names the open file: another process may have replaced or removed it. */
bool hy_disk_has_name(int fd, const char *path);

/* Fails with "DOING PATH: REASON" for the current errno; DOING is a phrase such as "cannot open".
 * HY_ERR_INPUT if the path is the problem (missing, forbidden, of another kind), otherwise
 * HY_ERR_IO. */
hy_status hy_fail_errno(const char *doing, const char *path);

/* As above, in a form that shows the compiler and clang-tidy that it never returns HY_OK. */
static inline hy_status hy_fail_path(const char *doing, const char *path) {
    hy_status status = hy_fail_errno(doing, path);
    if (status == HY_OK) __builtin_unreachable();
    return status;
}
