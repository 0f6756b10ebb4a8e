/* task.c: checks a request and copies it. See task.h. */
#include "generate/task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/error.h"

#define MOST_ANSWERS 4096

/* ---- scores ---------------------------------------------------------------------------------- */

hy_status hy_scores_add(hy_scores *s, hy_token_score chosen, const hy_token_score *top) {
    size_t each = (size_t)s->top_count;
    HY_TRY(hy_array_reserve(&s->chosen, &s->room, s->count + 1, sizeof chosen, "scores of tokens"));
    HY_TRY(hy_array_reserve(&s->top, &s->top_room, (s->count + 1) * each, sizeof *top,
                            "likeliest tokens"));
    s->chosen[s->count] = chosen;
    if (each > 0) memcpy(s->top + s->count * each, top, each * sizeof *top);
    s->count++;
    return HY_OK;
}

void hy_scores_drop(hy_scores *s, size_t count) {
    size_t each = (size_t)s->top_count, left = s->count - count;
    if (count == 0) return;
    memmove(s->chosen, s->chosen + count, left * sizeof *s->chosen);
    if (each > 0) memmove(s->top, s->top + count * each, left * each * sizeof *s->top);
    s->count = left;
}

hy_status hy_scores_view(const hy_scores *s, size_t count, hy_scored_token **out, size_t *room) {
    HY_TRY(hy_array_reserve(out, room, count, sizeof **out, "scores of tokens"));
    for (size_t i = 0; i < count; i++) {
        bool has_top = s->top_count > 0;
        (*out)[i] = (hy_scored_token){.chosen = s->chosen[i],
                                      .top = has_top ? s->top + i * (size_t)s->top_count : NULL,
                                      .top_count = s->top_count};
    }
    return HY_OK;
}

void hy_scores_free(hy_scores *s) {
    free(s->chosen);
    free(s->top);
}

/* ---- what is accepted ------------------------------------------------------------------------ */

static hy_status check_range(const char *name, double value, double least, double most) {
    if (value >= least && value <= most) return HY_OK;
    if (most < 1e9)
        return hy_fail(HY_ERR_INPUT, "%s is %g; accepted: %g to %g", name, value, least, most);
    return hy_fail(HY_ERR_INPUT, "%s is %g; accepted: %g or more", name, value, least);
}

static hy_status check_numbers(const hy_request *r, const hy_task_limits *limits) {
    HY_TRY(check_range("answers", r->answers, 0, MOST_ANSWERS));
    HY_TRY(check_range("max_tokens", r->max_tokens, 0, INT32_MAX));
    HY_TRY(check_range("temperature", r->temperature, 0, 1e9));
    HY_TRY(check_range("top_p", r->top_p, 0, 1));
    HY_TRY(check_range("min_p", r->min_p, 0, 1));
    HY_TRY(check_range("top_k", r->top_k, 0, INT32_MAX));
    HY_TRY(check_range("repetition_penalty", r->repetition_penalty, 0, 1e9));
    return check_range("top_logprobs", r->top_logprobs, 0, limits->top_logprobs);
}

static hy_status check_stops(const hy_request *r) {
    for (size_t i = 0; i < r->stop_count; i++) {
        HY_FAIL_IF(!r->stop[i] || !r->stop[i][0], HY_ERR_INPUT,
                   "stop text %zu is empty; accepted: texts of at least one byte", i);
    }
    return HY_OK;
}

static hy_status check_prompt(const hy_ids *prompt, const hy_task_limits *limits) {
    HY_FAIL_IF(prompt->count == 0, HY_ERR_INPUT, "the prompt is empty");
    HY_FAIL_IF(prompt->count >= (size_t)limits->context, HY_ERR_INPUT,
               "the prompt has %zu tokens; the context of %d tokens has no room for it and an "
               "answer",
               prompt->count, limits->context);
    for (size_t i = 0; i < prompt->count; i++) {
        HY_FAIL_IF(prompt->data[i] < 0 || prompt->data[i] >= limits->vocab, HY_ERR_INPUT,
                   "token %zu of the prompt is %d, expected 0 to %d", i, prompt->data[i],
                   limits->vocab - 1);
    }
    return HY_OK;
}

/* ---- copying --------------------------------------------------------------------------------- */

static hy_status copy_stops(const hy_request *r, hy_task *t) {
    if (r->stop_count == 0) return HY_OK;
    t->stops = calloc(r->stop_count, sizeof *t->stops);
    HY_FAIL_IF(!t->stops, HY_ERR_MEMORY, "not enough memory for stop texts");
    for (; t->stop_count < r->stop_count; t->stop_count++) {
        hy_stop_text *stop = &t->stops[t->stop_count];
        stop->text = strdup(r->stop[t->stop_count]);
        HY_FAIL_IF(!stop->text, HY_ERR_MEMORY, "not enough memory for stop texts");
        stop->size = strlen(stop->text);
    }
    return HY_OK;
}

static void copy_values(const hy_request *r, const hy_task_limits *limits, hy_task *t) {
    int32_t room = limits->context - (int32_t)t->prompt.count;
    t->answers = r->answers > 0 ? r->answers : 1;
    t->is_limited = r->max_tokens > 0 && r->max_tokens <= room;
    t->most = t->is_limited ? r->max_tokens : room;
    t->sampling = (hy_sampling){.temperature = (float)r->temperature,
                                .top_p = (float)r->top_p,
                                .min_p = (float)r->min_p,
                                .penalty = (float)r->repetition_penalty,
                                .top_k = r->top_k,
                                .forced = -1,
                                .seed = r->seed};
    t->ignores_end = r->ignores_end;
    t->wants_logprobs = r->wants_logprobs;
    t->wants_prompt_logprobs = r->wants_prompt_logprobs;
    t->top_logprobs = r->top_logprobs;
    t->scores.top_count = r->top_logprobs;
    t->on_piece = r->on_piece;
    t->user = r->user;
    t->added = hy_clock();
}

hy_status hy_task_create(const hy_request *request, const hy_task_limits *limits, hy_ids *prompt,
                         hy_task **out) {
    hy_task *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) {
        hy_ids_free(prompt);
        return hy_fail(HY_ERR_MEMORY, "not enough memory for a request");
    }
    t->prompt = *prompt;
    *prompt = (hy_ids){0};
    hy_status status = check_prompt(&t->prompt, limits);
    if (status == HY_OK) status = check_numbers(request, limits);
    if (status == HY_OK) status = check_stops(request);
    if (status == HY_OK) status = copy_stops(request, t);
    if (status == HY_OK) {
        copy_values(request, limits, t);
        *out = t;
    } else {
        hy_task_destroy(t);
    }
    return status;
}

void hy_task_destroy(hy_task *t) {
    if (!t) return;
    for (size_t i = 0; i < t->stop_count; i++) free(t->stops[i].text);
    free(t->stops);
    hy_ids_free(&t->prompt);
    hy_scores_free(&t->scores);
    free(t);
}

hy_sampling hy_task_sampling(const hy_task *t, int32_t answer, int32_t index) {
    hy_sampling s = t->sampling;
    s.seed += (uint64_t)answer;
    s.position = (uint64_t)t->prompt.count + (uint64_t)index;
    return s;
}
