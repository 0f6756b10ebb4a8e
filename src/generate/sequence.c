/* sequence.c: takes an answer's tokens and tells its pieces. See sequence.h. */
#include "generate/sequence.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"

hy_status hy_sequence_create(hy_task *task, int32_t number, const hy_codec *codec,
                             hy_sequence **out) {
    hy_sequence *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return hy_fail(HY_ERR_MEMORY, "not enough memory for an answer");
    s->task = task;
    s->number = number;
    hy_status status = hy_answer_text_init(&s->text, codec, task);
    if (status == HY_OK)
        *out = s;
    else
        hy_sequence_destroy(s);
    return status;
}

void hy_sequence_destroy(hy_sequence *s) {
    if (!s) return;
    hy_answer_text_fini(&s->text);
    free(s);
}

/* ---- telling --------------------------------------------------------------------------------- */

/* A piece without text. */
static hy_piece make_piece(const hy_task *t, int32_t answer) {
    double now = hy_clock();
    bool has_first = t->first > 0;
    return (hy_piece){.size = sizeof(hy_piece),
                      .request = t->id,
                      .answer = answer,
                      .text = "",
                      .prompt_tokens = (int32_t)t->prompt.count,
                      .reused_tokens = t->reused,
                      .wait_seconds = (t->has_begun ? t->began : now) - t->added,
                      .prompt_seconds = has_first ? t->first - t->began : 0,
                      .seconds = now - t->added};
}

/* Tells the tokens and the text that may be shown, and forgets them. */
static hy_status tell_text(hy_sequence *s, hy_piece *piece, const hy_ready_text *shown) {
    hy_scored_token *tokens = NULL;
    size_t room = 0;
    hy_status status = hy_scores_view(&s->text.tokens, shown->tokens, &tokens, &room);
    if (status == HY_OK) {
        piece->text = hy_text_string(&s->text.text);
        piece->text_size = shown->bytes;
        piece->tokens = tokens;
        piece->token_count = (int32_t)shown->tokens;
        s->task->on_piece(s->task->user, piece);
        hy_answer_text_drop(&s->text, shown);
    }
    free(tokens);
    return status;
}

hy_status hy_tell_end(const hy_task *t, int32_t number, hy_sequence *s, hy_end end) {
    if (!t->on_piece) return HY_OK;
    hy_piece piece = make_piece(t, number);
    piece.is_last = true;
    piece.end = end;
    if (!s) {
        t->on_piece(t->user, &piece);
        return HY_OK;
    }
    hy_ready_text shown = hy_answer_text_shown(&s->text, true);
    piece.answer_tokens = s->read;
    piece.end_token = end == HY_END_MODEL ? &s->ended : NULL;
    return tell_text(s, &piece, &shown);
}

hy_status hy_tell_prompt(hy_task *t) {
    hy_scored_token *tokens = NULL;
    size_t room = 0;
    t->has_told_prompt = true;
    if (!t->on_piece) return HY_OK;
    hy_status status = hy_scores_view(&t->scores, t->scores.count, &tokens, &room);
    if (status == HY_OK) {
        hy_piece piece = make_piece(t, 0);
        tokens[0].top = NULL; /* nothing comes before it, so nothing is likely */
        tokens[0].top_count = 0;
        piece.is_prompt = true;
        piece.tokens = tokens;
        piece.token_count = (int32_t)t->scores.count;
        t->on_piece(t->user, &piece);
    }
    free(tokens);
    return status;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The likeliest tokens that the request wants. */
static void copy_top(const hy_chosen *chosen, int32_t count,
                     hy_token_score top[HY_SAMPLE_TOP_MOST]) {
    for (int32_t i = 0; i < count; i++) {
        top[i] = (hy_token_score){chosen->top_tokens[i], chosen->top_logprobs[i]};
    }
}

hy_status hy_score_prompt(hy_task *t, const hy_chosen *chosen) {
    hy_token_score top[HY_SAMPLE_TOP_MOST] = {0};
    if (t->scores.count > 0) copy_top(chosen, t->scores.top_count, top);
    return hy_scores_add(&t->scores, (hy_token_score){chosen->token, chosen->logprob}, top);
}

static hy_token_score score_of(const hy_task *t, const hy_chosen *chosen) {
    return (hy_token_score){chosen->token, t->wants_logprobs ? chosen->logprob : NAN};
}

static void keep_end(hy_sequence *s, const hy_chosen *chosen) {
    int32_t count = s->text.tokens.top_count;
    copy_top(chosen, count, s->ended_top);
    s->ended = (hy_scored_token){score_of(s->task, chosen), s->ended_top, count};
}

static hy_status add_text(hy_sequence *s, const hy_chosen *chosen) {
    hy_token_score top[HY_SAMPLE_TOP_MOST], score = score_of(s->task, chosen);
    copy_top(chosen, s->text.tokens.top_count, top);
    return hy_answer_text_add(&s->text, score, top);
}

hy_status hy_sequence_take(hy_sequence *s, const hy_chosen *chosen, bool *is_over, hy_end *end) {
    const hy_task *t = s->task;
    hy_ready_text shown = {0};
    bool is_finite = isfinite(chosen->logprob);
    bool is_end = !t->ignores_end && hy_codec_is_end(s->text.codec, chosen->token);
    s->read++;
    *is_over = true;
    *end = is_finite ? HY_END_MODEL : HY_END_NOT_FINITE;
    if (is_end) keep_end(s, chosen);
    if (is_end || !is_finite) return HY_OK;
    if (t->on_piece || t->stop_count > 0) {
        HY_TRY(add_text(s, chosen));
        shown = hy_answer_text_shown(&s->text, false);
    }
    *end = HY_END_STOP_TEXT;
    if (shown.is_stopped) return HY_OK;
    *end = t->is_limited ? HY_END_MAX_TOKENS : HY_END_CONTEXT;
    if (s->read == t->most) return HY_OK;
    *is_over = false;
    if (!t->on_piece) {
        hy_answer_text_drop(&s->text, &shown);
        return HY_OK;
    }
    hy_piece piece = make_piece(t, s->number);
    piece.answer_tokens = s->read;
    return tell_text(s, &piece, &shown);
}
