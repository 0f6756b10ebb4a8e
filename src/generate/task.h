/* task.h: a request as the generator keeps it: checked values, and copies of what it points to.
 *
 * Any thread makes a task (hy_generator_add); from then on it belongs to the queue, and what is
 * under "progress" to the thread that schedules. */
#pragma once

#include "base/text.h"
#include "hybrid_generate.h"
#include "kernels/sampling.h"
#include "tokenizer/tokenizer.h"

/* Tokens with their log-probabilities, and the likeliest tokens instead of them. */
typedef struct hy_scores {
    hy_token_score *chosen; /* (count) */
    hy_token_score *top;    /* (count, top_count) */
    size_t count, room, top_room;
    int32_t top_count;
} hy_scores;
hy_status hy_scores_add(hy_scores *scores, hy_token_score chosen, const hy_token_score *top);
void hy_scores_drop(hy_scores *scores, size_t count); /* the first */
/* Appends `count` of them, from the first, as a caller sees them; *out grows and is freed by its
 * owner. */
hy_status hy_scores_view(const hy_scores *scores, size_t count, hy_scored_token **out,
                         size_t *room);
void hy_scores_free(hy_scores *scores);

typedef struct hy_stop_text {
    char *text;
    size_t size;
} hy_stop_text;

typedef struct hy_task {
    int64_t id;
    hy_ids prompt;
    int32_t answers, most; /* answers; tokens of one */
    bool is_limited;       /* by max_tokens; false: by the context */
    hy_sampling sampling;  /* of answer 0 at position 0 */
    hy_stop_text *stops;   /* (stop_count) */
    size_t stop_count;
    bool ignores_end, wants_logprobs, wants_prompt_logprobs;
    int32_t top_logprobs;
    hy_piece_callback on_piece;
    void *user;

    /* Of the queue: */
    struct hy_task *next, *before; /* in the order of their arrival */
    bool is_cancelled, has_begun;
    double added; /* when: hy_clock() */

    /* Progress: */
    int32_t begun, ended; /* answers */
    double began, first;  /* when: its prompt; its first token; 0: not yet */
    int32_t reused;       /* tokens of the prompt */
    hy_scores scores;     /* of the prompt */
    bool has_told_prompt;
} hy_task;

/* What a generator accepts. */
typedef struct hy_task_limits {
    int32_t context, vocab, top_logprobs;
} hy_task_limits;

/* Takes over the ids of the prompt, also if it fails. */
hy_status hy_task_create(const hy_request *request, const hy_task_limits *limits, hy_ids *prompt,
                         hy_task **out);
void hy_task_destroy(hy_task *task); /* NULL is allowed */
/* Positions that the prompt and one answer use in the cache: its last token is never taken. */
static inline int32_t hy_task_positions(const hy_task *task) {
    return (int32_t)task->prompt.count + task->most - 1;
}
/* How token `index` of an answer is chosen. */
hy_sampling hy_task_sampling(const hy_task *task, int32_t answer, int32_t index);
