/* folder.c: creates, lists, syncs and removes folders, and renames paths. See file.h.
 *
 * Removing works with descriptors, not with paths, so it never follows a link out of the folder. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

bool hy_path_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool hy_path_is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool hy_path_is_link(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

bool hy_path_is_file_below(const char *path, const char *folder) {
    char file[PATH_MAX], above[PATH_MAX];
    struct stat info;
    if (!realpath(path, file) || !realpath(folder, above)) return false;
    size_t size = strlen(above);
    bool is_below = strncmp(file, above, size) == 0 && (file[size] == '/' || size == 1);
    return is_below && lstat(file, &info) == 0 && S_ISREG(info.st_mode);
}

uint64_t hy_path_free(const char *path) {
    char at[PATH_MAX], parent[PATH_MAX];
    snprintf(at, sizeof at, "%s", path);
    while (!hy_path_exists(at) && hy_path_parent(parent, sizeof parent, at) == HY_OK &&
           strcmp(at, parent) != 0) {
        snprintf(at, sizeof at, "%s", parent);
    }
    return hy_disk_free(at);
}

hy_status hy_path_join(char *out, size_t size, const char *dir, const char *name) {
    size_t dir_size = strlen(dir);
    const char *between = dir_size == 0 || dir[dir_size - 1] == '/' ? "" : "/";
    int needed = snprintf(out, size, "%s%s%s", dir, between, name);
    if (needed >= 0 && (size_t)needed < size) return HY_OK;
    if (size) out[0] = '\0';
    return hy_fail(HY_ERR_INPUT, "the path %s/%s is too long: the limit is %zu characters", dir,
                   name, size ? size - 1 : 0);
}

hy_status hy_path_parent(char *out, size_t size, const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--; /* "a/b//" is "a/b" */
    while (end > 0 && path[end - 1] != '/') end--; /* drop the name */
    while (end > 1 && path[end - 1] == '/') end--; /* and the slashes before it */
    if (end == 0) return hy_path_join(out, size, "", ".");
    if (end >= size) return hy_fail(HY_ERR_INPUT, "the path %s is too long", path);
    memcpy(out, path, end);
    out[end] = '\0';
    return HY_OK;
}

/* ---- making and syncing ---------------------------------------------------------------------- */

hy_status hy_dir_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return hy_fail_path("cannot open folder", path);
    hy_status status = HY_OK;
    if (hy_disk_sync(fd) != 0) status = hy_fail_path("cannot sync folder", path);
    close(fd);
    return status;
}

/* Allocates no memory, because it is called after the change that it makes durable. */
hy_status hy_path_sync_parent(const char *path) {
    char parent[PATH_MAX];
    HY_TRY(hy_path_parent(parent, sizeof parent, path));
    return hy_dir_sync(parent);
}

/* Makes one folder; its parent must exist. */
static hy_status make_one(const char *path) {
    if (hy_path_is_dir(path)) return HY_OK;
    if (hy_disk_mkdir(path) == 0) {
        /* A parent that is writable but not readable cannot be synced; the folder is usable
         * anyway. */
        hy_status synced = hy_path_sync_parent(path);
        return synced == HY_ERR_INPUT ? HY_OK : synced;
    }
    int error = errno;
    if (error == EEXIST && hy_path_is_dir(path)) return HY_OK; /* another process made it first */
    if (error == EEXIST) {
        return hy_fail(HY_ERR_INPUT, "cannot make folder %s: a file with that name exists", path);
    }
    errno = error;
    return hy_fail_path("cannot make folder", path);
}

hy_status hy_dir_make(const char *path) {
    if (hy_path_is_dir(path)) return HY_OK;
    char *part = strdup(path);
    if (!part) return hy_fail(HY_ERR_MEMORY, "out of memory making folder %s", path);
    hy_status status = HY_OK;
    for (char *slash = part; status == HY_OK && (slash = strchr(slash + 1, '/')) != NULL;) {
        *slash = '\0';
        status = make_one(part);
        *slash = '/';
    }
    if (status == HY_OK) status = make_one(path);
    free(part);
    return status;
}

/* ---- removing -------------------------------------------------------------------------------- */

static int remove_inside(int folder);

/* Removes one name; a folder with its content. */
static int remove_name(int folder, const char *name) {
    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) return hy_disk_unlink_at(folder, name, 0);
    if (fd < 0) return -1;
    return remove_inside(fd) != 0 ? -1 : hy_disk_unlink_at(folder, name, AT_REMOVEDIR);
}

/* Empties a folder; closes its descriptor in any case. */
static int remove_inside(int folder) {
    DIR *stream = fdopendir(folder);
    if (!stream) {
        int error = errno;
        close(folder);
        errno = error;
        return -1;
    }
    int result = 0;
    struct dirent *entry;
    while (result == 0 && (errno = 0, entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        result = remove_name(folder, entry->d_name);
    }
    int error = errno; /* from readdir or from a removal; 0: both succeeded */
    closedir(stream);
    errno = error;
    return result != 0 || error != 0 ? -1 : 0;
}

hy_status hy_dir_remove(const char *path) {
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode)) { /* removes the link, not its target */
        if (hy_disk_unlink_at(AT_FDCWD, path, 0) == 0) return HY_OK;
        return hy_fail_path("cannot remove", path);
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return HY_OK;
    if (fd < 0 || remove_inside(fd) != 0 || hy_disk_unlink_at(AT_FDCWD, path, AT_REMOVEDIR) != 0) {
        return hy_fail_path("cannot remove folder", path);
    }
    return HY_OK;
}

hy_status hy_dir_check_ours(const char *path) {
    /* of a model folder, and of the copy of the starting model */
    static const char folders[] = " additional_chat_templates files tokenizer ";
    char **names, inside[PATH_MAX];
    size_t count;
    if (!hy_path_is_dir(path) || hy_path_is_link(path)) return HY_OK;
    HY_TRY(hy_dir_list(path, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        status = hy_path_join(inside, sizeof inside, path, names[i]);
        if (status != HY_OK || !hy_path_is_dir(inside) || hy_path_is_link(inside)) continue;
        status = hy_word_is_in(folders, names[i])
                     ? hy_dir_check_ours(inside)
                     : hy_fail(HY_ERR_INPUT,
                               "%s is a folder of yours inside %s, which would be "
                               "replaced with all its content; move it elsewhere",
                               inside, path);
    }
    hy_dir_list_free(names, count);
    return status;
}

hy_status hy_dir_remove_ours(const char *path) {
    HY_TRY(hy_dir_check_ours(path));
    return hy_dir_remove(path);
}

/* ---- moving names ---------------------------------------------------------------------------- */

hy_status hy_path_link(const char *target, const char *path) {
    if (hy_disk_symlink(target, path) == 0 || errno == EEXIST) return HY_OK;
    return hy_fail_path("cannot link", path);
}

hy_status hy_path_rename(const char *from, const char *to) {
    if (hy_disk_rename(from, to) == 0) return HY_OK;
    return hy_fail_context(hy_fail_path("cannot rename to", to), "%s", from);
}

hy_status hy_path_exchange(const char *a, const char *b) {
    if (hy_disk_exchange(a, b) == 0) return HY_OK;
    return hy_fail_context(hy_fail_path("cannot swap with", b), "%s", a);
}

hy_status hy_link_put(const char *path, const char *target) {
    char partial[PATH_MAX], folder[PATH_MAX], name[NAME_MAX + 16];
    HY_FAIL_IF(hy_path_exists(path) && !hy_path_is_link(path), HY_ERR_INPUT,
               "%s exists and is not a link; it was not changed", path);
    const char *slash = strrchr(path, '/');
    HY_TRY(hy_path_parent(folder, sizeof folder, path));
    snprintf(name, sizeof name, ".%.*s.partial", NAME_MAX, slash ? slash + 1 : path);
    HY_TRY(hy_path_join(partial, sizeof partial, folder, name));
    /* left by a crash */
    if (hy_path_is_link(partial)) (void)hy_disk_unlink_at(AT_FDCWD, partial, 0);
    if (hy_disk_symlink(target, partial) != 0) return hy_fail_path("cannot make the link", path);
    hy_status status = hy_path_rename(partial, path);
    if (status != HY_OK) (void)hy_disk_unlink_at(AT_FDCWD, partial, 0);
    return status == HY_OK ? hy_dir_sync(folder) : status;
}

/* ---- listing --------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void hy_dir_list_free(char **names, size_t count) {
    for (size_t i = 0; i < count; i++) free(names[i]);
    free(names);
}

hy_status hy_dir_list(const char *path, char ***names, size_t *count) {
    *names = NULL;
    *count = 0;
    DIR *stream = opendir(path);
    if (!stream) return hy_fail_path("cannot list folder", path);
    hy_status status = HY_OK;
    size_t room = 0;
    struct dirent *entry;
    while (status == HY_OK && (errno = 0, entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        status = hy_array_reserve(names, &room, *count + 1, sizeof **names, path);
        char *name = status == HY_OK ? strdup(entry->d_name) : NULL;
        if (name) {
            (*names)[(*count)++] = name;
        } else {
            status = hy_fail(HY_ERR_MEMORY, "out of memory listing folder %s", path);
        }
    }
    if (status == HY_OK && errno != 0) status = hy_fail_path("cannot list folder", path);
    closedir(stream);
    if (status != HY_OK) {
        hy_dir_list_free(*names, *count);
        *names = NULL;
        *count = 0;
        return status;
    }
    if (*count) qsort(*names, *count, sizeof **names, compare_names);
    return HY_OK;
}
