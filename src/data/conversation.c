/* conversation.c: rows by their keys, and their turns. See conversation.h.
 *
 * Everything a row holds beside the keys of its kind is let be: data sets carry ids, sources and scores. */
#include "data/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

enum { KINDS = HY_ROWS_MESSAGES + 1, MOST_KEYS = 4 };

/* What the rows of a kind hold: texts under keys, which become turns in this order, or under one key a
 * list of turns. */
static const struct {
    struct {
        const char *key;
        hy_role role;
        bool is_optional;
    } keys[MOST_KEYS];
    const char *who, *what; /* of a list: the keys of its turns */
} kinds[KINDS] = {
    [HY_ROWS_TEXT] = {{{"text", HY_ROLE_USER}}},
    [HY_ROWS_PROMPT] = {{{"prompt", HY_ROLE_USER}, {"completion", HY_ROLE_ASSISTANT}}},
    [HY_ROWS_QUESTION] = {{{"question", HY_ROLE_USER}, {"answer", HY_ROLE_ASSISTANT}}},
    [HY_ROWS_ALPACA] = {{{"system", HY_ROLE_SYSTEM, true},
                         {"instruction", HY_ROLE_USER},
                         {"input", HY_ROLE_INPUT, true},
                         {"output", HY_ROLE_ASSISTANT}}},
    [HY_ROWS_SHAREGPT] = {{{"conversations"}}, "from", "value"},
    [HY_ROWS_MESSAGES] = {{{"messages"}}, "role", "content"},
};

/* Names that data sets use for who speaks. */
static const struct {
    const char *name;
    hy_role role;
} roles[] = {
    {"system", HY_ROLE_SYSTEM},       {"user", HY_ROLE_USER},     {"human", HY_ROLE_USER},
    {"assistant", HY_ROLE_ASSISTANT}, {"gpt", HY_ROLE_ASSISTANT}, {"model", HY_ROLE_ASSISTANT},
};
enum { ROLES = sizeof roles / sizeof roles[0] };

hy_status hy_row_recognise(const hy_json_node *row, hy_row_kind *out) {
    HY_FAIL_IF(hy_json_type_of(row) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "a row is an object; this is another value");
    for (int i = KINDS - 1; i >= 0; i--) {
        bool has_all = true;
        for (int k = 0; k < MOST_KEYS && kinds[i].keys[k].key; k++) {
            has_all &= kinds[i].keys[k].is_optional || hy_json_get(row, kinds[i].keys[k].key);
        }
        *out = (hy_row_kind)i;
        if (has_all) return HY_OK;
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

void hy_conversation_free(hy_conversation *c) {
    free(c->turns);
    *c = (hy_conversation){0};
}

/* The text under a key. An optional one may be absent, null or empty: no turn then. */
static hy_status add_key(hy_conversation *c, const hy_json_node *row, const char *key, hy_role role,
                         bool is_optional) {
    const hy_json_node *node = hy_json_get(row, key);
    hy_turn turn = {.role = role};
    if (hy_json_type_of(node) == HY_JSON_NULL && is_optional) return HY_OK;
    if (!node) return hy_fail(HY_ERR_INPUT, "\"%s\" is missing", key);
    HY_FAIL_IF(!hy_json_as_string(node, &turn.text, &turn.size), HY_ERR_INPUT,
               "\"%s\" is no string", key);
    if (is_optional && turn.size == 0) return HY_OK;
    HY_FAIL_IF(c->count == HY_MOST_TURNS, HY_ERR_INPUT, "more than %d turns", HY_MOST_TURNS);
    HY_TRY(hy_array_reserve(&c->turns, &c->room, c->count + 1, sizeof turn, "turns"));
    c->turns[c->count++] = turn;
    return HY_OK;
}

static hy_status read_message(hy_conversation *c, const hy_json_node *message, const char *who,
                              const char *what) {
    const char *name;
    size_t i = 0;
    HY_FAIL_IF(hy_json_type_of(message) != HY_JSON_OBJECT, HY_ERR_INPUT, "turn %zu is no object",
               c->count + 1);
    HY_FAIL_IF(!hy_json_as_string(hy_json_get(message, who), &name, NULL), HY_ERR_INPUT,
               "turn %zu has no \"%s\" that is a string", c->count + 1, who);
    while (i < ROLES && strcmp(roles[i].name, name) != 0) i++;
    HY_FAIL_IF(i == ROLES, HY_ERR_INPUT,
               "unknown role \"%.40s\"; expected system, user or assistant", name);
    HY_TRY(add_key(c, message, what, roles[i].role, false));
    /* What an answer was thought from may stand beside it. */
    hy_turn *turn = &c->turns[c->count - 1];
    const hy_json_node *thought = hy_json_get(message, "reasoning_content");
    bool has_thought = turn->role == HY_ROLE_ASSISTANT && hy_json_type_of(thought) != HY_JSON_NULL;
    HY_FAIL_IF(has_thought && !hy_json_as_string(thought, &turn->thought, &turn->thought_size),
               HY_ERR_INPUT, "\"reasoning_content\" is no string");
    return HY_OK;
}

hy_status hy_conversation_read(const hy_json_node *row, hy_row_kind kind, hy_conversation *out) {
    out->count = 0;
    HY_FAIL_IF(hy_json_type_of(row) != HY_JSON_OBJECT, HY_ERR_INPUT,
               "a row is an object; this is another value");
    const char *who = kinds[kind].who, *list_key = kinds[kind].keys[0].key;
    for (int k = 0; !who && k < MOST_KEYS && kinds[kind].keys[k].key; k++) {
        HY_TRY(add_key(out, row, kinds[kind].keys[k].key, kinds[kind].keys[k].role,
                       kinds[kind].keys[k].is_optional));
    }
    if (!who) return HY_OK;
    const hy_json_node *list = hy_json_get(row, list_key);
    HY_FAIL_IF(!list, HY_ERR_INPUT, "\"%s\" is missing", list_key);
    HY_FAIL_IF(hy_json_type_of(list) != HY_JSON_ARRAY || hy_json_size(list) == 0, HY_ERR_INPUT,
               "\"%s\" is no list of turns", list_key);
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n)) {
        HY_TRY(read_message(out, n, who, kinds[kind].what));
    }
    return HY_OK;
}
