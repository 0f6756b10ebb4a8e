/* ask.c: reads the body of a request with a table of its fields. See ask.h. */
#include "serve/ask.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct field field;
struct field {
    const char *name;
    int kinds; /* of hy_ask_kind */
    hy_status (*read)(hy_ask *ask, const field *f, const hy_json_node *value);
    const char *accepted;
    size_t offset; /* of a number or switch in hy_ask */
    double low, high;
};

/* ---- values ---------------------------------------------------------------------------------- */

/* "FIELD" is VALUE; accepted: .. */
static hy_status wrong(const field *f, const hy_json_node *value) {
    char text[64];
    const char *string;
    double number;
    bool is_true;
    if (hy_json_as_string(value, &string, NULL))
        snprintf(text, sizeof text, "\"%.40s\"", string);
    else if (hy_json_as_double(value, &number))
        snprintf(text, sizeof text, "%g", number);
    else if (hy_json_as_bool(value, &is_true))
        snprintf(text, sizeof text, is_true ? "true" : "false");
    else
        snprintf(text, sizeof text,
                 hy_json_type_of(value) == HY_JSON_ARRAY ? "a list" : "an object");
    return hy_fail(HY_ERR_INPUT, "\"%s\" is %s; accepted: %s", f->name, text, f->accepted);
}

static hy_status read_number(hy_ask *ask, const field *f, const hy_json_node *value) {
    double number;
    if (!hy_json_as_double(value, &number) || !(number >= f->low && number <= f->high))
        return wrong(f, value);
    *(double *)((char *)ask + f->offset) = number;
    return HY_OK;
}

static hy_status read_count(hy_ask *ask, const field *f, const hy_json_node *value) {
    int64_t number;
    if (!hy_json_as_int(value, &number) || number < (int64_t)f->low || number > (int64_t)f->high)
        return wrong(f, value);
    *(int32_t *)((char *)ask + f->offset) = (int32_t)number;
    return HY_OK;
}

static hy_status read_switch(hy_ask *ask, const field *f, const hy_json_node *value) {
    bool *at = (bool *)((char *)ask + f->offset);
    return hy_json_as_bool(value, at) ? HY_OK : wrong(f, value);
}

static hy_status read_model(hy_ask *ask, const field *f, const hy_json_node *value) {
    return hy_json_as_string(value, &ask->model, NULL) ? HY_OK : wrong(f, value);
}

static hy_status read_seed(hy_ask *ask, const field *f, const hy_json_node *value) {
    int64_t number;
    if (!hy_json_as_int(value, &number)) return wrong(f, value);
    ask->request.seed = (uint64_t)number;
    ask->has_seed = true;
    return HY_OK;
}

/* OpenAI's 0 leaves only the most likely token; the library's 0 is no limit. */
static hy_status read_top_p(hy_ask *ask, const field *f, const hy_json_node *value) {
    HY_TRY(read_number(ask, f, value));
    if (ask->request.top_p < 1e-6) ask->request.top_p = 1e-6;
    return HY_OK;
}

/* -1 is vLLM's "all". */
static hy_status read_top_k(hy_ask *ask, const field *f, const hy_json_node *value) {
    HY_TRY(read_count(ask, f, value));
    if (ask->request.top_k < 0) ask->request.top_k = 0;
    return HY_OK;
}

static hy_status read_text_logprobs(hy_ask *ask, const field *f, const hy_json_node *value) {
    ask->request.wants_logprobs = true;
    return read_count(ask, f, value);
}

/* A text without zeros, as the library's stop texts are. */
static hy_status read_a_stop(hy_ask *ask, const field *f, const hy_json_node *value) {
    const char *text;
    size_t size;
    if (!hy_json_as_string(value, &text, &size) || size == 0 || strlen(text) != size)
        return wrong(f, value);
    ask->stops[ask->request.stop_count++] = text;
    return HY_OK;
}

static hy_status read_stop(hy_ask *ask, const field *f, const hy_json_node *value) {
    size_t count = hy_json_type_of(value) == HY_JSON_ARRAY ? hy_json_size(value) : 1;
    if (count > HY_ASK_STOPS_MOST) return wrong(f, value);
    ask->stops = calloc(count + 1, sizeof *ask->stops);
    HY_FAIL_IF(!ask->stops, HY_ERR_MEMORY, "out of memory for stop texts");
    ask->request.stop = ask->stops;
    if (hy_json_type_of(value) != HY_JSON_ARRAY) return read_a_stop(ask, f, value);
    for (const hy_json_node *at = hy_json_first(value); at; at = hy_json_next(at))
        HY_TRY(read_a_stop(ask, f, at));
    return HY_OK;
}

static hy_status read_stream_options(hy_ask *ask, const field *f, const hy_json_node *value) {
    const hy_json_node *usage = hy_json_get(value, "include_usage");
    if (hy_json_type_of(value) != HY_JSON_OBJECT) return wrong(f, value);
    bool is_right =
        hy_json_type_of(usage) == HY_JSON_NULL || hy_json_as_bool(usage, &ask->wants_usage);
    return is_right ? HY_OK : wrong(f, value);
}

/* ---- what is accepted only if it asks for nothing -------------------------------------------- */

/* Nothing is asked for by false, 0, "", [] and {}. */
static hy_status read_nothing(hy_ask *ask, const field *f, const hy_json_node *value) {
    (void)ask;
    double number;
    bool is_true;
    bool is_nothing = hy_json_as_bool(value, &is_true)    ? !is_true
                      : hy_json_as_double(value, &number) ? number == 0
                                                          : hy_json_size(value) == 0;
    const char *text;
    if (hy_json_as_string(value, &text, NULL)) is_nothing = text[0] == '\0';
    return is_nothing ? HY_OK : wrong(f, value);
}

static bool is_word(const hy_json_node *value, const char *word) {
    const char *text;
    return hy_json_as_string(value, &text, NULL) && strcmp(text, word) == 0;
}

static hy_status read_format(hy_ask *ask, const field *f, const hy_json_node *value) {
    (void)ask;
    return is_word(hy_json_get(value, "type"), "text") ? HY_OK : wrong(f, value);
}

static hy_status read_tools(hy_ask *ask, const field *f, const hy_json_node *value) {
    ask->has_tools = hy_json_size(value) > 0;
    return hy_json_type_of(value) == HY_JSON_ARRAY ? HY_OK : wrong(f, value);
}

static hy_status read_tool_choice(hy_ask *ask, const field *f, const hy_json_node *value) {
    bool has_tools = hy_json_size(hy_json_get(hy_json_root(ask->json), "tools")) > 0;
    bool is_right = is_word(value, "auto") || (is_word(value, "none") && !has_tools);
    return is_right ? HY_OK : wrong(f, value);
}

static hy_status read_modalities(hy_ask *ask, const field *f, const hy_json_node *value) {
    (void)ask;
    bool is_right = hy_json_size(value) == 1 && is_word(hy_json_first(value), "text");
    return is_right ? HY_OK : wrong(f, value);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static hy_status take_tokens(const field *f, const hy_json_node *list, int32_t **at,
                             hy_prompt *out) {
    *out = (hy_prompt){.tokens = *at, .count = hy_json_size(list)};
    if (hy_json_type_of(list) != HY_JSON_ARRAY || out->count == 0) return wrong(f, list);
    for (const hy_json_node *node = hy_json_first(list); node; node = hy_json_next(node)) {
        int64_t id;
        if (!hy_json_as_int(node, &id) || id < 0 || id > INT32_MAX) return wrong(f, node);
        *(*at)++ = (int32_t)id;
    }
    return HY_OK;
}

/* A text, a list of texts, a list of token ids, or a list of such lists. */
static hy_status read_prompt(hy_ask *ask, const field *f, const hy_json_node *value) {
    const hy_json_node *first = hy_json_first(value);
    bool is_list = hy_json_type_of(value) == HY_JSON_ARRAY;
    bool is_one = !is_list || hy_json_type_of(first) == HY_JSON_NUMBER;
    if (is_list && !first) return wrong(f, value);
    size_t count = is_one ? 1 : hy_json_size(value), tokens = hy_json_size(value);
    for (const hy_json_node *at = first; at && !is_one; at = hy_json_next(at))
        tokens += hy_json_size(at);
    ask->prompts = calloc(count, sizeof *ask->prompts);
    ask->tokens = calloc(tokens + 1, sizeof *ask->tokens);
    HY_FAIL_IF(!ask->prompts || !ask->tokens, HY_ERR_MEMORY, "out of memory for %zu prompts",
               count);
    int32_t *end = ask->tokens;
    for (const hy_json_node *at = is_one ? value : first; at;) {
        hy_prompt *prompt = &ask->prompts[ask->prompt_count++];
        bool is_text = hy_json_as_string(at, &prompt->text, &prompt->size);
        if (!is_text) HY_TRY(take_tokens(f, at, &end, prompt));
        at = is_one ? NULL : hy_json_next(at);
    }
    return HY_OK;
}

static hy_status read_messages(hy_ask *ask, const field *f, const hy_json_node *value) {
    if (hy_json_type_of(value) != HY_JSON_ARRAY || hy_json_size(value) == 0) return wrong(f, value);
    ask->prompts = calloc(1, sizeof *ask->prompts);
    HY_FAIL_IF(!ask->prompts, HY_ERR_MEMORY, "out of memory for messages");
    ask->prompt_count = 1;
    return HY_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define BOTH (HY_ASK_TEXT | HY_ASK_CHAT)
#define AT(member) .offset = offsetof(hy_ask, member)
#define SWITCH "true or false"
#define UNSUPPORTED "nothing, because this server does not support it"

static const field fields[] = {
    {"model", BOTH, read_model, .accepted = "the name of the model"},
    {"prompt", HY_ASK_TEXT, read_prompt,
     .accepted = "a text, a list of texts, a list of token ids, or a list of such lists"},
    {"messages", HY_ASK_CHAT, read_messages,
     .accepted = "a list of messages with role and content"},
    {"max_tokens", HY_ASK_TEXT, read_count, "whole numbers from 0 to 2147483647",
     AT(request.max_tokens), 0, INT32_MAX},
    {"max_tokens", HY_ASK_CHAT, read_count, "whole numbers from 1 to 2147483647",
     AT(request.max_tokens), 1, INT32_MAX},
    {"max_completion_tokens", HY_ASK_CHAT, read_count, "whole numbers from 1 to 2147483647",
     AT(request.max_tokens), 1, INT32_MAX},
    {"temperature", BOTH, read_number, "numbers from 0 to 100", AT(request.temperature), 0, 100},
    {"top_p", BOTH, read_top_p, "numbers from 0 to 1", AT(request.top_p), 0, 1},
    {"min_p", BOTH, read_number, "numbers from 0 to 1", AT(request.min_p), 0, 1},
    {"top_k", BOTH, read_top_k, "whole numbers from -1 to 2147483647; -1 and 0: no limit",
     AT(request.top_k), -1, INT32_MAX},
    {"repetition_penalty", BOTH, read_number, "numbers from 0.01 to 100",
     AT(request.repetition_penalty), 0.01, 100},
    {"n", BOTH, read_count, "whole numbers from 1 to 128", AT(request.answers), 1,
     HY_ASK_ANSWERS_MOST},
    {"best_of", HY_ASK_TEXT, read_count, "the value of \"n\"", AT(best_of), 1, HY_ASK_ANSWERS_MOST},
    {"seed", BOTH, read_seed, .accepted = "whole numbers of 64 bits"},
    {"stop", BOTH, read_stop,
     .accepted = "a text that is not empty, or a list of at most 16 such texts"},
    {"stream", BOTH, read_switch, SWITCH, AT(is_stream)},
    {"stream_options", BOTH, read_stream_options, .accepted = "{\"include_usage\": true or false}"},
    {"echo", HY_ASK_TEXT, read_switch, SWITCH, AT(has_echo)},
    {"logprobs", HY_ASK_TEXT, read_text_logprobs, "whole numbers from 0 to 20",
     AT(request.top_logprobs), 0, 20},
    {"logprobs", HY_ASK_CHAT, read_switch, SWITCH, AT(request.wants_logprobs)},
    {"top_logprobs", HY_ASK_CHAT, read_count, "whole numbers from 0 to 20",
     AT(request.top_logprobs), 0, 20},
    {"ignore_eos", BOTH, read_switch, SWITCH, AT(request.ignores_end)},
    {"presence_penalty", BOTH, read_number, "0; \"repetition_penalty\" is supported", AT(penalty)},
    {"frequency_penalty", BOTH, read_number, "0; \"repetition_penalty\" is supported", AT(penalty)},
    {"response_format", BOTH, read_format, .accepted = "{\"type\": \"text\"}"},
    {"tools", HY_ASK_CHAT, read_tools, .accepted = "a list of tools"},
    {"tool_choice", HY_ASK_CHAT, read_tool_choice, .accepted = "\"auto\"; \"none\" without tools"},
    {"modalities", HY_ASK_CHAT, read_modalities, .accepted = "[\"text\"]"},
    {"suffix", HY_ASK_TEXT, read_nothing, .accepted = UNSUPPORTED},
    {"logit_bias", BOTH, read_nothing, .accepted = UNSUPPORTED},
    {"functions", HY_ASK_CHAT, read_nothing, .accepted = "nothing; \"tools\" is supported"},
    {"function_call", HY_ASK_CHAT, read_nothing, .accepted = "nothing; \"tools\" is supported"},
    {"audio", HY_ASK_CHAT, read_nothing, .accepted = UNSUPPORTED},
    {"prediction", HY_ASK_CHAT, read_nothing, .accepted = UNSUPPORTED},
    {"reasoning_effort", HY_ASK_CHAT, read_nothing, .accepted = UNSUPPORTED},
    {"verbosity", HY_ASK_CHAT, read_nothing, .accepted = UNSUPPORTED},
    {"web_search_options", HY_ASK_CHAT, read_nothing, .accepted = UNSUPPORTED},
};

static const field *find_field(hy_ask_kind kind, const char *name) {
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if ((fields[i].kinds & (int)kind) && strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

/* ---- the body -------------------------------------------------------------------------------- */

static hy_status read_fields(hy_ask *ask, const char **name) {
    const hy_json_node *root = hy_json_root(ask->json);
    HY_FAIL_IF(hy_json_type_of(root) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "the body is not a JSON object");
    for (const hy_json_node *at = hy_json_first(root); at; at = hy_json_next(at)) {
        const field *f = find_field(ask->kind, hy_json_key(at));
        if (!f || hy_json_type_of(at) == HY_JSON_NULL) continue;
        *name = f->name;
        HY_TRY(f->read(ask, f, at));
    }
    return HY_OK;
}

/* What depends on several fields. */
static hy_status check(hy_ask *ask, const char **name) {
    hy_request *request = &ask->request;
    *name = ask->kind == HY_ASK_CHAT ? "messages" : "prompt";
    HY_FAIL_IF(ask->prompt_count == 0, HY_ERR_INPUT, "\"%s\" is missing; accepted: %s", *name,
               find_field(ask->kind, *name)->accepted);
    *name = "best_of";
    HY_FAIL_IF(ask->best_of > 0 && ask->best_of != request->answers, HY_ERR_INPUT,
               "\"best_of\" is %d; accepted: the value of \"n\", which is %d", ask->best_of,
               request->answers);
    *name = "top_logprobs";
    HY_FAIL_IF(request->top_logprobs > 0 && !request->wants_logprobs, HY_ERR_INPUT,
               "\"top_logprobs\" is %d; accepted without \"logprobs\": true: 0",
               request->top_logprobs);
    *name = "";
    request->wants_prompt_logprobs = ask->has_echo && request->wants_logprobs;
    ask->drops_answer = ask->kind == HY_ASK_TEXT && request->max_tokens == 0;
    if (ask->drops_answer) request->max_tokens = 1; /* the library's 0 is no limit */
    return HY_OK;
}

hy_status hy_ask_read(hy_ask *ask, hy_ask_kind kind, const char *body, size_t size,
                      const char **field_name) {
    *ask = (hy_ask){.kind = kind,
                    .request = {.answers = 1,
                                .max_tokens = kind == HY_ASK_TEXT ? 16 : 0,
                                .temperature = 1,
                                .top_p = 1}};
    *field_name = "";
    HY_TRY(hy_json_parse(body, size, "the body", &ask->json));
    HY_TRY(read_fields(ask, field_name));
    if (kind == HY_ASK_CHAT) {
        ask->request.messages = body;
        ask->request.messages_size = size;
    }
    return check(ask, field_name);
}

void hy_ask_free(hy_ask *ask) {
    hy_json_free(ask->json);
    free(ask->prompts);
    free(ask->tokens);
    free(ask->stops);
    *ask = (hy_ask){0};
}
