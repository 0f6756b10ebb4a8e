/* inference_talk.c: a conversation with a model. See inference.h and hybrid.h.
 *
 * Every turn renders the whole conversation again and hands it on as a prompt; what the decoder knows of
 * it is found there and not computed again. So nothing here depends on how a template writes turns, and
 * what was answered last is always what the next turn sees. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "infer/inference.h"

#define ANSWER_SHARE 4 /* a fourth of the context is kept free for the answer, if turns can go */

/* ---- what was said ----------------------------------------------------------------------------- */

static hy_status add_turn(hy_inference *in, hy_role role, const char *text, size_t size) {
    hy_said *s = &in->said;
    if (s->count == s->room) {
        size_t room = s->room ? 2 * s->room : 16;
        hy_turn *turns = realloc(s->turns, room * sizeof *turns);
        if (!turns) return hy_fail(HY_ERR_MEMORY, "no memory for a conversation");
        s->turns = turns;
        s->room = room;
    }
    char *copy = malloc(size + 1);
    if (!copy) return hy_fail(HY_ERR_MEMORY, "no memory for a conversation");
    if (size > 0) memcpy(copy, text, size);
    copy[size] = 0;
    s->turns[s->count++] = (hy_turn){.role = role, .text = copy, .size = size};
    return HY_OK;
}

static void drop_turns(hy_said *s, size_t first, size_t count) {
    for (size_t i = first; i < first + count; i++) free((char *)s->turns[i].text);
    memmove(s->turns + first, s->turns + first + count,
            (s->count - first - count) * sizeof *s->turns);
    s->count -= count;
}

void hy_inference_forget(hy_inference *in) {
    if (in->said.count > 0) drop_turns(&in->said, 0, in->said.count);
}

hy_status hy_inference_reset(hy_inference *in, const char *system) {
    hy_inference_forget(in);
    atomic_store(&in->stop_requested, false);
    if (!system || !system[0]) return HY_OK;
    return add_turn(in, HY_ROLE_SYSTEM, system, strlen(system));
}

/* ---- as tokens --------------------------------------------------------------------------------- */

/* Without a template texts simply follow each other. */
static hy_status encode_plain(const hy_inference *in, hy_ids *out) {
    hy_text all = {0};
    for (size_t i = 0; i < in->said.count; i++) {
        hy_text_add_bytes(&all, in->said.turns[i].text, in->said.turns[i].size);
    }
    hy_status status = hy_text_status(&all);
    if (status == HY_OK) {
        status = hy_inference_encode_open(in, hy_text_string(&all), all.size, out);
    }
    hy_text_free(&all);
    return status;
}

static hy_status encode_turns(const hy_inference *in, hy_ids *out) {
    hy_rendered rendered = {0};
    hy_flags answers = {0};
    hy_status status = hy_chat_render(&in->chat, in->said.turns, in->said.count, true, &rendered);
    if (status == HY_OK) status = hy_rendered_encode(&rendered, in->tokenizer, out, &answers);
    hy_rendered_free(&rendered);
    hy_flags_free(&answers);
    return status;
}

static hy_status fit_conversation(hy_inference *in, int32_t max_tokens, hy_ids *out) {
    size_t room = (size_t)in->decoder->options.context, spare = room / ANSWER_SHARE;
    if (max_tokens > 0 && (size_t)max_tokens < spare) spare = (size_t)max_tokens;
    for (;;) {
        hy_said *s = &in->said;
        size_t first = s->count > 0 && s->turns[0].role == HY_ROLE_SYSTEM ? 1 : 0;
        out->count = 0;
        HY_TRY(in->has_template ? encode_turns(in, out) : encode_plain(in, out));
        if (out->count + spare <= room || s->count < first + 3) break;
        drop_turns(s, first, 2); /* the oldest question and its answer: there is a younger one */
    }
    HY_FAIL_IF(out->count == 0, HY_ERR_INPUT, "the message is empty: there is nothing to answer");
    return HY_OK;
}

/* ---- a turn ------------------------------------------------------------------------------------ */

hy_status hy_inference_say(hy_inference *in, const char *message,
                           const hy_generate_options *options, hy_text_callback on_text, void *user,
                           hy_generated *info) {
    static const hy_generate_options usual = {0};
    hy_answer answer = {
        .options = options ? options : &usual, .on_text = on_text, .user = user, .info = info};
    hy_ids ids = {0};
    HY_TRY(add_turn(in, HY_ROLE_USER, message, strlen(message)));
    hy_status status = fit_conversation(in, answer.options->max_tokens, &ids);
    if (status == HY_OK) status = hy_inference_continue(in, ids.data, ids.count, &answer);
    if (status == HY_OK) {
        status = add_turn(in, HY_ROLE_ASSISTANT, answer.text.data, answer.text.size);
    }
    /* a message that could not be answered was not said */
    if (status != HY_OK) drop_turns(&in->said, in->said.count - 1, 1);
    hy_ids_free(&ids);
    hy_text_free(&answer.text);
    return status;
}
