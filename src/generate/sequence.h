/* sequence.h: an answer that is being generated, and what its listener is told.
 *
 * Callbacks come from here, always on the thread that schedules and without a lock. */
#pragma once

#include "generate/answer_text.h"
#include "generate/pool.h"

typedef struct hy_sequence {
    hy_task *task;
    int32_t number; /* of the answer */
    int32_t slot;
    hy_blocks blocks;
    int32_t chosen, read; /* tokens whose choice was enqueued; of these, that were read */
    hy_answer_text text;
    hy_scored_token ended; /* by this token, after HY_END_MODEL */
    hy_token_score ended_top[HY_SAMPLE_TOP_MOST];
} hy_sequence;

/* A token as the decoder chose it. */
typedef struct hy_chosen {
    int32_t token;
    float logprob;
    const int32_t *top_tokens; /* (top) */
    const float *top_logprobs; /* (top) */
} hy_chosen;

hy_status hy_sequence_create(hy_task *task, int32_t number, const hy_codec *codec,
                             hy_sequence **out);
void hy_sequence_destroy(hy_sequence *sequence); /* its blocks were given back */

/* Takes the next token. Either the answer goes on, and its listener has been told, or *is_over, and
 * *end says why. */
hy_status hy_sequence_take(hy_sequence *sequence, const hy_chosen *chosen, bool *is_over,
                           hy_end *end);
/* Tells the last piece of an answer. sequence NULL: it never began. */
hy_status hy_tell_end(const hy_task *task, int32_t number, hy_sequence *sequence, hy_end end);
/* Tells the prompt with its scores. */
hy_status hy_tell_prompt(hy_task *task);
/* Appends a token to the scores of a prompt. */
hy_status hy_score_prompt(hy_task *task, const hy_chosen *chosen);
