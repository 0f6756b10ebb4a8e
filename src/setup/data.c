/* data.c: opens data as configured: the model's folder, the tokenizer and chat template for
 * reading it, and the observer for skipped rows. See setup.h. */
#include <stdio.h>
#include <string.h>

#include "base/say.h"
#include "data/growing.h"
#include "engine/engine.h"
#include "setup/setup.h"
#include "tokenizer/tokenizer_llama2c.h"
#include "tokenizer/tokenizer_vocab_files.h"

hy_status hy_model_folder(const hy_settings *settings, char folder[HY_PATH_MAX]) {
    hy_model_files kind;
    char path[HY_HF_PATH_MAX];
    folder[0] = 0;
    if (settings->kept.folder[0]) {
        bool has_files = settings->kept.kind != HY_FILES_NONE;
        return hy_path_join(folder, HY_PATH_MAX, "", has_files ? settings->kept.folder : "");
    }
    HY_TRY(hy_settings_model_files(settings, &kind, path));
    if (kind == HY_FILES_HF || kind == HY_FILES_GGUF) snprintf(folder, HY_PATH_MAX, "%s", path);
    return kind == HY_FILES_LLAMA2C ? hy_path_parent(folder, HY_PATH_MAX, path) : HY_OK;
}

hy_status hy_model_tokenizer(const hy_model *model, const char *asked, const char *folder,
                             char path[HY_PATH_MAX]) {
    bool is_auto = strcmp(asked, "auto") == 0;
    path[0] = 0;
    if (strcmp(asked, "none") == 0 || (is_auto && !folder[0])) return HY_OK;
    if (!is_auto) {
        snprintf(path, HY_PATH_MAX, "%s", asked);
        return HY_OK;
    }
    HY_TRY(hy_tokenizer_file(folder, path, HY_PATH_MAX));
    if (path[0] || !hy_path_is_dir(folder)) return HY_OK; /* a GGUF file has its own, or none */
    return hy_llama2c_tokenizer_find(folder, model->shape.vocab, path, HY_PATH_MAX);
}

hy_status hy_model_compare_tokenizer(const hy_engine *e, const char *asked, const char *folder,
                                     const hy_tokenizer *used) {
    char path[HY_PATH_MAX] = "";
    hy_tokenizer *own;
    bool is_named = used && strcmp(asked, "auto") != 0 && folder[0];
    if (is_named) HY_TRY(hy_model_tokenizer(e->model, "auto", folder, path));
    if (!path[0]) return HY_OK;
    HY_TRY(hy_tokenizer_open(path, &own));
    int32_t count = hy_tokenizer_vocab(own), others = 0;
    if (count > hy_tokenizer_vocab(used)) count = hy_tokenizer_vocab(used);
    for (int32_t id = 0; id < count; id++) {
        size_t sizes[2] = {0};
        const char *a = hy_tokenizer_token(own, id, &sizes[0]);
        const char *b = hy_tokenizer_token(used, id, &sizes[1]);
        others += sizes[0] != sizes[1] || (a && b && memcmp(a, b, sizes[0]) != 0);
    }
    hy_tokenizer_close(own);
    if (others > 0)
        hy_say_to(e->observer, HY_WARNING,
                  "the tokenizer %s is not the one of the model folder %s: %d of %d ids are other "
                  "tokens, which the model does not know; omit --tokenizer to use the folder's",
                  asked, folder, others, count);
    return HY_OK;
}

static void tell_progress(void *user, const char *what, double share) {
    const hy_observer *observer = user;
    if (observer->on_progress) observer->on_progress(observer->user, what, share);
}

static void tell_warning(void *user, const char *text) { hy_say_to(user, HY_WARNING, "%s", text); }

static hy_status check_expected(const void *needs, const char *expected, size_t size) {
    return hy_reward_needs_check(needs, expected, size);
}

hy_status hy_data_path(const hy_settings *s, char path[HY_TEXT_MAX]) {
    char kept[HY_PATH_MAX];
    snprintf(path, HY_TEXT_MAX, "%s", s->data);
    for (int is_csv = 0; is_csv < 2 && s->save.resume[0] && hy_is_standard_input(s->data);
         is_csv++) {
        HY_TRY(hy_path_join(kept, sizeof kept, s->out, hy_standard_input_name(is_csv)));
        if (hy_path_exists(kept)) return hy_path_join(path, HY_TEXT_MAX, "", kept);
    }
    return HY_OK;
}

hy_status hy_engine_data_request(const hy_engine *e, bool keeps_rest, hy_data_request *out) {
    const hy_settings *s = e->request.settings;
    char *folder = out->folder, *tokenizer = out->tokenizer;
    int64_t most = s->train.seq_len + 1, context = e->model->shape.context; /* of the decoder */
    if (most > context) most = context;
    HY_TRY(hy_data_path(s, out->data));
    const char *rewards = s->task == HY_LOSS_POLICY ? s->grpo.reward : "";
    hy_status status = hy_reward_needs_read(rewards, &out->needs);
    if (status != HY_OK) return hy_fail_context(status, "grpo.reward");
    HY_TRY(hy_model_folder(s, folder));
    HY_TRY(hy_model_tokenizer(e->model, s->input.tokenizer, folder, tokenizer));
    /* The built-in text is read as bytes, whatever tokenizer the model has. */
    bool is_builtin = !s->data[0] || strcmp(s->data, "builtin") == 0;
    if (is_builtin && strcmp(s->input.tokenizer, "auto") == 0) tokenizer[0] = '\0';
    snprintf(out->no_bytes, sizeof out->no_bytes,
             "%s has %d tokens in its vocabulary, but no tokenizer; name one with --tokenizer, or "
             "train on bytes with --tokenizer none",
             folder, e->model->shape.vocab);
    bool needs_tokenizer = folder[0] && !tokenizer[0] && !s->save.resume[0] && !is_builtin &&
                           strcmp(s->input.tokenizer, "auto") == 0 &&
                           e->model->shape.vocab > HY_BYTE_VOCAB;
    out->options = (hy_dataset_options){
        .path = out->data,
        .val_path = s->val_data[0] ? s->val_data : NULL,
        .format = s->input.data_format,
        .val_fraction = s->input.val_fraction,
        .keeps_rest = keeps_rest,
        .builtin_bytes = s->input.builtin_bytes,
        .seq = (int32_t)s->train.seq_len,
        .vocab = e->model->shape.vocab,
        .seed = (uint64_t)s->seed,
        .shuffle = s->input.shuffle,
        .tokenizer = tokenizer,
        .model_folder = folder,
        .chat_template = s->input.chat_template,
        .counts_all = s->input.loss_on == HY_LOSS_ON_ALL,
        /* a plan may have no data yet */
        .pairs = !hy_loss_is_of_pairs(s->task) || (is_builtin && e->request.is_plan) ? HY_NO_PAIRS
                 : s->task == HY_LOSS_ORPO ? HY_PAIRS_WITH_PROMPTS
                                           : HY_PAIRS,
        .prompts = s->task == HY_LOSS_POLICY && !(is_builtin && e->request.is_plan),
        .prompt_most = (int32_t)(most - s->grpo.answer_tokens),
        .check_expected = s->task == HY_LOSS_POLICY ? check_expected : NULL,
        .needs = &out->needs,
        .packs = s->input.packing != HY_OFF,
        .stops_at_bad_row = s->input.bad_rows == HY_BAD_ROWS_STOP,
        .drops_any = s->input.bad_rows == HY_BAD_ROWS_SKIP_ANY,
        /* An evaluation of all data. */
        .scores = keeps_rest && strcmp(s->data, s->val_data) == 0 ? HY_SCORES_TOO : HY_SCORES_NONE,
        .columns = s->input.columns,
        .no_bytes = needs_tokenizer ? out->no_bytes : NULL,
        .workers = (int32_t)s->input.num_workers,
        .buffer_bytes = s->input.buffer_size,
        .streams = s->input.stream_rows,
        .stream_window = s->input.stream_window,
        .needs_size = s->train.steps == 0 && s->train.tokens == 0,
        .user = (void *)e->observer,
        .on_progress = tell_progress,
        .on_warning = tell_warning,
    };
    return HY_OK;
}

/* A new model has the vocabulary that the user names: the hint names one for the tokenizer. */
static hy_status hint_vocab(const hy_engine *e, const hy_data_request *request, hy_status status) {
    const hy_settings *s = e->request.settings;
    hy_error why;
    hy_tokenizer *tokenizer;
    if (request->folder[0] || !request->tokenizer[0] || s->save.resume[0] || s->init_from[0])
        return status;
    hy_error_save(&why, status);
    bool is_open = hy_tokenizer_open(request->tokenizer, &tokenizer) == HY_OK;
    int32_t count = is_open ? hy_tokenizer_vocab(tokenizer) : 0;
    if (is_open) hy_tokenizer_close(tokenizer);
    status = hy_error_restore(&why);
    if (count <= e->model->shape.vocab) return status;
    return hy_fail_hint(status, "%s is a new model: --vocab %d makes room for this tokenizer",
                        s->model, count);
}

hy_status hy_engine_open_data(const hy_engine *e, bool keeps_rest, hy_dataset **out) {
    const hy_settings *s = e->request.settings;
    hy_data_request request;
    bool has_held_out = s->input.val_fraction > 0 || s->val_data[0];
    HY_FAIL_IF(!has_held_out && s->eval.early_stop > 0, HY_ERR_INPUT,
               "eval.early_stop = %lld needs held-out data, but input.val_fraction is 0 and "
               "val_data is empty",
               (long long)s->eval.early_stop);
    HY_TRY(hy_engine_data_request(e, keeps_rest, &request));
    hy_status status = hy_dataset_open(&request.options, out);
    if (status != HY_OK) return hint_vocab(e, &request, status);
    if (s->save.resume[0]) return HY_OK; /* the run began with a warning */
    status = hy_model_compare_tokenizer(e, s->input.tokenizer, request.folder,
                                        hy_dataset_tokenizer(*out));
    if (status != HY_OK) {
        hy_dataset_close(*out);
        *out = NULL;
    }
    return status;
}

hy_status hy_engine_open_rows(const hy_engine *e, const hy_dataset_facts *trained,
                              hy_dataset **out) {
    const char *path = e->request.settings->eval.eval_rows;
    hy_data_request request;
    HY_FAIL_IF(hy_reads_input(path), HY_ERR_INPUT,
               "eval.eval_rows cannot be standard input; name a file of rows");
    HY_TRY(hy_engine_data_request(e, true, &request));
    request.options.path = request.options.val_path = path;
    request.options.scores = HY_SCORES_FIRST;
    request.options.pairs = HY_NO_PAIRS;
    request.options.prompts = false;
    request.options.packs &= trained->has_doc_starts;
    hy_chat_kind *chat = &request.options.chat_template;
    if (*chat == HY_CHAT_AUTO && hy_prompt_format_is_built_in(&trained->prompt) &&
        !trained->prompt.is_mixed)
        *chat = trained->prompt.chat;
    hy_status status = hy_dataset_open(&request.options, out);
    if (status != HY_OK) return hy_fail_context(status, "eval.eval_rows");
    if (hy_dataset_describe(*out)->scored > 0) return HY_OK;
    hy_dataset_close(*out);
    *out = NULL;
    return hy_fail(
        HY_ERR_INPUT,
        "eval.eval_rows = %s has no rows with a known answer; expected rows with prompt, "
        "choices and answer, or prompt and answer (--columns maps other names)",
        path);
}
