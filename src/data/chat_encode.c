/* chat_encode.c: pieces of a conversation as tokens, and which of them are answers. See chat_template.h.
 *
 * Text between two special tokens is one run and encoded whole, as it was when the model was trained: a
 * border inside it would be seen by merges. Where an answer begins in a run is found by encoding the run
 * up to there once more: tokens that both have in common lie before the border, and the first that differs
 * lies across it. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "data/chat_template.h"

void hy_flags_free(hy_flags *flags) {
    free(flags->data);
    *flags = (hy_flags){0};
}

static hy_status no_memory(void) { return hy_fail(HY_ERR_MEMORY, "no memory for tokens"); }

static hy_status reserve(hy_ids *ids, size_t more) {
    return hy_array_reserve(&ids->data, &ids->room, ids->count + more, sizeof *ids->data, "tokens");
}

bool hy_ids_push(hy_ids *ids, int32_t id) {
    if (reserve(ids, 1) != HY_OK) return false;
    ids->data[ids->count++] = id;
    return true;
}

static hy_status push_flags(hy_flags *flags, size_t count, bool value) {
    if (count == 0) return HY_OK;
    HY_TRY(hy_array_reserve(&flags->data, &flags->room, flags->count + count, 1, "tokens"));
    memset(flags->data + flags->count, value, count);
    flags->count += count;
    return HY_OK;
}

hy_status hy_encode_text(const hy_tokenizer *tokenizer, const char *text, size_t size, int flags,
                         hy_ids *ids) {
    if (tokenizer) return hy_tokenizer_encode(tokenizer, text, size, flags, ids);
    HY_TRY(reserve(ids, size));
    for (size_t i = 0; i < size; i++) ids->data[ids->count++] = (uint8_t)text[i];
    return HY_OK;
}

/* How many tokens of the run `all` lie before byte `size` of its text. */
static hy_status tokens_before(const hy_tokenizer *tokenizer, const char *text, size_t size,
                               const int32_t *all, size_t count, size_t *out) {
    if (!tokenizer) {
        *out = size;
        return HY_OK;
    }
    hy_ids part = {0};
    hy_status status = hy_tokenizer_encode(tokenizer, text, size, HY_TOKENS_PLAIN, &part);
    size_t same = 0;
    while (same < part.count && same < count && part.data[same] == all[same]) same++;
    hy_ids_free(&part);
    *out = same;
    return status;
}

/* Pieces [first, last) are text: one run. */
static hy_status encode_run(const hy_rendered *r, size_t first, size_t last,
                            const hy_tokenizer *tokenizer, hy_ids *ids, hy_flags *answers) {
    const hy_piece *p = r->pieces;
    const char *text = hy_text_string(&r->text) + p[first].begin;
    size_t size = p[last - 1].begin + p[last - 1].size - p[first].begin, before = ids->count;
    HY_TRY(hy_encode_text(tokenizer, text, size, HY_TOKENS_PLAIN, ids));
    size_t count = ids->count - before, done = 0;
    for (size_t i = first + 1; i < last; i++) {
        if (p[i].is_answer == p[i - 1].is_answer) continue;
        size_t border;
        HY_TRY(tokens_before(tokenizer, text, p[i].begin - p[first].begin, ids->data + before,
                             count, &border));
        if (border < done) border = done;
        HY_TRY(push_flags(answers, border - done, p[i - 1].is_answer));
        done = border;
    }
    return push_flags(answers, count - done, p[last - 1].is_answer);
}

hy_status hy_rendered_encode(const hy_rendered *r, const hy_tokenizer *tokenizer, hy_ids *ids,
                             hy_flags *answers) {
    for (size_t i = 0; i < r->count;) {
        size_t last = i;
        while (last < r->count && r->pieces[last].token < 0) last++;
        if (last > i) {
            HY_TRY(encode_run(r, i, last, tokenizer, ids, answers));
        } else {
            if (!hy_ids_push(ids, r->pieces[i].token)) return no_memory();
            HY_TRY(push_flags(answers, 1, r->pieces[i].is_answer));
            last++;
        }
        i = last;
    }
    return HY_OK;
}
