/* conversation.c: recognises rows by their keys and reads their turns. See conversation.h.
 *
 * Other keys of a row are ignored, and the run lists them: data sets have ids, sources and scores
 * in their rows. */
#include "data/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/error.h"

enum { KINDS = HY_ROWS_TURNS + 1, MOST_KEYS = 4 };

/* The keys of each kind of row, which become turns in this order: keys with one text each, or,
 * except for "system", with a list of turns. */
static const struct {
    struct {
        const char *key;
        hy_role role;
        bool is_optional;
    } keys[MOST_KEYS];
    const char *name;
    bool is_list, is_scored, is_pair;
} kinds[KINDS] = {
    [HY_ROWS_ANSWER] = {{{"system", HY_ROLE_SYSTEM, true},
                         {"prompt", HY_ROLE_USER},
                         {"answer", HY_ROLE_ASSISTANT}},
                        "prompt and answer",
                        .is_scored = true},
    [HY_ROWS_CHOICES] = {{{"system", HY_ROLE_SYSTEM, true},
                          {"prompt", HY_ROLE_USER},
                          {"choices", HY_ROLE_ASSISTANT},
                          {"answer", HY_ROLE_ASSISTANT}},
                         "prompt, choices and answer",
                         .is_scored = true},
    [HY_ROWS_TEXT] = {{{"text", HY_ROLE_USER}}, "text"},
    [HY_ROWS_PROMPT] = {{{"system", HY_ROLE_SYSTEM, true},
                         {"prompt", HY_ROLE_USER},
                         {"completion", HY_ROLE_ASSISTANT}},
                        "prompt and completion"},
    [HY_ROWS_PAIR] = {{{"system", HY_ROLE_SYSTEM, true},
                       {"prompt", HY_ROLE_USER, true},
                       {"chosen", HY_ROLE_ASSISTANT},
                       {"rejected", HY_ROLE_ASSISTANT}},
                      "pairs of chosen and rejected answers",
                      .is_pair = true},
    [HY_ROWS_QUESTION] = {{{"system", HY_ROLE_SYSTEM, true},
                           {"question", HY_ROLE_USER},
                           {"answer", HY_ROLE_ASSISTANT}},
                          "question and answer"},
    [HY_ROWS_ALPACA] = {{{"system", HY_ROLE_SYSTEM, true},
                         {"instruction", HY_ROLE_USER},
                         {"input", HY_ROLE_INPUT, true},
                         {"output", HY_ROLE_ASSISTANT}},
                        "instruction and output"},
    [HY_ROWS_SHAREGPT] = {{{"system", HY_ROLE_SYSTEM, true}, {"conversations"}},
                          "conversations",
                          true},
    [HY_ROWS_MESSAGES] = {{{"system", HY_ROLE_SYSTEM, true}, {"messages"}}, "messages", true},
    [HY_ROWS_PAIR_TURNS] = {{{"system", HY_ROLE_SYSTEM, true},
                             {"prompt", HY_ROLE_USER, true},
                             {"chosen", HY_ROLE_ASSISTANT},
                             {"rejected", HY_ROLE_ASSISTANT}},
                            "pairs of chosen and rejected answers as messages",
                            .is_list = true,
                            .is_pair = true},
    [HY_ROWS_TURNS] = {{{"system", HY_ROLE_SYSTEM, true}, {"prompt"}, {"completion"}},
                       "prompt and completion as messages",
                       true},
};

const char *hy_row_kind_name(hy_row_kind kind) { return kinds[kind].name; }
bool hy_row_kind_is_scored(hy_row_kind kind) { return kinds[kind].is_scored; }
bool hy_row_kind_is_pair(hy_row_kind kind) { return kinds[kind].is_pair; }

/* Names that data sets use for the speaker, and the role names of templates. */
static const struct {
    const char *name;
    hy_role role;
    const char *usual;
} roles[] = {
    {"system", HY_ROLE_SYSTEM, "system"},
    {"developer", HY_ROLE_SYSTEM, "developer"},
    {"user", HY_ROLE_USER, "user"},
    {"human", HY_ROLE_USER, "user"},
    {"assistant", HY_ROLE_ASSISTANT, "assistant"},
    {"gpt", HY_ROLE_ASSISTANT, "assistant"},
    {"model", HY_ROLE_ASSISTANT, "assistant"},
    {"tool", HY_ROLE_TOOL, "tool"},
    {"function", HY_ROLE_TOOL, "function"},
    {"ipython", HY_ROLE_TOOL, "ipython"},
    {"observation", HY_ROLE_TOOL, "observation"},
};
enum { ROLES = sizeof roles / sizeof roles[0] };

/* ---- columns --------------------------------------------------------------------------------- */

static bool is_key(const char *key) {
    for (int i = 0; i < KINDS * MOST_KEYS; i++) {
        const char *known = kinds[i / MOST_KEYS].keys[i % MOST_KEYS].key;
        if (known && strcmp(known, key) == 0) return true;
    }
    return false;
}

hy_status hy_columns_parse(const char *text, hy_columns *out) {
    *out = (hy_columns){0};
    while (text && *text) {
        size_t size = strcspn(text, ",");
        int key_end = 0, name_end = 0;
        HY_FAIL_IF(out->count == HY_MOST_COLUMNS, HY_ERR_INPUT, "at most %d columns can be mapped",
                   HY_MOST_COLUMNS);
        char *key = out->list[out->count].key, *name = out->list[out->count].name;
        sscanf(text, " %31[^=, ]%n = %95[^,]%n", key, &key_end, name, &name_end);
        HY_FAIL_IF(
            !is_key(key) || (size_t)name_end != size, HY_ERR_INPUT,
            "\"%.*s\" maps no column; expected KEY=NAME, where KEY is text, prompt, completion, "
            "question, answer, choices, chosen, rejected, system, instruction, input, output, "
            "conversations or messages",
            (int)size, text);
        out->count++;
        text += size + (text[size] == ',');
    }
    return HY_OK;
}

/* The name of a key in the data; NULL: it is not mapped. */
static const char *mapped(const hy_columns *columns, const char *key) {
    for (int i = 0; columns && i < columns->count; i++) {
        if (strcmp(columns->list[i].key, key) == 0) return columns->list[i].name;
    }
    return NULL;
}

static bool is_answer_key(hy_row_kind kind, int k) {
    bool is_list = kind == HY_ROWS_TURNS && strcmp(kinds[kind].keys[k].key, "completion") == 0;
    return is_list || (!kinds[kind].is_list && kinds[kind].keys[k].role == HY_ROLE_ASSISTANT);
}

/* Whether key k of a kind is an answer that is not needed, because only questions are read, or
 * because it is read as the expected answer of a prompt. */
static bool is_unread_answer(const hy_columns *columns, hy_row_kind kind, int k) {
    return columns && (columns->asks || columns->prompts) && is_answer_key(kind, k);
}

/* The name of a key in the data: its own if it is not mapped. */
static const char *name_of(const hy_columns *columns, const char *key) {
    const char *name = mapped(columns, key);
    return name ? name : key;
}

const char *hy_row_question_key(hy_row_kind kind, const hy_columns *columns) {
    return name_of(columns, kinds[kind].keys[1].key); /* the first is "system" */
}

static const hy_json_node *get(const hy_json_node *row, const hy_columns *columns,
                               const char *key) {
    const char *name = name_of(columns, key);
    const hy_json_node *found = hy_json_get(row, name);
    for (const hy_json_node *n = hy_json_first(row); n && !found; n = hy_json_next(n)) {
        if (strcasecmp(hy_json_key(n), name) == 0) found = n;
    }
    /* Rows of eval.eval_rows may have the usual keys where the training data has others. */
    bool is_other = !found && name != key && columns->scores;
    return is_other ? hy_json_get(row, key) : found;
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static bool is_list(const hy_json_node *value) { return hy_json_type_of(value) == HY_JSON_ARRAY; }

/* Whether a value of a pair is a list of messages, or one message alone. */
static bool has_messages(const hy_json_node *value) {
    return is_list(value) || hy_json_get(value, "role") || hy_json_get(value, "from");
}

/* Whether a value is absent, null, an empty text or an empty list. */
static bool is_nothing(const hy_json_node *value) {
    const char *text;
    size_t size = 1;
    (void)hy_json_as_string(value, &text, &size);
    if (is_list(value)) return hy_json_size(value) == 0;
    return hy_json_type_of(value) == HY_JSON_NULL || size == 0;
}

/* The key of a pair's prompt: a list of turns under another key is the prompt if there is no
 * other. */
static const char *prompt_key(const hy_json_node *row, const hy_columns *columns) {
    static const char *const others[] = {"messages", "conversations"};
    if (!is_nothing(get(row, columns, "prompt"))) return "prompt";
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const hy_json_node *value = get(row, columns, others[i]);
        if (is_list(value) && !is_nothing(value)) return others[i];
    }
    return "prompt";
}

/* Whether "input" continues the prompt of a pair, because that is the instruction of Alpaca, or
 * because --columns names it. */
static bool continues_in_input(const hy_columns *columns) {
    return mapped(columns, "input") || strcasecmp(name_of(columns, "prompt"), "instruction") == 0;
}

static bool pair_uses(const hy_json_node *row, const hy_conversation *c,
                      const hy_json_node *value) {
    const hy_json_node *prompt = get(row, c->columns, prompt_key(row, c->columns));
    bool is_input = value == get(row, c->columns, "input") && !has_messages(prompt) &&
                    continues_in_input(c->columns);
    return c->has_prompt && (value == prompt || is_input);
}

bool hy_row_uses(const hy_json_node *row, const hy_conversation *c, hy_row_kind kind,
                 const hy_json_node *value) {
    const hy_columns *columns = c->columns;
    if (value == c->expected) return true;
    if (get(row, columns, "system") == value) return c->has_system;
    for (int k = 0; k < MOST_KEYS && kinds[kind].keys[k].key; k++) {
        bool is_prompt = kinds[kind].is_pair && strcmp(kinds[kind].keys[k].key, "prompt") == 0;
        if (is_prompt) continue; /* it may be unused */
        if (get(row, columns, kinds[kind].keys[k].key) == value) return true;
    }
    if (kinds[kind].is_pair && pair_uses(row, c, value)) return true;
    return kinds[kind].is_list && hy_json_get(row, "tools") == value;
}

static void list_keys(const hy_json_node *row, char *out, size_t size) {
    size_t used = 0;
    out[0] = 0;
    for (const hy_json_node *n = hy_json_first(row); n; n = hy_json_next(n)) {
        bool fits = used + strlen(hy_json_key(n)) + sizeof ", , ..." < size;
        snprintf(out + used, size - used, "%s%s", used ? ", " : "", fits ? hy_json_key(n) : "...");
        used += strlen(out + used);
        if (!fits) return;
    }
}

/* Whether the prompt or an answer of a pair has messages. */
static bool is_pair_of_messages(const hy_json_node *row, const hy_columns *columns) {
    return has_messages(get(row, columns, prompt_key(row, columns))) ||
           has_messages(get(row, columns, "chosen")) || has_messages(get(row, columns, "rejected"));
}

/* Whether the row has the keys of a kind, and --columns, if it maps any, maps one of them. A mapped
 * prompt of a row for evaluation may be called "question", which is then no key of ours. */
static bool is_of_kind(const hy_json_node *row, const hy_columns *columns, hy_row_kind kind) {
    bool scores = columns && columns->scores;
    bool is_asked = !columns || columns->count == 0 || kinds[kind].is_scored;
    if (kinds[kind].is_scored && !scores) return false;
    if (kinds[kind].is_pair != (columns && columns->pairs)) return false;
    if (columns && columns->prompts) {
        if (kind == HY_ROWS_TEXT) return false;
        is_asked |= columns->count == 1 && mapped(columns, "answer");
    }
    if (kind == HY_ROWS_PAIR_TURNS && !is_pair_of_messages(row, columns)) return false;
    if (kind == HY_ROWS_QUESTION && scores && mapped(columns, "prompt")) return false;
    for (int k = 0; k < MOST_KEYS && kinds[kind].keys[k].key; k++) {
        const char *key = kinds[kind].keys[k].key;
        const hy_json_node *value = get(row, columns, key);
        bool is_turns = kind != HY_ROWS_TURNS || hy_json_type_of(value) == HY_JSON_ARRAY;
        bool is_needed = !kinds[kind].keys[k].is_optional && !is_unread_answer(columns, kind, k);
        if (is_needed && !(value && is_turns)) return false;
        is_asked |= mapped(columns, key) != NULL;
    }
    bool is_pair = kinds[kind].is_pair;
    is_asked |= is_pair && mapped(columns, prompt_key(row, columns));
    return is_asked || (is_pair && mapped(columns, "input"));
}

/* Refuses rows with a prompt that are made for something else, unless --columns names the
 * prompt. */
static hy_status check_prompt(const hy_json_node *row, const hy_columns *columns) {
    if (!columns || !columns->prompts || mapped(columns, "prompt")) return HY_OK;
    HY_FAIL_IF(get(row, columns, "chosen") && get(row, columns, "rejected"), HY_ERR_INPUT,
               "the row has a chosen and a rejected answer, from which --task dpo, ipo, orpo and "
               "simpo learn (--columns prompt=NAME reads its prompt alone)");
    HY_FAIL_IF(is_list(get(row, columns, "choices")), HY_ERR_INPUT,
               "the row has choices, which --eval-only and --eval-rows score (--columns "
               "prompt=NAME reads its prompt alone)");
    return HY_OK;
}

/* The row is of no kind. */
static hy_status refuse(const hy_json_node *row, const hy_columns *columns) {
    char keys[160] = "";
    list_keys(row, keys, sizeof keys);
    HY_FAIL_IF(columns && columns->asks, HY_ERR_INPUT,
               "the row has the keys (%s); expected prompt, text, question, instruction, "
               "conversations or messages (--columns maps other names: --columns prompt=NAME)",
               keys);
    HY_FAIL_IF(columns && columns->prompts, HY_ERR_INPUT,
               "the row has the keys (%s), but the task learns from the model's own answers to "
               "prompts; expected prompt, question, instruction, conversations or messages "
               "(--columns maps other names: --columns prompt=NAME,answer=NAME)",
               keys);
    HY_FAIL_IF(columns && columns->pairs, HY_ERR_INPUT,
               "the row has the keys (%s), but the task learns from pairs of answers; expected "
               "prompt, chosen and rejected (--columns maps other names: --columns "
               "prompt=NAME,chosen=NAME,rejected=NAME)",
               keys);
    HY_FAIL_IF(get(row, columns, "chosen") && get(row, columns, "rejected"), HY_ERR_INPUT,
               "the row has the keys (%s): --task dpo, ipo, orpo or simpo learns from rows with "
               "chosen and rejected answers",
               keys);
    HY_FAIL_IF(get(row, columns, "prompt") && get(row, columns, "answer"), HY_ERR_INPUT,
               "the row has the keys (%s): rows with a prompt and an answer are for --eval-only "
               "and --eval-rows%s",
               keys,
               get(row, columns, "choices") ? "" : "; --columns completion=answer trains them");
    return hy_fail(HY_ERR_INPUT,
                   "the row has the keys (%s); expected text, prompt and completion, question and "
                   "answer, instruction and output, conversations, or messages (--columns maps "
                   "other names: --columns prompt=NAME,completion=NAME)",
                   keys);
}

hy_status hy_row_recognise(const hy_json_node *row, const hy_columns *columns, hy_row_kind *out) {
    HY_FAIL_IF(hy_json_type_of(row) != HY_JSON_OBJECT, HY_ERR_INPUT, "a row must be a JSON object");
    HY_TRY(check_prompt(row, columns));
    bool is_first = columns && columns->scores == HY_SCORES_FIRST;
    bool has_choices = hy_json_type_of(get(row, columns, "choices")) == HY_JSON_ARRAY;
    *out = HY_ROWS_CHOICES;
    if ((has_choices || is_first) && is_of_kind(row, columns, *out)) return HY_OK;
    *out = HY_ROWS_ANSWER;
    if (is_first && is_of_kind(row, columns, *out)) return HY_OK;
    for (int i = KINDS - 1; i >= 0; i--) {
        *out = (hy_row_kind)i;
        if (!is_of_kind(row, columns, *out)) continue;
        /* In an evaluation, rows with choices are not meant as questions with answers. */
        HY_FAIL_IF(*out == HY_ROWS_QUESTION && columns && columns->scores && has_choices,
                   HY_ERR_INPUT,
                   "the row has a question, choices and an answer, but no prompt: --columns "
                   "prompt=question scores its choices");
        return HY_OK;
    }
    return refuse(row, columns);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void clear(hy_conversation *c) {
    for (size_t i = 0; i < c->joined_count; i++) free(c->joined[i]);
    c->count = c->joined_count = c->choices = c->right = c->rejected = 0;
    c->tools = c->expected = NULL;
    c->has_system = c->has_prompt = false;
}

void hy_conversation_free(hy_conversation *c) {
    clear(c);
    free(c->turns);
    free(c->joined);
    *c = (hy_conversation){0};
}

static hy_status add_turn(hy_conversation *c, hy_turn turn) {
    HY_FAIL_IF(c->count == HY_MOST_TURNS, HY_ERR_INPUT, "the conversation has more than %d turns",
               HY_MOST_TURNS);
    HY_TRY(hy_array_reserve(&c->turns, &c->room, c->count + 1, sizeof turn, "turns"));
    c->turns[c->count++] = turn;
    return HY_OK;
}

/* Makes the text that of a turn; the conversation owns it. */
static hy_status keep_text(hy_conversation *c, hy_text *text, hy_turn *turn) {
    char *kept = NULL;
    hy_text_add(text, ""); /* makes it a string even if it is empty */
    turn->size = text->size;
    hy_status status = hy_array_reserve(&c->joined, &c->joined_room, c->joined_count + 1,
                                        sizeof *c->joined, "turns");
    if (status == HY_OK) status = hy_text_take(text, &kept);
    if (status == HY_OK) turn->text = c->joined[c->joined_count++] = kept;
    return status;
}

/* Numbers and booleans are written as in JSON. */
static hy_status read_text(hy_conversation *c, const hy_json_node *node, const char *key,
                           hy_turn *turn) {
    hy_text text = {0};
    int64_t integer;
    double number;
    bool truth;
    if (hy_json_as_string(node, &turn->text, &turn->size)) return HY_OK;
    if (hy_json_as_digits(node, &turn->text, &turn->size)) return HY_OK;
    if (hy_json_as_bool(node, &truth))
        hy_text_add(&text, truth ? "true" : "false");
    else if (hy_json_as_int(node, &integer))
        hy_text_addf(&text, "%lld", (long long)integer);
    else if (hy_json_as_double(node, &number))
        hy_text_addf(&text, "%.15g", number);
    else
        return hy_fail(HY_ERR_INPUT, "\"%s\" is not a text, a number or a boolean", key);
    hy_status status = keep_text(c, &text, turn);
    hy_text_free(&text);
    return status;
}

/* Adds the text under a key as a turn. An optional text that is absent, null or empty adds no
 * turn. */
static hy_status add_key(hy_conversation *c, const hy_json_node *row, const char *key, hy_role role,
                         bool is_optional) {
    const hy_json_node *node = get(row, c->columns, key);
    hy_turn turn = {.role = role};
    if (hy_json_type_of(node) == HY_JSON_NULL && is_optional) return HY_OK;
    if (!node) return hy_fail(HY_ERR_INPUT, "\"%s\" is missing", key);
    HY_TRY(read_text(c, node, key, &turn));
    return is_optional && turn.size == 0 ? HY_OK : add_turn(c, turn);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Joins the texts of parts, as templates do that support parts. */
static hy_status join_parts(hy_conversation *c, const hy_json_node *parts, hy_turn *turn) {
    hy_text all = {0};
    hy_status status = HY_OK;
    for (const hy_json_node *n = hy_json_first(parts); n && status == HY_OK; n = hy_json_next(n)) {
        const char *type = NULL, *text = NULL;
        size_t size;
        (void)hy_json_as_string(hy_json_get(n, "type"), &type, NULL);
        if (!type || strcmp(type, "text") != 0) {
            status = hy_fail(HY_ERR_INPUT,
                             "the content has a part of type \"%.40s\"; only text is supported",
                             type ? type : "");
        } else if (!hy_json_as_string(hy_json_get(n, "text"), &text, &size)) {
            status = hy_fail(HY_ERR_INPUT, "a part of type \"text\" needs a string \"text\"");
        } else {
            hy_text_add_bytes(&all, text, size);
        }
    }
    if (status == HY_OK) status = keep_text(c, &all, turn);
    hy_text_free(&all);
    HY_TRY(status);
    turn->has_parts = true;
    return HY_OK;
}

/* Reads the content of a message: a string, a list of parts, or nothing if the message calls
 * tools. */
static hy_status read_content(hy_conversation *c, const hy_json_node *message, const char *key,
                              hy_turn *turn) {
    const hy_json_node *content = hy_json_get(message, key);
    turn->calls_tools = hy_json_size(hy_json_get(message, "tool_calls")) > 0;
    if (hy_json_type_of(content) == HY_JSON_ARRAY) return join_parts(c, content, turn);
    if (hy_json_as_string(content, &turn->text, &turn->size)) return HY_OK;
    turn->text = "";
    HY_FAIL_IF(!content && !turn->calls_tools, HY_ERR_INPUT, "\"%s\" is missing", key);
    HY_FAIL_IF(hy_json_type_of(content) != HY_JSON_NULL || !turn->calls_tools, HY_ERR_INPUT,
               "\"%s\" is neither a string nor a list of parts", key);
    return HY_OK;
}

/* 1 or true, 0 or false, otherwise -1. */
static int switch_of(const hy_json_node *value) {
    bool is_on;
    double number;
    if (hy_json_as_bool(value, &is_on)) return is_on;
    if (!hy_json_as_double(value, &number) || (number != 0 && number != 1)) return -1;
    return number == 1;
}

static bool is_switch(const char *key) { return !strcmp(key, "weight") || !strcmp(key, "train"); }

bool hy_row_has_turns(hy_row_kind kind, const hy_json_node *value) {
    bool has_turns = kinds[kind].is_pair ? has_messages(value) : is_list(value);
    return kinds[kind].is_list && has_turns && strcmp(hy_json_key(value), "tools") != 0;
}

/* Whether a message is an assistant's. */
static bool is_answer(const hy_json_node *message) {
    const char *who = "";
    bool is_found = false;
    (void)(hy_json_as_string(hy_json_get(message, "role"), &who, NULL) ||
           hy_json_as_string(hy_json_get(message, "from"), &who, NULL));
    for (size_t i = 0; i < ROLES; i++)
        is_found |= roles[i].role == HY_ROLE_ASSISTANT && strcmp(roles[i].name, who) == 0;
    return is_found;
}

bool hy_message_uses(const hy_json_node *message, const hy_json_node *value,
                     const hy_chat_template *chat) {
    static const char *const usual[] = {"role", "content", "from", "value"};
    const char *key = hy_json_key(value);
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        if (strcmp(key, usual[i]) == 0) return true;
    }
    if (!is_switch(key) || chat->ignores_answers) {
        return hy_json_get(message, "role") && hy_chat_template_reads(chat, key);
    }
    return switch_of(value) == 0 || (is_answer(message) && switch_of(value) == 1);
}

/* A turn has the keys "role" and "content", or ShareGPT's "from" and "value". */
static hy_status read_message(hy_conversation *c, const hy_json_node *message, bool is_sharegpt) {
    const char *name;
    size_t i = 0;
    HY_FAIL_IF(hy_json_type_of(message) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "turn %zu is not an object", c->count + 1);
    bool has_role = hy_json_get(message, "role"), has_from = hy_json_get(message, "from");
    bool is_message = is_sharegpt ? !has_from && has_role : has_role || !has_from;
    const char *who = is_message ? "role" : "from", *what = is_message ? "content" : "value";
    HY_FAIL_IF(!hy_json_as_string(hy_json_get(message, who), &name, NULL), HY_ERR_INPUT,
               "turn %zu needs a string \"%s\"", c->count + 1, who);
    while (i < ROLES && strcmp(roles[i].name, name) != 0) i++;
    HY_FAIL_IF(i == ROLES, HY_ERR_INPUT,
               "unknown role \"%.40s\"; expected system, user, assistant or tool", name);
    hy_turn turn = {.role = roles[i].role,
                    .name = roles[i].usual,
                    .message = is_message ? message : NULL,
                    .is_masked = switch_of(hy_json_get(message, "weight")) == 0 ||
                                 switch_of(hy_json_get(message, "train")) == 0};
    HY_TRY(read_content(c, message, what, &turn));
    const hy_json_node *thought = hy_json_get(message, "reasoning_content");
    bool is_thought =
        hy_json_type_of(thought) == HY_JSON_NULL || hy_json_type_of(thought) == HY_JSON_STRING;
    HY_FAIL_IF(!is_thought, HY_ERR_INPUT, "\"reasoning_content\" is not a string");
    return add_turn(c, turn);
}

static hy_status read_list(const hy_json_node *list, const char *key, bool is_sharegpt,
                           hy_conversation *out) {
    HY_FAIL_IF(!list, HY_ERR_INPUT, "\"%s\" is missing", key);
    HY_FAIL_IF(hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) == 0, HY_ERR_INPUT,
               "\"%s\" is not a list of turns", key);
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        HY_TRY(read_message(out, n, is_sharegpt));
    }
    return HY_OK;
}

hy_status hy_conversation_read_messages(const hy_json_node *list, hy_conversation *out) {
    clear(out);
    return read_list(list, "messages", false, out);
}

/* The first message of a pair's answer or prompt, which may be one message alone. */
static const hy_json_node *first_message(const hy_json_node *value) {
    return is_list(value) ? hy_json_first(value) : value;
}

static bool ends_with_answer(const hy_json_node *list) {
    const hy_json_node *last = NULL;
    for (const hy_json_node *n = first_message(list); n; n = is_list(list) ? hy_json_next(n) : NULL)
        last = n;
    return is_answer(last);
}

/* Whether both answers are lists of messages that hold the whole conversation: they begin with a
 * question. */
static bool are_whole(const hy_json_node *row, const hy_columns *columns) {
    const hy_json_node *chosen = get(row, columns, "chosen"),
                       *rejected = get(row, columns, "rejected");
    return has_messages(chosen) && !is_answer(first_message(chosen)) && has_messages(rejected) &&
           !is_answer(first_message(rejected));
}

/* Beside two whole conversations, these are not needed: a prompt that is a text, and messages that
 * hold the whole conversation too. */
static bool uses_prompt(const hy_json_node *row, const hy_columns *columns) {
    const char *key = prompt_key(row, columns);
    const hy_json_node *prompt = get(row, columns, key);
    if (is_nothing(prompt)) return false;
    bool is_whole = strcmp(key, "prompt") != 0 && ends_with_answer(prompt);
    return !are_whole(row, columns) || (has_messages(prompt) && !is_whole);
}

/* The first message of a pair, or NULL. */
static const hy_json_node *first_of_pair(const hy_json_node *row, const hy_columns *columns) {
    const hy_json_node *prompt = get(row, columns, prompt_key(row, columns));
    bool is_first = uses_prompt(row, columns) && has_messages(prompt);
    return first_message(is_first ? prompt : get(row, columns, "chosen"));
}

/* Reads the system text of the row, unless there is no place for it: the template has no system
 * turn, or the list of turns begins with one. */
static hy_status read_system(const hy_json_node *row, hy_row_kind kind, hy_conversation *out) {
    const char *name = "";
    const hy_json_node *list =
        kinds[kind].is_list ? get(row, out->columns, kinds[kind].keys[1].key) : NULL;
    const hy_json_node *first =
        kinds[kind].is_pair ? first_of_pair(row, out->columns) : hy_json_first(list);
    bool is_named = hy_json_as_string(hy_json_get(first, "role"), &name, NULL) ||
                    hy_json_as_string(hy_json_get(first, "from"), &name, NULL);
    bool begins = is_named && (!strcmp(name, "system") || !strcmp(name, "developer"));
    if (begins || (out->skips_system && kind != HY_ROWS_ALPACA)) return HY_OK;
    out->has_system = true;
    return add_key(out, row, "system", HY_ROLE_SYSTEM, true);
}

/* ---- rows for evaluation --------------------------------------------------------------------- */

/* The answer is the text of a choice, or its number. */
static hy_status find_right(const hy_json_node *row, bool has_numbers, hy_conversation *c) {
    const hy_json_node *answer = get(row, c->columns, "answer");
    const char *key = name_of(c->columns, "answer"), *text;
    size_t size, found = 0, count = c->count - c->choices;
    int64_t number;
    if (hy_json_is_integer(answer) && hy_json_as_int(answer, &number)) {
        c->right = (size_t)number;
        HY_FAIL_IF(has_numbers, HY_ERR_INPUT,
                   "\"%s\" is %lld, which may be a choice or the number of a choice, because "
                   "choices are numbers; write the answer in quotes if it is a choice, or the "
                   "choices in quotes if it is a number",
                   key, (long long)number);
        HY_FAIL_IF(number < 0 || c->right >= count, HY_ERR_INPUT,
                   "\"%s\" is %lld, but the row has %zu choices; expected the text of a choice, or "
                   "its number (0 to %zu)",
                   key, (long long)number, count, count - 1);
        return HY_OK;
    }
    HY_FAIL_IF(!hy_json_as_string(answer, &text, &size), HY_ERR_INPUT,
               "\"%s\" is neither the text of a choice nor its number (0 to %zu)", key, count - 1);
    for (size_t i = 0; i < count; i++) {
        const hy_turn *choice = &c->turns[c->choices + i];
        if (choice->size != size || memcmp(choice->text, text, size) != 0) continue;
        c->right = i;
        found++;
    }
    HY_FAIL_IF(found == 0, HY_ERR_INPUT,
               "\"%s\" is \"%.40s\", which is none of the %zu choices; expected the text of a "
               "choice, or its number (0 to %zu); letters and numbers in quotes are texts",
               key, text, count, count - 1);
    HY_FAIL_IF(found > 1, HY_ERR_INPUT,
               "\"%s\" is \"%.40s\", but %zu choices have this text; expected the number of the "
               "right one (0 to %zu)",
               key, text, found, count - 1);
    return HY_OK;
}

/* The prompt is a text or a list of messages; then the possible answers follow as turns. */
static hy_status read_scored(const hy_json_node *row, hy_row_kind kind, hy_conversation *c) {
    const hy_json_node *prompt = get(row, c->columns, "prompt"),
                       *choices = get(row, c->columns, "choices");
    const char *key = name_of(c->columns, "choices");
    HY_TRY(hy_json_type_of(prompt) == HY_JSON_ARRAY
               ? read_list(prompt, "prompt", false, c)
               : add_key(c, row, "prompt", HY_ROLE_USER, false));
    c->choices = c->count;
    bool is_list = hy_json_type_of(choices) == HY_JSON_ARRAY, has_numbers = false;
    HY_FAIL_IF(kind == HY_ROWS_ANSWER ? is_list : !choices, HY_ERR_INPUT,
               "the row has %s\"%s\", unlike the first row of the file; write rows with and "
               "without choices to separate files",
               is_list ? "" : "no ", key);
    if (kind == HY_ROWS_ANSWER) return add_key(c, row, "answer", HY_ROLE_ASSISTANT, false);
    HY_FAIL_IF(!is_list || hy_json_size(choices) < 2, HY_ERR_INPUT,
               "\"%s\" is not a list of two or more texts%s", key,
               is_list ? "" : "; a list has the form [\"a\", \"b\"], and CSV has none");
    for (const hy_json_node *n = hy_json_first(choices); n; n = hy_json_next(n)) {
        hy_turn turn = {.role = HY_ROLE_ASSISTANT};
        HY_TRY(read_text(c, n, key, &turn));
        HY_FAIL_IF(turn.size == 0, HY_ERR_INPUT, "choice %zu in \"%s\" is empty",
                   c->count - c->choices, key);
        HY_TRY(add_turn(c, turn));
        has_numbers |= hy_json_type_of(n) == HY_JSON_NUMBER;
    }
    return find_right(row, has_numbers, c);
}

/* ---- pairs of answers ------------------------------------------------------------------------ */

/* A text becomes a turn of this role. */
static hy_status add_text_or_messages(hy_conversation *c, const hy_json_node *row, hy_row_kind kind,
                                      const char *key, hy_role role) {
    const hy_json_node *value = get(row, c->columns, key);
    if (!kinds[kind].is_list || !has_messages(value)) return add_key(c, row, key, role, false);
    if (!is_list(value)) return read_message(c, value, false);
    return read_list(value, key, strcmp(key, "conversations") == 0, c);
}

/* The key that seems to hold the question of a pair without a prompt, or NULL. */
static const char *other_question(const hy_json_node *row, const hy_columns *columns) {
    static const char *const keys[] = {"question", "instruction", "input", "messages",
                                       "conversations"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!is_nothing(get(row, columns, keys[i]))) return name_of(columns, keys[i]);
    }
    return NULL;
}

static hy_status read_prompt(const hy_json_node *row, hy_row_kind kind, hy_conversation *c) {
    const char *key = prompt_key(row, c->columns);
    bool is_text = !has_messages(get(row, c->columns, key));
    HY_FAIL_IF(strcmp(key, "prompt") != 0 && ends_with_answer(get(row, c->columns, key)),
               HY_ERR_INPUT,
               "\"%s\" ends with an answer, so it is not the prompt of \"chosen\" and "
               "\"rejected\"",
               name_of(c->columns, key));
    HY_TRY(add_text_or_messages(c, row, kind, key, HY_ROLE_USER));
    bool has_input = is_text && continues_in_input(c->columns) && get(row, c->columns, "input");
    return has_input ? add_key(c, row, "input", HY_ROLE_INPUT, true) : HY_OK;
}

/* Without a prompt, the common beginning of both answers becomes it; else it is dropped where an
 * answer repeats it. */
static hy_status divide_pair(hy_row_kind kind, hy_conversation *c, bool shares_text) {
    if (!c->has_prompt) return shares_text ? hy_pair_share_text(c) : hy_pair_share_turns(c);
    if (!kinds[kind].is_list) return HY_OK;
    hy_pair_drop_prompt(c);
    bool has_system[2] = {c->turns[c->choices].role == HY_ROLE_SYSTEM,
                          c->turns[c->rejected].role == HY_ROLE_SYSTEM};
    HY_FAIL_IF(has_system[0] || has_system[1], HY_ERR_INPUT,
               "\"%s\" begins with a system message that the prompt does not have",
               has_system[0] ? "chosen" : "rejected");
    return HY_OK;
}

/* The prompt, the chosen and the rejected answer follow one another as turns. Answers without a
 * prompt begin with it. */
static hy_status read_pair(const hy_json_node *row, hy_row_kind kind, hy_conversation *c) {
    static const char *const answers[] = {"chosen", "rejected"};
    const hy_json_node *chosen = get(row, c->columns, "chosen"),
                       *rejected = get(row, c->columns, "rejected");
    for (int i = 0; i < 2; i++) {
        const hy_json_node *answer = i ? rejected : chosen;
        HY_FAIL_IF(is_list(answer) && hy_json_size(answer) == 0, HY_ERR_INPUT,
                   "the %s answer is empty", answers[i]);
    }
    HY_FAIL_IF(chosen && rejected && has_messages(chosen) != has_messages(rejected), HY_ERR_INPUT,
               "one of \"chosen\" and \"rejected\" has messages, the other has none");
    c->has_prompt = uses_prompt(row, c->columns);
    bool shares_text = !c->has_prompt && !has_messages(chosen);
    const char *other = other_question(row, c->columns);
    HY_FAIL_IF(!c->has_prompt && !are_whole(row, c->columns) && other, HY_ERR_INPUT,
               "there is no \"prompt\", but \"%s\"; --columns prompt=%s makes it the prompt", other,
               other);
    if (c->has_prompt) HY_TRY(read_prompt(row, kind, c));
    if (shares_text) HY_TRY(add_turn(c, (hy_turn){.role = HY_ROLE_USER, .text = ""}));
    c->choices = c->count;
    HY_TRY(add_text_or_messages(c, row, kind, "chosen", HY_ROLE_ASSISTANT));
    c->rejected = c->count;
    HY_TRY(add_text_or_messages(c, row, kind, "rejected", HY_ROLE_ASSISTANT));
    bool ends[2] = {c->turns[c->rejected - 1].role == HY_ROLE_ASSISTANT,
                    c->turns[c->count - 1].role == HY_ROLE_ASSISTANT};
    HY_FAIL_IF(!ends[0] || !ends[1], HY_ERR_INPUT,
               "the last message of \"%s\" is not an assistant's", ends[0] ? "rejected" : "chosen");
    HY_TRY(divide_pair(kind, c, shares_text));
    for (size_t i = 0; kinds[kind].is_list && i < c->choices; i++) c->turns[i].is_masked = true;
    return HY_OK;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Whether the value is that of a question of this kind of row. */
static bool is_question(const hy_json_node *row, const hy_columns *columns, hy_row_kind kind,
                        const hy_json_node *value) {
    for (int k = 0; k < MOST_KEYS && kinds[kind].keys[k].key; k++) {
        bool is_one =
            !is_answer_key(kind, k) && get(row, columns, kinds[kind].keys[k].key) == value;
        if (is_one) return true;
    }
    return false;
}

/* Reads the expected answer under the first of these keys that holds a text, a number or a boolean:
 * those that --columns maps, or else all. *turn is unchanged if there is none. */
static hy_status find_expected(const hy_json_node *row, hy_row_kind kind, hy_conversation *c,
                               hy_turn *turn) {
    static const char *const keys[] = {"answer", "ground_truth", "reward_model", "solution",
                                       "target", "completion",   "output"};
    const size_t count = sizeof keys / sizeof keys[0];
    bool has_mapped = false;
    for (size_t i = 0; i < count; i++) has_mapped |= mapped(c->columns, keys[i]) != NULL;
    for (size_t i = 0; i < count; i++) {
        const hy_json_node *member = get(row, c->columns, keys[i]), *value = member;
        if (has_mapped && !mapped(c->columns, keys[i])) continue;
        HY_FAIL_IF(has_mapped && !member, HY_ERR_INPUT, "\"%s\" is missing",
                   name_of(c->columns, keys[i]));
        if (strcmp(keys[i], "reward_model") == 0) value = hy_json_get(member, "ground_truth");
        bool is_text = hy_json_type_of(value) != HY_JSON_OBJECT && !is_list(value);
        if (!is_text || is_nothing(value) || is_question(row, c->columns, kind, value)) continue;
        c->expected = member;
        *turn = (hy_turn){.role = HY_ROLE_ASSISTANT};
        return read_text(c, value, keys[i], turn);
    }
    return HY_OK;
}

/* The turns that were read are the prompt, except an answer at their end. The expected answer, if
 * there is one, becomes the turn behind them. */
static hy_status read_expected(const hy_json_node *row, hy_row_kind kind, hy_conversation *c) {
    const hy_json_node *completion = get(row, c->columns, "completion");
    bool is_of_kind = kind == HY_ROWS_TURNS || kind == HY_ROWS_PROMPT;
    bool has_turns = is_of_kind && is_list(completion) &&
                     hy_json_type_of(hy_json_first(completion)) == HY_JSON_OBJECT;
    hy_turn expected = {.role = HY_ROLE_ASSISTANT};
    HY_TRY(check_prompt(row, c->columns));
    if (has_turns) HY_TRY(read_list(completion, "completion", false, c));
    if (c->count > 0 && c->turns[c->count - 1].role == HY_ROLE_ASSISTANT)
        expected = c->turns[--c->count];
    c->choices = c->count;
    HY_TRY(find_expected(row, kind, c, &expected));
    return expected.size > 0 ? add_turn(c, expected) : HY_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

bool hy_turns_have_empty_answers(const hy_turn *turns, size_t count) {
    size_t answers = 0;
    for (const hy_turn *turn = turns; turn < turns + count; turn++) {
        const char *thought = "";
        if (turn->role != HY_ROLE_ASSISTANT) continue;
        (void)hy_json_as_string(hy_json_get(turn->message, "reasoning_content"), &thought, NULL);
        if (turn->size > 0 || turn->calls_tools || thought[0]) return false;
        answers++;
    }
    return answers > 0;
}

static hy_status read_tools(const hy_json_node *row, hy_conversation *c) {
    c->tools = hy_json_get(row, "tools");
    if (hy_json_type_of(c->tools) == HY_JSON_NULL) c->tools = NULL;
    HY_FAIL_IF(c->tools && !is_list(c->tools), HY_ERR_INPUT, "\"tools\" is not a list");
    return HY_OK;
}

hy_status hy_conversation_read(const hy_json_node *row, hy_row_kind kind, hy_conversation *out) {
    clear(out);
    HY_FAIL_IF(hy_json_type_of(row) != HY_JSON_OBJECT, HY_ERR_INPUT, "a row must be a JSON object");
    if (kinds[kind].is_scored) {
        HY_TRY(read_system(row, kind, out));
        return read_scored(row, kind, out);
    }
    if (kinds[kind].is_pair) {
        HY_TRY(read_system(row, kind, out));
        HY_TRY(read_pair(row, kind, out));
        return kinds[kind].is_list ? read_tools(row, out) : HY_OK;
    }
    for (int k = 0; k < MOST_KEYS && kinds[kind].keys[k].key; k++) {
        const char *key = kinds[kind].keys[k].key;
        hy_role role = kinds[kind].keys[k].role;
        bool is_optional = kinds[kind].keys[k].is_optional;
        if (is_unread_answer(out->columns, kind, k)) continue;
        if (strcmp(key, "system") == 0) {
            HY_TRY(read_system(row, kind, out));
        } else if (kinds[kind].is_list) {
            HY_TRY(read_list(get(row, out->columns, key), key, kind == HY_ROWS_SHAREGPT, out));
        } else {
            HY_TRY(add_key(out, row, key, role, is_optional));
        }
        bool is_prompt = kind == HY_ROWS_TURNS && strcmp(key, "prompt") == 0;
        for (size_t i = 0; is_prompt && i < out->count; i++) out->turns[i].is_masked = true;
    }
    if (out->columns && out->columns->prompts) HY_TRY(read_expected(row, kind, out));
    return kinds[kind].is_list ? read_tools(row, out) : HY_OK;
}
