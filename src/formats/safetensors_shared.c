/* safetensors_shared.c: see safetensors_shared.h. */
#include "formats/safetensors_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "kernels/tensor.h"

struct hy_shared_tensors {
    int fd;
    uint64_t *begin; /* (count + 1) offsets of tensors in the file, and its end */
    size_t count;
    char path[]; /* for messages */
};

static hy_status fail_path(const char *path) {
    return hy_fail(HY_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

hy_status hy_shared_tensors_make(const char *path, const hy_safetensors_entry *entries,
                                 size_t count, const char *const *metadata) {
    hy_text header = {0};
    uint64_t total = 0;
    int fd = -1;
    hy_status status = hy_safetensors_header(path, entries, count, metadata, &header, &total);
    if (status == HY_OK && (fd = hy_disk_create(path)) < 0) status = fail_path(path);
    uint64_t size = header.size + total;
    bool is_written = status == HY_OK && hy_disk_reserve(fd, size) == 0 &&
                      hy_disk_write(fd, header.data, header.size) == 0;
    /* If no space could be reserved, the last byte sets the file's size. */
    if (is_written && total > 0) is_written = hy_disk_write_at(fd, "", 1, size - 1) == 0;
    if (is_written) is_written = hy_disk_sync(fd) == 0;
    if (status == HY_OK && !is_written) status = fail_path(path);
    if (fd >= 0 && hy_disk_close(fd) != 0 && status == HY_OK) status = fail_path(path);
    hy_text_free(&header);
    return status;
}

hy_status hy_shared_tensors_open(const char *path, const hy_safetensors_entry *entries,
                                 size_t count, const char *const *metadata,
                                 hy_shared_tensors **out) {
    hy_text header = {0};
    uint64_t total = 0;
    *out = NULL;
    hy_shared_tensors *s = calloc(1, sizeof *s + strlen(path) + 1);
    if (s) s->begin = calloc(count + 1, sizeof *s->begin);
    if (!s || !s->begin) {
        free(s);
        return hy_fail(HY_ERR_MEMORY, "no memory to write %s", path);
    }
    memcpy(s->path, path, strlen(path) + 1);
    s->count = count;
    s->fd = -1;
    hy_status status = hy_safetensors_header(path, entries, count, metadata, &header, &total);
    s->begin[0] = header.size;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        int64_t elements = 1;
        for (int k = 0; k < entries[i].ndim; k++) elements *= entries[i].shape[k];
        s->begin[i + 1] = s->begin[i] + hy_dtype_bytes(entries[i].dtype, elements);
    }
    hy_text_free(&header);
    if (status == HY_OK && (s->fd = hy_disk_open(path, O_WRONLY)) < 0) status = fail_path(path);
    if (status == HY_OK) *out = s;
    if (status != HY_OK) (void)hy_shared_tensors_close(s);
    return status;
}

hy_status hy_shared_tensors_put(hy_shared_tensors *s, size_t entry, uint64_t first,
                                const void *data, uint64_t size) {
    uint64_t bytes = entry < s->count ? s->begin[entry + 1] - s->begin[entry] : 0;
    HY_FAIL_IF(entry >= s->count || size > bytes || first > bytes - size, HY_ERR_STATE,
               "%s: bytes were written beyond tensor %zu", s->path, entry);
    uint64_t at = s->begin[entry] + first;
    return hy_disk_write_at(s->fd, data, size, at) == 0 ? HY_OK : fail_path(s->path);
}

hy_status hy_shared_tensors_close(hy_shared_tensors *s) {
    if (!s) return HY_OK;
    bool is_open = s->fd >= 0;
    bool is_done = !is_open || hy_disk_sync(s->fd) == 0;
    if (is_open) is_done &= hy_disk_close(s->fd) == 0;
    hy_status status = is_done ? HY_OK : fail_path(s->path);
    free(s->begin);
    free(s);
    return status;
}
