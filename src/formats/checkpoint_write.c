/* checkpoint_write.c: making, replacing and removing checkpoints. See checkpoint.h.
 *
 * The order is what keeps the promise: files synced, manifest last, folder synced, one rename,
 * parent synced, and only then is anything removed. Whenever the process ends, each name
 * checkpoint-N shows a whole folder, the old one or the new one. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/checkpoint_names.h"

typedef struct file_record {
    char *name;
    uint64_t hash, size;
} file_record;

struct hy_checkpoint {
    int64_t step;
    char parent[PATH_MAX], partial[PATH_MAX], final[PATH_MAX], old[PATH_MAX];
    char path[PATH_MAX]; /* what hy_checkpoint_path gave out last */
    file_record *files;
    size_t count, capacity;
    bool holds_old; /* the partial folder holds the old checkpoint, and it may still be needed */
};

/* ---- beginning ------------------------------------------------------------------------------- */

/* Removes what an interrupted save left. */
static hy_status sweep(const char *parent) {
    HY_TRY(hy_checkpoint_restore_old(parent));
    char **names, path[PATH_MAX];
    size_t count;
    HY_TRY(hy_dir_list(parent, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        int64_t step;
        if (!hy_checkpoint_parse_name(names[i], HY_CHECKPOINT_PARTIAL, &step) &&
            !hy_checkpoint_parse_name(names[i], HY_CHECKPOINT_OLD, &step)) {
            continue;
        }
        status = hy_path_join(path, sizeof path, parent, names[i]);
        if (status == HY_OK) status = hy_dir_remove(path);
    }
    hy_dir_list_free(names, count);
    return status;
}

static hy_status prepare(hy_checkpoint *c, const char *parent, int64_t step) {
    c->step = step;
    if (step < 0) return hy_fail(HY_ERR_INPUT, "checkpoint step %" PRId64 " is negative", step);
    HY_TRY(hy_path_join(c->parent, sizeof c->parent, "", parent));
    HY_TRY(hy_checkpoint_make_name(c->partial, parent, step, HY_CHECKPOINT_PARTIAL));
    HY_TRY(hy_checkpoint_make_name(c->old, parent, step, HY_CHECKPOINT_OLD));
    HY_TRY(hy_checkpoint_make_name(c->final, parent, step, ""));
    HY_FAIL_IF(hy_path_exists(c->final) && !hy_path_is_dir(c->final), HY_ERR_INPUT,
               "cannot write checkpoint %s: a file of that name is there", c->final);
    HY_TRY(sweep(parent));
    if (hy_disk_mkdir(c->partial) != 0) return hy_fail_path("cannot make folder", c->partial);
    return HY_OK;
}

static void free_checkpoint(hy_checkpoint *c) {
    for (size_t i = 0; i < c->count; i++) free(c->files[i].name);
    free(c->files);
    free(c);
}

hy_status hy_checkpoint_begin(const char *parent, int64_t step, hy_checkpoint **out) {
    *out = NULL;
    hy_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return hy_fail(HY_ERR_MEMORY, "out of memory for a checkpoint in %s", parent);
    hy_status status = prepare(c, parent, step);
    if (status != HY_OK) {
        free_checkpoint(c);
        return status;
    }
    *out = c;
    return HY_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

const char *hy_checkpoint_path(hy_checkpoint *c, const char *name) {
    /* A name too long leaves "": opening that fails by itself. */
    if (hy_path_join(c->path, sizeof c->path, c->partial, name) != HY_OK) c->path[0] = '\0';
    return c->path;
}

hy_status hy_checkpoint_add(hy_checkpoint *c, const char *name, uint64_t hash, uint64_t size) {
    /* A file that is not what its writer says would make a checkpoint that never loads. */
    HY_FAIL_IF(!hy_checkpoint_is_file_name(name), HY_ERR_INPUT,
               "%s: \"%.100s\" cannot be the name of a file in a checkpoint", c->partial, name);
    for (size_t i = 0; i < c->count; i++) {
        if (strcmp(c->files[i].name, name) != 0) continue;
        return hy_fail(HY_ERR_STATE, "%s: file %s was added twice", c->partial, name);
    }
    struct stat info;
    char path[PATH_MAX];
    HY_TRY(hy_path_join(path, sizeof path, c->partial, name));
    if (stat(path, &info) != 0) return hy_fail_path("cannot add to the checkpoint", path);
    HY_FAIL_IF(!S_ISREG(info.st_mode) || (uint64_t)info.st_size != size, HY_ERR_STATE,
               "%s: added with %" PRIu64 " bytes, but the file has %lld", path, size,
               (long long)info.st_size);
    HY_TRY(hy_array_reserve(&c->files, &c->capacity, c->count + 1, sizeof *c->files, c->final));
    char *copy = strdup(name);
    if (!copy) return hy_fail(HY_ERR_MEMORY, "out of memory for checkpoint %s", c->final);
    c->files[c->count++] = (file_record){.name = copy, .hash = hash, .size = size};
    return HY_OK;
}

/* Writes and syncs a file of the partial folder. */
static hy_status write_file(hy_checkpoint *c, const char *name, const void *data, size_t size) {
    char path[PATH_MAX];
    hy_writer *w;
    HY_TRY(hy_path_join(path, sizeof path, c->partial, name));
    HY_TRY(hy_writer_create(path, &w));
    hy_status put = hy_writer_put(w, data, size);
    hy_status closed = hy_writer_close(w, true);
    return put != HY_OK ? put : closed;
}

hy_status hy_checkpoint_put(hy_checkpoint *c, const char *name, const void *data, size_t size) {
    HY_FAIL_IF(!hy_checkpoint_is_file_name(name), HY_ERR_INPUT,
               "%s: \"%.100s\" cannot be the name of a file in a checkpoint", c->partial, name);
    HY_TRY(write_file(c, name, data, size));
    return hy_checkpoint_add(c, name, hy_hash_bytes(data, size, 0), size);
}

/* ---- committing ------------------------------------------------------------------------------ */

static hy_status write_manifest(hy_checkpoint *c) {
    hy_text text = {0};
    hy_json_writer json;
    hy_json_begin(&json, &text, true);
    hy_json_open_object(&json, NULL);
    hy_json_put_string(&json, "format", HY_CHECKPOINT_FORMAT);
    hy_json_put_int(&json, "version", HY_CHECKPOINT_VERSION);
    hy_json_put_int(&json, "step", c->step);
    hy_json_open_array(&json, "files");
    for (size_t i = 0; i < c->count; i++) {
        char hash[17];
        snprintf(hash, sizeof hash, "%016" PRIx64, c->files[i].hash);
        hy_json_open_object(&json, NULL);
        hy_json_put_string(&json, "name", c->files[i].name);
        hy_json_put_int(&json, "bytes", (int64_t)c->files[i].size);
        hy_json_put_string(&json, "xxh64", hash);
        hy_json_close_object(&json);
    }
    hy_json_close_array(&json);
    hy_json_close_object(&json);
    hy_text_add(&text, "\n");
    hy_status status = hy_text_status(&text);
    if (status == HY_OK) status = write_file(c, HY_CHECKPOINT_MANIFEST, text.data, text.size);
    hy_text_free(&text);
    return status;
}

/* The name is free: one rename. If it cannot be made durable it is taken back, so that a failure
 * always means "not there". */
static hy_status publish_new(hy_checkpoint *c) {
    HY_TRY(hy_path_rename(c->partial, c->final));
    hy_status status = hy_dir_sync(c->parent);
    if (status != HY_OK) hy_disk_rename(c->final, c->partial);
    return status;
}

/* Without an exchange nothing has the name for a moment; the .old beside it says so. */
static hy_status publish_in_two_steps(hy_checkpoint *c) {
    HY_TRY(hy_path_rename(c->final, c->old));
    hy_status status = hy_path_rename(c->partial, c->final);
    if (status == HY_OK) {
        status = hy_dir_sync(c->parent);
        if (status != HY_OK) hy_disk_rename(c->final, c->partial);
    }
    if (status != HY_OK) {
        hy_disk_rename(c->old, c->final);
        return status;
    }
    hy_dir_remove(c->old); /* if this fails, the next begin does it */
    return HY_OK;
}

static hy_status publish_over_old(hy_checkpoint *c) {
    if (hy_disk_exchange(c->partial, c->final) != 0) {
        bool is_lacking = errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
        if (is_lacking) return publish_in_two_steps(c);
        hy_status status = hy_fail_path("cannot swap with", c->final);
        return hy_fail_context(status, "%s", c->partial);
    }
    hy_status status = hy_dir_sync(c->parent);
    /* Not durable: until it is, the old one must not be removed. Swap back, or leave both. */
    if (status != HY_OK) c->holds_old = hy_disk_exchange(c->partial, c->final) != 0;
    return status;
}

hy_status hy_checkpoint_commit(hy_checkpoint *c) {
    hy_status status = write_manifest(c);
    if (status == HY_OK) status = hy_dir_sync(c->partial);
    if (status == HY_OK) {
        status = hy_path_exists(c->final) ? publish_over_old(c) : publish_new(c);
    }
    char message[HY_ERROR_MESSAGE_MAX];
    snprintf(message, sizeof message, "%s", hy_error_message());
    /* What is there now is the failed new one, or the old one after a swap. */
    if (!c->holds_old) hy_dir_remove(c->partial);
    if (status != HY_OK) hy_fail(status, "checkpoint of step %" PRId64 ": %s", c->step, message);
    free_checkpoint(c);
    return status;
}

void hy_checkpoint_abort(hy_checkpoint *c) {
    if (!c) return;
    hy_dir_remove(c->partial);
    free_checkpoint(c);
}

/* ---- pruning --------------------------------------------------------------------------------- */

/* One checkpoint in a folder. */
typedef struct found {
    int64_t step;
    struct timespec written;
} found;

static int compare_steps(const void *a, const void *b) { /* newest first */
    const found *x = a, *y = b;
    return x->step < y->step ? 1 : x->step > y->step ? -1 : 0;
}

static bool is_later(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

/* Removes one checkpoint: first its name, then its files, so that half of it is never seen. */
static hy_status remove_checkpoint(const char *parent, int64_t step) {
    char path[PATH_MAX], going[PATH_MAX];
    HY_TRY(hy_checkpoint_make_name(path, parent, step, ""));
    HY_TRY(hy_checkpoint_make_name(going, parent, step, HY_CHECKPOINT_PARTIAL));
    HY_TRY(hy_dir_remove(going));
    HY_TRY(hy_path_rename(path, going));
    return hy_dir_remove(going);
}

static hy_status remove_all_but(const char *parent, int keep, found *all, size_t count) {
    qsort(all, count, sizeof *all, compare_steps);
    size_t last = 0;
    for (size_t i = 1; i < count; i++) {
        if (is_later(all[i].written, all[last].written)) last = i;
    }
    for (size_t i = (size_t)keep; i < count; i++) {
        if (i != last) HY_TRY(remove_checkpoint(parent, all[i].step));
    }
    return HY_OK;
}

/* When a checkpoint was committed: its manifest is its last file. */
static struct timespec time_written(const char *parent, const char *name) {
    char folder[PATH_MAX], path[PATH_MAX];
    struct stat info = {0};
    if (hy_path_join(folder, sizeof folder, parent, name) == HY_OK &&
        hy_path_join(path, sizeof path, folder, HY_CHECKPOINT_MANIFEST) == HY_OK &&
        stat(path, &info) == 0) {
        return info.st_mtim;
    }
    return (struct timespec){0};
}

hy_status hy_checkpoint_prune(const char *parent, int keep) {
    if (keep <= 0) return HY_OK;
    char **names;
    size_t count, used = 0;
    HY_TRY(hy_dir_list(parent, &names, &count));
    found *all = calloc(count + 1, sizeof *all);
    for (size_t i = 0; i < count && all; i++) {
        if (!hy_checkpoint_parse_name(names[i], "", &all[used].step)) continue;
        all[used++].written = time_written(parent, names[i]);
    }
    hy_status status = all ? remove_all_but(parent, keep, all, used)
                           : hy_fail(HY_ERR_MEMORY, "out of memory listing %s", parent);
    free(all);
    hy_dir_list_free(names, count);
    return status;
}
