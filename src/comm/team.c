/* team.c: finds the ranks and connects them. See team.h. */
#include "comm/team.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/hash.h"
#include "comm/link_mpi.h"

#define TEST_LINK "HYBRID_TEST_LINK"

/* ---- opening --------------------------------------------------------------------------------- */

static hy_status read_test_link(hy_link_options *out) {
    const char *text = getenv(TEST_LINK);
    double rate = 0, latency = 0;
    char end;
    if (!text || !*text) return HY_OK;
    bool is_right = sscanf(text, "%lf,%lf%c", &rate, &latency, &end) == 2;
    HY_FAIL_IF(!is_right || !(rate >= 0) || !(latency >= 0), HY_ERR_INPUT,
               TEST_LINK " is \"%s\": expected bytes per second and seconds, as in 1e8,0.001",
               text);
    out->bytes_per_second = rate;
    out->latency = latency;
    return HY_OK;
}

static bool is_slow(const hy_team_options *o) {
    return o->link_options.bytes_per_second > 0 || o->link_options.latency > 0;
}

/* The first rank with a status other than HY_OK; -1: none. */
static hy_status find_lacking(hy_team *t, hy_status mine, int32_t *out) {
    double is_lacking = mine != HY_OK;
    *out = -1;
    double *all = calloc((size_t)t->who.count, sizeof *all);
    HY_FAIL_IF(!all, HY_ERR_MEMORY, "no memory for the answers of %d ranks", t->who.count);
    hy_status status = hy_control_gather(t->control, &is_lacking, 1, all);
    for (int32_t r = t->who.count - 1; r >= 0; r--) *out = all[r] > 0 ? r : *out;
    free(all);
    return status;
}

/* The first rank that cannot use MPI, or -1; `why` is this rank's status. All ranks must know
 * this before one starts MPI, because starting waits for the others. */
static hy_status try_mpi(hy_team *t, int32_t *lacking, hy_error *why) {
    hy_status mine = hy_mpi_find();
    HY_TRY(find_lacking(t, mine, lacking));
    if (*lacking < 0) {
        mine = hy_mpi_start(t->who.rank, t->who.count);
        HY_TRY(find_lacking(t, mine, lacking));
    }
    hy_error_save(why, mine);
    return HY_OK;
}

static hy_status choose_link(hy_team *t, const hy_team_options *o, bool *is_mpi) {
    bool was_by_mpi = t->who.source == HY_RANKS_OPENMPI || t->who.source == HY_RANKS_PMI;
    bool is_open = o->link == HY_LINK_AUTO;
    hy_error why;
    int32_t lacking = -1;
    *is_mpi = o->link == HY_LINK_MPI || (is_open && was_by_mpi && !is_slow(o));
    if (!*is_mpi) return HY_OK;
    HY_TRY(try_mpi(t, &lacking, &why));
    *is_mpi = lacking < 0;
    if (*is_mpi) return HY_OK;
    if (!is_open) {
        /* The error of the rank that cannot use MPI ends this call on all other ranks. */
        if (why.status == HY_OK) HY_TRY(hy_control_barrier(t->control));
        return hy_fail(HY_ERR_DEVICE, "%s", why.text);
    }
    if (why.status == HY_OK) snprintf(why.text, sizeof why.text, "rank %d cannot use MPI", lacking);
    hy_say_to(&o->observer, HY_NOTE, "ranks are connected by sockets: %s", why.text);
    return HY_OK;
}

static hy_status count_sharers(hy_team *t) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    (void)sched_getaffinity(0, sizeof cores, &cores); /* if it fails: all ranks share cores */
    uint64_t mine = hy_hash_bytes(&cores, sizeof cores, 0);
    uint64_t *all = calloc((size_t)t->who.count, sizeof *all);
    HY_FAIL_IF(!all, HY_ERR_MEMORY, "no memory for the answers of %d ranks", t->who.count);
    hy_status status = hy_control_gather_bytes(t->control, &mine, sizeof mine, all);
    uint64_t machine = hy_control_member(t->control, t->who.rank)->machine;
    for (int32_t r = 0; r < t->who.count; r++)
        t->core_sharers += all[r] == mine && hy_control_member(t->control, r)->machine == machine;
    free(all);
    return status;
}

static hy_status connect_ranks(hy_team *t, const hy_team_options *o) {
    bool is_mpi;
    hy_control_local(t->control, &t->local_rank, &t->local_count);
    HY_TRY(count_sharers(t));
    HY_TRY(choose_link(t, o, &is_mpi));
    HY_TRY(is_mpi ? hy_link_open_mpi(t->control, &t->link)
                  : hy_link_open_sockets(t->control, &o->link_options, &t->link));
    t->link_name = hy_link_name(t->link);
    return HY_OK;
}

static hy_status open_team(hy_team *t, const hy_team_options *o) {
    hy_status status = hy_mpi_find_address(&t->who);
    if (status != HY_OK)
        return hy_fail_context(status, "the ranks run on several machines and "
                                       "HYBRID_ADDRESS=host:port is not set, so MPI must find the "
                                       "address of rank 0");
    hy_control_options control = {.timeout = o->timeout,
                                  .agreed = o->agreed,
                                  .agreed_name = o->agreed_name,
                                  .observer = o->observer};
    HY_TRY(hy_control_open(&t->who, &control, &t->control));
    return hy_team_fail(t, connect_ranks(t, o));
}

hy_status hy_team_open(const hy_team_options *options, hy_team **out) {
    hy_team_options o = *options;
    hy_ranks who;
    *out = NULL;
    HY_TRY(hy_ranks_find(&who));
    if (who.count == 1 && o.link != HY_LINK_NCCL) return HY_OK;
    HY_TRY(read_test_link(&o.link_options));
    HY_FAIL_IF(o.link == HY_LINK_MPI && is_slow(&o), HY_ERR_INPUT,
               TEST_LINK " slows down sockets, but transport is mpi: expected sockets or auto");
    hy_team *t = calloc(1, sizeof *t);
    HY_FAIL_IF(!t, HY_ERR_MEMORY, "no memory for a team of %d ranks", who.count);
    t->who = who;
    hy_status status = open_team(t, &o);
    if (status != HY_OK)
        hy_team_close(t);
    else
        *out = t;
    return status;
}

/* ---- the end --------------------------------------------------------------------------------- */

void hy_team_close(hy_team *t) {
    hy_error last = *hy_error_last(); /* the caller may still have to report it */
    if (!t) return;
    hy_link_destroy(t->link);
    /* Ending MPI waits for all ranks without noticing failures, so the ranks meet before it. */
    bool can_end_mpi = t->control && hy_control_failed_rank(t->control) < 0 &&
                       hy_mpi_is_running() && hy_control_barrier(t->control) == HY_OK;
    hy_mpi_finish(!can_end_mpi);
    hy_control_close(t->control);
    free(t);
    (void)hy_error_restore(&last);
}

hy_status hy_team_fail(hy_team *t, hy_status status) {
    if (!t || !t->control || status == HY_OK || status == HY_STOPPED) return status;
    return hy_control_fail(t->control, status, hy_error_message());
}
