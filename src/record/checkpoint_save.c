/* checkpoint_save.c: writing a checkpoint. See state_files.h for what goes where; formats/checkpoint.h makes it
 * whole or nothing. Tensors are read from their backing store piece by piece into the blocks that the file is
 * written from, so saving needs no second copy of anything. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "record/state_files.h"

/* Some elements of a tensor, as many as the writer has room for, straight from their store. */
static hy_status put_some(hy_engine *e, const hy_state_tensor *tensor, int64_t at, int64_t *some,
                          hy_safetensors_writer *writer) {
    float single; /* where not even one element fits: it is put across the border */
    size_t room, element = hy_dtype_size(tensor->dtype);
    void *to = hy_safetensors_room(writer, &room);
    bool is_across = room < element;
    int64_t in_one = tensor->dtype == HY_NF4 ? 2 : 1; /* elements in that size */
    int64_t most = is_across ? 1 : (int64_t)(room / element) * in_one;
    *some = tensor->count - at < most ? tensor->count - at : most;
    uint64_t offset = hy_state_offset(e, tensor, at, some);
    uint64_t size = hy_dtype_bytes(tensor->dtype, *some);
    HY_TRY(hy_store_read(hy_store_of(e, tensor->row), e->compute, offset, is_across ? &single : to,
                         size));
    return is_across ? hy_safetensors_put(writer, &single, size)
                     : hy_safetensors_commit(writer, size);
}

static hy_status put_tensors(hy_engine *e, const char *file, hy_safetensors_writer *writer) {
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    while (hy_state_next(e, &cursor, &tensor)) {
        for (int64_t at = 0, some; at < tensor.count; at += some) {
            HY_TRY(put_some(e, &tensor, at, &some, writer));
        }
    }
    return HY_OK;
}

_Static_assert(HY_PARAM_DIMS == HY_SAFETENSORS_DIMS, "shapes of parameters are shapes in files");

static hy_status write_state_file(hy_engine *e, hy_checkpoint *checkpoint, const char *file) {
    static const char *const metadata[] = {"format", "hybrid-train", NULL};
    size_t count = (size_t)hy_state_tensors(e, file);
    char(*names)[HY_STATE_NAME_MAX] = calloc(count, sizeof *names);
    hy_safetensors_entry *entries = calloc(count, sizeof *entries);
    hy_safetensors_writer *writer = NULL;
    uint64_t hash, size;
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    hy_status status =
        names && entries ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory to list %s", file);
    for (size_t i = 0; status == HY_OK && hy_state_next(e, &cursor, &tensor); i++) {
        memcpy(names[i], tensor.name, sizeof tensor.name);
        entries[i] =
            (hy_safetensors_entry){.name = names[i], .dtype = tensor.dtype, .ndim = tensor.ndim};
        memcpy(entries[i].shape, tensor.shape, sizeof tensor.shape);
    }
    if (status == HY_OK) {
        status = hy_safetensors_create(hy_checkpoint_path(checkpoint, file), entries, count,
                                       metadata, &writer);
    }
    if (status == HY_OK) {
        status = put_tensors(e, file, writer);
        if (status != HY_OK) hy_safetensors_abandon(writer);
    }
    if (status == HY_OK) status = hy_safetensors_finish(writer, &hash, &size);
    if (status == HY_OK) status = hy_checkpoint_add(checkpoint, file, hash, size);
    free(entries);
    free(names);
    return status;
}

/* Another algorithm means other bits: with the table a resumed run goes on exactly. */
static hy_status write_algorithms(hy_engine *e, hy_checkpoint *checkpoint) {
    char *text = NULL;
    if (!e->backend->matmul_table) return HY_OK;
    HY_TRY(e->backend->matmul_table(e->backend, &text));
    hy_status status =
        text ? hy_checkpoint_put(checkpoint, HY_ALGORITHMS_FILE, text, strlen(text)) : HY_OK;
    free(text);
    return status;
}

hy_status hy_checkpoint_write_state(hy_engine *e, hy_checkpoint *checkpoint,
                                    const hy_text *progress, const char *config) {
    const char *files[HY_STATE_FILES_MAX];
    int count = hy_state_files(e, files);
    for (int i = 0; i < count; i++) HY_TRY(write_state_file(e, checkpoint, files[i]));
    HY_TRY(write_algorithms(e, checkpoint));
    HY_TRY(hy_text_status(progress));
    HY_TRY(hy_checkpoint_put(checkpoint, "trainer.json", progress->data, progress->size));
    return hy_checkpoint_put(checkpoint, "config.cfg", config, strlen(config));
}
