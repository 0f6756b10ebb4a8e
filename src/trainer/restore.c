/* restore.c: finding and reading a checkpoint, or its weights alone. See state_files.h.
 *
 * Names, shapes and types are all held against this run's model before the first tensor is loaded. A
 * checkpoint in fp32 can be gone on with in bf16 and the other way round: numbers are converted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "kernels/half.h"
#include "trainer/state_files.h"

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

static bool is_convertible(hy_dtype from, hy_dtype to) {
    return from == to || (from == HY_F32 && to == HY_BF16) || (from == HY_BF16 && to == HY_F32);
}

static hy_status check_piece(const char *path, const hy_safetensors *file,
                             const hy_state_piece *piece) {
    const hy_safetensors_entry *entry = hy_safetensors_find(file, piece->name);
    char theirs[64], ours[64];
    if (!entry) {
        return hy_fail(HY_ERR_INPUT, "%s is a checkpoint of another model: it has no tensor %s",
                       path, piece->name);
    }
    describe_shape(entry->shape, entry->ndim, theirs, sizeof theirs);
    describe_shape(piece->shape, piece->ndim, ours, sizeof ours);
    if (strcmp(theirs, ours) != 0 || entry->ndim != piece->ndim) {
        return hy_fail(HY_ERR_INPUT,
                       "%s is a checkpoint of another model: %s is %s there and %s here", path,
                       piece->name, theirs, ours);
    }
    if (!is_convertible(entry->dtype, piece->dtype)) {
        return hy_fail(HY_ERR_INPUT, "%s: %s is %s, expected %s", path, piece->name,
                       hy_dtype_name(entry->dtype), hy_dtype_name(piece->dtype));
    }
    return HY_OK;
}

static hy_status check_file(const hy_trainer *t, const hy_state_file *file, const char *path,
                            const hy_safetensors *st) {
    size_t expected = 0;
    hy_state_cursor cursor = {0};
    hy_state_piece piece;
    for (; hy_state_next(t, file, &cursor, &piece); expected++) {
        HY_TRY(check_piece(path, st, &piece));
    }
    if (hy_safetensors_count(st) == expected) return HY_OK;
    return hy_fail(HY_ERR_INPUT,
                   "%s is a checkpoint of another model: it has %zu tensors, this model %zu", path,
                   hy_safetensors_count(st), expected);
}

/* ---- loading ----------------------------------------------------------------------------------- */

#define PIECE_ELEMENTS (HY_STATE_STAGING / sizeof(float)) /* read and converted at a time */

/* Elements [first, first + count) as the file has them; what it does not hold is zero. */
static hy_status read_part(const hy_safetensors *st, const hy_state_piece *piece, int64_t first,
                           int64_t count, char *out) {
    const hy_safetensors_entry *entry = hy_safetensors_find(st, piece->name);
    uint64_t element = hy_dtype_size(entry->dtype);
    int64_t held = first < piece->count ? piece->count - first : 0;
    if (held > count) held = count;
    memset(out + (uint64_t)held * element, 0, (uint64_t)(count - held) * element);
    if (held == 0) return HY_OK;
    return hy_safetensors_read(st, entry, (uint64_t)first * element, out, (uint64_t)held * element);
}

/* In place: to fewer bytes from the front, to more from the back. */
static void convert(void *data, int64_t count, hy_dtype from, hy_dtype to) {
    char *bytes = data;
    for (int64_t i = 0; from == HY_F32 && to == HY_BF16 && i < count; i++) {
        float x;
        memcpy(&x, bytes + 4 * i, sizeof x);
        uint16_t h = hy_f32_to_bf16(x);
        memcpy(bytes + 2 * i, &h, sizeof h);
    }
    for (int64_t i = count - 1; from == HY_BF16 && to == HY_F32 && i >= 0; i--) {
        uint16_t h;
        memcpy(&h, bytes + 2 * i, sizeof h);
        float x = hy_bf16_to_f32(h);
        memcpy(bytes + 4 * i, &x, sizeof x);
    }
}

static hy_status load_piece(hy_trainer *t, const hy_safetensors *st, const hy_state_piece *piece,
                            char *staging) {
    hy_dtype theirs = hy_safetensors_find(st, piece->name)->dtype;
    uint64_t element = hy_dtype_size(piece->dtype);
    for (int64_t first = 0; first < piece->in_memory; first += PIECE_ELEMENTS) {
        int64_t left = piece->in_memory - first;
        int64_t count = left < (int64_t)PIECE_ELEMENTS ? left : (int64_t)PIECE_ELEMENTS;
        HY_TRY(read_part(st, piece, first, count, staging));
        convert(staging, count, theirs, piece->dtype);
        HY_TRY(hy_store_write(piece->store, t->engine.compute,
                              piece->offset + (uint64_t)first * element, staging,
                              (uint64_t)count * element));
    }
    return HY_OK;
}

static hy_status load_pieces(hy_trainer *t, const hy_state_file *file, const hy_safetensors *st) {
    char *staging = malloc(HY_STATE_STAGING);
    if (!staging) return hy_fail(HY_ERR_MEMORY, "no memory to stage a checkpoint");
    hy_state_cursor cursor = {0};
    hy_state_piece piece;
    hy_status status = HY_OK;
    while (status == HY_OK && hy_state_next(t, file, &cursor, &piece)) {
        status = load_piece(t, st, &piece, staging);
    }
    free(staging);
    for (int i = 0; i < file->part_count && status == HY_OK; i++) {
        status = hy_store_settle(file->part[i].store); /* what is backed by the disk is there */
    }
    return status;
}

static hy_status read_state_file(hy_trainer *t, const hy_state_file *file, const char *folder) {
    char path[HY_PATH_MAX];
    hy_safetensors *st;
    HY_TRY(hy_path_join(path, sizeof path, folder, file->name));
    HY_TRY(hy_safetensors_open(path, &st));
    hy_status status = check_file(t, file, path, st);
    if (status == HY_OK) status = load_pieces(t, file, st);
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
    if (!t->engine.backend->load_matmul_table || !hy_path_exists(file)) return HY_OK;
    HY_TRY(hy_file_read(file, &text, &size));
    hy_status status = t->engine.backend->load_matmul_table(t->engine.backend, text);
    free(text);
    return status == HY_OK ? HY_OK : hy_fail_context(status, "%s", file);
}
