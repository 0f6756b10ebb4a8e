/* checkpoint_save.c: writes a checkpoint. state_files.h says which file holds what;
 * formats/checkpoint.h makes the write atomic. Tensors are read from their backing store piece
 * by piece into the write buffer, so saving needs no second copy of them. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "record/state_files.h"

/* Reads as many elements of a tensor as the writer has room for, directly from their store. */
static hy_status put_some(hy_engine *e, const hy_state_tensor *tensor, int64_t at, int64_t *some,
                          hy_safetensors_writer *writer) {
    float single; /* not even one element fits: it is split across two buffers */
    size_t room, element = hy_dtype_size(tensor->dtype);
    void *to = hy_safetensors_room(writer, &room);
    bool is_across = room < element;
    int64_t in_one = tensor->dtype == HY_NF4 ? 2 : 1; /* elements in that size */
    int64_t most = is_across ? 1 : (int64_t)(room / element) * in_one;
    *some = tensor->count - at < most ? tensor->count - at : most;
    uint64_t offset = 0;
    bool is_here = hy_state_find(e, tensor, at, some, &offset);
    HY_FAIL_IF(!is_here, HY_ERR_INTERNAL, "this rank does not hold all of %s", tensor->name);
    uint64_t size = hy_dtype_bytes(tensor->dtype, *some);
    HY_TRY(hy_store_read(hy_store_of(e, tensor->row), e->device.compute, offset,
                         is_across ? &single : to, size));
    return is_across ? hy_safetensors_put(writer, &single, size)
                     : hy_safetensors_commit(writer, size);
}

_Static_assert(HY_PARAM_DIMS == HY_SAFETENSORS_DIMS, "shapes of parameters are shapes in files");

static const char *const metadata[] = {"format", "hybrid-train", NULL};

/* The tensors of a file. */
typedef struct listing {
    size_t count;
    hy_safetensors_entry *entries;
    char (*names)[HY_STATE_NAME_MAX];
} listing;

static void drop_list(listing *list) {
    free(list->entries);
    free(list->names);
}

static hy_status make_list(const hy_engine *e, const char *file, listing *out) {
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    *out = (listing){.count = (size_t)hy_state_tensors(e, file)};
    out->names = calloc(out->count, sizeof *out->names);
    out->entries = calloc(out->count, sizeof *out->entries);
    if (!out->names || !out->entries) {
        drop_list(out);
        *out = (listing){0};
        return hy_fail(HY_ERR_MEMORY, "no memory to list %s", file);
    }
    for (size_t i = 0; hy_state_next(e, &cursor, &tensor); i++) {
        memcpy(out->names[i], tensor.name, sizeof tensor.name);
        out->entries[i] = (hy_safetensors_entry){
            .name = out->names[i], .dtype = tensor.dtype, .ndim = tensor.ndim};
        memcpy(out->entries[i].shape, tensor.shape, sizeof tensor.shape);
    }
    return HY_OK;
}

static hy_status write_state_file(hy_engine *e, hy_checkpoint *checkpoint, const char *file) {
    hy_safetensors_writer *writer = NULL;
    uint64_t hash, size;
    listing list;
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    HY_TRY(make_list(e, file, &list));
    hy_status status = hy_safetensors_create(hy_checkpoint_path(checkpoint, file), list.entries,
                                             list.count, metadata, &writer);
    while (status == HY_OK && hy_state_next(e, &cursor, &tensor))
        for (int64_t at = 0, some; at < tensor.count && status == HY_OK; at += some)
            status = put_some(e, &tensor, at, &some, writer);
    if (status != HY_OK && writer) hy_safetensors_abandon(writer);
    if (status == HY_OK) status = hy_safetensors_finish(writer, &hash, &size);
    if (status == HY_OK) status = hy_checkpoint_add(checkpoint, file, hash, size);
    drop_list(&list);
    return status;
}

/* ---- by several ranks ------------------------------------------------------------------------ */

/* Writes this rank's part of a tensor. One rank writes what all ranks hold. */
static hy_status put_part(hy_engine *e, const hy_state_tensor *tensor, hy_shared_tensors *file,
                          size_t entry, char *staging) {
    const hy_shard *shard = &e->state->rows->shard;
    const hy_row *row = &e->state->rows->row[tensor->row];
    bool is_shared = row->is_sharded || row->kind->is_tiled;
    if (!is_shared && (int32_t)(entry % (size_t)shard->count) != shard->rank) return HY_OK;
    int64_t most = (int64_t)(HY_STATE_STAGING / hy_dtype_size(tensor->dtype)); /* even */
    for (int64_t at = 0, some; at < tensor->count; at += some) {
        uint64_t offset;
        some = tensor->count - at < most ? tensor->count - at : most;
        if (!hy_state_find(e, tensor, at, &some, &offset)) continue;
        uint64_t size = hy_dtype_bytes(tensor->dtype, some), begin = offset;
        hy_store *store = hy_store_of(e, tensor->row);
        if (!hy_store_clip(store, &offset, &size)) continue; /* bytes of another rank's part */
        uint64_t in_file = hy_dtype_bytes(tensor->dtype, at) + (offset - begin);
        HY_TRY(hy_store_read(store, e->device.compute, offset, staging, size));
        HY_TRY(hy_shared_tensors_put(file, entry, in_file, staging, size));
    }
    return HY_OK;
}

static hy_status write_parts_of(hy_engine *e, const char *folder, const char *file) {
    char path[HY_PATH_MAX], *staging = malloc(HY_STATE_STAGING);
    hy_shared_tensors *shared;
    listing list = {0};
    hy_state_cursor cursor = {.file = file};
    hy_state_tensor tensor;
    HY_FAIL_IF(!staging, HY_ERR_MEMORY, "no memory to write %s", file);
    hy_status status = hy_path_join(path, sizeof path, folder, file);
    if (status == HY_OK) status = make_list(e, file, &list);
    if (status == HY_OK)
        status = hy_shared_tensors_open(path, list.entries, list.count, metadata, &shared);
    if (status == HY_OK) {
        for (size_t i = 0; status == HY_OK && hy_state_next(e, &cursor, &tensor); i++)
            status = put_part(e, &tensor, shared, i, staging);
        hy_status closed = hy_shared_tensors_close(shared);
        if (status == HY_OK) status = closed;
    }
    drop_list(&list);
    free(staging);
    return status;
}

hy_status hy_checkpoint_make_files(hy_engine *e, hy_checkpoint *checkpoint) {
    const char *files[HY_STATE_FILES_MAX];
    int count = hy_state_files(e, files);
    for (int i = 0; i < count; i++) {
        listing list;
        HY_TRY(make_list(e, files[i], &list));
        hy_status status = hy_shared_tensors_make(hy_checkpoint_path(checkpoint, files[i]),
                                                  list.entries, list.count, metadata);
        drop_list(&list);
        HY_TRY(status);
    }
    return HY_OK;
}

hy_status hy_checkpoint_write_parts(hy_engine *e, const char *folder) {
    const char *files[HY_STATE_FILES_MAX];
    int count = hy_state_files(e, files);
    for (int i = 0; i < count; i++) HY_TRY(write_parts_of(e, folder, files[i]));
    return HY_OK;
}

hy_status hy_checkpoint_write_state(hy_engine *e, hy_checkpoint *checkpoint,
                                    const hy_text *progress, const char *config) {
    const char *files[HY_STATE_FILES_MAX];
    int count = hy_state_files(e, files);
    for (int i = 0; i < count; i++) {
        uint64_t hash, size;
        if (hy_engine_has_ranks(e)) { /* all ranks have written it */
            HY_TRY(hy_file_hash(hy_checkpoint_path(checkpoint, files[i]), &hash, &size));
            HY_TRY(hy_checkpoint_add(checkpoint, files[i], hash, size));
        } else {
            HY_TRY(write_state_file(e, checkpoint, files[i]));
        }
    }
    /* Another matmul algorithm gives different bits: with the table a resumed run continues
     * exactly. */
    hy_backend *backend = e->device.backend;
    char *text = NULL;
    if (backend->matmul_table) HY_TRY(backend->matmul_table(backend, &text));
    hy_status status =
        text ? hy_checkpoint_put(checkpoint, HY_ALGORITHMS_FILE, text, strlen(text)) : HY_OK;
    free(text);
    HY_TRY(status);
    HY_TRY(hy_text_status(progress));
    HY_TRY(hy_checkpoint_put(checkpoint, "trainer.json", progress->data, progress->size));
    return hy_checkpoint_put(checkpoint, "config.cfg", config, strlen(config));
}
