/* ask.h: the body of POST /v1/completions or /v1/chat/completions, read and checked.
 *
 * A field that this server knows and cannot honour is refused by name; an unknown field is
 * ignored, and null counts as absent. A chat's messages and tools are passed to the generator as
 * they came. */
#pragma once

#include "base/json.h"
#include "hybrid_generate.h"

typedef enum hy_ask_kind { HY_ASK_TEXT = 1, HY_ASK_CHAT = 2 } hy_ask_kind;

#define HY_ASK_ANSWERS_MOST 128 /* of a prompt */
#define HY_ASK_STOPS_MOST 16

typedef struct hy_prompt {
    const char *text; /* NULL: it is tokens */
    size_t size;
    const int32_t *tokens;
    size_t count;
} hy_prompt;

typedef struct hy_ask {
    hy_ask_kind kind;
    const char *model;  /* NULL: not named */
    hy_request request; /* what all prompts share: sampling, stop texts; of a chat the messages */
    hy_prompt *prompts; /* a chat is one prompt without text and tokens */
    size_t prompt_count;
    bool is_stream, wants_usage, has_echo, has_seed;
    bool has_tools;
    bool drops_answer; /* max_tokens is 0: only the prompt is scored */

    /* Only while it is read. */
    int32_t best_of;
    double penalty; /* presence or frequency penalty: only 0 is accepted */

    /* What prompts and stop texts point into. */
    hy_json *json;
    int32_t *tokens;
    const char **stops;
} hy_ask;

/* HY_ERR_INPUT: *field is the name of the wrong field, or "". The body must live as long as the
 * ask, which is to be freed in any case. */
hy_status hy_ask_read(hy_ask *ask, hy_ask_kind kind, const char *body, size_t size,
                      const char **field);
void hy_ask_free(hy_ask *ask);
