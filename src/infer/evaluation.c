/* evaluation.c: a model's loss on data, without a run. See hybrid.h.
 *
 * Model and weights are opened as for chatting, data as for training. The engine's probe reads
 * all of it or the first eval_batches. The data is opened as the held-out split, so sequences
 * come in order and once, including the rest at a text's end. Every token has the same weight.
 * The built-in text keeps its own held-out part. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "base/say.h"
#include "base/sized.h"
#include "infer/inference.h"
#include "kernels/coded.h"
#include "record/row_scores.h"
#include "record/state_files.h"
#include "setup/setup.h"

/* ---- memory ---------------------------------------------------------------------------------- */

static hy_status take_work(hy_engine *e, const hy_pass_spec *spec, const hy_plan_work *work,
                           hy_batch_plan *plan) {
    hy_arena *arena = &e->work->arena;
    void *activations, *workspace;
    HY_TRY(hy_arena_init(arena, e->device.backend, &e->state->ledger, HY_DEVICE,
                         hy_plan_work_bytes(work), "activations and workspace"));
    HY_TRY(hy_arena_push(arena, HY_ACTIVATIONS, plan->bytes.activations, &activations));
    HY_TRY(hy_arena_push(arena, HY_WORKSPACE, plan->bytes.workspace, &workspace));
    hy_batch_plan_place(plan, activations, workspace);
    return hy_work_take_buffers(e, arena, spec, work);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Adds the bytes of text of the targets [from, to). A token's text may depend on the one before. */
static hy_status count_run(const hy_tokenizer *tokenizer, const int32_t *tokens,
                           const int32_t *targets, int32_t from, int32_t to, double *bytes) {
    int32_t count = to - from + 1;
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    hy_text before = {0}, all = {0};
    if (!ids) return hy_fail(HY_ERR_MEMORY, "not enough memory to count bytes");
    ids[0] = tokens[from];
    memcpy(ids + 1, targets + from, (size_t)(count - 1) * sizeof *ids);
    hy_status status = hy_tokenizer_decode(tokenizer, ids, 1, HY_TOKENS_SKIP_SPECIAL, &before);
    if (status == HY_OK) {
        status = hy_tokenizer_decode(tokenizer, ids, (size_t)count, HY_TOKENS_SKIP_SPECIAL, &all);
    }
    *bytes += (double)all.size - (double)before.size;
    hy_text_free(&before);
    hy_text_free(&all);
    free(ids);
    return status;
}

/* Bytes of text of all counted targets; NaN: not known. */
static hy_status count_bytes(const hy_used_model *m, const hy_probe *probe, double *bytes) {
    const hy_dataset_facts *facts = hy_dataset_describe(m->data);
    const hy_tokenizer *tokenizer = hy_dataset_tokenizer(m->data);
    int32_t *row = m->engine->work->staging[0].tokens,
            *targets = m->engine->work->staging[0].targets;
    *bytes = facts->is_bytes ? (double)probe->counted : NAN;
    if (facts->is_bytes || !tokenizer) return HY_OK;
    *bytes = 0;
    for (uint64_t i = 0; i < probe->count; i++) {
        if (hy_dataset_fill(m->data, HY_VAL, i, row, targets, NULL) < 0) return HY_ERR_IO;
        for (int32_t from = 0, to; from < facts->seq; from = to + 1) {
            for (to = from; to < facts->seq && targets[to] >= 0;) to++;
            if (to > from) HY_TRY(count_run(tokenizer, row, targets, from, to, bytes));
        }
    }
    return HY_OK;
}

/* ---- evaluating ------------------------------------------------------------------------------ */

/* Rows are written as in training, unless the user chooses another template. Rows of several
 * formats were written by their kind, as they are now. */
static hy_status choose_template(hy_used_model *m) {
    char folder[HY_PATH_MAX];
    hy_prompt_format trained;
    hy_chat_kind *chat = &m->settings.input.chat_template;
    HY_TRY(hy_model_folder(&m->settings, folder));
    HY_TRY(hy_model_read_format(m, folder, &trained));
    bool is_known = hy_prompt_format_is_built_in(&trained) && !trained.is_mixed;
    if (*chat == HY_CHAT_AUTO && is_known) *chat = trained.chat;
    bool is_other = is_known && *chat != trained.chat && *chat != HY_CHAT_CONVERSATIONS;
    bool is_plain = hy_chat_kind_is_plain(*chat) && hy_chat_kind_is_plain(trained.chat);
    hy_model_compare_formats(m, *chat);
    if (is_other && !is_plain)
        hy_say_to(&m->observer, HY_NOTE,
                  "rows are written with --chat-template %s, but training wrote them with %s",
                  hy_chat_kind_name(*chat), hy_chat_kind_name(trained.chat));
    return HY_OK;
}

/* How many batches of the data pass through a unit together, to take about so many tokens. */
static int32_t slices_for(const hy_used_model *m, int64_t batch, int64_t tokens) {
    int64_t sequences = (int64_t)hy_dataset_describe(m->data)->sequences[HY_VAL];
    int64_t wanted = tokens / (batch * m->settings.train.seq_len), most = sequences / batch;
    int64_t slices = wanted < most ? wanted : most;
    return slices > 1 ? (int32_t)slices : 1;
}

/* Plans a pass. With mlp_chunks = 0 it has whole mlps, unless it then takes half of the device,
 * where the weights need room too. */
static hy_status plan_pass(hy_engine *e, const hy_pass_spec *spec, hy_batch_options *options,
                           hy_batch_plan **plan, hy_plan_work *work) {
    for (bool is_open = options->mlp_chunks == 0 && spec->budget;; is_open = false) {
        options->is_sizing = is_open;
        HY_TRY(hy_batch_plan_create(e->model, e->device.backend, options, plan));
        *work = (hy_plan_work){0};
        hy_work_add(work, *plan);
        hy_work_total(work, spec, 0);
        if (!is_open) break;
        hy_batch_plan_destroy(*plan);
        if (hy_plan_work_bytes(work) > spec->budget / 2)
            options->mlp_chunks = options->batch * options->seq / HY_MLP_ROWS;
    }
    e->work->eval[hy_plan_index(options->dtype)] = *plan;
    return HY_OK;
}

/* Opens the data for the task. Rows that are no pairs, and rows for rewards, are measured by their
 * next-token loss. */
static hy_status open_data(hy_used_model *m) {
    hy_error error;
    if (m->settings.task == HY_LOSS_POLICY) {
        hy_say_to(
            &m->observer, HY_NOTE,
            "only a run of task grpo generates answers and rewards them (val_reward); here the "
            "answers in the rows are measured");
        m->settings.task = HY_LOSS_NEXT_TOKEN;
    }
    hy_status status = hy_engine_open_data(m->engine, true, &m->data);
    if (status != HY_ERR_INPUT || m->settings.task == HY_LOSS_NEXT_TOKEN) return status;
    hy_error_save(&error, status);
    hy_loss_kind task = m->settings.task;
    m->settings.task = HY_LOSS_NEXT_TOKEN;
    status = hy_engine_open_data(m->engine, true, &m->data);
    if (status == HY_OK) return HY_OK;
    m->settings.task = task;
    return hy_error_restore(&error);
}

/* Pairs of answers are compared with the base of an adapter, not with a model before training. */
static hy_status set_loss(hy_used_model *m) {
    hy_settings *s = &m->settings;
    bool has_base = s->lora.lora && !strcmp(s->lora.lora_modules, "none");
    hy_loss loss = hy_loss_from_settings(s);
    HY_FAIL_IF(
        hy_preference_has_reference(loss.kind) && !has_base, HY_ERR_INPUT,
        "task %s compares with the model before training, which an evaluation knows only for "
        "an adapter that was trained alone; a text or rows with one answer (--data) are "
        "measured without a task, and --task simpo or orpo compares two answers",
        hy_choice_name("task", (int)loss.kind));
    s->preference.reference = HY_REFERENCE_INLINE;
    hy_model_set_loss(m->engine->model, &loss);
    return HY_OK;
}

hy_status hy_model_prepare(hy_used_model *m, int64_t tokens, hy_batch_plan **plan,
                           char from[HY_PATH_MAX]) {
    hy_engine *e = m->engine;
    const hy_settings *s = &m->settings;
    hy_dtype dtype = e->plan->types.of[HY_FULL];
    bool is_builtin = !m->settings.data[0] || strcmp(m->settings.data, "builtin") == 0;
    bool is_all = !is_builtin && !m->uses_held_out;
    if (is_all) memcpy(m->settings.val_data, m->settings.data, sizeof m->settings.val_data);
    HY_TRY(choose_template(m));
    HY_TRY(open_data(m));
    HY_FAIL_IF(hy_dataset_describe(m->data)->sequences[HY_VAL] == 0, HY_ERR_INPUT,
               "there is no held-out data; name a file (--data FILE)");
    HY_TRY(set_loss(m));
    hy_pass_spec spec = {.model = e->model,
                         .backend = e->device.backend,
                         .seq = (int32_t)s->train.seq_len,
                         .has_doc_starts = hy_dataset_describe(m->data)->has_doc_starts,
                         .budget = hy_budget_device(&e->request),
                         .types = {dtype},
                         .grad_dtype = dtype};
    int64_t batch = s->eval.eval_batch_size ? s->eval.eval_batch_size : s->train.batch_size;
    hy_plan_choice choice = {.batch = (int32_t)batch,
                             .loss_chunks = (int32_t)s->train.loss_chunks,
                             .mlp_chunks = (int32_t)s->train.mlp_chunks};
    hy_batch_options options = hy_pass_options(&spec, &choice, dtype, false);
    options.slices = slices_for(m, batch, tokens);
    hy_plan_work work;
    HY_TRY(plan_pass(e, &spec, &options, plan, &work));
    HY_TRY(hy_model_load(m, hy_plan_work_bytes(&work), from));
    return take_work(e, &spec, &work, *plan);
}

/* Measures rows for evaluation; their loss is that of the right answers. */
static hy_status probe_rows(hy_used_model *m, hy_batch_plan *plan, hy_probe *probe,
                            hy_row_scores *scores) {
    hy_dtype dtype = probe->dtype;
    HY_TRY(hy_row_probe_make(m->data, probe));
    probe->dtype = dtype;
    hy_status status = hy_engine_probe(m->engine, plan, probe);
    if (status == HY_OK) *scores = hy_row_scores_of(m->data, probe->examples);
    free(probe->examples);
    probe->mean = scores->answer_loss;
    probe->counted = scores->answer_tokens;
    return status;
}

/* The loss of the model in its current state. */
static hy_status measure(hy_used_model *m, hy_batch_plan *plan, const char *from,
                         hy_evaluation *out) {
    hy_engine *e = m->engine;
    const hy_settings *s = &m->settings;
    const hy_dataset_facts *facts = hy_dataset_describe(m->data);
    double bytes = NAN;
    hy_row_scores scores = hy_row_scores_none();
    /* As in training, eval_batches counts training micro-batches; 0 or less: all data. Rows for
     * evaluation are always measured completely. */
    uint64_t count = facts->sequences[HY_VAL];
    uint64_t wanted = (uint64_t)s->eval.eval_batches * (uint64_t)s->train.batch_size;
    if (s->eval.eval_batches > 0 && wanted < count) count = wanted;
    hy_probe probe = {
        .data = m->data, .split = HY_VAL, .count = count, .dtype = e->plan->types.of[HY_FULL]};
    double begin = hy_clock();
    HY_TRY(facts->scored ? probe_rows(m, plan, &probe, &scores) : hy_engine_probe(e, plan, &probe));
    double seconds = hy_clock() - begin;
    HY_FAIL_IF(!isfinite(probe.mean), HY_ERR_NUMERIC,
               "%s: the loss is not finite: the weights contain NaN or infinity, or produce them",
               from);
    hy_row_scores_add_pairs(&scores, probe.pair_stats);
    if (!facts->scored && scores.pairs == 0) HY_TRY(count_bytes(m, &probe, &bytes));
    double computed = (double)probe.count * (double)s->train.seq_len; /* tokens, masked ones too */
    *out = (hy_evaluation){.size = sizeof *out,
                           .loss = probe.mean,
                           .perplexity = scores.pairs > 0 ? NAN : exp(probe.mean),
                           .bits_per_byte = probe.mean * (double)probe.counted / bytes / log(2),
                           .tokens = probe.counted,
                           .sequences = (int64_t)probe.count,
                           .seq_len = s->train.seq_len,
                           .seconds = seconds,
                           .tokens_per_second = computed / seconds,
                           .row_scores = scores};
    snprintf(out->data, sizeof out->data, "%s", facts->description);
    snprintf(out->row_format, sizeof out->row_format, "%s", facts->row_format);
    snprintf(out->model, sizeof out->model, "%.*s", (int)sizeof out->model - 1, from);
    snprintf(out->device, sizeof out->device, "%s", e->device.backend->facts.name);
    snprintf(out->adapter, sizeof out->adapter, "%.*s", (int)sizeof out->adapter - 1,
             hy_adapters_name(&m->adapters, m->adapters.used));
    snprintf(out->frozen_dtype, sizeof out->frozen_dtype, "%s", hy_settings_frozen_name(s));
    return HY_OK;
}

hy_status hy_model_evaluate(hy_used_model *m, hy_evaluation *out, int32_t count) {
    char from[HY_PATH_MAX];
    hy_batch_plan *plan = NULL;
    HY_TRY(hy_model_prepare(m, 0, &plan, from));
    for (int32_t i = 0; i < count; i++) {
        if (count > 1) HY_TRY(hy_adapters_use(&m->adapters, m->engine, i - 1));
        HY_TRY(measure(m, plan, from, &out[i]));
    }
    return HY_OK;
}

hy_status hy_evaluate_each_sized(const hy_config *config, const hy_observer *observer,
                                 hy_evaluation **out, size_t *count, size_t size) {
    hy_used_model *m;
    *out = NULL;
    *count = 0;
    HY_TRY(hy_model_open(config, observer, &m));
    int32_t named = m->adapters.set.count, all = named > 1 ? named + 1 : 1;
    hy_evaluation *list = calloc((size_t)all, sizeof *list);
    char *copies = calloc((size_t)all, size);
    hy_status status = list && copies ? hy_model_evaluate(m, list, all)
                                      : hy_fail(HY_ERR_MEMORY, "not enough memory for evaluations");
    hy_model_close(m);
    for (int32_t i = 0; i < all && status == HY_OK; i++) {
        hy_copy_sized(copies + (size_t)i * size, size, &list[i], sizeof list[i]);
    }
    free(list);
    if (status != HY_OK) {
        free(copies);
        return status;
    }
    *out = (hy_evaluation *)(void *)copies;
    *count = (size_t)all;
    return HY_OK;
}

hy_status hy_evaluate_sized(const hy_config *config, const hy_observer *observer,
                            hy_evaluation *out, size_t size) {
    const char *names = hy_config_settings(config)->lora.adapter;
    hy_evaluation *list;
    size_t count;
    HY_FAIL_IF(hy_peft_count(names) > 1, HY_ERR_INPUT,
               "lora.adapter names several adapters (%s); hy_evaluate takes one", names);
    HY_TRY(hy_evaluate_each_sized(config, observer, &list, &count, size));
    memcpy(out, list, size);
    free(list);
    return HY_OK;
}

/* ---- exported and merged models -------------------------------------------------------------- */

hy_status hy_measured_configure(const hy_measured *what, const char *data, hy_config **out) {
    char batches[32];
    const hy_merge_options *o = &what->how;
    const char *file = what->file;
    snprintf(batches, sizeof batches, "%lld", (long long)o->eval_batches);
    const char *const pairs[][2] = {{"eval.eval_batches", o->eval_batches > 0 ? batches : NULL},
                                    {"data", data},
                                    {"device", o->device},
                                    {"lora.base", file ? NULL : o->base},
                                    {"lora.lora", file ? "false" : NULL},
                                    {"train.train", file ? "all" : NULL},
                                    {"train.frozen_dtype", file || what->as_files ? "auto" : NULL},
                                    {"init_from", file ? "" : NULL},
                                    {"model", file}};
    HY_TRY(hy_config_create(out));
    HY_TRY(hy_config_use_model(*out, what->checkpoint));
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i][1]) HY_TRY(hy_config_set(*out, pairs[i][0], pairs[i][1], HY_FROM_CALLER));
    }
    return HY_OK;
}

/* Weights that do not fit on the card, or all weights on a CPU, are in host memory. */
static hy_status check_room(const hy_used_model *m) {
    hy_host_memory host;
    hy_host_memory_read("/proc", "/sys", &host);
    double element = (double)hy_dtype_size(m->engine->plan->types.of[HY_FULL]);
    double needs = (double)m->engine->model->params.elements * element,
           may_use = 0.9 * (double)host.available;
    HY_FAIL_IF(host.available > 0 && needs > may_use, HY_ERR_MEMORY,
               "the base model's weights without quantisation need %s of host memory, but only %s "
               "may be used: nine tenths of what is free",
               hy_bytes_as_text((uint64_t)needs).text, hy_bytes_as_text((uint64_t)may_use).text);
    return HY_OK;
}

hy_status hy_measure(const hy_measured *what, const hy_observer *observer, hy_evaluation *out) {
    hy_config *config = NULL;
    hy_used_model *m = NULL;
    const char *data = what->how.data;
    hy_status status = hy_measured_configure(what, data, &config);
    if (status == HY_OK) status = hy_model_open(config, observer, &m);
    if (status == HY_OK && what->as_files) status = check_room(m);
    if (status == HY_OK) {
        m->uses_held_out = !data;
        status = hy_model_evaluate(m, out, 1);
    }
    hy_model_close(m);
    hy_config_destroy(config);
    return status;
}

hy_status hy_measure_bases(const hy_measured *what, const hy_observer *observer,
                           hy_evaluation *trained, hy_evaluation *folder, bool *has_folder) {
    static const hy_observer nobody = {0};
    char path[HY_PATH_MAX];
    hy_measured other = *what;
    other.as_files = true;
    HY_TRY(hy_checkpoint_find(observer ? observer : &nobody, what->checkpoint, path));
    HY_TRY(hy_checkpoint_lacks_base(path, has_folder));
    HY_TRY(hy_measure(what, observer, trained));
    *has_folder &= trained->frozen_dtype[0] != 0;
    return *has_folder ? hy_measure(&other, observer, folder) : HY_OK;
}

hy_status hy_merge_evaluate_sized(const char *checkpoint, const hy_merge_options *options,
                                  const hy_observer *observer, hy_evaluation *trained,
                                  hy_evaluation *folder, bool *has_folder, size_t size) {
    hy_evaluation found[2] = {{0}, {0}};
    hy_measured what = {.checkpoint = checkpoint, .how = *options};
    *has_folder = false;
    hy_status status = hy_measure_bases(&what, observer, &found[0], &found[1], has_folder);
    hy_copy_sized(trained, size, &found[0], sizeof found[0]);
    hy_copy_sized(folder, size, &found[1], sizeof found[1]);
    return status;
}

/* ---- as JSON --------------------------------------------------------------------------------- */

/* The fields that all evaluations share, then the results: in a list, or of one evaluation. */
static hy_status write_json(const hy_evaluation *list, size_t count, size_t size, bool is_list,
                            char **out) {
    hy_text text = {0};
    hy_json_writer w;
    hy_json_begin(&w, &text, true);
    hy_json_open_object(&w, NULL);
    for (size_t i = 0; i < count; i++) {
        hy_evaluation e = {0};
        hy_copy_sized(&e, sizeof e, (const char *)list + i * size, size);
        if (i == 0) {
            hy_json_put_string(&w, "model", e.model);
            hy_json_put_string(&w, "frozen_dtype", e.frozen_dtype[0] ? e.frozen_dtype : NULL);
            hy_json_put_string(&w, "data", e.data);
            if (e.row_format[0]) hy_json_put_string(&w, "row_format", e.row_format);
            hy_json_put_string(&w, "device", e.device);
            if (is_list) hy_json_open_array(&w, "results");
        }
        if (is_list) hy_json_open_object(&w, NULL);
        hy_json_put_string(&w, "adapter", e.adapter[0] ? e.adapter : NULL);
        hy_json_put_double(&w, "loss", e.loss);
        hy_json_put_double(&w, "perplexity", e.perplexity);
        hy_json_put_double(&w, "bits_per_byte", e.bits_per_byte);
        if (e.row_scores.pairs == 0) hy_json_put_int(&w, "tokens", e.tokens);
        hy_json_put_int(&w, "sequences", e.sequences);
        if (e.seq_len > 0) hy_json_put_int(&w, "seq_len", e.seq_len); /* 0: an older caller */
        hy_json_put_double(&w, "seconds", e.seconds);
        hy_json_put_double(&w, "tokens_per_second", e.tokens_per_second);
        hy_row_scores_put(&e.row_scores, &w);
        if (is_list) hy_json_close_object(&w);
    }
    if (is_list) hy_json_close_array(&w);
    hy_json_close_object(&w);
    hy_text_add(&text, "\n");
    return hy_text_take(&text, out);
}

hy_status hy_evaluations_json_sized(const hy_evaluation *list, size_t count, size_t size,
                                    char **out) {
    HY_FAIL_IF(count == 0, HY_ERR_INPUT, "there is no evaluation to write");
    return write_json(list, count, size, true, out);
}

hy_status hy_evaluation_json_sized(const hy_evaluation *evaluation, size_t size, char **out) {
    return write_json(evaluation, 1, size, false, out);
}
