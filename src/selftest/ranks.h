/* ranks.h: the parts of the self-test of several ranks. See hybrid.h.
 *
 * All ranks run the same checks in the same order. At the end of a check they exchange their
 * results, so that all count the same failures, and rank 0 reports which ranks failed. */
#pragma once

#include "comm/nccl.h"
#include "comm/team.h"
#include "config/settings.h"
#include "hybrid_tools.h"
#include "selftest/selftest.h"
#include "trainer/join.h"

typedef struct hy_ranks_run {
    hy_settings settings; /* of this rank: its card, its threads */
    hy_team *team;
    hy_rank_sharers sharers;
    bool has_nccl; /* every rank can use NCCL */
    bool has_bf16; /* as above */
    hy_nccl_library nccl;
    hy_selftest_device device; /* the transport of the current exchanges */
    const hy_ranks_observer *observer;
    hy_ranks_result *result;
    char part[64]; /* progress of the test */
    double done;   /* share of the whole test */
} hy_ranks_run;

/* The result of a check on this rank. */
typedef struct hy_finding {
    int32_t is_wrong;
    char message[188]; /* the first error */
} hy_finding;

void hy_finding_add(hy_finding *finding, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends a check: all ranks send their results, and rank 0 reports them with its own `text`. */
hy_status hy_ranks_judge(hy_ranks_run *run, const hy_finding *mine, const char *name,
                         const char *text);
/* A line of information that is not a check. */
void hy_ranks_report(hy_ranks_run *run, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void hy_ranks_progress(hy_ranks_run *run, const char *what);

/* Sets the value to the largest of all ranks, on all of them. */
hy_status hy_ranks_largest(hy_ranks_run *run, double *value);

static inline bool hy_ranks_leads(const hy_ranks_run *run) { return run->team->who.rank == 0; }
/* The transport for device memory between ranks: "NCCL", "sockets", "MPI". */
static inline const char *hy_ranks_way(const hy_ranks_run *run, bool is_nccl) {
    return is_nccl ? "NCCL" : hy_link_name(run->team->link);
}

/* ranks_machines.c: machines and devices of the ranks */
hy_status hy_ranks_test_machines(hy_ranks_run *run);
/* ranks_exchanges.c: exact results and rates */
hy_status hy_ranks_test_exchanges(hy_ranks_run *run);
hy_status hy_ranks_test_overlap(hy_ranks_run *run); /* ranks_overlap.c */
/* ranks_training.c: ZeRO stages, bytes, memory */
hy_status hy_ranks_test_training(hy_ranks_run *run);
