/* inference_text.c: text in, text out. See inference.h and hybrid.h.
 *
 * A prompt is compared with the cache, and only new tokens are computed. Bytes that may begin a
 * character wait for the rest of it. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/sized.h"
#include "infer/choose.h"
#include "infer/inference.h"

/* ---- tokens and text ------------------------------------------------------------------------- */

hy_status hy_inference_encode(const hy_inference *in, const char *text, size_t size, int32_t **ids,
                              size_t *count) {
    hy_ids found = {0};
    hy_status status = hy_codec_encode(&in->codec, text, size, &found);
    if (status != HY_OK) hy_ids_free(&found);
    *ids = found.data;
    *count = found.count;
    return status;
}

hy_status hy_inference_decode(const hy_inference *in, const int32_t *ids, size_t count, char **text,
                              size_t *size) {
    hy_text out = {0};
    int32_t vocab = in->codec.tokenizer ? hy_tokenizer_vocab(in->codec.tokenizer) : 256;
    *text = NULL;
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= 0 && ids[i] < vocab) continue;
        return hy_fail(HY_ERR_INPUT, "token %zu is %d, expected 0 to %d", i, ids[i], vocab - 1);
    }
    hy_status status = hy_decode_text(in->codec.tokenizer, ids, count, 0, &out);
    hy_text_add(&out, ""); /* an empty text is a string too, not NULL */
    if (status != HY_OK) hy_text_free(&out);
    if (size) *size = out.size;
    return status != HY_OK ? status : hy_text_take(&out, text);
}

static void hand_out(hy_answer *a, size_t *given, bool is_last) {
    size_t waiting = is_last ? 0 : hy_incomplete_bytes(a->text.data, a->text.size);
    size_t ready = a->text.size - waiting;
    if (ready <= *given) return;
    if (a->on_text) a->on_text(a->user, a->text.data + *given, ready - *given);
    *given = ready;
}

/* ---- the prompt ------------------------------------------------------------------------------ */

static hy_status take(hy_inference *in, const int32_t *tokens, size_t count) {
    hy_engine *e = in->model->engine;
    HY_TRY(hy_decoder_take(in->decoder, e->device.compute, hy_store_of(e, HY_ROW_MASTER), NULL,
                           tokens, (int32_t)count, in->logits));
    for (int32_t i = 0; i < in->codec.vocab; i++) {
        HY_FAIL_IF(!isfinite(in->logits[i]), HY_ERR_NUMERIC,
                   "the model's logits are not finite: its weights contain NaN or infinity, or "
                   "produce them");
    }
    hy_status status = hy_ids_append(&in->known, tokens, count);
    if (status != HY_OK) hy_decoder_rewind(in->decoder, (int32_t)in->known.count);
    return status;
}

static hy_status take_prompt(hy_inference *in, const int32_t *prompt, size_t count,
                             hy_generated *info) {
    size_t room = (size_t)in->decoder->options.context;
    HY_FAIL_IF(
        count >= room, HY_ERR_INPUT,
        "the text has %zu tokens; the context of %zu tokens has no room for it and an answer",
        count, room);
    double begin = hy_clock();
    /* Keeps the common prefix of prompt and cache; the last token is computed again for its
     * logits. */
    size_t shared = 0;
    while (shared + 1 < count && shared < in->known.count &&
           in->known.data[shared] == prompt[shared])
        shared++;
    in->known.count = shared;
    hy_decoder_rewind(in->decoder, (int32_t)shared);
    HY_TRY(take(in, prompt + shared, count - shared));
    info->prompt_tokens = (int32_t)count;
    info->reused_tokens = (int32_t)shared;
    info->prompt_seconds = hy_clock() - begin;
    return HY_OK;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Does the answer end before its next token, and why? */
static bool must_end(hy_inference *in, hy_answer *a) {
    hy_generated *info = &a->info;
    int32_t most = a->options->max_tokens;
    bool is_stopped = atomic_load(&in->stop_requested);
    bool is_full = in->decoder->length >= in->decoder->options.context;
    bool is_long = most > 0 && info->tokens >= most;
    info->end = is_stopped ? HY_END_STOPPED : is_long ? HY_END_MAX_TOKENS : HY_END_CONTEXT;
    return is_stopped || is_full || is_long;
}

static hy_status write_answer(hy_inference *in, hy_answer *a) {
    const hy_generate_options *o = a->options;
    hy_choice choice = {
        .temperature = o->temperature, .top_k = o->top_k, .top_p = o->top_p, .seed = o->seed};
    hy_decode_window s = {.first = in->known.count - 1, .next = in->known.count};
    size_t given = 0; /* bytes of the answer that the listener has received */
    while (!must_end(in, a)) {
        int32_t token = hy_choose_token(&choice, in->logits, in->codec.vocab,
                                        (uint64_t)in->known.count, in->order);
        if (hy_codec_is_end(&in->codec, token)) {
            a->info.end = HY_END_MODEL;
            break;
        }
        a->info.tokens++;
        HY_TRY(take(in, &token, 1));
        HY_TRY(hy_decode_more(in->codec.tokenizer, &in->known, &s, &a->text));
        hand_out(a, &given, false);
    }
    hand_out(a, &given, true);
    return HY_OK;
}

hy_status hy_inference_continue(hy_inference *in, const int32_t *prompt, size_t count,
                                hy_answer *a) {
    hy_status status = take_prompt(in, prompt, count, &a->info);
    double begin = hy_clock();
    if (status == HY_OK) status = write_answer(in, a);
    a->info.seconds = hy_clock() - begin;
    atomic_store(&in->stop_requested, false);
    return status;
}

hy_status hy_inference_complete_sized(hy_inference *in, const char *prompt,
                                      const hy_generate_options *options, hy_text_callback on_text,
                                      void *user, hy_generated *info, size_t size) {
    static const hy_generate_options usual = {0};
    hy_answer answer = {.options = options ? options : &usual, .on_text = on_text, .user = user};
    hy_ids ids = {0};
    if (!prompt) prompt = "";
    hy_status status = hy_codec_encode_prompt(&in->codec, prompt, strlen(prompt), &ids);
    if (status == HY_OK) status = hy_inference_continue(in, ids.data, ids.count, &answer);
    hy_copy_sized(info, size, &answer.info, sizeof answer.info);
    hy_ids_free(&ids);
    hy_text_free(&answer.text);
    return status;
}
