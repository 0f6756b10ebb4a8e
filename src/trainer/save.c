/* save.c: writing a checkpoint. See state_files.h for what goes where; formats/checkpoint.h makes it
 * whole or nothing. Tensors are read from their backing store one by one through a staging block, so
 * saving needs no second copy of anything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "trainer/state_files.h"

static hy_safetensors_entry *list_entries(const hy_trainer *t, const hy_state_file *file,
                                          char (*names)[HY_STATE_NAME_MAX]) {
    hy_safetensors_entry *entries = calloc((size_t)hy_state_pieces(t, file), sizeof *entries);
    hy_state_cursor cursor = {0};
    hy_state_piece piece;
    for (int32_t i = 0; entries && hy_state_next(t, file, &cursor, &piece); i++) {
        memcpy(names[i], piece.name, sizeof piece.name);
        entries[i] = (hy_safetensors_entry){.name = names[i],
                                            .dtype = piece.dtype,
                                            .ndim = piece.ndim,
                                            .shape = {piece.shape[0], piece.shape[1]}};
    }
    return entries;
}

/* Where tensors pass between store and file. */
typedef struct staging {
    char *data;
    uint64_t bytes;
    char last[4096];
} staging;

/* A run saves itself when memory runs out, too: less room only makes it slower. */
static void take_staging(staging *s) {
    for (s->bytes = HY_STATE_STAGING; s->bytes > sizeof s->last; s->bytes /= 2) {
        s->data = malloc(s->bytes);
        if (s->data) return;
    }
    s->data = s->last;
    s->bytes = sizeof s->last;
}

static void give_staging(staging *s) {
    if (s->data != s->last) free(s->data);
}

static hy_status put_piece(hy_trainer *t, hy_safetensors_writer *writer,
                           const hy_state_piece *piece, const staging *s) {
    uint64_t bytes = (uint64_t)piece->count * hy_dtype_size(piece->dtype);
    for (uint64_t at = 0; at < bytes; at += s->bytes) {
        uint64_t size = bytes - at < s->bytes ? bytes - at : s->bytes;
        HY_TRY(hy_store_read(piece->store, t->engine.compute, piece->offset + at, s->data, size));
        HY_TRY(hy_safetensors_put(writer, s->data, size));
    }
    return HY_OK;
}

static hy_status put_pieces(hy_trainer *t, const hy_state_file *file,
                            hy_safetensors_writer *writer) {
    staging s;
    hy_state_cursor cursor = {0};
    hy_state_piece piece;
    hy_status status = HY_OK;
    take_staging(&s);
    while (status == HY_OK && hy_state_next(t, file, &cursor, &piece)) {
        status = put_piece(t, writer, &piece, &s);
    }
    give_staging(&s);
    return status;
}

static hy_status write_state_file(hy_trainer *t, hy_checkpoint *checkpoint,
                                  const hy_state_file *file) {
    size_t count = (size_t)hy_state_pieces(t, file);
    char(*names)[HY_STATE_NAME_MAX] = calloc(count, sizeof *names);
    hy_safetensors_entry *entries = names ? list_entries(t, file, names) : NULL;
    hy_safetensors_writer *writer = NULL;
    uint64_t hash, size;
    hy_status status = entries ? HY_OK : hy_fail(HY_ERR_MEMORY, "no memory to list %s", file->name);
    if (status == HY_OK) {
        static const char *const metadata[] = {"format", "hybrid-train", NULL};
        status = hy_safetensors_create(hy_checkpoint_path(checkpoint, file->name), entries, count,
                                       metadata, &writer);
    }
    if (status == HY_OK) {
        status = put_pieces(t, file, writer);
        if (status != HY_OK) hy_safetensors_abandon(writer);
    }
    if (status == HY_OK) status = hy_safetensors_finish(writer, &hash, &size);
    if (status == HY_OK) status = hy_checkpoint_add(checkpoint, file->name, hash, size);
    free(entries);
    free(names);
    return status;
}

/* Another algorithm means other bits: with the table a resumed run goes on exactly. */
static hy_status write_algorithms(hy_trainer *t, hy_checkpoint *checkpoint) {
    char *text = NULL;
    if (!t->engine.backend->matmul_table) return HY_OK;
    HY_TRY(t->engine.backend->matmul_table(t->engine.backend, &text));
    hy_status status =
        text ? hy_checkpoint_put(checkpoint, HY_ALGORITHMS_FILE, text, strlen(text)) : HY_OK;
    free(text);
    return status;
}

static hy_status write_files(hy_trainer *t, hy_checkpoint *checkpoint) {
    hy_state_file files[HY_STATE_FILES_MAX];
    int count = hy_state_files(t, files);
    for (int i = 0; i < count; i++) {
        HY_TRY(write_state_file(t, checkpoint, &files[i]));
    }
    HY_TRY(write_algorithms(t, checkpoint));
    hy_text json = {0};
    hy_progress_write(t, &json);
    hy_status status = hy_text_status(&json);
    if (status == HY_OK)
        status = hy_checkpoint_put(checkpoint, "trainer.json", json.data, json.size);
    hy_text_free(&json);
    if (status != HY_OK) return status;
    return hy_checkpoint_put(checkpoint, "config.cfg", t->record.config_text,
                             strlen(t->record.config_text));
}

static hy_status settle_state(hy_trainer *t) {
    HY_TRY(hy_trainer_finish_update(t));
    HY_TRY(hy_trainer_await_optimizer(t));
    HY_TRY(t->engine.backend->stream_sync(t->engine.compute));
    HY_TRY(t->engine.backend->stream_sync(t->engine.copies));
    return t->engine.backend->stream_sync(t->engine.returns);
}

hy_status hy_trainer_write_checkpoint(hy_trainer *t) {
    double begin = hy_clock();
    hy_checkpoint *checkpoint;
    if (!t->record.out[0]) {
        return hy_fail(HY_ERR_STATE,
                       "this run has no folder (out = none), so nothing can be saved");
    }
    /* A checkpoint must not outlive the metrics of its steps, and tensors must be written back. */
    HY_TRY(hy_record_flush(&t->record));
    HY_TRY(settle_state(t));
    HY_TRY(hy_checkpoint_begin(t->record.out, t->progress.step, &checkpoint));
    hy_status status = write_files(t, checkpoint);
    if (status != HY_OK) {
        hy_checkpoint_abort(checkpoint);
        return hy_fail_context(status, "checkpoint of step %lld", (long long)t->progress.step);
    }
    HY_TRY(hy_checkpoint_commit(checkpoint));
    t->saved_step = t->progress.step;
    char path[HY_PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/checkpoint-%lld", t->record.out, (long long)t->progress.step);
    if (t->observer.on_save) {
        t->observer.on_save(t->observer.user, path, hy_clock() - begin, t->checkpoint_bytes);
    }
    return hy_checkpoint_prune(t->record.out, (int)t->settings.save.keep);
}

/* Headers and JSON are small beside the tensors. A snapshot is there only now and then. */
uint64_t hy_trainer_checkpoint_size(const hy_trainer *t) {
    uint64_t bytes = hy_store_of(&t->engine, HY_ROW_MASTER)->layout.bytes + t->engine.optim.bytes;
    for (int i = 0; i < hy_predictor_slots(t->engine.predictor.kind); i++) {
        bytes += hy_store_of(&t->engine, HY_ROW_SLOW + i)->layout.bytes;
    }
    return bytes +
           (t->engine.has_average ? hy_store_of(&t->engine, HY_ROW_AVERAGE)->layout.bytes : 0);
}
