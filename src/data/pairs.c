/* pairs.c: rows with a chosen and a rejected answer as examples. See examples.h.
 *
 * Each answer is written and encoded behind the prompt as in a row of a prompt and its completion.
 * The loss of a pair needs both, so they share a sequence: if they are too long together, each is
 * cut at its end to half of the sequence, or to what a shorter one leaves. */
#include <string.h>

#include "base/error.h"
#include "data/examples.h"

static const char *const names[] = {"chosen", "rejected"};

/* The tokens of an example in b->ids. */
typedef struct run {
    size_t first, count;
} run;

/* Appends the first `count` turns of the conversation to b->ids. */
static hy_status encode(hy_batch_of_rows *b, const hy_encoding *e, const hy_chat_template *chat,
                        size_t count, run *out) {
    hy_conversation one = b->conversation;
    one.count = count;
    out->first = b->ids.count;
    HY_TRY(hy_chat_render(chat, &one, false, &b->rendered));
    HY_TRY(hy_rendered_encode(&b->rendered, e->tokenizer, &b->ids, &b->answers));
    out->count = b->ids.count - out->first;
    return HY_OK;
}

static hy_status encode_both(hy_batch_of_rows *b, const hy_encoding *e,
                             const hy_chat_template *chat, run runs[2]) {
    hy_conversation *c = &b->conversation;
    const size_t begin[] = {c->choices, c->rejected}, end[] = {c->rejected, c->count};
    for (int i = 0; i < 2; i++) {
        HY_FAIL_IF(hy_turns_have_empty_answers(c->turns + begin[i], end[i] - begin[i]),
                   HY_ERR_INPUT, "the %s answer is empty", names[i]);
    }
    b->ids.count = b->answers.count = 0;
    HY_TRY(encode(b, e, chat, c->rejected, &runs[0]));
    /* The rejected answer takes the place of the chosen one. */
    size_t left = c->count - c->rejected;
    memmove(c->turns + c->choices, c->turns + c->rejected, left * sizeof *c->turns);
    HY_TRY(encode(b, e, chat, c->choices + left, &runs[1]));
    return hy_batch_check_ids(b, e);
}

static bool are_same(const hy_batch_of_rows *b, const run runs[2]) {
    const int32_t *ids = b->ids.data;
    return runs[0].count == runs[1].count &&
           !memcmp(ids + runs[0].first, ids + runs[1].first, runs[0].count * sizeof *ids);
}

static bool counts_any(const hy_batch_of_rows *b, run r) {
    return r.count > 0 && memchr(b->answers.data + r.first + 1, 1, r.count - 1);
}

/* How many tokens of an example fit beside one of `other` tokens. Each example of n tokens takes
 * n - 1 positions. */
static size_t fitting(size_t count, size_t other, size_t seq) {
    size_t most = other - 1 < seq - seq / 2 ? seq - (other - 1) : seq / 2;
    return count < most + 1 ? count : most + 1;
}

hy_status hy_batch_add_pair(hy_batch_of_rows *b, const hy_encoding *e,
                            const hy_chat_template *chat) {
    run runs[2];
    HY_TRY(encode_both(b, e, chat, runs));
    for (int i = 0; i < 2; i++) {
        HY_FAIL_IF(!counts_any(b, runs[i]), HY_ERR_INPUT,
                   "the %s answer has no token to learn from", names[i]);
    }
    HY_FAIL_IF(are_same(b, runs), HY_ERR_INPUT, "chosen and rejected are the same");
    size_t seq = (size_t)e->options->seq, count[] = {runs[0].count, runs[1].count};
    for (int i = 0; i < 2; i++) {
        runs[i].count = fitting(count[i], count[!i], seq);
        b->is_cut[i] = runs[i].count < count[i];
    }
    const char *lost = !counts_any(b, runs[0]) || !counts_any(b, runs[1])
                           ? "the prompt leaves no room for both answers"
                       : are_same(b, runs) ? "chosen and rejected are the same after cutting"
                                           : NULL;
    b->dropped += lost != NULL;
    b->cut += (b->is_cut[0] || b->is_cut[1]) && !lost;
    if (lost) hy_row_losses_add(&b->losses, lost, 1);
    for (int i = 0; i < 2 && !lost; i++) {
        HY_TRY(hy_batch_add_example(b, runs[i].first, runs[i].first + runs[i].count, false));
    }
    return HY_OK;
}
