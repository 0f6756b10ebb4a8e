/* reward_rows.h: prompts for rewards, and figures of runs that answer them. */
#ifndef HY_TESTS_REWARD_ROWS_H
#define HY_TESTS_REWARD_ROWS_H

#include "base/text.h"
#include "small_run.h"

/* A model of a few thousand weights, whose first answers are nearly random bytes. */
#define REWARDS_RUN                                                                                \
    "model nano layers 2 width 32 heads 4 mlp_width 48 seq_len 32 steps 40 lr 1e-2 "               \
    "lr_warmup_steps 2 sample_tokens 0 threads 1 device cpu val_fraction 0.2 task grpo "           \
    "answer_tokens 6 prompts 4 samples 4 "

static char reward_folder[256], reward_rows[512];

static inline void write_reward_rows(void) {
    hy_text text = {0};
    temp_folder(reward_folder);
    for (int i = 0; i < 120; i++)
        hy_text_addf(&text, "{\"prompt\": \"%d+%d=%s\", \"answer\": \"%d\"}\n", i % 10, i % 7,
                     i % 10 == 9 ? "?" : "", i % 10 + i % 7);
    snprintf(reward_rows, sizeof reward_rows, "%s/prompts.jsonl", reward_folder);
    must(hy_file_write_atomic(reward_rows, text.data, text.size));
    hy_text_free(&text);
}

static inline void drop_reward_rows(void) { remove_folder(reward_folder); }

#define REWARDED(...) PAIRS("data", reward_rows, __VA_ARGS__)
#define LETTERS "reward", "regex:[a-m]" /* about a fifth of random answers of six bytes */

/* What a step depends on, and so everything before it. */
typedef struct reward_step {
    double loss, grad_norm, reward, deviation, tokens, entropy, apart;
} reward_step;

static inline reward_step step_of(const hy_step_info *info) {
    const hy_reward_figures *f = &info->rewards;
    return (reward_step){info->loss,       info->grad_norm, f->reward, f->reward_deviation,
                         f->answer_tokens, f->entropy,      f->apart};
}

static inline void next_rewards(hy_trainer *t, int count, reward_step *steps) {
    for (int i = 0; i < count; i++) {
        hy_step_info info;
        must(hy_trainer_step(t, &info));
        steps[i] = step_of(&info);
    }
}

/* The first steps of a run without a folder. */
static inline void first_rewards(const char *const *pairs, int count, reward_step *steps) {
    hy_trainer *t = small_trainer(REWARDS_RUN, "none", NULL, pairs);
    next_rewards(t, count, steps);
    hy_trainer_destroy(t);
}

static inline bool are_same_steps(const reward_step *a, const reward_step *b, int count) {
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

/* A run in the folder that goes on from its newest checkpoint. */
static inline hy_trainer *resumed_rewards(const char *out, const char *const *pairs) {
    return small_trainer(REWARDS_RUN " resume auto", out, NULL, pairs);
}

#endif
