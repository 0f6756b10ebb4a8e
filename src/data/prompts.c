/* prompts.c: rows as prompts, which the model answers itself and is rewarded for. See examples.h.
 *
 * The tokens of a prompt are those that a chat would ask with: the turns before the answer, and what
 * the template writes where the answer begins. No token of it counts in the loss. Rewards get the
 * whole row and its expected answer as texts, which are written to a temporary file like tokens. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "data/examples.h"

/* Whether nobody but the system says anything before the answer. */
static bool is_empty(const hy_conversation *c) {
    for (size_t i = 0; i < c->choices; i++) {
        const hy_turn *turn = &c->turns[i];
        if (turn->role != HY_ROLE_SYSTEM && (turn->size > 0 || turn->calls_tools)) return false;
    }
    return true;
}

/* Encodes the turns before the answer into b->ids. */
static hy_status encode(hy_batch_of_rows *b, const hy_encoding *e, const hy_chat_template *chat) {
    hy_conversation asked = b->conversation;
    asked.count = asked.choices;
    HY_FAIL_IF(is_empty(&asked), HY_ERR_INPUT, "the prompt is empty");
    HY_TRY(hy_chat_render(chat, &asked, true, &b->rendered));
    b->ids.count = b->answers.count = 0;
    HY_TRY(hy_rendered_encode(&b->rendered, e->tokenizer, &b->ids, &b->answers));
    HY_FAIL_IF(b->ids.count == 0, HY_ERR_INPUT, "the prompt is empty");
    return hy_batch_check_ids(b, e);
}

/* Appends valid JSON without the blanks between its values, and so in one line. */
static void add_compact(const char *at, const char *end, hy_text *out) {
    bool is_inside = false; /* a string */
    for (const char *from = at; at < end; from = at) {
        while (at < end && (is_inside || !strchr(" \t\r\n", *at))) {
            if (*at == '"') is_inside = !is_inside;
            at += 1 + (is_inside && *at == '\\');
        }
        hy_text_add_bytes(out, from, (size_t)(at - from));
        while (at < end && strchr(" \t\r\n", *at)) at++;
    }
}

/* Appends the texts of the row, see hy_examples. */
static hy_status add_texts(hy_batch_of_rows *b, const hy_row *row) {
    const hy_conversation *c = &b->conversation;
    const size_t begin = b->texts.size;
    if (row->csv) HY_TRY(hy_csv_to_json(row, &b->texts));
    if (!row->csv) add_compact(row->data, row->data + row->size, &b->texts);
    hy_text_add_bytes(&b->texts, "", 1);
    const size_t middle = b->texts.size;
    if (c->count > c->choices)
        hy_text_add_bytes(&b->texts, c->turns[c->choices].text, c->turns[c->choices].size);
    if (c->count > c->choices) hy_text_add_bytes(&b->texts, "", 1);
    HY_TRY(hy_text_status(&b->texts));
    size_t sizes[] = {middle - begin, b->texts.size - middle};
    return hy_ids_append(&b->text_sizes, (int32_t[]){(int32_t)sizes[0], (int32_t)sizes[1]}, 2);
}

/* A reward may have to compare with the row's answer. */
static hy_status check_expected(const hy_batch_of_rows *b, const hy_encoding *e) {
    const hy_dataset_options *o = e->options;
    const hy_conversation *c = &b->conversation;
    const hy_turn *turn = c->count > c->choices ? &c->turns[c->choices] : NULL;
    if (!o->check_expected) return HY_OK;
    hy_status status = o->check_expected(o->needs, turn ? turn->text : NULL, turn ? turn->size : 0);
    if (status != HY_ERR_INPUT || turn) return status;
    return hy_fail_hint(status,
                        "expected answer, ground_truth, reward_model.ground_truth, solution, "
                        "target, completion, output, or an assistant's turn at the end (--columns "
                        "answer=NAME maps another key)");
}

int32_t hy_prompt_most(const hy_dataset_options *o) {
    return o->prompt_most < o->seq ? o->prompt_most : o->seq;
}

hy_status hy_batch_add_prompt(hy_batch_of_rows *b, const hy_encoding *e,
                              const hy_chat_template *chat, const hy_row *row) {
    const int32_t most = hy_prompt_most(e->options);
    HY_TRY(encode(b, e, chat));
    HY_TRY(check_expected(b, e));
    if (b->ids.count > (size_t)most) {
        char reason[64];
        snprintf(reason, sizeof reason, "the prompt has more than %d tokens", most);
        hy_row_losses_add(&b->losses, reason, 1);
        b->dropped++;
        return HY_OK;
    }
    int32_t length = (int32_t)b->ids.count;
    HY_TRY(add_texts(b, row));
    HY_TRY(hy_ids_append(&b->tokens, b->ids.data, b->ids.count));
    return hy_ids_append(&b->lengths, &length, 1);
}

const char *hy_batch_expected(const hy_batch_of_rows *b) {
    const int32_t *sizes = b->text_sizes.data;
    return b->text_sizes.count > 0 && sizes[1] > 0 ? b->texts.data + sizes[0] : NULL;
}

hy_status hy_examples_put_texts(hy_examples *x, const hy_batch_of_rows *b) {
    uint64_t end = x->texts.size;
    HY_TRY(hy_spool_put(&x->texts, b->texts.data, b->texts.size));
    for (size_t i = 0; i < b->text_sizes.count; i++) {
        end += (uint64_t)b->text_sizes.data[i];
        HY_TRY(hy_spool_put(&x->text_ends, &end, sizeof end));
    }
    return HY_OK;
}

void hy_examples_prompt(const hy_examples *x, uint64_t i, hy_prompt_row *out) {
    const uint64_t *ends = x->text_ends.data;
    const char *texts = x->texts.data;
    uint64_t begin = i ? ends[2 * i - 1] : 0, middle = ends[2 * i], end = ends[2 * i + 1];
    uint32_t count;
    out->tokens = hy_examples_get(x, i, &count);
    out->count = (int32_t)count;
    out->row = texts + begin;
    out->row_size = middle - begin - 1;
    out->expected = end > middle ? texts + middle : NULL;
    out->expected_size = end > middle ? end - middle - 1 : 0;
}
