/* join.h: a run as one of several on a machine: what each takes of it. */
#pragma once

#include "comm/nccl.h"
#include "comm/team.h"
#include "config/settings.h"

/* HY_ERR_INPUT where several ranks cannot have these settings: data from standard input, which one process can read. */
hy_status hy_rank_check(const hy_settings *settings);

/* Fits `device` and `threads` to a machine that ranks share. */
void hy_rank_settle(hy_settings *settings, const hy_team *team);

/* The same for one of `count` ranks of this machine that a plan is made for: `device` stays. */
void hy_rank_plan(hy_settings *settings, int32_t count);

/* Ranks that share a rank's machine and its card, itself included. All ranks call it; card -1: it computes on the CPU. */
typedef struct hy_rank_sharers {
    int32_t machine, card;
    bool has_cards; /* every rank of the team has one */
} hy_rank_sharers;

hy_status hy_rank_count(hy_team *team, int card, hy_rank_sharers *out);

/* What keeps this rank from NCCL. For tests, HYBRID_TEST_NCCL lets a library that stands in for NCCL move memory of a
 * CPU. */
hy_status hy_rank_look_for_nccl(const hy_rank_sharers *sharers, bool is_gpu, hy_nccl_library *out);

/* What a rank finds on its machine. */
typedef struct hy_rank_place {
    int32_t local_rank;   /* by its launcher */
    int32_t core_sharers; /* ranks that may run on the same cores, itself included */
    int cores, cards;     /* that this process may use; no cards where CUDA is not used */
} hy_rank_place;

/* Cards that nobody has named by number are dealt out: card local_rank, from the first on again where there are fewer.
 * Cores that nobody has divided by `threads` or `num_workers` are divided. */
void hy_rank_fit(hy_settings *settings, const hy_rank_place *place);
