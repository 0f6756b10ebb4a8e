/* checkpoint_save.c: writing a checkpoint. See state_files.h for what goes where; formats/checkpoint.h makes it
 * whole or nothing. Tensors are read from their backing store one by one through a staging block, so
 * saving needs no second copy of anything. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "record/state_files.h"

/* A run saves itself when memory runs out, too: less room for what passes from store to file only makes it
 * slower. */
static hy_status put_tensors(hy_engine *e, const char *file, hy_safetensors_writer *writer) {
    char last[4096], *room = NULL;
    uint64_t most = 2 * HY_STATE_STAGING;
    while (!room && most / 2 > sizeof last) room = malloc(most /= 2);
    char *data = room ? room : last;
    if (!room) most = sizeof last;
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    hy_status status = HY_OK;
    while (status == HY_OK && hy_state_next(e, &cursor, &tensor)) {
        int64_t room_for = (int64_t)(most / hy_dtype_size(tensor.dtype)), some;
        for (int64_t at = 0; at < tensor.count && status == HY_OK; at += some) {
            some = tensor.count - at < room_for ? tensor.count - at : room_for;
            uint64_t offset = hy_state_offset(e, &tensor, at, &some);
            uint64_t size = hy_dtype_bytes(tensor.dtype, some);
            status = hy_store_read(hy_store_of(e, tensor.row), e->compute, offset, data, size);
            if (status == HY_OK) status = hy_safetensors_put(writer, data, size);
        }
    }
    free(room);
    return status;
}

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
        entries[i] = (hy_safetensors_entry){.name = names[i],
                                            .dtype = tensor.dtype,
                                            .ndim = tensor.ndim,
                                            .shape = {tensor.shape[0], tensor.shape[1]}};
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
