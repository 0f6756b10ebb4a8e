/* examples_batch.c: rows to tokens. See examples_batch.h.
 *
 * A row is parsed, read as turns, rendered, encoded, and cut to what a sequence holds. Whatever is wrong
 * with it is HY_ERR_INPUT and becomes a reason; other failures (memory, an id that the model does not
 * have) end the reading. */
#include "data/examples_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/examples.h"

hy_batch_of_rows *hy_batch_of_rows_create(void) { return calloc(1, sizeof(hy_batch_of_rows)); }

void hy_batch_of_rows_destroy(hy_batch_of_rows *b) {
    if (!b) return;
    hy_ids_free(&b->tokens);
    hy_ids_free(&b->lengths);
    hy_conversation_free(&b->conversation);
    hy_rendered_free(&b->rendered);
    hy_ids_free(&b->ids);
    hy_flags_free(&b->answers);
    free(b);
}

/* ---- one row --------------------------------------------------------------------------------- */

hy_status hy_row_parse(const hy_row *row, hy_json **out) {
    if (row->broken) return hy_fail(HY_ERR_INPUT, "%s", row->broken);
    hy_status status = hy_json_parse(row->data, row->size, "", out);
    if (status != HY_ERR_INPUT) return status;
    /* ":LINE:COLUMN: reason", counted from the row's own beginning. */
    unsigned long long line, column;
    int at = 0;
    char message[HY_REASON_MAX];
    snprintf(message, sizeof message, "%s", hy_error_message());
    if (sscanf(message, ":%llu:%llu: %n", &line, &column, &at) != 2 || at == 0) return status;
    if (line == 1) return hy_fail(status, "column %llu: %s", column, message + at);
    return hy_fail(status, "line %llu of the row, column %llu: %s", line, column, message + at);
}

static hy_status encode_tree(hy_batch_of_rows *b, const hy_encoding *e,
                             const hy_chat_template *chat, hy_row_kind kind,
                             const hy_json_node *root) {
    hy_conversation *c = &b->conversation;
    HY_TRY(hy_conversation_read(root, kind, c));
    /* A question and its answer stand on lines of their own. */
    if (kind == HY_ROWS_QUESTION && chat->kind == HY_CHAT_PLAIN) {
        HY_FAIL_IF(c->count + 1 > c->room, HY_ERR_INTERNAL,
                   "a question and its answer with no room for a line end");
        c->turns[2] = c->turns[1];
        c->turns[1] = (hy_turn){.role = HY_ROLE_INPUT, .text = "", .size = 0};
        c->count = 3;
    }
    HY_TRY(hy_chat_render(chat, c->turns, c->count, false, &b->rendered));
    b->ids.count = b->answers.count = 0;
    HY_TRY(hy_rendered_encode(&b->rendered, e->tokenizer, &b->ids, &b->answers));
    HY_FAIL_IF(kind == HY_ROWS_TEXT && chat->tokens.eos >= 0 &&
                   !hy_ids_push(&b->ids, chat->tokens.eos),
               HY_ERR_MEMORY, "no memory for tokens");
    return HY_OK;
}

static hy_status encode_row(hy_batch_of_rows *b, const hy_encoding *e, const hy_chat_template *chat,
                            hy_row_kind kind, const hy_row *row) {
    hy_json *json;
    HY_TRY(hy_row_parse(row, &json));
    hy_status status = encode_tree(b, e, chat, kind, hy_json_root(json));
    hy_json_free(json);
    return status;
}

/* ---- examples -------------------------------------------------------------------------------- */

/* Tokens [first, last) of the row as an example. */
static hy_status add_example(hy_batch_of_rows *b, size_t first, size_t last, bool counts_all) {
    for (size_t i = first; i < last; i++) {
        bool counts = i > first && (counts_all || b->answers.data[i]);
        HY_FAIL_IF(!hy_ids_push(&b->tokens, b->ids.data[i] | (counts ? HY_COUNTS : 0)),
                   HY_ERR_MEMORY, "no memory for tokens");
    }
    if (hy_ids_push(&b->lengths, (int32_t)(last - first))) return HY_OK;
    return hy_fail(HY_ERR_MEMORY, "no memory for examples");
}

static hy_status add_document(hy_batch_of_rows *b, size_t seq) {
    for (size_t first = 0; first + 1 < b->ids.count; first += seq) {
        size_t left = b->ids.count - first, size = left < seq + 1 ? left : seq + 1;
        HY_TRY(add_example(b, first, first + size, true));
    }
    return HY_OK;
}

static hy_status add_row(hy_batch_of_rows *b, const hy_encoding *e, hy_row_kind kind) {
    size_t most = (size_t)e->seq + 1, count = b->ids.count;
    bool is_cut = count > most && kind != HY_ROWS_TEXT;
    for (size_t i = 0; i < b->ids.count; i++) {
        int32_t id = b->ids.data[i];
        if (id >= 0 && id < e->vocab) continue;
        return hy_fail(HY_ERR_STATE,
                       "a row has the token %d, but the model's vocabulary has ids 0 to %d; is "
                       "this its tokenizer?",
                       id, e->vocab - 1);
    }
    if (count < 2) return hy_fail(HY_ERR_INPUT, "nothing in it: fewer than two tokens");
    if (kind == HY_ROWS_TEXT) return add_document(b, (size_t)e->seq);
    b->cut += is_cut;
    if (is_cut) count = most;
    bool counts_any = e->counts_all;
    for (size_t i = 1; i < count && !counts_any; i++) counts_any = b->answers.data[i];
    if (counts_any) return add_example(b, 0, count, e->counts_all);
    b->dropped += is_cut;
    return is_cut ? HY_OK : hy_fail(HY_ERR_INPUT, "no assistant's turn in it, so nothing to learn");
}

static void note_bad(hy_batch_of_rows *b, uint64_t line) {
    if (b->bad_count < HY_REASONS_KEPT) {
        hy_bad_row *bad = &b->bad[b->bad_count];
        bad->line = line;
        snprintf(bad->reason, sizeof bad->reason, "%.*s", HY_REASON_MAX - 1, hy_error_message());
    }
    b->bad_count++;
}

hy_status hy_batch_encode(hy_batch_of_rows *b, const hy_encoding *e, const hy_chat_template *chat,
                          hy_row_kind kind) {
    b->tokens.count = b->lengths.count = b->bad_count = 0;
    b->cut = b->dropped = 0;
    for (size_t i = 0; i < b->row_count; i++) {
        hy_status status = encode_row(b, e, chat, kind, &b->rows[i]);
        if (status == HY_OK) status = add_row(b, e, kind);
        if (status == HY_ERR_INPUT)
            note_bad(b, b->rows[i].line);
        else if (status == HY_ERR_STATE)
            return hy_fail(HY_ERR_INPUT, "line %llu: %s", (unsigned long long)b->rows[i].line,
                           hy_error_message());
        else
            HY_TRY(status);
    }
    return HY_OK;
}
