/* inference_text.c: text in, text out. See inference.h and hybrid.h.
 *
 * A prompt is compared with the cache, and only new tokens are computed, or a few more with states.
 * Bytes that may begin a character wait for the rest of it. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/sized.h"
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

static hy_sampling sampling_of(const hy_inference *in, const hy_answer *a) {
    return hy_solo_sampling(a->options, in->known.count);
}

static hy_status read_token(hy_inference *in) {
    HY_TRY(hy_solo_read(&in->solo));
    HY_FAIL_IF(!isfinite(in->solo.logprob), HY_ERR_NUMERIC,
               "the model's logits are not finite: its weights contain NaN or infinity, or "
               "produce them");
    return HY_OK;
}

static int32_t context_of(const hy_inference *in) {
    return hy_batch_decoder_facts(in->solo.decoder)->context;
}

static hy_status take_prompt(hy_inference *in, const int32_t *prompt, size_t count, hy_answer *a) {
    double begin = hy_clock();
    /* Keeps the common prefix of prompt and cache, or what of it the cache can go back to; the last
     * token is computed again for its logits. */
    size_t shared = 0, cached = (size_t)in->solo.length;
    while (shared + 1 < count && shared < cached && in->known.data[shared] == prompt[shared])
        shared++;
    HY_TRY(hy_solo_go_back(&in->solo, (int32_t)shared));
    shared = in->known.count = (size_t)in->solo.length;
    HY_TRY(hy_ids_append(&in->known, prompt + shared, count - shared));
    hy_sampling sampling = sampling_of(in, a);
    HY_TRY(hy_solo_take(&in->solo, prompt + shared, (int32_t)(count - shared), &sampling));
    HY_TRY(read_token(in));
    a->info.prompt_tokens = (int32_t)count;
    a->info.reused_tokens = (int32_t)shared;
    a->info.prompt_seconds = hy_clock() - begin;
    return HY_OK;
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Does the answer end before its next token, and why? */
static bool must_end(hy_inference *in, hy_answer *a) {
    hy_generated *info = &a->info;
    int32_t most = a->options->max_tokens;
    bool is_stopped = atomic_load(&in->stop_requested);
    bool is_full = in->known.count >= (size_t)context_of(in);
    bool is_long = most > 0 && info->tokens >= most;
    info->end = is_stopped ? HY_END_STOPPED : is_long ? HY_END_MAX_TOKENS : HY_END_CONTEXT;
    return is_stopped || is_full || is_long;
}

/* The device has the step of a token before the listener gets its text. */
static hy_status write_answer(hy_inference *in, hy_answer *a) {
    hy_decode_window s = {.first = in->known.count - 1, .next = in->known.count};
    size_t given = 0; /* bytes of the answer that the listener has received */
    while (!must_end(in, a)) {
        int32_t token = in->solo.next;
        if (hy_codec_is_end(&in->codec, token)) {
            a->info.end = HY_END_MODEL;
            break;
        }
        a->info.tokens++;
        HY_TRY(hy_ids_append(&in->known, &token, 1));
        bool is_last = must_end(in, a);
        hy_sampling sampling = sampling_of(in, a);
        if (!is_last) HY_TRY(hy_solo_take(&in->solo, &token, 1, &sampling));
        HY_TRY(hy_decode_more(in->codec.tokenizer, &in->known, &s, &a->text));
        hand_out(a, &given, false);
        if (!is_last) HY_TRY(read_token(in));
    }
    hand_out(a, &given, true);
    return HY_OK;
}

static hy_status answer_prompt(hy_inference *in, const int32_t *prompt, size_t count,
                               hy_answer *a) {
    HY_TRY(hy_inference_place(in));
    hy_status status = take_prompt(in, prompt, count, a);
    double begin = hy_clock();
    if (status == HY_OK) status = write_answer(in, a);
    a->info.seconds = hy_clock() - begin;
    return status;
}

hy_status hy_inference_continue(hy_inference *in, const int32_t *prompt, size_t count,
                                hy_answer *a) {
    hy_error error;
    HY_FAIL_IF(count >= (size_t)context_of(in), HY_ERR_INPUT,
               "the text has %zu tokens; the context of %d tokens has no room for it and an answer",
               count, context_of(in));
    hy_status status = answer_prompt(in, prompt, count, a);
    atomic_store(&in->stop_requested, false);
    if (status == HY_OK) return HY_OK;
    hy_error_save(&error, status);
    (void)hy_engine_settle(in->model->engine); /* the first failure is reported */
    in->is_placed = false;
    return hy_error_restore(&error);
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
