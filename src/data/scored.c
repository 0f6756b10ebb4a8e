/* scored.c: rows for evaluation as examples. See examples.h.
 *
 * A row becomes one example for each possible answer, with the tokens that lm-evaluation-harness
 * uses: those of the prompt without the blanks at its end, then what follows as many tokens when
 * prompt and answer are encoded together. An example that is too long loses the beginning of its
 * prompt. */
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "data/examples.h"

hy_status hy_scored_append(hy_scored_list *list, const hy_scored *more, size_t count) {
    HY_TRY(hy_array_reserve(&list->data, &list->room, list->count + count, sizeof *more, "rows"));
    if (count) memcpy(list->data + list->count, more, count * sizeof *more);
    list->count += count;
    return HY_OK;
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static hy_status encode(hy_batch_of_rows *b, const hy_encoding *e) {
    b->ids.count = b->answers.count = 0;
    return hy_rendered_encode(&b->rendered, e->tokenizer, &b->ids, &b->answers);
}

/* Encodes the rendered prompt, without the blanks and line ends at its end. */
static hy_status encode_prompt(hy_batch_of_rows *b, const hy_encoding *e, hy_ids *prompt) {
    hy_rendered *r = &b->rendered;
    const char *text = hy_text_string(&r->text);
    size_t all = r->count, whole = 0;
    hy_rendered_piece *cut = NULL; /* the piece that ends with blanks, of `whole` bytes */
    while (r->count > 0 && r->pieces[r->count - 1].token < 0) {
        cut = &r->pieces[r->count - 1];
        whole = cut->size;
        while (cut->size > 0 && is_blank(text[cut->begin + cut->size - 1])) cut->size--;
        if (cut->size > 0) break;
        cut->size = whole;
        cut = NULL;
        r->count--;
    }
    hy_status status = encode(b, e);
    if (status == HY_OK) status = hy_ids_append(prompt, b->ids.data, b->ids.count);
    if (cut) cut->size = whole;
    r->count = all;
    return status;
}

/* b->ids are the tokens of prompt and answer together. */
static hy_status add_answer(hy_batch_of_rows *b, const hy_encoding *e, const hy_ids *prompt,
                            const hy_turn *answer, bool *is_cut) {
    size_t seq = (size_t)e->options->seq, count = b->ids.count, first = prompt->count;
    HY_TRY(hy_batch_check_ids(b, e));
    HY_FAIL_IF(first == 0, HY_ERR_INPUT,
               "the prompt is empty, and the tokenizer has no token that begins a text");
    HY_FAIL_IF(
        count <= first, HY_ERR_INPUT,
        "the answer \"%.40s\" has no token of its own, because its text joins the last token "
        "of the prompt; begin it with a blank",
        answer->text);
    HY_FAIL_IF(count - first > seq, HY_ERR_INPUT,
               "the answer \"%.40s\" is longer than the sequence of %zu tokens", answer->text, seq);
    memcpy(b->ids.data, prompt->data, first * sizeof *prompt->data);
    memset(b->answers.data, 0, first);
    memset(b->answers.data + first, 1, count - first);
    *is_cut |= count > seq + 1;
    return hy_batch_add_example(b, count > seq + 1 ? count - seq - 1 : 0, count, false);
}

static bool is_of_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static uint32_t characters_of(const hy_turn *turn) {
    uint32_t count = 0;
    for (size_t i = 0; i < turn->size; i++) count += (turn->text[i] & 0xC0) != 0x80;
    return count;
}

static hy_status add_all(hy_batch_of_rows *b, const hy_encoding *e, const hy_chat_template *chat,
                         hy_ids *prompt) {
    const hy_conversation *c = &b->conversation;
    hy_conversation asked = *c;
    size_t choices = c->count - c->choices;
    bool is_cut = false;
    asked.count = c->choices;
    HY_TRY(hy_chat_render(chat, &asked, true, &b->rendered));
    HY_TRY(encode_prompt(b, e, prompt));
    const size_t pieces = b->rendered.count, size = b->rendered.text.size;
    bool ends_in_word = size > 0 && b->rendered.pieces[pieces - 1].token < 0 &&
                        is_of_word(b->rendered.text.data[size - 1]);
    for (size_t i = 0; i < choices; i++) {
        const hy_turn *turn = &c->turns[c->choices + i];
        hy_scored scored = {.choice = (uint32_t)i,
                            .choices = (uint32_t)choices,
                            .characters = characters_of(turn),
                            .is_right = i == c->right,
                            .is_joined = ends_in_word && is_of_word(turn->text[0])};
        b->rendered.count = pieces;
        b->rendered.text.size = size;
        hy_rendered_add_text(&b->rendered, turn->text, turn->size, false);
        HY_FAIL_IF(b->rendered.has_failed, HY_ERR_MEMORY, "not enough memory for an answer");
        HY_TRY(hy_text_status(&b->rendered.text));
        HY_TRY(encode(b, e));
        HY_TRY(add_answer(b, e, prompt, turn, &is_cut));
        HY_TRY(hy_scored_append(&b->scored, &scored, 1));
    }
    b->cut += is_cut;
    return HY_OK;
}

hy_status hy_batch_add_scored(hy_batch_of_rows *b, const hy_encoding *e,
                              const hy_chat_template *chat) {
    const size_t tokens = b->tokens.count, lengths = b->lengths.count, scored = b->scored.count;
    hy_ids prompt = {0};
    hy_status status = add_all(b, e, chat, &prompt);
    hy_ids_free(&prompt);
    if (status == HY_OK) return HY_OK;
    b->tokens.count = tokens;
    b->lengths.count = lengths;
    b->scored.count = scored;
    return status;
}
