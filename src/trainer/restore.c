/* restore.c: finding and reading a checkpoint, or its weights alone. See state_files.h.
 *
 * Names, shapes and types are all held against this run's model before the first tensor is loaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "trainer/state_files.h"

#define STAGING_BYTES (8u << 20)

static bool is_checkpoint_folder(const char *path) {
    char manifest[HY_PATH_MAX];
    return hy_path_join(manifest, sizeof manifest, path, "manifest.json") == HY_OK &&
           hy_path_exists(manifest);
}

hy_status hy_trainer_find_checkpoint(hy_trainer *t, const char *from, char path[HY_PATH_MAX]) {
    if (!hy_path_is_dir(from)) {
        return hy_fail(HY_ERR_INPUT, "no checkpoint: %s is not a folder", from);
    }
    if (is_checkpoint_folder(from)) {
        snprintf(path, HY_PATH_MAX, "%s", from);
        return hy_checkpoint_verify(path, true);
    }
    hy_text notes = {0};
    int64_t step;
    hy_status status = hy_checkpoint_latest(from, path, HY_PATH_MAX, &step, &notes);
    if (notes.size) hy_say(t, HY_WARNING, "%s", hy_text_string(&notes));
    hy_text_free(&notes);
    if (status != HY_OK) return hy_fail_context(status, "no checkpoint to begin from");
    return HY_OK;
}

static void describe_shape(const int64_t *shape, int ndim, char *out, size_t size) {
    if (ndim == 1)
        snprintf(out, size, "(%lld)", (long long)shape[0]);
    else
        snprintf(out, size, "(%lld, %lld)", (long long)shape[0], (long long)shape[1]);
}

static hy_status check_entry(const char *path, const hy_safetensors *file, const char *name,
                             const hy_param *param, hy_dtype dtype) {
    const hy_safetensors_entry *entry = hy_safetensors_find(file, name);
    char theirs[64], ours[64];
    if (!entry) {
        return hy_fail(HY_ERR_INPUT, "%s is a checkpoint of another model: it has no tensor %s",
                       path, name);
    }
    describe_shape(entry->shape, entry->ndim, theirs, sizeof theirs);
    int64_t shape[2] = {hy_param_stored_rows(param), param->shape[1]};
    describe_shape(shape, param->ndim, ours, sizeof ours);
    if (strcmp(theirs, ours) != 0 || entry->ndim != param->ndim) {
        return hy_fail(HY_ERR_INPUT,
                       "%s is a checkpoint of another model: %s is %s there and %s here", path,
                       name, theirs, ours);
    }
    if (entry->dtype != dtype) {
        return hy_fail(HY_ERR_INPUT, "%s: %s is %s, expected %s", path, name,
                       hy_dtype_name(entry->dtype), hy_dtype_name(dtype));
    }
    return HY_OK;
}

static hy_status check_file(const hy_trainer *t, const hy_state_file *file, const char *path,
                            const hy_safetensors *st) {
    size_t expected = (size_t)hy_state_tensors(t, file);
    for (int32_t p = 0; p < file->part_count; p++) {
        for (int32_t k = 0; k < t->model->params.count; k++) {
            char name[HY_STATE_NAME_MAX];
            const hy_param *param = &t->model->params.list[k];
            snprintf(name, sizeof name, "%s%s", file->part[p].prefix, param->name);
            HY_TRY(check_entry(path, st, name, param, file->part[p].store->layout.items[k].dtype));
        }
    }
    if (hy_safetensors_count(st) == expected) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s is a checkpoint of another model: it has %zu tensors, this model %zu", path,
                   hy_safetensors_count(st), expected);
}

/* What files do not hold is zero. */
static hy_status clear_padding(hy_trainer *t, const hy_store *store, int32_t item, uint64_t from,
                               char *staging) {
    const hy_layout_item *entry = &store->layout.items[item];
    uint64_t bytes = (uint64_t)entry->count * hy_dtype_size(entry->dtype);
    if (from >= bytes) return HY_OK;
    memset(staging, 0, STAGING_BYTES);
    for (uint64_t at = from; at < bytes; at += STAGING_BYTES) {
        uint64_t size = bytes - at < STAGING_BYTES ? bytes - at : STAGING_BYTES;
        HY_TRY(
            t->backend->copy(t->compute, (char *)hy_store_home(store, item) + at, staging, size));
        HY_TRY(t->backend->stream_sync(t->compute));
    }
    return HY_OK;
}

static hy_status load_tensor(hy_trainer *t, const hy_safetensors *st, const char *name,
                             const hy_store *store, int32_t item, char *staging) {
    const hy_safetensors_entry *entry = hy_safetensors_find(st, name);
    char *home = hy_store_home(store, item);
    for (uint64_t at = 0; at < entry->bytes; at += STAGING_BYTES) {
        uint64_t size = entry->bytes - at < STAGING_BYTES ? entry->bytes - at : STAGING_BYTES;
        HY_TRY(hy_safetensors_read(st, entry, at, staging, size));
        HY_TRY(t->backend->copy(t->compute, home + at, staging, size));
        HY_TRY(t->backend->stream_sync(t->compute));
    }
    return clear_padding(t, store, item, entry->bytes, staging);
}

static hy_status load_tensors(hy_trainer *t, const hy_state_file *file, const hy_safetensors *st) {
    char *staging = malloc(STAGING_BYTES);
    if (!staging) return hy_fail(HY_ERR_MEMORY, "no memory to stage a checkpoint");
    hy_status status = HY_OK;
    for (int32_t p = 0; p < file->part_count && status == HY_OK; p++) {
        for (int32_t k = 0; k < t->model->params.count && status == HY_OK; k++) {
            char name[HY_STATE_NAME_MAX];
            snprintf(name, sizeof name, "%s%s", file->part[p].prefix,
                     t->model->params.list[k].name);
            status = load_tensor(t, st, name, file->part[p].store, k, staging);
        }
    }
    free(staging);
    return status;
}

static hy_status read_state_file(hy_trainer *t, const hy_state_file *file, const char *folder) {
    char path[HY_PATH_MAX];
    hy_safetensors *st;
    HY_TRY(hy_path_join(path, sizeof path, folder, file->name));
    HY_TRY(hy_safetensors_open(path, &st));
    hy_status status = check_file(t, file, path, st);
    if (status == HY_OK) status = load_tensors(t, file, st);
    hy_safetensors_close(st);
    return status;
}

hy_status hy_trainer_read_weights(hy_trainer *t, const char *path) {
    hy_state_file files[HY_STATE_FILES_MAX];
    hy_state_files(t, files);
    return read_state_file(t, &files[0], path);
}

hy_status hy_trainer_read_checkpoint(hy_trainer *t, const char *path) {
    hy_state_file files[HY_STATE_FILES_MAX];
    char progress[HY_PATH_MAX];
    HY_TRY(hy_path_join(progress, sizeof progress, path, "trainer.json"));
    HY_TRY(hy_progress_read(t, progress)); /* first: it says which tensors there are */
    int count = hy_state_files(t, files);
    for (int i = 0; i < count; i++) HY_TRY(read_state_file(t, &files[i], path));
    return HY_OK;
}

hy_status hy_trainer_read_algorithms(hy_trainer *t, const char *path) {
    char file[HY_PATH_MAX], *text;
    size_t size;
    HY_TRY(hy_path_join(file, sizeof file, path, HY_ALGORITHMS_FILE));
    if (!t->backend->load_matmul_table || !hy_path_exists(file)) return HY_OK;
    HY_TRY(hy_file_read(file, &text, &size));
    hy_status status = t->backend->load_matmul_table(t->backend, text);
    free(text);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", file);
}
