/* rollouts.h: answers to prompts, their rewards and advantages (task grpo).
 *
 * A rollout answers the next rows of the data, several times each, with the run's weights in the
 * phase Rollout, and scores the answers. Scores are in the journal of the run's folder before
 * anybody uses them. */
#pragma once

#include "generate/rollout.h"
#include "reward/reward.h"
#include "trainer/trainer.h"

typedef struct hy_rollouts hy_rollouts;

/* An answer of a rollout. The pointers are valid until the next rollout. */
typedef struct hy_scored_answer {
    const int32_t *prompt;
    int32_t prompt_count;
    hy_rollout_answer tokens;
    double reward;
    double advantage; /* 0: the answers to its prompt have the same reward */
} hy_scored_answer;

/* Checks the settings, before anything is opened. */
hy_status hy_rollouts_check(const hy_trainer *t);

/* Starts the user's program and opens the journal. The data is open, and memory is allocated. */
hy_status hy_rollouts_open(hy_trainer *t, hy_rollouts **out);
void hy_rollouts_close(hy_rollouts *rollouts); /* before the engine's memory; NULL is allowed */

/* Makes rollout `number`, which answers the next rows of the data. Answers to one row follow one
 * another: out has prompts x samples. May be repeated. */
hy_status hy_rollouts_make(hy_rollouts *rollouts, hy_trainer *t, int64_t number,
                           hy_scored_answer *out);
/* Figures of the last rollout: of hy_reward_figures, those that do not need gradients. */
void hy_rollouts_describe(const hy_rollouts *rollouts, hy_reward_figures *out);

/* Answers held-out rows, each once and with the most likely tokens. In the current phase, which does
 * not train. *mean: of their rewards; *error: its standard error. May be repeated. */
hy_status hy_rollouts_measure(hy_rollouts *rollouts, hy_trainer *t, const hy_probe *probe,
                              double *mean, double *error);
