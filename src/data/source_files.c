/* source_files.c: which files a path stands for.
 *
 * A file stands for itself, whatever it holds. Of a folder the regular files inside are taken, at
 * any depth, sorted by name; left out and counted are hidden names, linked folders (they may lead
 * back), empty files and files that are neither text nor shards. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/error.h"
#include "data/source.h"

#define PATH_BYTES 4096
#define LOOKED_AT 4096 /* bytes of a file that tell whether it is text */

static hy_status add_path(hy_file_list *list, const char *path) {
    HY_TRY(hy_array_reserve(&list->paths, &list->capacity, list->count + 1, sizeof *list->paths,
                            "files"));
    char *copy = strdup(path);
    if (!copy) return hy_fail(HY_ERR_MEMORY, "no memory for the path %s", path);
    list->paths[list->count++] = copy;
    return HY_OK;
}

/* Text holds no zero byte; pictures, archives and programs do, early on. */
static hy_status looks_like_text(const char *path, bool *is_text) {
    hy_reader *reader;
    HY_TRY(hy_reader_open(path, &reader));
    char bytes[LOOKED_AT];
    uint64_t size = hy_reader_size(reader);
    if (size > sizeof bytes) size = sizeof bytes;
    hy_status status = hy_reader_get(reader, 0, bytes, size);
    hy_reader_close(reader);
    *is_text = status == HY_OK && memchr(bytes, '\0', size) == NULL;
    return status;
}

static hy_status add_folder(hy_file_list *list, const char *path);

static hy_status add_entry(hy_file_list *list, const char *folder, const char *name) {
    char path[PATH_BYTES];
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    struct stat link, target;
    bool is_known = lstat(path, &link) == 0 && stat(path, &target) == 0;
    bool is_link = is_known && S_ISLNK(link.st_mode);
    if (is_known && name[0] != '.') {
        if (S_ISREG(target.st_mode)) {
            uint64_t size = (uint64_t)target.st_size;
            bool is_wanted = hy_source_is_shard(path);
            if (!is_wanted && size > 0) HY_TRY(looks_like_text(path, &is_wanted));
            if (is_wanted) return add_path(list, path);
            list->skipped++;
            return HY_OK;
        }
        if (S_ISDIR(target.st_mode) && !is_link) return add_folder(list, path);
    }
    list->skipped++;
    return HY_OK;
}

static hy_status add_folder(hy_file_list *list, const char *path) {
    char **names;
    size_t count;
    HY_TRY(hy_dir_list(path, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; status == HY_OK && i < count; i++) status = add_entry(list, path, names[i]);
    hy_dir_list_free(names, count);
    return status;
}

static hy_status find_files(const char *path, hy_file_list *list) {
    struct stat info;
    bool is_known = stat(path, &info) == 0; /* a missing one fails when it is opened */
    if (!is_known || S_ISREG(info.st_mode)) return add_path(list, path);
    if (!S_ISDIR(info.st_mode)) { /* opening a pipe would wait for its writer */
        return hy_fail(HY_ERR_INPUT, "%s is neither a file nor a folder", path);
    }
    HY_TRY(add_folder(list, path));
    if (list->count > 0) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "the folder %s holds no text and no token shards (%zu other files were skipped)",
                   path, list->skipped);
}

hy_status hy_file_list_find(const char *path, hy_file_list *list) {
    *list = (hy_file_list){0};
    hy_status status = find_files(path, list);
    if (status != HY_OK) hy_file_list_free(list);
    return status;
}

void hy_file_list_free(hy_file_list *list) {
    for (size_t i = 0; i < list->count; i++) free(list->paths[i]);
    free(list->paths);
    *list = (hy_file_list){0};
}
