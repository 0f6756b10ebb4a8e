/* file_row.c: a row of prompts as a request. See file.h.
 *
 * Rows are recognised one by one and may be of different kinds. Only the question is read. A row is
 * written back as it is, so its text is copied and not written anew from the tree. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "data/examples.h"
#include "generate/file.h"

/* ---- the prompt ------------------------------------------------------------------------------ */

static hy_status read_tokens(const hy_json_node *list, hy_ids *out) {
    int64_t id;
    size_t i = 0;
    for (const hy_json_node *n = hy_json_first(list); n; n = hy_json_next(n), i++) {
        bool is_id = hy_json_as_int(n, &id) && id >= 0 && id <= INT32_MAX;
        HY_FAIL_IF(!is_id, HY_ERR_INPUT, "element %zu of \"tokens\" is not a token id", i);
        HY_TRY(hy_ids_append(out, &(int32_t){(int32_t)id}, 1));
    }
    return HY_OK;
}

static hy_status add_system(const char *text, hy_conversation *c) {
    bool has_one = c->count > 0 && c->turns[0].role == HY_ROLE_SYSTEM;
    if (!text || has_one) return HY_OK;
    HY_TRY(hy_array_reserve(&c->turns, &c->room, c->count + 1, sizeof *c->turns, "turns"));
    memmove(c->turns + 1, c->turns, c->count++ * sizeof *c->turns);
    c->turns[0] = (hy_turn){.role = HY_ROLE_SYSTEM, .text = text, .size = strlen(text)};
    return HY_OK;
}

/* A conversation that ends with an answer is asked for this answer. */
static void drop_answer(hy_conversation *c) {
    while (c->count > 0 && c->turns[c->count - 1].role == HY_ROLE_ASSISTANT) c->count--;
}

/* "text" cannot be the key of the answer if the prompt has it. */
static void choose_key(hy_asked_row *r, const hy_asking *how, const hy_json_node *row,
                       hy_row_kind kind) {
    const hy_json_node *own = hy_json_get(row, r->key);
    if (own && hy_row_uses(row, &r->turns, kind, own))
        r->key = how->answers > 1 ? "answers" : "answer";
}

static hy_status read_prompt(hy_asked_row *r, const hy_asking *how, const hy_json_node *row) {
    const hy_codec *codec = how->codec;
    const hy_json_node *tokens = hy_json_get(row, "tokens");
    hy_row_kind kind;
    hy_status status = hy_row_recognise(row, &how->columns, &kind);
    if (status == HY_ERR_INPUT && hy_json_type_of(tokens) == HY_JSON_ARRAY)
        return read_tokens(tokens, &r->prompt);
    HY_TRY(status);
    r->turns.columns = &how->columns;
    r->turns.skips_system = codec->has_template && !hy_chat_template_has_system(&codec->chat);
    HY_TRY(hy_conversation_read(row, kind, &r->turns));
    choose_key(r, how, row, kind);
    if (kind == HY_ROWS_TEXT)
        return hy_codec_encode_prompt(codec, r->turns.turns[0].text, r->turns.turns[0].size,
                                      &r->prompt);
    drop_answer(&r->turns);
    HY_FAIL_IF(r->turns.count == 0, HY_ERR_INPUT, "the row has no question");
    HY_TRY(add_system(how->system, &r->turns));
    return hy_codec_encode_turns(codec, &r->turns, &r->prompt);
}

/* ---- values of the row's own ----------------------------------------------------------------- */

/* The functions change nothing if the row has no such key, or null. */
static hy_status take_whole(const hy_json_node *row, const char *key, int64_t most, int64_t *out) {
    const hy_json_node *node = hy_json_get(row, key);
    if (hy_json_type_of(node) == HY_JSON_NULL) return HY_OK;
    bool is_right = hy_json_as_int(node, out) && *out >= 0 && *out <= most;
    HY_FAIL_IF(!is_right, HY_ERR_INPUT, "\"%s\" is not a whole number from 0 to %" PRId64, key,
               most);
    return HY_OK;
}

static hy_status take_number(const hy_json_node *row, const char *key, double *out) {
    const hy_json_node *node = hy_json_get(row, key);
    if (hy_json_type_of(node) == HY_JSON_NULL) return HY_OK;
    HY_FAIL_IF(!hy_json_as_double(node, out), HY_ERR_INPUT, "\"%s\" is not a number", key);
    return HY_OK;
}

static hy_status add_stop(hy_asked_row *r, const hy_json_node *node) {
    const char *text;
    size_t size;
    bool is_text = hy_json_as_string(node, &text, &size) && strlen(text) == size;
    HY_FAIL_IF(!is_text, HY_ERR_INPUT, "\"stop\" is neither a text nor a list of texts");
    size_t count = r->request.stop_count + 1;
    HY_TRY(hy_array_reserve(&r->stops, &r->stop_room, count, sizeof *r->stops, "stop texts"));
    r->stops[count - 1] = text;
    r->request.stop = r->stops;
    r->request.stop_count = count;
    return HY_OK;
}

static hy_status take_stops(hy_asked_row *r, const hy_json_node *row) {
    const hy_json_node *node = hy_json_get(row, "stop");
    if (hy_json_type_of(node) == HY_JSON_NULL) return HY_OK;
    r->request.stop_count = 0;
    if (hy_json_type_of(node) != HY_JSON_ARRAY) return add_stop(r, node);
    for (const hy_json_node *n = hy_json_first(node); n; n = hy_json_next(n))
        HY_TRY(add_stop(r, n));
    return HY_OK;
}

static hy_status read_values(hy_asked_row *r, const hy_json_node *row) {
    hy_request *q = &r->request;
    int64_t tokens = q->max_tokens, k = q->top_k, seed = (int64_t)q->seed;
    HY_TRY(take_whole(row, "max_tokens", INT32_MAX, &tokens));
    HY_TRY(take_whole(row, "top_k", INT32_MAX, &k));
    HY_TRY(take_whole(row, "seed", INT64_MAX, &seed));
    HY_TRY(take_number(row, "temperature", &q->temperature));
    HY_TRY(take_number(row, "top_p", &q->top_p));
    HY_TRY(take_stops(r, row));
    q->max_tokens = (int32_t)tokens;
    q->top_k = (int32_t)k;
    q->seed = (uint64_t)seed;
    return HY_OK;
}

/* ---- the row in the answers ------------------------------------------------------------------ */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* The end of the string that begins at `at`, after its quote; the text is valid JSON. */
static const char *string_end(const char *at) {
    for (at++; *at != '"'; at++) at += *at == '\\';
    return at + 1;
}

static bool is_answer_key(const hy_asked_row *r, const hy_json_node *member) {
    const char *key = hy_json_key(member);
    bool is_one = r->key[strlen(r->key) - 1] != 's';
    return strcmp(key, r->key) == 0 || strcmp(key, is_one ? "end" : "ends") == 0 ||
           strcmp(key, "error") == 0 || (r->request.wants_logprobs && !strcmp(key, "logprobs"));
}

/* Copies a key or value of an object, without blanks; returns where the character after it is. */
static const char *copy_value(const char *at, hy_text *out) {
    int depth = 0;
    do {
        const char *next = *at == '"' ? string_end(at) : at + 1;
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        if (!is_blank(*at)) hy_text_add_bytes(out, at, (size_t)(next - at));
        at = next;
    } while (depth > 0 || !strchr(",:}", *at));
    return at;
}

/* Copies an object without the members that answers replace, and without its last bracket. `at` is
 * valid JSON; `row` is its tree. */
static void copy_row(hy_asked_row *r, const char *at, const hy_json_node *row) {
    hy_text *head = &r->head;
    at = strchr(at, '{') + 1;
    hy_text_add(head, "{");
    for (const hy_json_node *n = hy_json_first(row); n && !head->has_failed; n = hy_json_next(n)) {
        size_t before = head->size;
        if (before > 1) hy_text_add(head, ",");
        at = copy_value(at, head) + 1;
        hy_text_add(head, ":");
        at = copy_value(at, head) + 1;
        if (is_answer_key(r, n)) head->size = before;
    }
}

static hy_status write_head(hy_asked_row *r, const hy_row *row) {
    hy_text json = {0};
    if (r->json && hy_json_type_of(hy_json_root(r->json)) == HY_JSON_OBJECT) {
        if (row->csv) HY_TRY(hy_csv_to_json(row, &json));
        copy_row(r, row->csv ? json.data : row->data, hy_json_root(r->json));
        hy_text_free(&json);
    } else { /* it cannot be read */
        hy_json_writer w;
        hy_json_begin(&w, &r->head, false);
        hy_json_open_object(&w, NULL);
        hy_json_put_bytes(&w, "row", row->data, row->size);
    }
    return hy_text_status(&r->head);
}

/* ---- a row ----------------------------------------------------------------------------------- */

/* The values are checked as hy_generator_add does. */
static hy_status check_request(const hy_asked_row *r, const hy_asking *how) {
    hy_ids copy = {0};
    hy_task *task;
    HY_TRY(hy_ids_append(&copy, r->prompt.data, r->prompt.count));
    HY_TRY(hy_task_create(&r->request, &how->limits, &copy, &task));
    hy_task_destroy(task);
    return HY_OK;
}

static hy_status read_row(hy_asked_row *r, const hy_asking *how, const hy_row *row) {
    HY_TRY(hy_row_parse(row, &r->json));
    HY_TRY(read_prompt(r, how, hy_json_root(r->json)));
    HY_TRY(read_values(r, hy_json_root(r->json)));
    HY_TRY(check_request(r, how));
    r->request.tokens = r->prompt.data;
    r->request.token_count = r->prompt.count;
    return HY_OK;
}

hy_status hy_asked_row_read(hy_asked_row *r, const hy_asking *how, const hy_row *row,
                            int64_t number) {
    hy_error error;
    hy_json_free(r->json);
    r->json = NULL;
    r->prompt.count = 0;
    r->request = how->each;
    r->request.seed += (uint64_t)number * (uint64_t)how->answers;
    r->key = how->answers > 1 ? "texts" : "text";
    hy_text_clear(&r->head);
    hy_status status = read_row(r, how, row);
    if (status == HY_ERR_INPUT)
        status = hy_fail_context(status, "%s:%llu", how->data, (unsigned long long)row->line);
    hy_error_save(&error, status);
    HY_TRY(write_head(r, row));
    return hy_error_restore(&error);
}

void hy_asked_row_free(hy_asked_row *r) {
    hy_json_free(r->json);
    hy_conversation_free(&r->turns);
    hy_ids_free(&r->prompt);
    hy_text_free(&r->head);
    free(r->stops);
    *r = (hy_asked_row){0};
}
