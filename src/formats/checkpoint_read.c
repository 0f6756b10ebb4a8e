/* checkpoint_read.c: finding checkpoints and checking their manifests. See checkpoint.h.
 *
 * A folder counts only if its manifest is well-formed and every file it lists is there with the
 * right size and, where asked, the right hash. Other files are the user's business. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "formats/checkpoint.h"
#include "formats/checkpoint_names.h"

/* ---- names ----------------------------------------------------------------------------------- */

#define STEM "checkpoint-"

bool hy_checkpoint_parse_name(const char *name, const char *suffix, int64_t *step) {
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

hy_status hy_checkpoint_make_name(char path[PATH_MAX], const char *parent, int64_t step,
                                  const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "%s" STEM "%" PRId64 "%s", *suffix ? "." : "", step, suffix);
    return hy_path_join(path, PATH_MAX, parent, name);
}

bool hy_checkpoint_is_file_name(const char *name) {
    return *name && strlen(name) <= NAME_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0 && strcmp(name, HY_CHECKPOINT_MANIFEST) != 0;
}

hy_status hy_checkpoint_restore_old(const char *parent) {
    char **names;
    size_t count;
    HY_TRY(hy_dir_list(parent, &names, &count));
    hy_status status = HY_OK;
    for (size_t i = 0; i < count && status == HY_OK; i++) {
        int64_t step;
        char old[PATH_MAX], final[PATH_MAX];
        if (!hy_checkpoint_parse_name(names[i], HY_CHECKPOINT_OLD, &step)) continue;
        status = hy_path_join(old, sizeof old, parent, names[i]);
        if (status == HY_OK) status = hy_checkpoint_make_name(final, parent, step, "");
        if (status == HY_OK && !hy_path_exists(final)) status = hy_path_rename(old, final);
    }
    hy_dir_list_free(names, count);
    return status;
}

/* ---- checking -------------------------------------------------------------------------------- */

/* Sixteen hexadecimal digits and nothing else. */
static bool parse_hash(const char *text, uint64_t *hash) {
    *hash = 0;
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *hash = strtoull(text, NULL, 16);
    return true;
}

static hy_status check_size(const char *path, uint64_t expected) {
    struct stat info;
    HY_FAIL_IF(stat(path, &info) != 0 && errno == ENOENT, HY_ERR_INPUT, "%s is missing", path);
    if (stat(path, &info) != 0) return hy_fail_path("cannot read", path);
    if (!S_ISREG(info.st_mode)) return hy_fail(HY_ERR_INPUT, "%s is not a regular file", path);
    if ((uint64_t)info.st_size == expected) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "%s has %lld bytes, the manifest says %" PRIu64, path,
                   (long long)info.st_size, expected);
}

static hy_status check_hash(const char *path, uint64_t expected) {
    uint64_t hash;
    HY_TRY(hy_file_hash(path, &hash, NULL));
    if (hash == expected) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s is damaged: its hash is %016" PRIx64 ", the manifest says %016" PRIx64, path,
                   hash, expected);
}

static hy_status check_listed_file(const char *folder, const hy_json *manifest,
                                   const hy_json_node *file, bool with_hashes) {
    const char *name, *hex;
    size_t name_size;
    int64_t bytes;
    uint64_t hash;
    char path[PATH_MAX];
    HY_TRY(hy_json_string(manifest, file, "name", &name, &name_size));
    HY_TRY(hy_json_int(manifest, file, "bytes", &bytes));
    HY_TRY(hy_json_string(manifest, file, "xxh64", &hex, NULL));
    HY_FAIL_IF(strlen(name) != name_size || !hy_checkpoint_is_file_name(name), HY_ERR_INPUT,
               "%s/%s: \"%.100s\" is not a file name", folder, HY_CHECKPOINT_MANIFEST, name);
    HY_FAIL_IF(bytes < 0 || !parse_hash(hex, &hash), HY_ERR_INPUT,
               "%s/%s: size or hash of %s is malformed", folder, HY_CHECKPOINT_MANIFEST, name);
    HY_TRY(hy_path_join(path, sizeof path, folder, name));
    HY_TRY(check_size(path, (uint64_t)bytes));
    return with_hashes ? check_hash(path, hash) : HY_OK;
}

static hy_status check_against(const char *folder, const hy_json *manifest, bool with_hashes) {
    const hy_json_node *root = hy_json_root(manifest);
    const char *format;
    int64_t version, step, named_step;
    HY_TRY(hy_json_string(manifest, root, "format", &format, NULL));
    HY_TRY(hy_json_int(manifest, root, "version", &version));
    HY_TRY(hy_json_int(manifest, root, "step", &step));
    HY_FAIL_IF(
        strcmp(format, HY_CHECKPOINT_FORMAT) != 0 || version != HY_CHECKPOINT_VERSION, HY_ERR_INPUT,
        "%s/%s: format \"%.60s\" version %" PRId64 ", expected \"%s\" version %d", folder,
        HY_CHECKPOINT_MANIFEST, format, version, HY_CHECKPOINT_FORMAT, HY_CHECKPOINT_VERSION);
    char name[NAME_MAX + 1];
    /* The last part of a path: "a/b/" gives "b". */
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && folder[start - 1] != '/') start--;
    snprintf(name, sizeof name, "%.*s", (int)(end - start), folder + start);
    HY_FAIL_IF(hy_checkpoint_parse_name(name, "", &named_step) && named_step != step, HY_ERR_INPUT,
               "%s: the manifest is of step %" PRId64, folder, step);
    const hy_json_node *files = hy_json_get(hy_json_root(manifest), "files");
    HY_FAIL_IF(!files || hy_json_type_of(files) != HY_JSON_ARRAY, HY_ERR_INPUT,
               "%s/%s: \"files\" is missing or not an array", folder, HY_CHECKPOINT_MANIFEST);
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
    HY_TRY(hy_path_join(manifest_path, sizeof manifest_path, path, HY_CHECKPOINT_MANIFEST));
    HY_FAIL_IF(!hy_path_exists(manifest_path), HY_ERR_INPUT, "%s is not a checkpoint: it has no %s",
               path, HY_CHECKPOINT_MANIFEST);
    HY_TRY(hy_json_read_file(manifest_path, &manifest));
    hy_status status = check_against(path, manifest, with_hashes);
    hy_json_free(manifest);
    return status;
}

/* ---- finding --------------------------------------------------------------------------------- */

static int compare_steps(const void *a, const void *b) { /* newest first */
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Steps of all folders with a checkpoint's name, newest first; freed by the caller. */
static hy_status list_steps(const char *parent, int64_t **steps, size_t *count) {
    char **names;
    size_t name_count;
    *count = 0;
    HY_TRY(hy_dir_list(parent, &names, &name_count));
    *steps = calloc(name_count + 1, sizeof **steps);
    for (size_t i = 0; i < name_count && *steps; i++) {
        if (hy_checkpoint_parse_name(names[i], "", &(*steps)[*count])) ++*count;
    }
    hy_dir_list_free(names, name_count);
    if (!*steps) return hy_fail(HY_ERR_MEMORY, "out of memory listing %s", parent);
    qsort(*steps, *count, sizeof **steps, compare_steps);
    return HY_OK;
}

static void note_failure(hy_text *notes) {
    if (notes) hy_text_addf(notes, "%s\n", hy_error_message());
}

/* The first of these that verifies; HY_ERR_INPUT with the last one's message when none does. */
static hy_status pick_whole(const char *parent, const int64_t *steps, size_t count,
                            char path[PATH_MAX], int64_t *step, hy_text *notes) {
    for (size_t i = 0; i < count; i++) {
        HY_TRY(hy_checkpoint_make_name(path, parent, steps[i], ""));
        hy_status status = hy_checkpoint_verify(path, true);
        if (status == HY_OK) *step = steps[i];
        if (status == HY_OK || status == HY_ERR_MEMORY) return status; /* no memory is no damage */
        note_failure(notes);
    }
    if (count == 0) return hy_fail(HY_ERR_INPUT, "no checkpoint in %s", parent);
    return hy_fail_context(HY_ERR_INPUT, "none of the %zu checkpoints in %s is whole; the oldest",
                           count, parent);
}

hy_status hy_checkpoint_latest(const char *parent, char *path, size_t path_size, int64_t *step,
                               struct hy_text *notes) {
    int64_t *steps, found_step = 0;
    size_t count;
    char found[PATH_MAX];
    /* On a read-only disk this fails; what can be read is still worth reading. */
    if (hy_path_is_dir(parent) && hy_checkpoint_restore_old(parent) != HY_OK) note_failure(notes);
    HY_TRY(list_steps(parent, &steps, &count));
    hy_status status = pick_whole(parent, steps, count, found, &found_step, notes);
    free(steps);
    if (status == HY_OK) status = hy_path_join(path, path_size, "", found);
    if (status == HY_OK && step) *step = found_step;
    return status;
}
