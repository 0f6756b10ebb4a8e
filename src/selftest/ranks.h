/* ranks.h: the parts of the self-test of several ranks. See hybrid.h.
 *
 * All ranks go through the same checks in the same order. What each of them has found is brought together at the end of a
 * check, so that all count the same failures, and rank 0 tells whose they are. */
#pragma once

#include "comm/nccl.h"
#include "comm/team.h"
#include "config/settings.h"
#include "hybrid_tools.h"
#include "selftest/selftest.h"
#include "trainer/join.h"

typedef struct hy_ranks_run {
    hy_settings settings; /* as they are on this rank: its card, its threads */
    hy_team *team;
    hy_rank_sharers sharers;
    bool has_nccl; /* every rank can use it */
    bool has_bf16; /* so */
    hy_nccl_library nccl;
    hy_selftest_device device; /* while exchanges are tested */
    const hy_ranks_observer *observer;
    hy_ranks_result *result;
    char part[64]; /* that goes on */
    double done;   /* share of all */
} hy_ranks_run;

/* What this rank has found in a check. */
typedef struct hy_finding {
    int32_t is_wrong;
    char message[188]; /* what was wrong first */
} hy_finding;

void hy_finding_add(hy_finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends a check: all ranks give what they found, and rank 0 tells it with its own `text`. */
hy_status hy_ranks_judge(hy_ranks_run *run, const hy_finding *mine, const char *name,
                         const char *text);
/* A line that nothing depends on. */
void hy_ranks_tell(hy_ranks_run *run, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void hy_ranks_progress(hy_ranks_run *run, const char *what);

/* Becomes the largest that any rank gives, on all of them. */
hy_status hy_ranks_largest(hy_ranks_run *run, double *value);

static inline bool hy_ranks_leads(const hy_ranks_run *run) { return run->team->who.rank == 0; }
/* What moves memory of devices between ranks: "NCCL", "sockets", "MPI". */
static inline const char *hy_ranks_way(const hy_ranks_run *run, bool is_nccl) {
    return is_nccl ? "NCCL" : hy_link_name(run->team->link);
}

hy_status hy_ranks_test_machines(hy_ranks_run *run);  /* ranks_machines.c: who is where, on what */
hy_status hy_ranks_test_exchanges(hy_ranks_run *run); /* ranks_exchanges.c: bits and rates */
hy_status hy_ranks_test_overlap(hy_ranks_run *run);   /* ranks_overlap.c */
hy_status hy_ranks_test_training(hy_ranks_run *run);  /* ranks_training.c: stages, bytes, memory */
