/* reply.h: the pieces of answers as OpenAI's JSON: whole, or as events of a stream.
 *
 * The same functions serve both: with is_stream, begin, add and end write events; otherwise add
 * collects, and end writes the whole. Nothing here waits or knows of connections. */
#pragma once

#include "base/json.h"
#include "serve/ask.h"
#include "serve/job.h"
#include "serve/refusal.h"

typedef struct hy_choice {
    hy_text text;
    hy_note *first, **last; /* collected notes with tokens */
    size_t characters;      /* that the tokens so far have begun */
    hy_end end;
} hy_choice;

typedef struct hy_reply {
    const hy_generator *generator; /* decodes tokens */
    const char *model;
    hy_ask_kind kind;
    bool is_stream, wants_usage, has_echo, has_logprobs, drops_answer;
    int32_t answers, top;
    size_t prompt_count, count; /* count: of choices */
    hy_choice *choices;
    hy_text *echoes; /* of each prompt; NULL: none */
    char id[48];
    int64_t created;
    int64_t prompt_tokens, reused_tokens, answer_tokens;
    size_t collected; /* bytes */
    hy_refusal refusal;
} hy_reply;

/* `number` makes the id. The ask may be freed afterwards. */
hy_status hy_reply_init(hy_reply *reply, const hy_generator *generator, const char *model,
                        const hy_ask *ask, uint64_t number);
void hy_reply_fini(hy_reply *reply);

void hy_reply_begin(hy_reply *reply, hy_text *out);
/* Takes the notes. After an answer that failed, or one that is too large, reply->refusal is set. */
void hy_reply_add(hy_reply *reply, hy_note *notes, hy_text *out);
void hy_reply_end(hy_reply *reply, hy_text *out);
/* Ends a stream with an error. */
void hy_reply_fail(const hy_refusal *refusal, hy_text *out);
