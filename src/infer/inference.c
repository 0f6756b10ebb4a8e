/* inference.c: the handle of a loaded model: create, query, close. See hybrid.h. */
#include "infer/inference.h"
#include "base/sized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "formats/checkpoint.h"
#include "record/state_files.h"
#include "setup/setup.h"

#define LONGEST_CONTEXT 8192 /* default context: enough for a conversation */
#define SHORTEST_CONTEXT 127 /* not halved further */

/* ---- tokenizer ------------------------------------------------------------------------------- */

/* named: the one that the user names; NULL: none. */
static hy_status open_tokenizer(hy_inference *in, const char *named, const char *folder) {
    const char *asked = named ? named : in->model->settings.input.tokenizer;
    HY_TRY(hy_model_tokenizer(in->model->engine->model, asked, folder, in->tokenizer_path));
    int32_t vocab = in->model->engine->model->shape.vocab;
    if (!in->tokenizer_path[0]) {
        snprintf(in->tokenizer_path, sizeof in->tokenizer_path, "bytes");
        in->vocab = vocab;
        HY_FAIL_IF(vocab < 256, HY_ERR_INPUT,
                   "no tokenizer was found, and a vocabulary of %d tokens cannot represent all "
                   "bytes; name a tokenizer.json",
                   vocab);
        return HY_OK;
    }
    HY_TRY(hy_tokenizer_open(in->tokenizer_path, &in->tokenizer));
    int32_t ids = hy_tokenizer_vocab(in->tokenizer);
    if (ids > vocab) { /* often a padding token that was added after training */
        hy_say_to(&in->model->observer, HY_WARNING,
                  "%s has %d tokens and the model has %d: the extra tokens are never sampled",
                  in->tokenizer_path, ids, vocab);
    }
    in->vocab = ids < vocab ? ids : vocab;
    return named ? hy_model_compare_tokenizer(in->model->engine, asked, folder, in->tokenizer)
                 : HY_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A default context is halved until keys and values use at most half of the device. */
static hy_status make_decoder(hy_inference *in, int32_t asked) {
    hy_used_model *m = in->model;
    int32_t context = m->engine->model->shape.context;
    uint64_t limit = hy_budget_device(&m->engine->request); /* 0: no limit */
    if (context > LONGEST_CONTEXT) context = LONGEST_CONTEXT;
    hy_decoder_options options = {.context = asked > 0 ? asked : context,
                                  .dtype = m->engine->plan->types.of[HY_FULL],
                                  .is_unprepared = !m->engine->device.backend->facts.is_gpu,
                                  .budget = limit};
    uint64_t most = asked > 0 || limit == 0 ? UINT64_MAX : limit / 2;
    return hy_decoder_create_within(m->engine->model, m->engine->device.backend, &options, most,
                                    SHORTEST_CONTEXT, &in->decoder);
}

/* ---- the format of messages ------------------------------------------------------------------ */

static void describe_format(hy_inference *in, bool is_trained) {
    in->is_trained_format = is_trained;
    const char *name = hy_chat_kind_name(in->chat.kind);
    bool is_own = in->chat.kind == HY_CHAT_OWN;
    snprintf(in->format, sizeof in->format, "%s%s%s%s", is_trained ? "as in training, " : "",
             !in->has_template                ? "the text alone, without a chat template"
             : in->chat.kind == HY_CHAT_LINES ? "the question and a line end"
             : is_own                         ? "the chat template of the model folder"
                                              : "chat template ",
             !in->has_template || is_own || in->chat.kind == HY_CHAT_LINES ? "" : name,
             in->is_single ? "; each message is asked alone" : "");
}

/* The template that the user names, or else the format of the run's rows, or else the template of
 * the model's folder. */
static hy_status open_template(hy_inference *in, const hy_inference_options *options,
                               const char *folder) {
    hy_chat_kind chat = HY_CHAT_AUTO;
    hy_prompt_format trained = {0};
    if (options->chat_template) HY_TRY(hy_chat_kind_parse(options->chat_template, &chat));
    bool is_asked = chat != HY_CHAT_AUTO;
    if (!is_asked) HY_TRY(hy_model_read_format(in->model, folder, &trained));
    bool is_trained = trained.chat != HY_CHAT_AUTO;
    if (!is_asked) chat = is_trained ? trained.chat : in->model->settings.input.chat_template;
    if (chat == HY_CHAT_OWN) chat = HY_CHAT_AUTO;
    in->is_single = trained.is_single;
    HY_TRY(hy_chat_template_open(chat, in->tokenizer, folder[0] ? folder : NULL, &in->chat));
    time_t now = time(NULL);
    localtime_r(&now, &in->chat.now);
    in->chat.skips_thinking = options->without_thinking;
    in->has_template = in->chat.kind != HY_CHAT_PLAIN && in->chat.kind != HY_CHAT_UNKNOWN &&
                       in->chat.kind != HY_CHAT_NONE;
    if (in->chat.kind == HY_CHAT_UNKNOWN) {
        char offer[HY_CHAT_NAMES_MAX];
        hy_chat_template_offer(&in->chat, offer);
        hy_say_to(&in->model->observer, HY_WARNING,
                  "the chat template in %s is not supported: %s; messages are joined without a "
                  "template; if one of these matches, choose it with --chat-template: %s",
                  folder, in->chat.reason, offer);
    }
    describe_format(in, is_trained);
    if (!is_asked) hy_model_compare_formats(in->model, in->chat.kind);
    return HY_OK;
}

/* ---- the handle ------------------------------------------------------------------------------ */

static hy_status open_all(hy_inference *in, const hy_config *config,
                          const hy_inference_options *options, const hy_observer *observer) {
    char folder[HY_PATH_MAX];
    HY_TRY(hy_model_open(config, observer, &in->model));
    HY_TRY(hy_model_folder(&in->model->settings, folder));
    HY_TRY(open_tokenizer(in, options->tokenizer, folder));
    HY_TRY(open_template(in, options, folder));
    HY_TRY(hy_end_tokens_read(folder, &in->ends));
    HY_TRY(make_decoder(in, options->context));
    HY_TRY(hy_model_load(in->model, in->decoder->bytes, in->weights_from));
    hy_used_model *m = in->model;
    size_t vocab = (size_t)m->engine->model->shape.vocab;
    HY_TRY(hy_arena_init(&m->engine->work->arena, m->engine->device.backend,
                         &m->engine->state->ledger, HY_DEVICE, in->decoder->bytes,
                         "keys and values"));
    in->logits = malloc(vocab * sizeof *in->logits);
    in->order = malloc(vocab * sizeof *in->order);
    if (!in->logits || !in->order) return hy_fail(HY_ERR_MEMORY, "not enough memory for logits");
    return hy_decoder_place(in->decoder, m->engine->device.compute, m->engine->work->arena.data);
}

hy_status hy_inference_open(const hy_config *config, const hy_inference_options *options,
                            const hy_observer *observer, hy_inference **out) {
    *out = NULL;
    hy_inference *in = calloc(1, sizeof *in);
    if (!in) return hy_fail(HY_ERR_MEMORY, "not enough memory for a model");
    hy_status status =
        open_all(in, config, options ? options : &(hy_inference_options){0}, observer);
    if (status == HY_OK)
        *out = in;
    else
        hy_inference_close(in);
    return status;
}

void hy_inference_close(hy_inference *in) {
    if (!in) return;
    if (in->model && in->model->engine->device.compute) {
        (void)in->model->engine->device.backend->stream_sync(
            in->model->engine->device.compute); /* a failure was reported */
    }
    hy_inference_forget(in);
    hy_ids_free(&in->known);
    hy_decoder_destroy(in->decoder);
    hy_model_close(in->model);
    hy_chat_template_close(&in->chat);
    hy_tokenizer_close(in->tokenizer);
    free(in->logits);
    free(in->order);
    free(in);
}

void hy_inference_describe_sized(const hy_inference *in, hy_inference_facts *out, size_t size) {
    const hy_used_model *m = in->model;
    const hy_decoder *d = in->decoder;
    hy_inference_facts facts = {
        .model = m->settings.model,
        .weights = in->weights_from,
        .device = m->engine->device.backend->facts.name,
        .tokenizer = in->tokenizer_path,
        .chat_template = in->has_template ? hy_chat_kind_name(in->chat.kind) : "plain",
        .parameters = m->engine->model->params.elements,
        .vocab = m->engine->model->shape.vocab,
        .context = d->options.context,
        .dtype = d->options.dtype,
        .weights_place = hy_store_of(m->engine, HY_ROW_MASTER)->place,
        .weights_bytes = hy_store_of(m->engine, HY_ROW_MASTER)->layout.bytes,
        .cache_bytes = (uint64_t)m->engine->model->shape.layers * d->layer_bytes,
        .message_format = in->format,
        .is_trained_format = in->is_trained_format,
    };
    hy_copy_sized(out, size, &facts, sizeof facts);
}

/* ---- adapters -------------------------------------------------------------------------------- */

const char *hy_inference_adapter(const hy_inference *in, size_t i) {
    const hy_adapters *a = &in->model->adapters;
    return i < (size_t)a->set.count ? a->set.list[i].name : NULL;
}

const char *hy_inference_adapter_used(const hy_inference *in) {
    return hy_adapters_name(&in->model->adapters, in->model->adapters.used);
}

static hy_status refuse_adapter(const hy_adapters *a, const char *name) {
    hy_text known = {0};
    for (int32_t i = 0; i < a->set.count; i++) hy_text_addf(&known, "%s, ", a->set.list[i].name);
    hy_status status = hy_fail(HY_ERR_INPUT, "adapter %.200s is not loaded; accepted: %snone", name,
                               hy_text_string(&known));
    hy_text_free(&known);
    return status;
}

hy_status hy_inference_use_adapter(hy_inference *in, const char *name) {
    hy_adapters *a = &in->model->adapters;
    HY_FAIL_IF(a->set.count == 0, HY_ERR_INPUT,
               "no adapter is loaded: name adapters when you open the model");
    bool is_none = !name || strcmp(name, "none") == 0;
    int32_t i = is_none ? HY_BASE_ALONE : hy_adapters_find(a, name);
    if (i == HY_NO_ADAPTER) return refuse_adapter(a, name);
    if (i == a->used) return HY_OK;
    in->known.count = 0;
    hy_decoder_rewind(in->decoder, 0);
    return hy_adapters_use(a, in->model->engine, i);
}

/* ---- stopping -------------------------------------------------------------------------------- */

void hy_inference_request_stop(hy_inference *in) { atomic_store(&in->stop_requested, true); }
