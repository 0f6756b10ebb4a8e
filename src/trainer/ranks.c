/* ranks.c: what several ranks of one run agree on. See ranks.h.
 *
 * Every rank makes the same steps and decisions, because these depend on losses and norms of all
 * ranks. Values that only one process knows (its clock, a stop request, free memory) are shared
 * first, with the number of targets at the start of each step; the clock is rank 0's. Rank 0 has
 * the run's folder and its record. */
#include "trainer/ranks.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "plan/plan_value.h"
#include "trainer/join.h"
#include "trainer/monitor_look.h"

#define MESSAGE 384 /* bytes of an error message that is sent to other ranks */
#define LEAST_MOST 4

/* ---- beginning ------------------------------------------------------------------------------- */

hy_status hy_team_for(const hy_settings *s, const hy_provider *provider,
                      const hy_observer *observer, hy_team **out) {
    const uint64_t agreed[] = {hy_settings_agreed(s), hy_provider_agreed(provider)};
    hy_team_options options = {.link = s->ranks.transport,
                               .timeout = s->ranks.rank_timeout,
                               .secret_file = s->ranks.rank_secret_file,
                               .agreed = hy_hash_bytes(agreed, sizeof agreed, 0),
                               .agreed_name =
                                   provider && provider->memory ? "settings or parameters" : NULL};
    if (observer) options.observer = *observer;
    return hy_team_open(&options, out);
}

static int32_t rank_count(const hy_trainer *t) { return t->team ? t->team->who.count : 1; }

bool hy_ranks_are_apart(const hy_trainer *t, hy_status status) {
    bool is_known = status == HY_OK || status == HY_STOPPED || hy_ranks_have_agreed(t, status);
    return t->team && !is_known;
}

hy_status hy_ranks_share(hy_trainer *t, void *data, size_t size) {
    return t->team ? hy_control_share(t->team->control, data, size, 0) : HY_OK;
}

/* Uses NCCL if every rank can. If NCCL was not requested and each rank has its own card, a
 * warning says what is missing. */
static hy_status choose_nccl(hy_trainer *t, const hy_rank_sharers *sharers) {
    hy_link_choice asked = t->settings->ranks.transport;
    bool is_gpu = t->engine->device.backend->facts.is_gpu;
    /* The same on all ranks: either every rank looks for NCCL, or none. */
    bool is_open = asked == HY_LINK_NCCL || (asked == HY_LINK_AUTO && sharers->has_cards);
    if (!is_open) return HY_OK;
    hy_status status = hy_ranks_agree(t, hy_rank_look_for_nccl(sharers, is_gpu, NULL));
    if (status == HY_OK) {
        t->team->uses_nccl = true;
        t->team->link_name = "NCCL";
        return HY_OK;
    }
    if (asked == HY_LINK_NCCL || hy_error_origin_of(status) != HY_ERROR_AGREED) return status;
    if (sharers->card <= 1) {
        hy_say(t, HY_WARNING, "%s; data between cards passes through host memory (%s)",
               hy_error_message(), t->team->link_name);
    }
    return HY_OK;
}

hy_status hy_ranks_count_sharers(hy_trainer *t) {
    hy_plan_request *r = &t->engine->request;
    hy_rank_sharers sharers;
    if (!t->team) return HY_OK;
    bool is_gpu = t->engine->device.backend->facts.is_gpu;
    HY_TRY(hy_rank_count(t->team, is_gpu ? hy_device_card(t->settings->device) : -1, &sharers));
    r->sharers = sharers.machine;
    r->card_sharers = sharers.card;
    HY_TRY(choose_nccl(t, &sharers));
    r->ranks.is_staged = is_gpu && !t->team->uses_nccl;
    return HY_OK;
}

/* With link ib200, each rank is assumed to have its own machine. */
void hy_ranks_plan_sharers(hy_trainer *t) {
    hy_plan_request *r = &t->engine->request;
    const hy_planned_ranks *p = &t->ranks.planned;
    bool is_gpu = t->engine->device.backend->facts.is_gpu;
    int32_t here = t->settings->card[0] ? 1 : hy_cuda_card_count();
    int32_t cards = p->has_cards ? p->count : is_gpu && here > 1 ? here : 1;
    bool is_apart = t->settings->ranks.link == HY_WIRE_IB200;
    r->ranks.is_staged = is_gpu && !p->has_cards;
    r->sharers = is_apart ? 1 : p->count;
    r->card_sharers = is_apart ? 1 : (p->count + cards - 1) / cards;
}

/* ---- what is timed --------------------------------------------------------------------------- */

/* What a rank sends about its device and the choices for it. */
typedef struct timed_choice {
    char device[sizeof((hy_device_facts *)0)->name];
    int32_t has_fp8;
    hy_fp8_use fp8;
    uint64_t chunk_budget; /* decides loss chunks; free memory differs between ranks */
} timed_choice;

hy_status hy_ranks_share_fp8(hy_trainer *t) {
    hy_plan_request *r = &t->engine->request;
    timed_choice own, all[HY_RANKS_MOST];
    if (!t->team) return HY_OK;
    memset(&own, 0, sizeof own);
    own.has_fp8 = r->fixed.has_fp8;
    own.fp8 = r->fixed.fp8;
    own.chunk_budget = r->chunk_budget;
    snprintf(own.device, sizeof own.device, "%s", t->engine->device.backend->facts.name);
    HY_TRY(hy_control_gather_bytes(t->team->control, &own, sizeof own, all));
    bool has_told = !hy_trainer_leads(t) || !t->engine->device.backend->matmul_table;
    for (int32_t i = 1; i < rank_count(t) && !has_told; i++) {
        has_told = strcmp(all[i].device, all[0].device) != 0;
        if (!has_told) continue;
        hy_say(t, HY_WARNING,
               "rank %d computes on %s, rank 0 on %s: ranks with other devices than rank 0 choose "
               "their matmul algorithms separately, and may choose others after a resume",
               i, all[i].device, all[0].device);
    }
    if (strcmp(own.device, all[0].device) != 0) return HY_OK;
    r->chunk_budget = all[0].chunk_budget;
    r->fixed.has_fp8 = all[0].has_fp8;
    r->fixed.fp8 = all[0].fp8;
    return HY_OK;
}

/* ---- the plan -------------------------------------------------------------------------------- */

hy_status hy_ranks_choose_plan(hy_trainer *t, hy_plan *plan) {
    const hy_plan_request *r = &t->engine->request;
    int32_t chosen;
    if (!t->team) return HY_OK;
    HY_TRY(hy_plan_share_fitting(t->team, r, plan, &chosen));
    if (t->team->who.rank == chosen) return HY_OK;
    if (hy_trainer_leads(t)) {
        hy_say(t, HY_NOTE, "using the plan of rank %d: that of rank 0 does not fit on every rank",
               chosen);
    }
    hy_plan_fill_facts(r, plan, t->facts);
    return HY_OK;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

hy_status hy_ranks_agree(hy_trainer *t, hy_status mine) {
    struct {
        int32_t status;
        char message[MESSAGE];
    } own = {.status = (int32_t)mine}, all[HY_RANKS_MOST];
    if (!t->team) return mine;
    if (mine != HY_OK) snprintf(own.message, sizeof own.message, "%s", hy_error_message());
    int32_t count = rank_count(t);
    HY_TRY(hy_control_gather_bytes(t->team->control, &own, sizeof own, all));
    for (int32_t r = 0; r < count; r++) {
        if (all[r].status == HY_OK) continue;
        const hy_member *m = hy_control_member(t->team->control, r);
        return hy_fail_agreed((hy_status)all[r].status, "rank %d (%s, pid %d): %s", r, m->host,
                              m->pid, all[r].message);
    }
    return HY_OK;
}

bool hy_ranks_have_agreed(const hy_trainer *t, hy_status status) {
    if (t->steering.all_ranks_end) return true;
    return status != HY_OK && hy_error_origin_of(status) == HY_ERROR_AGREED;
}

hy_status hy_ranks_fail(hy_trainer *t, hy_status status) {
    return hy_ranks_have_agreed(t, status) ? status : hy_team_fail(t->team, status);
}

hy_status hy_ranks_least(hy_trainer *t, double *values, int32_t count) {
    double all[LEAST_MOST * HY_RANKS_MOST];
    if (!t->team) return HY_OK;
    assert(count <= LEAST_MOST);
    HY_TRY(hy_control_gather(t->team->control, values, count, all));
    for (int32_t i = 0; i < rank_count(t) * count; i++) {
        values[i % count] = fmin(values[i % count], all[i]);
    }
    return HY_OK;
}

/* What each rank sends at the start of a step. */
enum { COUNTED, TOKENS, STOPS, SAVES, KEEPS_BEST, IS_SHORT, NUMBERS };

hy_status hy_ranks_begin_step(hy_trainer *t, hy_step_report *report) {
    double own[NUMBERS] = {[COUNTED] = (double)report->counted,
                           [TOKENS] = (double)report->tokens,
                           [STOPS] = atomic_load(&t->status.stop_requested),
                           [SAVES] = hy_trainer_is_save_time(t),
                           [KEEPS_BEST] = hy_trainer_has_time_to_save(t),
                           [IS_SHORT] = hy_trainer_is_short(t)};
    double all[NUMBERS * HY_RANKS_MOST];
    if (!t->team) return HY_OK;
    HY_TRY(hy_control_gather(t->team->control, own, NUMBERS, all));
    report->counted = report->tokens = 0;
    t->ranks.agreed.is_short = false;
    for (int32_t r = 0; r < rank_count(t); r++) {
        report->counted += (int64_t)all[r * NUMBERS + COUNTED];
        report->tokens += (int64_t)all[r * NUMBERS + TOKENS];
        t->ranks.agreed.is_short |= all[r * NUMBERS + IS_SHORT] != 0;
        t->ranks.agreed.stops |= all[r * NUMBERS + STOPS] != 0;
    }
    t->ranks.agreed.saves = all[SAVES] != 0;
    t->ranks.agreed.keeps_best = all[KEEPS_BEST] != 0;
    return HY_OK;
}

void hy_ranks_share_figures(hy_trainer *t, const hy_step_info *info) {
    enum { COUNT = HY_RANK_FIGURES };
    hy_agreed *a = &t->ranks.agreed;
    if (!t->team) return;
    uint64_t sent = hy_exchange_sent(&t->engine->collectives->net);
    double busy = hy_exchange_seconds(&t->engine->collectives->net);
    double own[COUNT] = {[HY_RANK_SECONDS] = info->seconds,
                         [HY_RANK_WAITED] = info->wait_seconds,
                         [HY_RANK_EXCHANGED] = busy - a->link_seconds,
                         [HY_RANK_BYTES] = (double)(sent - a->sent),
                         [HY_RANK_MEMORY] = (double)t->engine->state->ledger.peak_in[HY_DEVICE]};
    double all[COUNT * HY_RANKS_MOST];
    a->sent = sent;
    a->link_seconds = busy;
    if (hy_control_gather(t->team->control, own, COUNT, all) != HY_OK) return;
    const double *of_ranks[COUNT];
    for (int k = 0; k < COUNT; k++) {
        for (int32_t r = 0; r < rank_count(t); r++) a->figures[k][r] = all[r * COUNT + k];
        of_ranks[k] = a->figures[k];
    }
    bool is_step = info->phase != HY_PREDICT;
    if (is_step && t->ranks.figures.ranks > 0) hy_rank_figures_add(&t->ranks.figures, of_ranks);
}

/* ---- figures --------------------------------------------------------------------------------- */

bool hy_ranks_stop(const hy_trainer *t) {
    return t->team ? t->ranks.agreed.stops : atomic_load(&t->status.stop_requested);
}

hy_ranks_info hy_ranks_describe(const hy_trainer *t) {
    const hy_planned_ranks *planned = &t->ranks.planned;
    hy_ranks_info info = {0};
    if (t->team) {
        info = (hy_ranks_info){.count = t->team->who.count,
                               .rank = t->team->who.rank,
                               .transport = t->team->link_name};
    } else if (planned->count > 0) {
        info.count = planned->count;
        info.transport = planned->has_cards ? "NCCL" : "sockets";
    }
    if (info.count > 0) info.zero_stage = t->engine->plan->zero_stage;
    return info;
}
