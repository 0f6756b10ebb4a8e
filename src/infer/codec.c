/* codec.c: opens a model's tokenizer and chat template, and uses them. See codec.h.
 *
 * The text of new tokens is found by decoding a few tokens with and without them, because a token's
 * text can depend on the one before it. */
#include "infer/codec.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/say.h"
#include "infer/inference.h"
#include "setup/setup.h"

#define BYTE_END 0 /* the end token if tokens are bytes */

/* ---- opening --------------------------------------------------------------------------------- */

/* named: the one that the user names; NULL: none. */
static hy_status open_tokenizer(hy_codec *c, const hy_used_model *m, const char *named,
                                const char *folder) {
    const char *asked = named ? named : m->settings.input.tokenizer;
    HY_TRY(hy_model_tokenizer(m->engine->model, asked, folder, c->tokenizer_path));
    int32_t vocab = m->engine->model->shape.vocab;
    if (!c->tokenizer_path[0]) {
        snprintf(c->tokenizer_path, sizeof c->tokenizer_path, "bytes");
        c->vocab = vocab;
        HY_FAIL_IF(vocab < 256, HY_ERR_INPUT,
                   "no tokenizer was found, and a vocabulary of %d tokens cannot represent all "
                   "bytes; name a tokenizer.json",
                   vocab);
        return HY_OK;
    }
    HY_TRY(hy_tokenizer_open(c->tokenizer_path, &c->tokenizer));
    int32_t ids = hy_tokenizer_vocab(c->tokenizer);
    if (ids > vocab) { /* often a padding token that was added after training */
        hy_say_to(&m->observer, HY_WARNING,
                  "%s has %d tokens and the model has %d: the extra tokens are never sampled",
                  c->tokenizer_path, ids, vocab);
    }
    c->vocab = ids < vocab ? ids : vocab;
    return named ? hy_model_compare_tokenizer(m->engine, asked, folder, c->tokenizer) : HY_OK;
}

static void describe_format(hy_codec *c, bool is_trained) {
    c->is_trained_format = is_trained;
    const char *name = hy_chat_kind_name(c->chat.kind);
    bool is_own = c->chat.kind == HY_CHAT_OWN;
    snprintf(c->format, sizeof c->format, "%s%s%s%s", is_trained ? "as in training, " : "",
             !c->has_template                ? "the text alone, without a chat template"
             : c->chat.kind == HY_CHAT_LINES ? "the question and a line end"
             : is_own                        ? "the chat template of the model folder"
                                             : "chat template ",
             !c->has_template || is_own || c->chat.kind == HY_CHAT_LINES ? "" : name,
             c->is_single ? "; each message is asked alone" : "");
}

/* The template that the user names, or else the format of the run's rows, or else the template of
 * the model's folder. */
static hy_status open_template(hy_codec *c, const hy_used_model *m,
                               const hy_inference_options *options, const char *folder) {
    hy_chat_kind chat = HY_CHAT_AUTO;
    hy_prompt_format trained = {0};
    if (options->chat_template) HY_TRY(hy_chat_kind_parse(options->chat_template, &chat));
    bool is_asked = chat != HY_CHAT_AUTO;
    if (!is_asked) HY_TRY(hy_model_read_format(m, folder, &trained));
    bool is_trained = trained.chat != HY_CHAT_AUTO;
    if (!is_asked) chat = is_trained ? trained.chat : m->settings.input.chat_template;
    if (chat == HY_CHAT_OWN) chat = HY_CHAT_AUTO;
    c->is_single = trained.is_single;
    HY_TRY(hy_chat_template_open(chat, c->tokenizer, folder[0] ? folder : NULL, &c->chat));
    time_t now = time(NULL);
    localtime_r(&now, &c->chat.now);
    c->chat.skips_thinking = options->without_thinking;
    c->has_template = c->chat.kind != HY_CHAT_PLAIN && c->chat.kind != HY_CHAT_UNKNOWN &&
                      c->chat.kind != HY_CHAT_NONE;
    if (c->chat.kind == HY_CHAT_UNKNOWN) {
        char offer[HY_CHAT_NAMES_MAX];
        hy_chat_template_offer(&c->chat, offer);
        hy_say_to(&m->observer, HY_WARNING,
                  "the chat template in %s is not supported: %s; messages are joined without a "
                  "template; if one of these matches, choose it with --chat-template: %s",
                  folder, c->chat.reason, offer);
    }
    describe_format(c, is_trained);
    if (!is_asked) hy_model_compare_formats(m, c->chat.kind);
    return HY_OK;
}

hy_status hy_codec_open(hy_codec *c, const hy_used_model *m, const hy_inference_options *options) {
    char folder[HY_PATH_MAX];
    *c = (hy_codec){0};
    HY_TRY(hy_model_folder(&m->settings, folder));
    HY_TRY(open_tokenizer(c, m, options->tokenizer, folder));
    HY_TRY(open_template(c, m, options, folder));
    return hy_end_tokens_read(folder, &c->ends);
}

void hy_codec_close(hy_codec *c) {
    hy_chat_template_close(&c->chat);
    hy_tokenizer_close(c->tokenizer);
}

const char *hy_codec_template(const hy_codec *c) {
    return c->has_template ? hy_chat_kind_name(c->chat.kind) : "plain";
}

/* ---- to tokens ------------------------------------------------------------------------------- */

hy_status hy_codec_encode(const hy_codec *c, const char *text, size_t size, hy_ids *out) {
    return hy_encode_text(c->tokenizer, text, size, 0, out);
}

/* A post-processor may add tokens at both ends. The end token is removed, because the text
 * continues. */
static hy_status encode_open(const hy_codec *c, const char *text, size_t size, hy_ids *out) {
    HY_TRY(hy_encode_text(c->tokenizer, text, size, HY_TOKENS_SPECIAL, out));
    int32_t eos = c->tokenizer ? hy_tokenizer_eos(c->tokenizer) : -1;
    if (eos >= 0 && out->count > 1 && out->data[out->count - 1] == eos) out->count--;
    return HY_OK;
}

hy_status hy_codec_encode_prompt(const hy_codec *c, const char *text, size_t size, hy_ids *out) {
    HY_TRY(encode_open(c, text, size, out));
    if (out->count > 0) return HY_OK;
    int32_t bos = c->tokenizer ? hy_tokenizer_bos(c->tokenizer) : -1;
    if (bos >= 0) return hy_ids_append(out, &bos, 1);
    return hy_encode_text(c->tokenizer, "\n", 1, 0, out);
}

/* Without a template, messages are joined without separators. */
static hy_status encode_joined(const hy_codec *c, const hy_conversation *turns, hy_ids *out) {
    hy_text all = {0};
    for (size_t i = 0; i < turns->count; i++) {
        hy_text_add_bytes(&all, turns->turns[i].text, turns->turns[i].size);
    }
    hy_status status = hy_text_status(&all);
    if (status == HY_OK) status = encode_open(c, hy_text_string(&all), all.size, out);
    hy_text_free(&all);
    return status;
}

hy_status hy_codec_encode_turns(const hy_codec *c, const hy_conversation *turns, hy_ids *out) {
    hy_rendered rendered = {0};
    hy_flags answers = {0};
    if (!c->has_template) return encode_joined(c, turns, out);
    hy_status status = hy_chat_render(&c->chat, turns, true, &rendered);
    if (status == HY_OK) status = hy_rendered_encode(&rendered, c->tokenizer, out, &answers);
    hy_rendered_free(&rendered);
    hy_flags_free(&answers);
    return status;
}

hy_status hy_messages_parse(const char *text, size_t size, hy_json **json, hy_conversation *out) {
    HY_TRY(hy_json_parse(text, size, "messages", json));
    const hy_json_node *root = hy_json_root(*json);
    return hy_json_type_of(root) == HY_JSON_ARRAY
               ? hy_conversation_read_messages(root, out)
               : hy_conversation_read(root, HY_ROWS_MESSAGES, out);
}

hy_status hy_messages_check(const hy_conversation *turns) {
    HY_FAIL_IF(turns->count == 0, HY_ERR_INPUT, "the conversation is empty");
    HY_FAIL_IF(turns->turns[turns->count - 1].role == HY_ROLE_ASSISTANT, HY_ERR_INPUT,
               "the last message is the assistant's: add a user message first");
    return HY_OK;
}

/* ---- to text --------------------------------------------------------------------------------- */

bool hy_codec_is_end(const hy_codec *c, int32_t token) {
    if (hy_end_tokens_has(&c->ends, token)) return true;
    if (!c->tokenizer) return token == BYTE_END;
    return token == hy_tokenizer_eos(c->tokenizer) || token == hy_tokenizer_bos(c->tokenizer) ||
           ((c->has_template || c->chat.kind == HY_CHAT_PLAIN) &&
            token == hy_chat_template_end(&c->chat));
}

hy_status hy_decode_text(const hy_tokenizer *tokenizer, const int32_t *ids, size_t count, int flags,
                         hy_text *out) {
    if (tokenizer) return hy_tokenizer_decode(tokenizer, ids, count, flags, out);
    for (size_t i = 0; i < count; i++) {
        char byte = ids[i] >= 0 && ids[i] < 256 ? (char)ids[i] : '?';
        hy_text_add_bytes(out, &byte, 1);
    }
    return hy_text_status(out);
}

hy_status hy_decode_more(const hy_tokenizer *tokenizer, const hy_ids *known, hy_decode_window *s,
                         hy_text *out) {
    const int32_t *ids = known->data + s->first;
    hy_text before = {0}, after = {0};
    hy_status status =
        hy_decode_text(tokenizer, ids, s->next - s->first, HY_TOKENS_SKIP_SPECIAL, &before);
    if (status == HY_OK) {
        status =
            hy_decode_text(tokenizer, ids, known->count - s->first, HY_TOKENS_SKIP_SPECIAL, &after);
    }
    if (status == HY_OK && after.size > before.size) {
        hy_text_add_bytes(out, after.data + before.size, after.size - before.size);
        status = hy_text_status(out);
        s->first = s->next;
    }
    hy_text_free(&before);
    hy_text_free(&after);
    s->next = known->count;
    return status;
}

size_t hy_incomplete_bytes(const char *text, size_t size) {
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        const uint8_t *at = (const uint8_t *)text + size - back;
        if ((*at & 0xC0) == 0x80) continue;
        int length = *at >= 0xF0 ? 4 : *at >= 0xE0 ? 3 : *at >= 0xC2 ? 2 : 1;
        bool is_cut = (size_t)length > back && *at <= 0xF4;
        return is_cut ? back : 0;
    }
    return 0;
}
