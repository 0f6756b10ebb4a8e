/* reward.h: scores answers of a model: built-in checks and a program of the user's.
 *
 * Rewards are opened once and then score batches of answers. A part is one check (kinds.h) or the
 * program; the reward of an answer is the sum of its parts, each times its weight. Checks depend on
 * nothing but the item, so they give the same bits everywhere. A program may answer differently a
 * second time; journal.h keeps what was scored. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "hybrid.h"

#define HY_REWARD_PARTS_MOST 32
#define HY_REWARD_SECONDS 60.0 /* the default time limit of the program */

typedef struct hy_rewards hy_rewards;

typedef struct hy_reward_options {
    double seconds;              /* time limit of the program for a batch; 0: HY_REWARD_SECONDS */
    const hy_observer *observer; /* gets warnings, and what the program writes to stderr; or NULL */
} hy_reward_options;

/* An answer with what it is scored by. The texts are UTF-8, as bytes with a size; an answer that
 * was cut may end inside a character. */
typedef struct hy_reward_item {
    const char *prompt;
    size_t prompt_size;
    const char *answer;
    size_t answer_size;
    const char *expected; /* the row's answer; NULL: it has none */
    size_t expected_size;
    const char *row_json; /* the row as a JSON object, for the program; NULL: null is sent */
    size_t row_size;
    int32_t tokens; /* of the answer */
    bool ended;     /* the model ended the answer itself: it was not cut by a limit */
} hy_reward_item;

/* Opens rewards. Each of the `count` strings is one reward, KIND[*WEIGHT][:ARGUMENT]: "exact",
 * "number*2", "length:200", "format*0.5:<think>.*</think>.*". The weight is before the colon, so an
 * argument is taken as it is. Without a weight: 1; it may be negative, but not 0.
 *
 * `program` (NULL or "": none) is a command for /bin/sh, which is started now. It is the part
 * "program", with weight 1 unless the list has "program*WEIGHT".
 *
 * HY_ERR_INPUT names the reward, the value and what is accepted: also if there are no rewards at
 * all. `options` may be NULL. */
hy_status hy_rewards_open(const char *const *list, size_t count, const char *program,
                          const hy_reward_options *options, hy_rewards **out);
/* Ends the program, if there is one: closes its input, waits for a moment, then kills its process
 * group. `rewards` may be NULL. */
void hy_rewards_close(hy_rewards *rewards);

/* Checks one string of the list without opening anything. */
hy_status hy_reward_check(const char *reward);

/* The strings of "exact; length:200", in a copy that the caller frees, also after an error. `list`
 * has room for HY_REWARD_PARTS_MOST. */
hy_status hy_rewards_split(const char *text, char **copy, const char *list[], size_t *count);

typedef struct hy_reward_kind hy_reward_kind;
/* What rewards need of a row, so that rows are checked before a run begins. */
typedef struct hy_reward_needs {
    const hy_reward_kind *kinds[HY_REWARD_PARTS_MOST];
    size_t count;
} hy_reward_needs;

hy_status hy_reward_needs_read(const char *text, hy_reward_needs *out); /* text: as for _split */
/* Whether the rewards can compare with a row's answer (NULL: the row has none); HY_ERR_INPUT says
 * which cannot, and why. For any thread. */
hy_status hy_reward_needs_check(const hy_reward_needs *needs, const char *expected, size_t size);

/* Number of parts, and the names of all: the kind, with "_2" and so on behind it for further parts
 * of the same kind. They are valid until the rewards are closed. */
size_t hy_rewards_names(const hy_rewards *rewards, const char *const **names);
/* The weights of the parts, in the same order. */
const double *hy_rewards_weights(const hy_rewards *rewards);
/* The first part that needs the row's answer, by name; NULL: none does. */
const char *hy_rewards_needing_answer(const hy_rewards *rewards);

/* Scores answers: scores (count); parts (count, parts) before their weights, or NULL.
 * HY_ERR_INPUT: an item lacks the row's answer that a part needs, or the program answered something
 * other than one finite number per answer. HY_ERR_IO: the program died or was too slow, also after
 * it was started again. HY_STOPPED: *stop became true while the program worked (`stop` may be
 * NULL). After a failure the next call starts the program again. */
hy_status hy_rewards_score(hy_rewards *rewards, const hy_reward_item *items, size_t count,
                           const atomic_bool *stop, double *scores, double *parts);

/* A hash of the rewards (kinds, arguments, weights, program) and of all members of the items, as
 * the journal's key: another list of rewards scores again. */
uint64_t hy_rewards_hash(const hy_rewards *rewards, const hy_reward_item *items, size_t count);
