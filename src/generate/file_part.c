/* file_part.c: the file of answers while it grows. See file.h.
 *
 * Rows are appended to OUT.part and become whole with their line end. What a crash may leave after
 * the last whole row is cut off before the next call continues. The process that writes the file
 * holds a lock on it, which the system releases however the process ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"
#include "generate/file.h"

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status make_names(hy_file_part *p, const char *out) {
    int size = snprintf(p->settings, sizeof p->settings, "%s.part.json", out);
    HY_FAIL_IF(!out[0] || (size_t)size >= sizeof p->settings, HY_ERR_INPUT,
               "the path \"%.100s\" is empty or too long", out);
    snprintf(p->out, sizeof p->out, "%s", out);
    snprintf(p->path, sizeof p->path, "%.*s", size - (int)strlen(".json"), p->settings);
    return HY_OK;
}

static hy_status take(hy_file_part *p) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat info;
    p->fd = hy_disk_open(p->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK);
    if (p->fd < 0) return hy_fail_path("cannot open", p->path);
    bool is_file = fstat(p->fd, &info) == 0 && S_ISREG(info.st_mode);
    HY_FAIL_IF(!is_file, HY_ERR_INPUT, "%s is not a regular file", p->path);
    bool is_taken = fcntl(p->fd, F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES);
    /* Another process may have finished it between the two calls. */
    HY_FAIL_IF(is_taken || !hy_disk_has_name(p->fd, p->path), HY_ERR_INPUT,
               "%s is being written by another process", p->path);
    HY_FAIL_IF(fstat(p->fd, &info) != 0, HY_ERR_IO, "cannot read the size of %s", p->path);
    p->has_rows = info.st_size > 0;
    return HY_OK;
}

hy_status hy_file_part_open(hy_file_part *p, const char *out, bool starts_over) {
    *p = (hy_file_part){.fd = -1, .is_output = strcmp(out, "-") == 0};
    if (p->is_output) {
        p->fd = STDOUT_FILENO;
        return HY_OK;
    }
    HY_TRY(make_names(p, out));
    HY_FAIL_IF(hy_path_is_dir(out), HY_ERR_INPUT, "%s is a folder; expected the name of a file",
               out);
    HY_FAIL_IF(!starts_over && hy_path_exists(out), HY_ERR_INPUT,
               "%s exists already; --overwrite replaces it", out);
    return take(p);
}

/* ---- what is there --------------------------------------------------------------------------- */

/* Counts whole rows; *size: where they end. */
static hy_status count_rows(hy_file_part *p, const hy_file_map *map) {
    const char *at = (const char *)map->data, *end = at + map->size, *newline;
    while (at < end && (newline = memchr(at, '\n', (size_t)(end - at)))) {
        hy_json *json;
        hy_status status = hy_json_parse(at, (size_t)(newline - at), p->path, &json);
        if (status == HY_ERR_INPUT) return HY_OK; /* it was not on the disk when power failed */
        HY_TRY(status);
        p->bad += hy_json_get(hy_json_root(json), "error") != NULL;
        hy_json_free(json);
        p->rows++;
        at = newline + 1;
        p->size = (uint64_t)(at - (const char *)map->data);
    }
    return HY_OK;
}

static hy_status cut(hy_file_part *p) {
    if (ftruncate(p->fd, (off_t)p->size) != 0) return hy_fail_path("cannot shorten", p->path);
    return HY_OK;
}

hy_status hy_file_part_recover(hy_file_part *p) {
    hy_file_map map;
    HY_TRY(hy_file_map_open(p->path, &map));
    hy_status status = map.data ? count_rows(p, &map) : HY_OK;
    hy_file_map_close(&map);
    return status == HY_OK ? cut(p) : status;
}

/* ---- writing --------------------------------------------------------------------------------- */

hy_status hy_file_part_empty(hy_file_part *p) {
    p->size = 0;
    return p->is_output ? HY_OK : cut(p);
}

hy_status hy_file_part_put(hy_file_part *p, const void *data, size_t size) {
    int written = p->is_output ? hy_disk_write(p->fd, data, size)
                               : hy_disk_write_at(p->fd, data, size, p->size);
    if (written != 0)
        return hy_fail_path("cannot write", p->is_output ? "standard output" : p->path);
    p->size += size;
    return HY_OK;
}

hy_status hy_file_part_finish(hy_file_part *p) {
    if (p->is_output) return HY_OK;
    if (hy_disk_sync(p->fd) != 0) return hy_fail_path("cannot write", p->path);
    HY_TRY(hy_path_rename(p->path, p->out));
    HY_TRY(hy_path_sync_parent(p->out));
    bool is_removed = hy_disk_unlink_at(AT_FDCWD, p->settings, 0) == 0 || errno == ENOENT;
    return is_removed ? HY_OK : hy_fail_path("cannot remove", p->settings);
}

void hy_file_part_close(hy_file_part *p) {
    struct stat info;
    if (p->is_output || p->fd < 0) return;
    bool is_empty = fstat(p->fd, &info) == 0 && info.st_size == 0;
    if (is_empty && hy_disk_has_name(p->fd, p->path)) {
        (void)hy_disk_unlink_at(AT_FDCWD, p->settings, 0); /* before others can take the file */
        (void)hy_disk_unlink_at(AT_FDCWD, p->path, 0);
    }
    (void)hy_disk_close(p->fd); /* it was synced if it matters */
    p->fd = -1;
}
