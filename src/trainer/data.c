/* data.c: the run's data, opened as the settings say. See trainer.h.
 *
 * Here meet what the data room must be told and does not know: where the model's folder is (its tokenizer
 * and its chat template lie there), whether the model can have packed sequences, and who hears of rows
 * that were left out. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "trainer/trainer.h"

bool hy_trainer_has_docs(const hy_trainer *t) {
    return t->data && hy_dataset_describe(t->data)->has_docs;
}

void hy_trainer_plan_data(const hy_trainer *t, hy_plan_facts *out) {
    const hy_settings *s = &t->settings;
    uint64_t rows = (uint64_t)s->train.batch_size * (uint64_t)s->train.seq_len;
    uint64_t values = hy_trainer_has_docs(t) ? 3 : 2; /* tokens, targets, documents */
    uint64_t disk = t->data ? hy_dataset_describe(t->data)->disk_bytes : 0;
    out->data_host_bytes = (uint64_t)hy_trainer_loader_depth(t) * rows * values * sizeof(int32_t);
    out->data_buffer_bytes = disk ? (uint64_t)s->input.buffer_size : 0;
    out->data_disk_bytes = disk;
}

static void tell_progress(void *user, const char *what, double share) {
    const hy_trainer *t = user;
    if (t->observer.on_progress) t->observer.on_progress(t->observer.user, what, share);
}

static void tell_warning(void *user, const char *text) { hy_say(user, HY_WARNING, "%s", text); }

/* The model's own folder, "" when it is a preset or a file. */
static hy_status find_folder(const hy_trainer *t, char folder[HY_HF_PATH_MAX]) {
    hy_model_files kind;
    HY_TRY(hy_settings_model_files(&t->settings, &kind, folder));
    if (kind != HY_FILES_HF) folder[0] = '\0';
    return HY_OK;
}

/* The one that was asked for, or the one in the model's folder; "": tokens are bytes. */
static hy_status find_tokenizer(const hy_trainer *t, const char *folder, char path[HY_PATH_MAX]) {
    const char *asked = t->settings.input.tokenizer;
    path[0] = '\0';
    if (strcmp(asked, "none") == 0) return HY_OK;
    if (strcmp(asked, "auto") != 0) {
        snprintf(path, HY_PATH_MAX, "%s", asked);
        return HY_OK;
    }
    if (!folder[0]) return HY_OK;
    HY_TRY(hy_path_join(path, HY_PATH_MAX, folder, "tokenizer.json"));
    if (!hy_path_exists(path)) path[0] = '\0';
    return HY_OK;
}

/* A position that is learned belongs to a place in the sequence: an example that does not begin at its
 * first place would be another one. Rotations only see distances. */
static hy_status choose_packing(const hy_trainer *t, bool *packs) {
    const char *asked = t->settings.input.packing;
    *packs = t->model->shape.has_rope;
    if (strcmp(asked, "auto") == 0) return HY_OK;
    if (strcmp(asked, "on") == 0 && !t->model->shape.has_rope) {
        return hy_fail(HY_ERR_INPUT,
                       "packing = on, but the model learns a position for each place in the "
                       "sequence (positions = learned); accepted here: off, auto");
    }
    *packs = strcmp(asked, "on") == 0;
    return HY_OK;
}

hy_status hy_trainer_open_data(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    char folder[HY_HF_PATH_MAX], tokenizer[HY_PATH_MAX];
    bool packs;
    HY_TRY(find_folder(t, folder));
    HY_TRY(find_tokenizer(t, folder, tokenizer));
    HY_TRY(choose_packing(t, &packs));
    /* The text built into the program is bytes, whatever the model reads otherwise. */
    bool is_builtin = !s->data[0] || strcmp(s->data, "builtin") == 0;
    if (is_builtin && strcmp(s->input.tokenizer, "auto") == 0) tokenizer[0] = '\0';
    hy_dataset_options options = {
        .path = s->data,
        .val_path = s->val_data[0] ? s->val_data : NULL,
        .val_fraction = s->input.val_fraction,
        .builtin_bytes = s->input.builtin_bytes,
        .seq = (int32_t)s->train.seq_len,
        .vocab = t->model->shape.vocab,
        .seed = (uint64_t)s->seed,
        .shuffle = s->input.shuffle,
        .tokenizer = tokenizer,
        .model_folder = folder,
        .chat_template = s->input.chat_template,
        .counts_all = strcmp(s->input.loss_on, "all") == 0,
        .packs = packs,
        .stops_at_bad_row = strcmp(s->input.bad_rows, "stop") == 0,
        .workers = (int32_t)s->input.num_workers,
        .buffer_bytes = s->input.buffer_size,
        .user = t,
        .on_progress = tell_progress,
        .on_warning = tell_warning,
    };
    return hy_dataset_open(&options, &t->data);
}
