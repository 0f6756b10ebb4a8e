/* join.h: the share of a machine that one of several ranks uses. */
#pragma once

#include "comm/nccl.h"
#include "comm/team.h"
#include "config/settings.h"

/* HY_ERR_INPUT if several ranks cannot use these settings: data from standard input, which only
 * one process can read. */
hy_status hy_rank_check(const hy_settings *settings);

/* Adjusts `device` and `threads` to a machine that ranks share. */
void hy_rank_settle(hy_settings *settings, const hy_team *team);

/* As above, for one of `count` planned ranks of this machine: `device` stays. */
void hy_rank_plan(hy_settings *settings, int32_t count);

/* The number of ranks on this rank's machine and on its card, including itself. */
typedef struct hy_rank_sharers {
    int32_t machine, card;
    bool has_cards; /* every rank of the team has one */
} hy_rank_sharers;

/* All ranks call it together; card -1: this rank computes on the CPU. */
hy_status hy_rank_count(hy_team *team, int card, hy_rank_sharers *out);

/* HY_OK: this rank can use NCCL; else the error says why not. For tests, HYBRID_TEST_NCCL allows a
 * stand-in for NCCL that moves CPU memory. */
hy_status hy_rank_look_for_nccl(const hy_rank_sharers *sharers, bool is_gpu, hy_nccl_library *out);

/* What a rank may use of its machine. */
typedef struct hy_rank_place {
    int32_t local_rank;   /* from its launcher */
    int32_t core_sharers; /* ranks that may run on the same cores, including this one */
    int cores, cards;     /* that this process may use; 0 cards without CUDA */
} hy_rank_place;

/* Cards without an explicit number are assigned: card local_rank, starting over if there are
 * fewer. Cores are divided between the ranks unless `threads` or `num_workers` is set. */
void hy_rank_fit(hy_settings *settings, const hy_rank_place *place);
