/* policy_batches.h: answers that were rewarded, as micro-batches.
 *
 * A prompt and its answer are a document of a sequence, as in fine-tuning: each goes into the first
 * sequence that has room. Documents of a sequence do not attend to each other. */
#pragma once

#include "data/loader.h"
#include "kernels/policy.h"

typedef struct hy_policy_batches hy_policy_batches;

/* Room for `most` documents of up to seq + 1 tokens, in pinned memory of the backend. */
hy_status hy_policy_batches_create(hy_backend *backend, int32_t seq, int64_t most,
                                   hy_policy_batches **out);
void hy_policy_batches_destroy(hy_policy_batches *batches); /* NULL is allowed */

/* What an answer adds to a batch. */
typedef struct hy_policy_answer {
    const int32_t *prompt, *answer;
    int32_t prompt_count, answer_count; /* together at most seq + 1 */
    const float *sampled;               /* (answer_count) */
    float advantage, share;
} hy_policy_answer;

void hy_policy_batches_clear(hy_policy_batches *batches);
void hy_policy_batches_add(hy_policy_batches *batches, const hy_policy_answer *answer);
/* The number of micro-batches of so many sequences. */
int32_t hy_policy_batches_count(const hy_policy_batches *batches, int32_t size);
/* Micro-batch i; those of the last that do not exist are empty. counted is left 0. */
hy_batch hy_policy_batches_at(hy_policy_batches *batches, int32_t i, int32_t size);

/* (most, T): the losses of the tokens before the first update. The values of tokens that count
 * become hy_policy_token.old. */
float *hy_policy_batches_losses(hy_policy_batches *batches);
void hy_policy_batches_keep_losses(hy_policy_batches *batches);

/* All of this as bytes (allocated), and back. HY_ERR_INPUT: they are not of batches of this size. */
hy_status hy_policy_batches_write(const hy_policy_batches *batches, char **bytes, size_t *size);
hy_status hy_policy_batches_read(hy_policy_batches *batches, const char *bytes, size_t size);
