/* conversation.c: rows by their keys, and their turns. See conversation.h.
 *
 * Everything a row holds beside the keys of its kind is let be: data sets carry ids, sources and scores. */
#include "data/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

/* In the order they are looked for: rows may carry several, and the richest wins. */
static const struct {
    hy_row_kind kind;
    const char *first, *second; /* keys that must be there; second may be NULL */
} kinds[] = {
    {HY_ROWS_MESSAGES, "messages", NULL},      {HY_ROWS_SHAREGPT, "conversations", NULL},
    {HY_ROWS_ALPACA, "instruction", "output"}, {HY_ROWS_PROMPT, "prompt", "completion"},
    {HY_ROWS_QUESTION, "question", "answer"},  {HY_ROWS_TEXT, "text", NULL},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Names that data sets use for who speaks. */
static const struct {
    const char *name;
    hy_role role;
} roles[] = {
    {"system", HY_ROLE_SYSTEM},       {"user", HY_ROLE_USER},     {"human", HY_ROLE_USER},
    {"assistant", HY_ROLE_ASSISTANT}, {"gpt", HY_ROLE_ASSISTANT}, {"model", HY_ROLE_ASSISTANT},
};

hy_status hy_row_recognise(const hy_json_node *row, hy_row_kind *out) {
    HY_FAIL_IF(hy_json_type_of(row) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "a row is an object; this is another value");
    for (int i = 0; i < KINDS; i++) {
        if (!hy_json_get(row, kinds[i].first)) continue;
        if (kinds[i].second && !hy_json_get(row, kinds[i].second)) continue;
        *out = kinds[i].kind;
        return HY_OK;
    }
    char keys[256] = "";
    size_t used = 0;
    for (const hy_json_node *n = hy_json_first(row); n && used < 160; n = hy_json_next(n)) {
        int size =
            snprintf(keys + used, sizeof keys - used, "%s%.40s", used ? ", " : "", hy_json_key(n));
        if (size > 0) used += (size_t)size;
    }
    return hy_fail(HY_ERR_INPUT,
                   "a row with the keys (%s); expected text, prompt and completion, question and "
                   "answer, instruction and output, conversations, or messages",
                   keys);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static hy_status add_turn(hy_conversation *c, hy_turn turn) {
    HY_FAIL_IF(c->count == HY_MOST_TURNS, HY_ERR_INPUT, "more than %d turns", HY_MOST_TURNS);
    HY_TRY(hy_array_reserve(&c->turns, &c->room, c->count + 1, sizeof turn, "turns"));
    c->turns[c->count++] = turn;
    return HY_OK;
}

void hy_conversation_free(hy_conversation *c) {
    free(c->turns);
    *c = (hy_conversation){0};
}

/* The text under a key. An optional one may be absent, null or empty: no turn then. */
static hy_status add_key(hy_conversation *c, const hy_json_node *row, const char *key, hy_role role,
                         bool is_optional) {
    const hy_json_node *node = hy_json_get(row, key);
    hy_turn turn = {.role = role};
    bool is_null = !node || hy_json_type_of(node) == HY_JSON_NULL;
    if (is_null && is_optional) return HY_OK;
    if (!node) return hy_fail(HY_ERR_INPUT, "\"%s\" is missing", key);
    HY_FAIL_IF(!hy_json_as_string(node, &turn.text, &turn.size), HY_ERR_INPUT,
               "\"%s\" is no string", key);
    return is_optional && turn.size == 0 ? HY_OK : add_turn(c, turn);
}

static hy_status find_role(const char *name, hy_role *out) {
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(roles[i].name, name) != 0) continue;
        *out = roles[i].role;
        return HY_OK;
    }
    return hy_fail(HY_ERR_INPUT, "unknown role \"%.40s\"; expected system, user or assistant",
                   name);
}

/* What an answer was thought from may stand beside it. */
static hy_status take_thought(hy_turn *turn, const hy_json_node *message) {
    const hy_json_node *node = hy_json_get(message, "reasoning_content");
    if (!node || hy_json_type_of(node) == HY_JSON_NULL) return HY_OK;
    if (hy_json_as_string(node, &turn->thought, &turn->thought_size)) return HY_OK;
    return hy_fail(HY_ERR_INPUT, "\"reasoning_content\" is no string");
}

static hy_status read_message(hy_conversation *c, const hy_json_node *message, const char *who,
                              const char *what) {
    const char *name;
    hy_role role = HY_ROLE_USER;
    HY_FAIL_IF(hy_json_type_of(message) != HY_JSON_OBJECT, HY_ERR_INPUT, "turn %zu is no object",
               c->count + 1);
    HY_FAIL_IF(!hy_json_as_string(hy_json_get(message, who), &name, NULL), HY_ERR_INPUT,
               "turn %zu has no \"%s\" that is a string", c->count + 1, who);
    HY_TRY(find_role(name, &role));
    HY_TRY(add_key(c, message, what, role, false));
    return role == HY_ROLE_ASSISTANT ? take_thought(&c->turns[c->count - 1], message) : HY_OK;
}

static hy_status read_messages(hy_conversation *c, const hy_json_node *row, const char *key,
                               const char *who, const char *what) {
    const hy_json_node *list = hy_json_get(row, key);
    if (!list) return hy_fail(HY_ERR_INPUT, "\"%s\" is missing", key);
    HY_FAIL_IF(hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) == 0, HY_ERR_INPUT,
               "\"%s\" is no list of turns", key);
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        HY_TRY(read_message(c, n, who, what));
    }
    return HY_OK;
}

static hy_status read_pair(hy_conversation *c, const hy_json_node *row, const char *question,
                           const char *answer) {
    HY_TRY(add_key(c, row, question, HY_ROLE_USER, false));
    return add_key(c, row, answer, HY_ROLE_ASSISTANT, false);
}

static hy_status read_alpaca(hy_conversation *c, const hy_json_node *row) {
    HY_TRY(add_key(c, row, "system", HY_ROLE_SYSTEM, true));
    HY_TRY(add_key(c, row, "instruction", HY_ROLE_USER, false));
    HY_TRY(add_key(c, row, "input", HY_ROLE_INPUT, true));
    return add_key(c, row, "output", HY_ROLE_ASSISTANT, false);
}

hy_status hy_conversation_read(const hy_json_node *row, hy_row_kind kind, hy_conversation *out) {
    out->count = 0;
    HY_FAIL_IF(hy_json_type_of(row) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "a row is an object; this is another value");
    switch (kind) {
    case HY_ROWS_TEXT: return add_key(out, row, "text", HY_ROLE_USER, false);
    case HY_ROWS_PROMPT: return read_pair(out, row, "prompt", "completion");
    case HY_ROWS_QUESTION: return read_pair(out, row, "question", "answer");
    case HY_ROWS_ALPACA: return read_alpaca(out, row);
    case HY_ROWS_SHAREGPT: return read_messages(out, row, "conversations", "from", "value");
    default: return read_messages(out, row, "messages", "role", "content");
    }
}
