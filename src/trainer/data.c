/* data.c: the run's data, opened as the settings say. See trainer.h.
 *
 * Here meet what the data room must be told and does not know: where the model's folder is (its tokenizer
 * and its chat template lie there), and who hears of rows that were left out. */
#include <string.h>

#include "base/error.h"
#include "trainer/inference.h"

bool hy_trainer_has_doc_starts(const hy_trainer *t) {
    return t->data.set && hy_dataset_describe(t->data.set)->has_doc_starts;
}

uint64_t hy_trainer_data_bytes(const hy_trainer *t) {
    const hy_settings *s = &t->settings;
    uint64_t rows = (uint64_t)s->train.batch_size * (uint64_t)s->train.seq_len;
    uint64_t values = hy_trainer_has_doc_starts(t) ? 3 : 2; /* tokens, targets, documents */
    return (uint64_t)hy_trainer_loader_depth(t) * rows * values * sizeof(int32_t);
}

/* The buffer is gone again when the run takes its memory: rows are encoded before. */
void hy_trainer_plan_data(const hy_trainer *t, hy_plan_facts *out) {
    const hy_settings *s = &t->settings;
    uint64_t disk = t->data.set ? hy_dataset_describe(t->data.set)->disk_bytes : 0;
    out->data_host_bytes = hy_trainer_data_bytes(t);
    out->data_buffer_bytes = disk ? (uint64_t)s->input.buffer_size : 0;
    out->data_disk_bytes = disk;
}

static void tell_progress(void *user, const char *what, double share) {
    const hy_trainer *t = user;
    if (t->observer.on_progress) t->observer.on_progress(t->observer.user, what, share);
}

static void tell_warning(void *user, const char *text) { hy_say(user, HY_WARNING, "%s", text); }

hy_status hy_trainer_open_data(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    char folder[HY_PATH_MAX], tokenizer[HY_PATH_MAX];
    HY_TRY(hy_model_folder(t, folder));
    HY_TRY(hy_model_tokenizer(t, s->input.tokenizer, folder, tokenizer));
    /* The text built into the program is bytes, whatever the model reads otherwise. */
    bool is_builtin = !s->data[0] || strcmp(s->data, "builtin") == 0;
    if (is_builtin && strcmp(s->input.tokenizer, "auto") == 0) tokenizer[0] = '\0';
    hy_dataset_options options = {
        .path = s->data,
        .val_path = s->val_data[0] ? s->val_data : NULL,
        .val_fraction = s->input.val_fraction,
        .builtin_bytes = s->input.builtin_bytes,
        .seq = (int32_t)s->train.seq_len,
        .vocab = t->engine.model->shape.vocab,
        .seed = (uint64_t)s->seed,
        .shuffle = s->input.shuffle,
        .tokenizer = tokenizer,
        .model_folder = folder,
        .chat_template = s->input.chat_template,
        .counts_all = s->input.loss_on == HY_LOSS_ON_ALL,
        .packs = s->input.packing != HY_OFF,
        .stops_at_bad_row = s->input.bad_rows == HY_BAD_ROWS_STOP,
        .workers = (int32_t)s->input.num_workers,
        .buffer_bytes = s->input.buffer_size,
        .user = t,
        .on_progress = tell_progress,
        .on_warning = tell_warning,
    };
    return hy_dataset_open(&options, &t->data.set);
}
