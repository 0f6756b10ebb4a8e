/* ranks_machines.c: the machines and devices of the ranks, and the transport between them. See
 * ranks.h.
 *
 * Each rank sends what it knows about its device; rank 0 reports all of them. All ranks then agree
 * whether NCCL and bf16 can be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/derived.h"
#include "kernels/nvml.h"
#include "selftest/ranks.h"

/* What a rank tells the others about itself. */
typedef struct facts {
    char device[128], detail[160], driver[64];
    uint64_t memory_total, memory_free;
    int32_t is_gpu, card, threads, has_bf16;
    int32_t has_nccl;
    char nccl[16], path[256]; /* NCCL's version and file, */
    char why_not[256];        /* or why it is not used */
} facts;

/* ---- detection ------------------------------------------------------------------------------- */

static void read_facts(hy_ranks_run *run, facts *out) {
    hy_backend *b = run->device.backend;
    *out = (facts){.is_gpu = b->facts.is_gpu,
                   .card = hy_device_card(run->settings.device),
                   .threads = b->facts.threads,
                   .has_bf16 = !b->facts.is_gpu || b->facts.capability >= 80,
                   .memory_total = b->facts.memory_total,
                   .memory_free = b->facts.memory_free};
    size_t free, total;
    if (b->memory_now && b->memory_now(b, &free, &total) == HY_OK) out->memory_free = free;
    snprintf(out->device, sizeof out->device, "%s", b->facts.name);
    snprintf(out->detail, sizeof out->detail, "%.159s", b->facts.detail);
    if (out->is_gpu) (void)hy_nvml_driver_version(out->driver, sizeof out->driver);
}

/* If the user chose sockets or MPI, NCCL is not tried. */
static void find_nccl(hy_ranks_run *run, facts *out) {
    hy_link_choice asked = run->settings.ranks.transport;
    bool is_open = asked == HY_LINK_AUTO || asked == HY_LINK_NCCL;
    if (!is_open)
        (void)hy_fail(HY_ERR_INPUT, "transport is %s", hy_choice_name("transport", asked));
    out->has_nccl =
        is_open && hy_rank_look_for_nccl(&run->sharers, out->is_gpu != 0, &run->nccl) == HY_OK;
    snprintf(out->nccl, sizeof out->nccl, "%s", run->nccl.version);
    snprintf(out->path, sizeof out->path, "%s", run->nccl.path);
    if (!out->has_nccl) snprintf(out->why_not, sizeof out->why_not, "%.255s", hy_error_message());
}

/* ---- report ---------------------------------------------------------------------------------- */

static void report_rank(hy_ranks_run *run, int32_t rank, const facts *f) {
    const hy_member *m = hy_control_member(run->team->control, rank);
    char name[16], driver[80] = "", how[32];
    snprintf(name, sizeof name, "rank %d", rank);
    if (f->is_gpu)
        snprintf(how, sizeof how, "card %d", f->card);
    else
        snprintf(how, sizeof how, "%d thread%s", f->threads, f->threads == 1 ? "" : "s");
    if (f->driver[0]) snprintf(driver, sizeof driver, ", driver %s", f->driver);
    hy_ranks_report(run, name, "%s, pid %d: %s (%s), %.1f of %.1f GiB free%s; %s", m->host, m->pid,
                    f->device, how, (double)f->memory_free / 0x1p30,
                    (double)f->memory_total / 0x1p30, driver, f->detail);
}

static void report_transport(hy_ranks_run *run, const facts *all) {
    bool is_gpu = run->sharers.has_cards;
    const char *link = hy_link_name(run->team->link), *launcher;
    launcher = hy_ranks_source_name(run->team->who.source);
    hy_ranks_report(run, "started by", "%s",
                    launcher[0] ? launcher : "itself: there is only one rank");
    int32_t lacking = -1; /* the first rank that cannot use NCCL */
    for (int32_t r = run->team->who.count - 1; r >= 0; r--) lacking = all[r].has_nccl ? lacking : r;
    if (lacking < 0)
        hy_ranks_report(run, "NCCL", "%s, %s", all[0].nccl, all[0].path);
    else
        hy_ranks_report(run, "NCCL", "not used: rank %d: %s", lacking, all[lacking].why_not);
    if (run->has_nccl)
        hy_ranks_report(run, "transport", "NCCL%s; small messages use %s",
                        is_gpu ? ", because each rank has its own card" : " (stand-in)", link);
    else
        hy_ranks_report(run, "transport", "%s; %s", link,
                        is_gpu ? "card memory is copied through pinned memory"
                               : "memory is sent directly");
}

/* ---- the part -------------------------------------------------------------------------------- */

hy_status hy_ranks_test_machines(hy_ranks_run *run) {
    facts mine, *all = calloc((size_t)run->team->who.count, sizeof *all);
    bool is_gpu = run->device.backend->facts.is_gpu;
    HY_FAIL_IF(!all, HY_ERR_MEMORY, "no memory for %d ranks", run->team->who.count);
    snprintf(run->part, sizeof run->part, "ranks");
    hy_status status =
        hy_rank_count(run->team, is_gpu ? hy_device_card(run->settings.device) : -1, &run->sharers);
    if (status == HY_OK) {
        read_facts(run, &mine);
        find_nccl(run, &mine);
        status = hy_control_gather_bytes(run->team->control, &mine, sizeof mine, all);
    }
    run->has_nccl = run->has_bf16 = status == HY_OK;
    for (int32_t r = 0; r < run->team->who.count && status == HY_OK; r++) {
        report_rank(run, r, &all[r]);
        run->has_nccl &= all[r].has_nccl != 0;
        run->has_bf16 &= all[r].has_bf16 != 0;
    }
    if (status == HY_OK) report_transport(run, all);
    bool is_missed = run->settings.ranks.transport == HY_LINK_NCCL && !run->has_nccl;
    if (status == HY_OK && is_missed && mine.why_not[0])
        status = hy_fail(HY_ERR_INPUT, "%s", mine.why_not);
    else if (status == HY_OK && is_missed)
        /* collects the last errors of ranks that failed */
        status = hy_control_barrier(run->team->control);
    snprintf(run->result->transport, sizeof run->result->transport, "%s",
             hy_ranks_way(run, run->has_nccl));
    free(all);
    return status;
}
