/* reply.c: answers as JSON objects and as events. See reply.h. */
#include "serve/reply.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/utf8.h"
#include "hybrid.h"

#define COLLECTED_MOST ((size_t)64 << 20)
#define LEAST_LOGPROB (-9999.0) /* what OpenAI's servers write for minus infinity */

/* ---- beginning and end ----------------------------------------------------------------------- */

/* What an echo begins with: the prompts, which are not kept otherwise. */
static hy_status keep_echoes(hy_reply *reply, const hy_ask *ask) {
    reply->echoes = calloc(ask->prompt_count, sizeof *reply->echoes);
    HY_FAIL_IF(!reply->echoes, HY_ERR_MEMORY, "out of memory for an echo");
    for (size_t i = 0; i < ask->prompt_count; i++) {
        const hy_prompt *prompt = &ask->prompts[i];
        char *text = NULL;
        size_t size = prompt->size;
        if (!prompt->text)
            HY_TRY(
                hy_generator_decode(reply->generator, prompt->tokens, prompt->count, &text, &size));
        hy_text_add_bytes(&reply->echoes[i], text ? text : prompt->text, size);
        hy_free(text);
        HY_TRY(hy_text_status(&reply->echoes[i]));
    }
    return HY_OK;
}

hy_status hy_reply_init(hy_reply *reply, const hy_generator *generator, const char *model,
                        const hy_ask *ask, uint64_t number) {
    *reply = (hy_reply){.generator = generator,
                        .model = model,
                        .kind = ask->kind,
                        .is_stream = ask->is_stream,
                        .wants_usage = ask->wants_usage,
                        .has_echo = ask->has_echo,
                        .has_logprobs = ask->request.wants_logprobs,
                        .drops_answer = ask->drops_answer,
                        .answers = ask->request.answers,
                        .top = ask->request.top_logprobs,
                        .prompt_count = ask->prompt_count,
                        .count = ask->prompt_count * (size_t)ask->request.answers,
                        .created = (int64_t)time(NULL)};
    snprintf(reply->id, sizeof reply->id, "%s-%08" PRIx64 "%08" PRIx64,
             ask->kind == HY_ASK_CHAT ? "chatcmpl" : "cmpl", (uint64_t)reply->created, number);
    reply->choices = calloc(reply->count, sizeof *reply->choices);
    HY_FAIL_IF(!reply->choices, HY_ERR_MEMORY, "out of memory for %zu answers", reply->count);
    for (size_t i = 0; i < reply->count; i++) reply->choices[i].last = &reply->choices[i].first;
    return ask->has_echo ? keep_echoes(reply, ask) : HY_OK;
}

void hy_reply_fini(hy_reply *reply) {
    for (size_t i = 0; reply->choices && i < reply->count; i++) {
        hy_text_free(&reply->choices[i].text);
        hy_notes_free(reply->choices[i].first);
    }
    for (size_t i = 0; reply->echoes && i < reply->prompt_count; i++)
        hy_text_free(&reply->echoes[i]);
    free(reply->choices);
    free(reply->echoes);
    *reply = (hy_reply){0};
}

/* The prompt of a choice, if it is to be repeated before the answer. */
static const hy_text *echo_of(const hy_reply *reply, size_t choice) {
    return reply->echoes ? &reply->echoes[choice / (size_t)reply->answers] : NULL;
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

typedef struct token_text {
    char *text; /* to be freed */
    size_t size;
} token_text;

/* The text of a token inside a text: some tokenizers write the first token without its blank, so
 * the token is decoded twice in a row. */
static token_text text_of(const hy_reply *reply, int32_t token) {
    int32_t twice[2] = {token, token};
    token_text once = {0}, both = {0};
    if (hy_generator_decode(reply->generator, twice, 1, &once.text, &once.size) != HY_OK ||
        hy_generator_decode(reply->generator, twice, 2, &both.text, &both.size) != HY_OK ||
        both.size < once.size) {
        hy_free(both.text);
        return once;
    }
    both.size -= once.size;
    memmove(both.text, both.text + once.size, both.size);
    hy_free(once.text);
    return both;
}

static bool is_utf8(token_text it) {
    size_t at = 0;
    while (at < it.size) {
        int length = hy_utf8_length((const uint8_t *)it.text + at, it.size - at);
        if (length == 0) return false;
        at += (size_t)length;
    }
    return true;
}

/* A token that is no whole characters is written as OpenAI's servers do: bytes:\xe2\x80. */
static void name_token(const hy_reply *reply, int32_t token, hy_text *out) {
    token_text it = text_of(reply, token);
    hy_text_clear(out);
    if (is_utf8(it)) {
        hy_text_add_bytes(out, it.text ? it.text : "", it.size);
    } else {
        hy_text_add(out, "bytes:");
        for (size_t i = 0; i < it.size; i++) hy_text_addf(out, "\\x%02x", (uint8_t)it.text[i]);
    }
    hy_free(it.text);
}

static void put_logprob(hy_json_writer *w, const char *key, float value) {
    hy_json_put_double(w, key, isinf(value) ? LEAST_LOGPROB : (double)value);
}

/* {"token", "logprob", "bytes"}; the caller closes it. */
static void open_chat_token(const hy_reply *reply, hy_json_writer *w, hy_token_score score) {
    token_text it = text_of(reply, score.token);
    hy_json_open_object(w, NULL);
    hy_json_put_bytes(w, "token", it.text ? it.text : "", it.size);
    put_logprob(w, "logprob", score.logprob);
    hy_json_open_array(w, "bytes");
    for (size_t i = 0; i < it.size; i++) hy_json_put_int(w, NULL, (uint8_t)it.text[i]);
    hy_json_close_array(w);
    hy_free(it.text);
}

static void put_chat_token(const hy_reply *reply, hy_json_writer *w, const hy_scored_token *token) {
    open_chat_token(reply, w, token->chosen);
    hy_json_open_array(w, "top_logprobs");
    for (int32_t i = 0; i < token->top_count && i < reply->top; i++) {
        open_chat_token(reply, w, token->top[i]);
        hy_json_close_object(w);
    }
    hy_json_close_array(w);
    hy_json_close_object(w);
}

static void put_chat_logprobs(const hy_reply *reply, hy_json_writer *w, const hy_note *notes) {
    hy_json_open_object(w, "logprobs");
    hy_json_open_array(w, "content");
    for (const hy_note *note = notes; note; note = note->next)
        for (int32_t i = 0; i < note->token_count; i++) put_chat_token(reply, w, &note->tokens[i]);
    hy_json_close_array(w);
    hy_json_put_null(w, "refusal");
    hy_json_close_object(w);
}

/* {"text": logprob, ..} of the likeliest tokens and the chosen one; of tokens with the same text
 * the likeliest. NULL for a token without log-probabilities: the first of a prompt. */
static void put_tops(const hy_reply *reply, hy_json_writer *w, const hy_scored_token *token,
                     hy_text *names) {
    if (isnan(token->chosen.logprob)) {
        hy_json_put_null(w, NULL);
        return;
    }
    int32_t count = token->top_count < reply->top ? token->top_count : reply->top;
    hy_json_open_object(w, NULL);
    for (int32_t i = 0; i <= count; i++) {
        const hy_token_score *score = i < count ? &token->top[i] : &token->chosen;
        bool is_written = false;
        name_token(reply, score->token, &names[i]);
        for (int32_t j = 0; j < i && !is_written; j++)
            is_written = strcmp(hy_text_string(&names[i]), hy_text_string(&names[j])) == 0;
        if (!is_written) put_logprob(w, hy_text_string(&names[i]), score->logprob);
    }
    hy_json_close_object(w);
}

/* Calls `put` for each token of the notes, with the token that ended the answer. */
typedef void (*put_token)(const hy_reply *reply, hy_json_writer *w, const hy_scored_token *token,
                          void *with);
static void put_each(const hy_reply *reply, hy_json_writer *w, const char *key,
                     const hy_note *notes, put_token put, void *with) {
    hy_json_open_array(w, key);
    for (const hy_note *note = notes; note; note = note->next) {
        for (int32_t i = 0; i < note->token_count; i++) put(reply, w, &note->tokens[i], with);
        if (note->ended.chosen.token >= 0) put(reply, w, &note->ended, with);
    }
    hy_json_close_array(w);
}

static void put_a_name(const hy_reply *reply, hy_json_writer *w, const hy_scored_token *token,
                       void *names) {
    hy_text *name = names;
    name_token(reply, token->chosen.token, name);
    hy_json_put_bytes(w, NULL, hy_text_string(name), name->size);
}

static void put_a_logprob(const hy_reply *reply, hy_json_writer *w, const hy_scored_token *token,
                          void *with) {
    (void)reply, (void)with;
    put_logprob(w, NULL, token->chosen.logprob);
}

static void put_some_tops(const hy_reply *reply, hy_json_writer *w, const hy_scored_token *token,
                          void *names) {
    put_tops(reply, w, token, names);
}

static void put_an_offset(const hy_reply *reply, hy_json_writer *w, const hy_scored_token *token,
                          void *with) {
    size_t *characters = with;
    token_text it = text_of(reply, token->chosen.token);
    hy_json_put_int(w, NULL, (int64_t)*characters);
    for (size_t i = 0; i < it.size; i++) *characters += ((uint8_t)it.text[i] & 0xC0) != 0x80;
    hy_free(it.text);
}

static void put_text_logprobs(const hy_reply *reply, hy_json_writer *w, const hy_note *notes,
                              size_t *characters) {
    hy_text names[21] = {0};
    hy_json_open_object(w, "logprobs");
    put_each(reply, w, "tokens", notes, put_a_name, names);
    put_each(reply, w, "token_logprobs", notes, put_a_logprob, NULL);
    put_each(reply, w, "top_logprobs", notes, put_some_tops, names);
    put_each(reply, w, "text_offset", notes, put_an_offset, characters);
    hy_json_close_object(w);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) hy_text_free(&names[i]);
}

/* ---- choices --------------------------------------------------------------------------------- */

/* A choice, or what is new of it: some text, its tokens, and why it ended. */
typedef struct part {
    size_t choice;
    const char *text;
    size_t size;
    const hy_note *notes; /* a list; NULL: no log-probabilities */
    bool is_first, is_last;
    hy_end end;
} part;

static const char *finish_reason(const hy_reply *reply, const part *it) {
    bool is_cut = it->end == HY_END_MAX_TOKENS || it->end == HY_END_CONTEXT || reply->drops_answer;
    return !it->is_last ? NULL : is_cut ? "length" : "stop";
}

static void put_message(const hy_reply *reply, hy_json_writer *w, const part *it) {
    hy_json_open_object(w, reply->is_stream ? "delta" : "message");
    if (it->is_first) hy_json_put_string(w, "role", "assistant");
    if (it->is_first || it->size > 0) hy_json_put_bytes(w, "content", it->text, it->size);
    if (!reply->is_stream) hy_json_put_null(w, "refusal");
    hy_json_close_object(w);
}

static void put_choice(hy_reply *reply, hy_json_writer *w, const part *it) {
    bool is_chat = reply->kind == HY_ASK_CHAT;
    hy_json_open_object(w, NULL);
    hy_json_put_int(w, "index", (int64_t)it->choice);
    if (is_chat)
        put_message(reply, w, it);
    else
        hy_json_put_bytes(w, "text", it->text, it->size);
    if (!reply->has_logprobs || (reply->is_stream && !it->notes))
        hy_json_put_null(w, "logprobs");
    else if (is_chat)
        put_chat_logprobs(reply, w, it->notes);
    else
        put_text_logprobs(reply, w, it->notes, &reply->choices[it->choice].characters);
    hy_json_put_string(w, "finish_reason", finish_reason(reply, it));
    hy_json_close_object(w);
}

/* What every object begins with; the caller closes it. */
static void open_reply(const hy_reply *reply, hy_json_writer *w, hy_text *out) {
    const char *object = reply->kind == HY_ASK_TEXT ? "text_completion"
                         : reply->is_stream         ? "chat.completion.chunk"
                                                    : "chat.completion";
    hy_json_begin(w, out, false);
    hy_json_open_object(w, NULL);
    hy_json_put_string(w, "id", reply->id);
    hy_json_put_string(w, "object", object);
    hy_json_put_int(w, "created", reply->created);
    hy_json_put_string(w, "model", reply->model);
    hy_json_open_array(w, "choices");
}

static void put_usage(const hy_reply *reply, hy_json_writer *w) {
    hy_json_open_object(w, "usage");
    hy_json_put_int(w, "prompt_tokens", reply->prompt_tokens);
    hy_json_put_int(w, "completion_tokens", reply->answer_tokens);
    hy_json_put_int(w, "total_tokens", reply->prompt_tokens + reply->answer_tokens);
    hy_json_open_object(w, "prompt_tokens_details");
    hy_json_put_int(w, "cached_tokens", reply->reused_tokens);
    hy_json_close_object(w);
    hy_json_close_object(w);
}

static void write_event(hy_reply *reply, const part *it, hy_text *out) {
    hy_json_writer w;
    hy_text_add(out, "data: ");
    open_reply(reply, &w, out);
    put_choice(reply, &w, it);
    hy_json_close_array(&w);
    if (reply->wants_usage) hy_json_put_null(&w, "usage");
    hy_json_close_object(&w);
    hy_text_add(out, "\n\n");
}

/* ---- notes ----------------------------------------------------------------------------------- */

static void count_tokens(hy_reply *reply, const hy_note *note) {
    if (!note->is_last) return;
    if (!reply->drops_answer) reply->answer_tokens += note->answer_tokens;
    if (note->choice % reply->answers != 0) return; /* its prompt is the same */
    reply->prompt_tokens += note->prompt_tokens;
    reply->reused_tokens += note->reused_tokens;
}

/* Whether the answer failed. */
static bool is_failure(hy_reply *reply, const hy_note *note) {
    if (!note->is_last) return false;
    if (note->end == HY_END_NOT_FINITE)
        hy_refuse(&reply->refusal, 500, NULL, "the model's logits are not finite");
    if (note->end == HY_END_STOPPED)
        hy_refuse(&reply->refusal, 503, NULL, "the server is stopping");
    return reply->refusal.status != 0;
}

/* What a note says for one choice. */
static void write_note(hy_reply *reply, hy_note *note, size_t choice, hy_text *out) {
    bool has_tokens = note->token_count > 0 || note->ended.chosen.token >= 0;
    part it = {.choice = choice,
               .text = note->is_prompt ? "" : note->text,
               .size = note->is_prompt ? 0 : note->text_size,
               .notes = reply->has_logprobs && has_tokens ? note : NULL,
               .is_last = note->is_last,
               .end = note->end};
    if (it.size > 0 || it.notes || it.is_last) write_event(reply, &it, out);
}

static void stream_note(hy_reply *reply, hy_note *note, hy_text *out) {
    size_t choice = (size_t)note->choice, count = note->is_prompt ? (size_t)reply->answers : 1;
    if (reply->drops_answer && !note->is_prompt) {
        note->text_size = 0;
        note->token_count = 0;
        note->ended.chosen.token = -1;
    }
    for (size_t i = 0; i < count; i++) write_note(reply, note, choice + i, out);
    free(note);
}

/* Takes the note. */
static void collect_note(hy_reply *reply, hy_note *note) {
    hy_choice *choice = &reply->choices[note->choice];
    bool is_dropped = reply->drops_answer && !note->is_prompt;
    if (!note->is_prompt && !is_dropped)
        hy_text_add_bytes(&choice->text, note->text, note->text_size);
    if (note->is_last) choice->end = note->end;
    reply->collected += note->text_size;
    bool has_tokens = note->token_count > 0 || note->ended.chosen.token >= 0;
    if (!reply->has_logprobs || is_dropped || !has_tokens) {
        free(note);
        return;
    }
    reply->collected += note->bytes;
    *choice->last = note;
    choice->last = &note->next;
}

void hy_reply_add(hy_reply *reply, hy_note *notes, hy_text *out) {
    while (notes && reply->refusal.status == 0) {
        hy_note *note = notes;
        notes = note->next;
        note->next = NULL;
        count_tokens(reply, note);
        if (is_failure(reply, note))
            free(note);
        else if (reply->is_stream)
            stream_note(reply, note, out);
        else
            collect_note(reply, note);
        if (reply->collected > COLLECTED_MOST)
            hy_refuse(&reply->refusal, 400, NULL,
                      "the answers have more than %zu MiB; ask for fewer answers or "
                      "log-probabilities, or with \"stream\": true",
                      COLLECTED_MOST >> 20);
    }
    hy_notes_free(notes);
}

/* ---- the whole ------------------------------------------------------------------------------- */

void hy_reply_begin(hy_reply *reply, hy_text *out) {
    for (size_t i = 0; i < reply->count; i++) {
        const hy_text *echo = echo_of(reply, i);
        if (!reply->is_stream && echo)
            hy_text_add_bytes(&reply->choices[i].text, hy_text_string(echo), echo->size);
        if (!reply->is_stream || (reply->kind == HY_ASK_TEXT && !echo)) continue;
        part it = {.choice = i,
                   .text = echo ? hy_text_string(echo) : "",
                   .size = echo ? echo->size : 0,
                   .is_first = true};
        write_event(reply, &it, out);
    }
}

/* The notes of a choice: the prompt's are kept with the first answer to it. */
static void put_whole_choice(hy_reply *reply, hy_json_writer *w, size_t i) {
    hy_choice *choice = &reply->choices[i];
    hy_choice *first = &reply->choices[i - i % (size_t)reply->answers];
    part it = {.choice = i,
               .text = hy_text_string(&choice->text),
               .size = choice->text.size,
               .notes = choice->first,
               .is_first = true,
               .is_last = true,
               .end = choice->end};
    hy_note *last_of_prompt = NULL;
    for (hy_note *note = first->first; note && note->is_prompt; note = note->next)
        last_of_prompt = note;
    if (choice == first || !last_of_prompt) {
        put_choice(reply, w, &it);
        return;
    }
    hy_note *rest = last_of_prompt->next;
    last_of_prompt->next = choice->first;
    it.notes = first->first;
    put_choice(reply, w, &it);
    last_of_prompt->next = rest;
}

static void write_usage_event(hy_reply *reply, hy_text *out) {
    hy_json_writer w;
    hy_text_add(out, "data: ");
    open_reply(reply, &w, out);
    hy_json_close_array(&w);
    put_usage(reply, &w);
    hy_json_close_object(&w);
    hy_text_add(out, "\n\n");
}

void hy_reply_end(hy_reply *reply, hy_text *out) {
    if (reply->is_stream) {
        if (reply->wants_usage) write_usage_event(reply, out);
        hy_text_add(out, "data: [DONE]\n\n");
        return;
    }
    hy_json_writer w;
    open_reply(reply, &w, out);
    for (size_t i = 0; i < reply->count; i++) put_whole_choice(reply, &w, i);
    hy_json_close_array(&w);
    put_usage(reply, &w);
    hy_json_close_object(&w);
}

void hy_reply_fail(const hy_refusal *refusal, hy_text *out) {
    hy_text_add(out, "data: ");
    hy_refusal_write(refusal, out);
    hy_text_add(out, "\n\n");
}
