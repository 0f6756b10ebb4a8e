/* inference_talk.c: a conversation with a model. See inference.h and hybrid.h.
 *
 * Every turn renders the whole conversation and passes it as a prompt; tokens in the cache are
 * not computed again. So this file does not depend on how a template writes turns, and the next
 * turn always sees the last answer. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "base/sized.h"
#include "infer/inference.h"

/* Old turns are dropped to keep a quarter of the context free for the answer. */
#define ANSWER_SHARE 4

/* ---- the conversation ------------------------------------------------------------------------ */

static hy_status add_turn(hy_inference *in, hy_role role, const char *text, size_t size) {
    hy_conversation *c = &in->said;
    char *copy = malloc(size + 1);
    if (!copy) return hy_fail(HY_ERR_MEMORY, "not enough memory for a conversation");
    if (size > 0) memcpy(copy, text, size);
    copy[size] = 0;
    hy_status status =
        hy_array_reserve(&c->turns, &c->room, c->count + 1, sizeof *c->turns, "a conversation");
    if (status != HY_OK) {
        free(copy);
        return status;
    }
    c->turns[c->count++] = (hy_turn){.role = role, .text = copy, .size = size, .is_owned = true};
    return HY_OK;
}

static void drop_turns(hy_conversation *c, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) {
        if (c->turns[i].is_owned) free((char *)c->turns[i].text);
    }
    memmove(c->turns + first, c->turns + first + count,
            (c->count - first - count) * sizeof *c->turns);
    c->count -= count;
}

void hy_inference_forget(hy_inference *in) {
    if (in->said.count > 0) drop_turns(&in->said, 0, in->said.count);
    hy_conversation_free(&in->said);
    hy_json_free(in->messages);
    in->messages = NULL;
}

hy_status hy_inference_reset(hy_inference *in, const char *system) {
    hy_inference_forget(in);
    atomic_store(&in->stop_requested, false);
    if (!system || !system[0]) return HY_OK;
    return add_turn(in, HY_ROLE_SYSTEM, system, strlen(system));
}

hy_status hy_inference_set_messages(hy_inference *in, const char *json, size_t size) {
    hy_inference_forget(in);
    atomic_store(&in->stop_requested, false);
    hy_status status = hy_messages_parse(json, size, &in->messages, &in->said);
    if (status != HY_OK) hy_inference_forget(in);
    return status;
}

/* ---- as tokens ------------------------------------------------------------------------------- */

static hy_status fit_conversation(hy_inference *in, int32_t max_tokens, hy_ids *out) {
    size_t room = (size_t)hy_batch_decoder_facts(in->solo.decoder)->context;
    size_t spare = room / ANSWER_SHARE;
    if (max_tokens > 0 && (size_t)max_tokens < spare) spare = (size_t)max_tokens;
    for (;;) {
        hy_conversation *s = &in->said;
        size_t first = s->count > 0 && s->turns[0].role == HY_ROLE_SYSTEM ? 1 : 0;
        out->count = 0;
        HY_TRY(hy_codec_encode_turns(&in->codec, s, out));
        /* Drops the oldest question and its answers, unless it is the only question. */
        size_t next = first + 1;
        while (next < s->count && s->turns[next].role != HY_ROLE_USER) next++;
        if (out->count + spare <= room || next >= s->count) break;
        drop_turns(s, first, next - first);
    }
    HY_FAIL_IF(out->count == 0, HY_ERR_INPUT, "the message is empty");
    return HY_OK;
}

/* ---- a turn ---------------------------------------------------------------------------------- */

hy_status hy_inference_say_sized(hy_inference *in, const char *message,
                                 const hy_generate_options *options, hy_text_callback on_text,
                                 void *user, hy_generated *info, size_t size) {
    static const hy_generate_options usual = {0};
    hy_answer answer = {.options = options ? options : &usual, .on_text = on_text, .user = user};
    hy_ids ids = {0};
    const hy_conversation *said = &in->said;
    if (!message) HY_TRY(hy_messages_check(said));
    size_t first = said->count > 0 && said->turns[0].role == HY_ROLE_SYSTEM;
    bool drops = message && in->codec.is_single && said->count > first;
    if (drops) drop_turns(&in->said, first, said->count - first);
    if (message) HY_TRY(add_turn(in, HY_ROLE_USER, message, strlen(message)));
    hy_status status = fit_conversation(in, answer.options->max_tokens, &ids);
    if (status == HY_OK) status = hy_inference_continue(in, ids.data, ids.count, &answer);
    if (status == HY_OK) {
        status = add_turn(in, HY_ROLE_ASSISTANT, answer.text.data, answer.text.size);
    }
    /* A message without an answer is removed again. */
    if (status != HY_OK && message) drop_turns(&in->said, in->said.count - 1, 1);
    hy_copy_sized(info, size, &answer.info, sizeof answer.info);
    hy_ids_free(&ids);
    hy_text_free(&answer.text);
    return status;
}
