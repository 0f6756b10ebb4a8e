/* answer_text.h: the text of an answer, which grows token by token, and what of it may be shown.
 *
 * Shown are whole characters, and nothing that a stop text may begin with. A token is shown with
 * the first byte of its text; a token without text with the text before it. */
#pragma once

#include "generate/task.h"
#include "infer/codec.h"

typedef struct hy_answer_text {
    const hy_codec *codec;
    const hy_task *task;
    hy_ids known; /* the last token of the prompt, and the answer's that are still needed */
    hy_decode_window window;
    /* Not shown yet: */
    hy_text text;
    hy_scores tokens;
    size_t *begins; /* (tokens.count): where in `text` the text of each begins */
    size_t begins_room;
} hy_answer_text;

/* How much of the text may be shown now. */
typedef struct hy_ready_text {
    size_t bytes, tokens;
    bool is_stopped; /* a stop text follows */
} hy_ready_text;

hy_status hy_answer_text_init(hy_answer_text *text, const hy_codec *codec, const hy_task *task);
void hy_answer_text_fini(hy_answer_text *text); /* accepts all zeros */
/* Appends a token; top has text->tokens.top_count scores. */
hy_status hy_answer_text_add(hy_answer_text *text, hy_token_score chosen,
                             const hy_token_score *top);
/* is_last: nothing follows, so everything is shown that is not after a stop text. */
hy_ready_text hy_answer_text_shown(const hy_answer_text *text, bool is_last);
/* Forgets what was shown. */
void hy_answer_text_drop(hy_answer_text *text, const hy_ready_text *shown);
