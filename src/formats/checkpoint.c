/* checkpoint.c: creates, replaces, removes, finds and checks checkpoints. See checkpoint.h.
 *
 * The order of steps makes a save atomic: files synced, manifest last, folder synced, one
 * rename, parent synced, and only then is anything removed. Whenever the process ends, each name
 * checkpoint-N is a complete folder, old or new; unfinished folders begin with a dot and are
 * never read. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
#include "base/json.h"
#include "formats/branches.h"
#include "formats/checkpoint.h"

#define FORMAT "hybrid-train checkpoint"
#define VERSION 1
#define MANIFEST "manifest.json"
#define PARTIAL ".partial"
#define OLD ".old"

/* ---- names ----------------------------------------------------------------------------------- */

#define STEM "checkpoint-"

/* Is `name` checkpoint-N with this suffix (".partial" and ".old" also have a leading dot)? */
static bool parse_name(const char *name, const char *suffix, int64_t *step) {
    if (*suffix && *name++ != '.') return false;
    if (strncmp(name, STEM, strlen(STEM)) != 0) return false;
    const char *digits = name + strlen(STEM), *p = digits;
    int64_t value = 0;
    for (; *p >= '0' && *p <= '9' && p - digits < 18; p++) value = value * 10 + (*p - '0');
    bool is_number = p > digits && (*digits != '0' || p == digits + 1); /* 7, not 07 */
    if (!is_number || strcmp(p, suffix) != 0) return false;
    *step = value;
    return true;
}

/* PARENT/checkpoint-N, or PARENT/.checkpoint-N.SUFFIX. */
static hy_status make_name(char path[PATH_MAX], const char *parent, int64_t step,
                           const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "%s" STEM "%" PRId64 "%s", *suffix ? "." : "", step, suffix);
    return hy_path_join(path, PATH_MAX, parent, name);
}

/* A valid name in a manifest: a file inside the folder, and not the manifest itself. */
static bool is_file_name(const char *name) {
    return *name && strlen(name) <= NAME_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0 && strcmp(name, MANIFEST) != 0;
}

/* Cleans up after an interrupted save. An .old folder gets its name back if that is free: a swap
 * in two steps was interrupted. With `sweeps`, all other leftovers are removed. */
static hy_status restore(const char *parent, bool sweeps) {
    char **names;
    size_t count;
    HY_TRY(hy_dir_list(parent, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        int64_t step;
        char path[PATH_MAX], final[PATH_MAX];
        bool is_old = parse_name(names[i], OLD, &step);
        if (!is_old && !(sweeps && parse_name(names[i], PARTIAL, &step))) continue;
        status = hy_path_join(path, sizeof path, parent, names[i]);
        if (status == HY_OK) status = make_name(final, parent, step, "");
        if (status != HY_OK) break;
        if (is_old && !hy_path_exists(final)) {
            status = hy_path_rename(path, final);
        } else if (sweeps) {
            /* a folder that cannot be removed only blocks its own step */
            (void)hy_dir_remove(path);
        }
    }
    hy_dir_list_free(names, count);
    return status;
}

static int compare_steps(const void *a, const void *b) { /* newest first */
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The branch of a checkpoint; 0 if its manifest does not say. */
static hy_status branch_of(const char *folder, int64_t *branch) {
    char path[PATH_MAX];
    hy_json *manifest;
    *branch = -1;
    HY_TRY(hy_path_join(path, sizeof path, folder, MANIFEST));
    HY_TRY(hy_json_read_file(path, &manifest));
    *branch = 0;
    (void)hy_json_as_int(hy_json_get(hy_json_root(manifest), "branch"), branch);
    hy_json_free(manifest);
    return HY_OK;
}

/* A checkpoint with an unreadable manifest counts as current: the check reports the damage. */
static hy_status look_up(const hy_branches *branches, const char *parent, int64_t step,
                         bool *is_current) {
    char path[PATH_MAX];
    int64_t branch;
    HY_TRY(make_name(path, parent, step, ""));
    hy_status status = branch_of(path, &branch);
    *is_current = status != HY_OK || hy_branches_hold(branches, branch, step);
    return status == HY_ERR_MEMORY ? status : HY_OK; /* running out of memory is not damage */
}

/* The checkpoints of the current branch. */
typedef struct listing {
    int64_t *steps; /* newest first; the caller frees the list */
    size_t count;
    size_t others; /* checkpoints of abandoned branches */
} listing;

static hy_status list_current(const char *parent, listing *out) {
    char **names;
    size_t count;
    hy_branches branches;
    *out = (listing){0};
    HY_TRY(hy_dir_list(parent, &names, &count));
    hy_status status = hy_branches_read(parent, &branches);
    out->steps = calloc(count + 1, sizeof *out->steps);
    if (!out->steps) status = hy_fail(HY_ERR_MEMORY, "out of memory listing %s", parent);
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        int64_t step;
        bool is_current = true;
        if (!parse_name(names[i], "", &step)) continue;
        if (branches.current) status = look_up(&branches, parent, step, &is_current);
        if (is_current) out->steps[out->count++] = step;
        out->others += !is_current;
    }
    hy_branches_free(&branches);
    hy_dir_list_free(names, count);
    if (status == HY_OK) qsort(out->steps, out->count, sizeof *out->steps, compare_steps);
    if (status != HY_OK) free(out->steps);
    return status;
}

typedef struct file_record {
    char *name;
    uint64_t hash, size;
} file_record;

struct hy_checkpoint {
    int64_t step, branch;
    char parent[PATH_MAX], partial[PATH_MAX], final[PATH_MAX], old[PATH_MAX];
    char path[PATH_MAX]; /* the last result of hy_checkpoint_path */
    file_record *files;
    size_t count, capacity;
    bool holds_old; /* the partial folder holds the old checkpoint, which may still be needed */
};

/* ---- beginning ------------------------------------------------------------------------------- */

static hy_status prepare(hy_checkpoint *c, const char *parent, int64_t step) {
    c->step = step;
    if (step < 0) return hy_fail(HY_ERR_INPUT, "checkpoint step %" PRId64 " is negative", step);
    HY_TRY(hy_path_join(c->parent, sizeof c->parent, "", parent));
    HY_TRY(make_name(c->partial, parent, step, PARTIAL));
    HY_TRY(make_name(c->old, parent, step, OLD));
    HY_TRY(make_name(c->final, parent, step, ""));
    HY_FAIL_IF(hy_path_exists(c->final) && !hy_path_is_dir(c->final), HY_ERR_INPUT,
               "cannot write checkpoint %s: a file with that name exists", c->final);
    HY_TRY(restore(parent, true));
    hy_branches branches;
    HY_TRY(hy_branches_read(parent, &branches));
    c->branch = branches.current;
    hy_branches_free(&branches);
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
    if (status == HY_OK) *out = c;
    if (status != HY_OK) free_checkpoint(c);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

const char *hy_checkpoint_path(hy_checkpoint *c, const char *name) {
    /* A name that is too long becomes "", and opening that fails. */
    if (hy_path_join(c->path, sizeof c->path, c->partial, name) != HY_OK) c->path[0] = '\0';
    return c->path;
}

hy_status hy_checkpoint_add(hy_checkpoint *c, const char *name, uint64_t hash, uint64_t size) {
    /* A wrong size would make a checkpoint that never loads. */
    HY_FAIL_IF(!is_file_name(name), HY_ERR_INPUT,
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
    HY_FAIL_IF(!is_file_name(name), HY_ERR_INPUT,
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
    hy_json_put_string(&json, "format", FORMAT);
    hy_json_put_int(&json, "version", VERSION);
    hy_json_put_int(&json, "step", c->step);
    hy_json_put_int(&json, "branch", c->branch);
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
    if (status == HY_OK) status = write_file(c, MANIFEST, text.data, text.size);
    hy_text_free(&text);
    return status;
}

/* The name is free: one rename. If it cannot be made durable it is undone, so a failure always
 * means "not saved". */
static hy_status publish_new(hy_checkpoint *c) {
    HY_TRY(hy_path_rename(c->partial, c->final));
    hy_status status = hy_dir_sync(c->parent);
    if (status != HY_OK) hy_disk_rename(c->final, c->partial);
    return status;
}

/* Without an atomic exchange the name is missing for a moment; the .old folder shows that. */
static hy_status publish_in_two_steps(hy_checkpoint *c) {
    HY_TRY(hy_path_rename(c->final, c->old));
    hy_status status = publish_new(c);
    if (status != HY_OK) hy_disk_rename(c->old, c->final);
    if (status == HY_OK) hy_dir_remove(c->old); /* if this fails, the next begin repeats it */
    return status;
}

static hy_status publish_over_old(hy_checkpoint *c) {
    if (hy_disk_exchange(c->partial, c->final) != 0) {
        bool is_lacking = errno == EINVAL || errno == ENOSYS || errno == ENOTSUP;
        if (is_lacking) return publish_in_two_steps(c);
        hy_status status = hy_fail_path("cannot swap with", c->final);
        return hy_fail_context(status, "%s", c->partial);
    }
    hy_status status = hy_dir_sync(c->parent);
    /* If the swap is not durable, the old one must not be removed: swap back, or keep both. */
    if (status != HY_OK) c->holds_old = hy_disk_exchange(c->partial, c->final) != 0;
    return status;
}

/* A checkpoint of this step from another branch is not replaced: it becomes
 * checkpoint-N.branch-B. */
static hy_status set_aside(const hy_checkpoint *c) {
    char aside[PATH_MAX + 32];
    hy_branches branches;
    int64_t branch = -1;
    hy_status status = hy_path_exists(c->final) ? branch_of(c->final, &branch) : HY_OK;
    if (status == HY_ERR_MEMORY || status == HY_ERR_IO) return status; /* it may be complete */
    if (branch < 0 || branch == c->branch) return HY_OK;
    HY_TRY(hy_branches_read(c->parent, &branches));
    bool is_left = !hy_branches_hold(&branches, branch, c->step);
    hy_branches_free(&branches);
    snprintf(aside, sizeof aside, "%s.branch-%" PRId64, c->final, branch);
    if (!is_left || hy_path_exists(aside)) return HY_OK;
    if (hy_checkpoint_verify(c->final, false) != HY_OK)
        return HY_OK; /* damaged: it may be replaced */
    return hy_path_rename(c->final, aside);
}

hy_status hy_checkpoint_commit(hy_checkpoint *c) {
    hy_status status = write_manifest(c);
    if (status == HY_OK) status = hy_dir_sync(c->partial);
    if (status == HY_OK) status = set_aside(c);
    if (status == HY_OK) {
        status = hy_path_exists(c->final) ? publish_over_old(c) : publish_new(c);
    }
    hy_error error;
    hy_error_save(&error, status);
    /* This removes the failed new folder, or the old one after a swap. */
    if (!c->holds_old) hy_dir_remove(c->partial);
    if (hy_error_restore(&error) != HY_OK) {
        (void)hy_fail_context(status, "checkpoint of step %" PRId64, c->step);
    }
    free_checkpoint(c);
    return status;
}

void hy_checkpoint_abort(hy_checkpoint *c) {
    if (!c) return;
    hy_dir_remove(c->partial);
    free_checkpoint(c);
}

/* ---- pruning --------------------------------------------------------------------------------- */

/* Removes one checkpoint: first its name, then its files, so nobody sees a partial one. */
static hy_status remove_checkpoint(const char *parent, int64_t step) {
    char path[PATH_MAX], going[PATH_MAX];
    HY_TRY(make_name(path, parent, step, ""));
    HY_TRY(make_name(going, parent, step, PARTIAL));
    HY_TRY(hy_dir_remove(going));
    HY_TRY(hy_path_rename(path, going));
    hy_status status = hy_dir_remove(going);
    /* A complete one that cannot be removed gets its name back. */
    if (status != HY_OK && hy_checkpoint_verify(going, false) == HY_OK) {
        hy_error error;
        hy_error_save(&error, status);
        (void)hy_path_rename(going, path);
        return hy_error_restore(&error);
    }
    return status;
}

hy_status hy_checkpoint_is_current(const char *parent, int64_t step, bool *out) {
    listing list;
    *out = false;
    HY_TRY(list_current(parent, &list));
    for (size_t i = 0; i < list.count; i++) *out |= list.steps[i] == step;
    free(list.steps);
    return HY_OK;
}

hy_status hy_checkpoint_put_best(const char *parent, int64_t step) {
    char path[PATH_MAX], name[64];
    HY_TRY(hy_path_join(path, sizeof path, parent, HY_BEST));
    if (step < 0) {
        ssize_t size = readlink(path, name, sizeof name); /* not terminated */
        bool is_ours = size > (ssize_t)strlen(STEM) && memcmp(name, STEM, strlen(STEM)) == 0;
        if (!is_ours || hy_disk_unlink_at(AT_FDCWD, path, 0) == 0) return HY_OK;
        return hy_fail_path("cannot remove", path);
    }
    snprintf(name, sizeof name, STEM "%" PRId64, step);
    return hy_link_put(path, name);
}

/* The steps to remove; the caller frees the list. */
static hy_status choose_gone(const char *parent, int keep, int64_t spared, listing *gone) {
    listing list;
    size_t last = 0;
    struct timespec latest = {0};
    *gone = (listing){0};
    if (keep <= 0) return HY_OK;
    HY_TRY(list_current(parent, &list));
    for (size_t i = 0; i < list.count;
         i++) { /* the time of the commit: the manifest is written last */
        char folder[PATH_MAX], path[PATH_MAX];
        struct stat info = {0};
        bool is_known = make_name(folder, parent, list.steps[i], "") == HY_OK &&
                        hy_path_join(path, sizeof path, folder, MANIFEST) == HY_OK &&
                        stat(path, &info) == 0;
        struct timespec t = info.st_mtim;
        bool is_later =
            t.tv_sec != latest.tv_sec ? t.tv_sec > latest.tv_sec : t.tv_nsec > latest.tv_nsec;
        if (!is_known || !is_later) continue;
        last = i;
        latest = t;
    }
    gone->steps = list.steps; /* the steps to remove move up in the list */
    for (size_t i = (size_t)keep; i < list.count; i++) {
        bool stays = i == last || list.steps[i] == spared;
        if (!stays) gone->steps[gone->count++] = list.steps[i];
    }
    return HY_OK;
}

static hy_status add_bytes(const char *parent, int64_t step, uint64_t *bytes) {
    char **names, folder[PATH_MAX], path[PATH_MAX];
    size_t count;
    struct stat info;
    HY_TRY(make_name(folder, parent, step, ""));
    HY_TRY(hy_dir_list(folder, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        status = hy_path_join(path, sizeof path, folder, names[i]);
        if (status == HY_OK && lstat(path, &info) == 0) *bytes += (uint64_t)info.st_blocks * 512;
    }
    hy_dir_list_free(names, count);
    return status;
}

/* Removes checkpoints; with `bytes`, only adds up their bytes on the disk. */
static hy_status prune(const char *parent, int keep, int64_t spared, uint64_t *bytes) {
    listing gone;
    HY_TRY(choose_gone(parent, keep, spared, &gone));
    hy_status status = HY_OK;
    for (size_t i = 0; i < gone.count && status == HY_OK; i++) {
        status = bytes ? add_bytes(parent, gone.steps[i], bytes)
                       : remove_checkpoint(parent, gone.steps[i]);
    }
    free(gone.steps);
    return status;
}

hy_status hy_checkpoint_prune(const char *parent, int keep, int64_t spared) {
    return prune(parent, keep, spared, NULL);
}

hy_status hy_checkpoint_prunable(const char *parent, int keep, int64_t spared, uint64_t *bytes) {
    *bytes = 0;
    return prune(parent, keep, spared, bytes);
}

/* ---- checking -------------------------------------------------------------------------------- */

/* A folder counts only if its manifest is well-formed and every listed file exists with the
 * right size and, if requested, the right hash. Other files are ignored. */

static hy_status check_listed_file(const char *folder, const hy_json *manifest,
                                   const hy_json_node *file, bool with_hashes) {
    const char *name, *hex;
    size_t name_size;
    int64_t bytes;
    uint64_t hash;
    char path[PATH_MAX];
    struct stat info;
    HY_TRY(hy_json_string(manifest, file, "name", &name, &name_size));
    HY_TRY(hy_json_int(manifest, file, "bytes", &bytes));
    HY_TRY(hy_json_string(manifest, file, "xxh64", &hex, NULL));
    HY_FAIL_IF(strlen(name) != name_size || !is_file_name(name), HY_ERR_INPUT,
               "%s/%s: \"%.100s\" is not a file name", folder, MANIFEST, name);
    bool is_hash = strlen(hex) == 16 && strspn(hex, "0123456789abcdef") == 16;
    HY_FAIL_IF(bytes < 0 || !is_hash, HY_ERR_INPUT, "%s/%s: size or hash of %s is malformed",
               folder, MANIFEST, name);
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    bool is_there = stat(path, &info) == 0;
    HY_FAIL_IF(!is_there && errno == ENOENT, HY_ERR_INPUT, "%s is missing", path);
    if (!is_there) return hy_fail_path("cannot read", path);
    HY_FAIL_IF(!S_ISREG(info.st_mode), HY_ERR_INPUT, "%s is not a regular file", path);
    HY_FAIL_IF(info.st_size != bytes, HY_ERR_INPUT,
               "%s has %lld bytes, but the manifest says %" PRId64, path, (long long)info.st_size,
               bytes);
    if (!with_hashes) return HY_OK;
    uint64_t expected = strtoull(hex, NULL, 16);
    HY_TRY(hy_file_hash(path, &hash, NULL));
    HY_FAIL_IF(hash != expected, HY_ERR_INPUT,
               "%s is damaged: its hash is %016" PRIx64 ", but the manifest says %016" PRIx64, path,
               hash, expected);
    return HY_OK;
}

static hy_status check_against(const char *folder, const hy_json *manifest, bool with_hashes) {
    const hy_json_node *root = hy_json_root(manifest), *files = hy_json_get(root, "files");
    const char *format;
    int64_t version, step, named_step;
    HY_TRY(hy_json_string(manifest, root, "format", &format, NULL));
    HY_TRY(hy_json_int(manifest, root, "version", &version));
    HY_TRY(hy_json_int(manifest, root, "step", &step));
    HY_FAIL_IF(strcmp(format, FORMAT) != 0 || version != VERSION, HY_ERR_INPUT,
               "%s/%s: format \"%.60s\" version %" PRId64 ", expected \"%s\" version %d", folder,
               MANIFEST, format, version, FORMAT, VERSION);
    char name[NAME_MAX + 1];
    /* The last part of a path: "a/b/" gives "b". */
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && folder[start - 1] != '/') start--;
    snprintf(name, sizeof name, "%.*s", (int)(end - start), folder + start);
    HY_FAIL_IF(parse_name(name, "", &named_step) && named_step != step, HY_ERR_INPUT,
               "%s: the manifest is of step %" PRId64, folder, step);

    HY_FAIL_IF(hy_json_type_of(files) != HY_JSON_ARRAY, HY_ERR_INPUT,
               "%s/%s: \"files\" is missing or not an array", folder, MANIFEST);
    for (const hy_json_node *f = hy_json_first(files); f; f = hy_json_next(f)) {
        HY_TRY(check_listed_file(folder, manifest, f, with_hashes));
    }
    return HY_OK;
}

hy_status hy_checkpoint_verify(const char *path, bool with_hashes) {
    char manifest_path[PATH_MAX];
    hy_json *manifest;
    HY_FAIL_IF(!hy_path_is_dir(path), HY_ERR_INPUT,
               "%s is not a checkpoint: no folder of that name", path);
    HY_TRY(hy_path_join(manifest_path, sizeof manifest_path, path, MANIFEST));
    HY_FAIL_IF(!hy_path_exists(manifest_path), HY_ERR_INPUT, "%s is not a checkpoint: it has no %s",
               path, MANIFEST);
    HY_TRY(hy_json_read_file(manifest_path, &manifest));
    hy_status status = check_against(path, manifest, with_hashes);
    hy_json_free(manifest);
    return status;
}

/* ---- finding --------------------------------------------------------------------------------- */

static void note_failure(hy_text *notes) {
    if (notes) hy_text_addf(notes, "%s\n", hy_error_message());
}

/* The first in the list that verifies; HY_ERR_INPUT with the last message if none does. */
static hy_status pick_whole(const char *parent, const listing *list, bool with_hashes,
                            char path[PATH_MAX], int64_t *step, hy_text *notes) {
    for (size_t i = 0; i < list->count; i++) {
        HY_TRY(make_name(path, parent, list->steps[i], ""));
        hy_status status = hy_checkpoint_verify(path, with_hashes);
        *step = list->steps[i];
        if (status == HY_OK || status == HY_ERR_MEMORY) return status; /* not damaged */
        note_failure(notes);
    }
    HY_FAIL_IF(list->count == 0 && list->others > 0, HY_ERR_INPUT,
               "%s has no checkpoint of the current branch, but %zu of abandoned branches: "
               "name one to continue from it",
               parent, list->others);
    if (list->count == 0) return hy_fail(HY_ERR_INPUT, "no checkpoint in %s", parent);
    return hy_fail_context(HY_ERR_INPUT,
                           "none of the %zu checkpoints in %s is complete; the oldest", list->count,
                           parent);
}

static hy_status find_whole(const char *parent, bool with_hashes, char *path, size_t path_size,
                            int64_t *step, hy_text *notes) {
    listing list;
    char whole[PATH_MAX];
    int64_t found;
    HY_TRY(list_current(parent, &list));
    hy_status status = pick_whole(parent, &list, with_hashes, whole, &found, notes);
    free(list.steps);
    if (status == HY_OK) status = hy_path_join(path, path_size, "", whole);
    if (status == HY_OK && step) *step = found;
    return status;
}

hy_status hy_checkpoint_latest(const char *parent, char *path, size_t path_size, int64_t *step,
                               struct hy_text *notes) {
    /* On a read-only disk this fails; reading still works. */
    if (hy_path_is_dir(parent) && restore(parent, false) != HY_OK) note_failure(notes);
    return find_whole(parent, true, path, path_size, step, notes);
}

hy_status hy_checkpoint_peek(const char *parent, char *path, size_t path_size) {
    return find_whole(parent, false, path, path_size, NULL, NULL);
}

hy_status hy_checkpoint_newest(const char *parent, char *path, size_t path_size) {
    listing list;
    char newest[PATH_MAX], older[PATH_MAX];
    hy_status status = restore(parent, false); /* fails on a read-only disk */
    if (status == HY_ERR_MEMORY) return status;
    HY_TRY(list_current(parent, &list));
    if (list.count == 0) {
        status = pick_whole(parent, &list, true, newest, &(int64_t){0}, NULL);
    } else {
        status = make_name(newest, parent, list.steps[0], "");
        if (status == HY_OK) status = hy_checkpoint_verify(newest, true);
        bool is_damaged = status != HY_OK && status != HY_ERR_MEMORY && list.count > 1;
        if (is_damaged && make_name(older, parent, list.steps[1], "") == HY_OK) {
            status = hy_fail_context(
                status,
                "%s, the newest checkpoint, is not complete; to use the one before it, name %s",
                newest, older);
        }
    }
    free(list.steps);
    return status == HY_OK ? hy_path_join(path, path_size, "", newest) : status;
}

/* ---- going back ------------------------------------------------------------------------------ */

hy_status hy_checkpoint_go_on(const char *parent, const char *from, int64_t step,
                              struct hy_text *left) {
    char folder[PATH_MAX];
    struct stat ours, theirs;
    hy_branches branches;
    listing list;
    HY_TRY(hy_path_parent(folder, sizeof folder, from));
    bool is_here = stat(parent, &ours) == 0 && stat(folder, &theirs) == 0 &&
                   ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
    int64_t branch = -1;
    if (is_here) HY_TRY(branch_of(from, &branch));
    HY_TRY(list_current(parent, &list));
    hy_status status = hy_branches_read(parent, &branches);
    bool goes_on = status == HY_OK && is_here && hy_branches_hold(&branches, branch, step);
    bool is_newest = list.count == 0 || list.steps[0] <= step;
    bool begins = goes_on ? !is_newest : is_here || list.count > 0;
    if (status == HY_OK && begins) {
        status = hy_branches_begin(parent, &branches,
                                   (hy_branch){.parent = branch, .from = is_here ? step : -1});
    }
    for (size_t i = 0; status == HY_OK && begins && i < list.count; i++) {
        bool is_current = true;
        status = look_up(&branches, parent, list.steps[i], &is_current);
        if (is_current) continue;
        hy_text_addf(left, "%s" STEM "%" PRId64, left->size ? ", " : "", list.steps[i]);
    }
    free(list.steps);
    hy_branches_free(&branches);
    return status;
}
