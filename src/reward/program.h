/* program.h: scores answers with a program of the user's.
 *
 * The program gets a line of JSON for each answer and answers a line for each, in the same order:
 * a number, or an object with the key "reward". It runs until it is closed, for many batches. A
 * program that dies or is too slow is started once more and gets the batch again. */
#pragma once

#include "reward/reward.h"

typedef struct hy_reward_program hy_reward_program;

/* Starts the command. `seconds` is the time limit of a batch. `observer` may be NULL; it is
 * copied. */
hy_status hy_reward_program_open(const char *command, double seconds, const hy_observer *observer,
                                 hy_reward_program **out);
void hy_reward_program_close(hy_reward_program *program); /* may be NULL */

/* Scores answers; failures are those of hy_rewards_score. */
hy_status hy_reward_program_score(hy_reward_program *program, const hy_reward_item *items,
                                  size_t count, const atomic_bool *stop, double *scores);
