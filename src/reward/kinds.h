/* kinds.h: the built-in checks, and a table of them.
 *
 * A check is one string KIND[*WEIGHT][:ARGUMENT] as it was read. Scores are from 0 to 1 and depend
 * on nothing but the item. To add a kind, add a row to the table in kinds.c and to
 * docs/rewards.md. */
#pragma once

#include "reward/reward.h"

#define HY_REWARD_PROGRAM "program" /* the kind that stands for the program */

typedef enum hy_reward_argument {
    HY_NO_ARGUMENT,
    HY_OPTIONAL_ARGUMENT,
    HY_ARGUMENT
} hy_reward_argument;

typedef struct hy_reward_part {
    const hy_reward_kind *kind;
    double weight;
    char *argument;    /* as given; NULL: none */
    int64_t tokens;    /* length */
    bool ignores_case; /* exact, contains */
} hy_reward_part;

struct hy_reward_kind {
    const char *name;
    bool needs_answer; /* of the row */
    hy_reward_argument argument;
    const char *expected; /* what the argument is, for messages; NULL: it takes none */
    hy_status (*read)(hy_reward_part *part); /* reads the argument; NULL: nothing to read */
    hy_status (*check)(
        const hy_reward_item *item); /* the row's answer; NULL: any can be compared */
    /* The row's answer is there if the kind needs it, and was checked. NULL: the program. */
    hy_status (*score)(const hy_reward_part *part, const hy_reward_item *item, double *score);
};

/* Reads one string of the list. On success hy_reward_part_fini frees the part. */
hy_status hy_reward_part_read(const char *reward, hy_reward_part *part);
void hy_reward_part_fini(hy_reward_part *part);
bool hy_reward_part_is_program(const hy_reward_part *part);
/* The part of a program that is not in the list: weight 1. */
hy_reward_part hy_reward_part_program(void);
