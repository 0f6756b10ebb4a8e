/* resize.c: another plan in the middle of a run. See trainer.h.
 *
 * Between steps the work area holds nothing that is needed later: the engine gives it back and takes it
 * anew for the other plan. With smaller micro-batches a step has as many more of them, the same sequences in
 * the same order, and rows stay where they are; where there is no memory for it, smaller ones are tried.
 * When that is not enough the whole is planned anew within tighter bounds, and rows move: places and
 * recomputation change no bit (but offload_strategy compress, which is lossy, ends where state leaves the
 * device). */
#include <stdio.h>

#include "trainer/monitor.h"

/* ---- which sizes there are --------------------------------------------------------------------- */

int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most) {
    int64_t least = t->settings.train.min_batch_size, step = hy_rank_sequences(&t->engine);
    if (!t->settings.train.normalize) return 0; /* a sum of means would be another sum */
    for (int64_t b = from + direction; b >= least && b <= most && b <= step; b += direction) {
        if (step % b == 0) return b;
    }
    return 0;
}

int64_t hy_smaller_batch(const hy_trainer *t) {
    int64_t batch = t->engine.plan.choice.batch;
    return hy_next_batch(t, batch, -1, batch);
}

int64_t hy_larger_batch(const hy_trainer *t) {
    int64_t asked = t->settings.train.max_batch_size;
    return hy_next_batch(t, t->engine.plan.choice.batch, 1, asked ? asked : t->first_batch);
}

/* ---- another plan ------------------------------------------------------------------------------ */

static hy_status plan_at(const hy_trainer *t, hy_plan_choice choice, int64_t batch, hy_plan *out) {
    choice.accum = (int32_t)(hy_rank_sequences(&t->engine) / batch);
    choice.batch = (int32_t)batch;
    return hy_plan_with(&t->engine.subject, &choice, out);
}

hy_status hy_trainer_work_at(const hy_trainer *t, int64_t batch, hy_plan *out) {
    return plan_at(t, t->engine.plan.choice, batch, out);
}

/* The table keeps the larger plan of each cell: that is what the most that was live is held against. */
static void plan_columns(hy_engine *e) {
    hy_ledger before = e->ledger;
    hy_plan_columns(&e->subject, &e->rows, &e->plan, &e->ledger);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
            hy_cell *cell = &e->ledger.cell[cls][phase];
            const hy_cell *old = &before.cell[cls][phase];
            if (old->place == cell->place && old->planned > cell->planned) {
                cell->planned = old->planned;
            }
            if (old->place != cell->place) cell->measured = 0; /* that was elsewhere */
        }
    }
}

/* The engine has another plan: the rest of the run follows. */
static hy_status adopt(hy_trainer *t, hy_phase phase) {
    plan_columns(&t->engine);
    HY_TRY(hy_engine_enter_phase(&t->engine, phase));
    hy_plan_tell(&t->engine.subject, &t->engine.plan, &t->facts);
    HY_TRY(hy_trainer_start_loader(t));
    hy_monitor_reset(t);
    hy_trainer_write_plan(t);
    return HY_OK;
}

/* Rank 0 first: it times what is new, and the others take its choices. Where one has no room, none goes on with it. */
static hy_status change_together(hy_trainer *t, const hy_plan *plan) {
    hy_engine *e = &t->engine;
    bool leads = hy_trainer_leads(t);
    HY_TRY(hy_ranks_agree(t, leads ? hy_engine_change(e, plan) : HY_OK));
    HY_TRY(hy_engine_share_algorithms(e));
    return hy_ranks_agree(t, leads ? HY_OK : hy_engine_change(e, plan));
}

/* Micro-batches of this size, or of the largest smaller one that there is memory for. */
static hy_status change_plan(hy_trainer *t, int64_t batch, const hy_plan_choice *choice) {
    hy_engine *e = &t->engine;
    hy_status status = HY_OK;
    hy_phase phase = e->ledger.phase;
    hy_plan plan;
    HY_TRY(hy_update_finish(e)); /* by all ranks, before one of them may have no room */
    for (int64_t size = batch; size > 0; size = hy_next_batch(t, size, -1, size)) {
        status = plan_at(t, *choice, size, &plan);
        plan.cost = e->plan.cost; /* times stay those that were measured */
        status = hy_ranks_agree(t, status);
        if (status == HY_OK) status = change_together(t, &plan);
        if (status != HY_ERR_MEMORY) break;
    }
    if (status != HY_OK) {
        return hy_fail_context(status, "micro-batches of %lld", (long long)e->plan.choice.batch);
    }
    return adopt(t, phase);
}

static void tell(hy_trainer *t, const hy_plan_choice *old, const char *reason) {
    const hy_plan_choice *now = &t->engine.plan.choice;
    if (now->batch == old->batch) return;
    t->fate.batch_changes++;
    hy_say(t, HY_NOTE, "micro-batch %d to %d, %d to %d of them in a step: %s", old->batch,
           now->batch, old->accum, now->accum, reason);
    hy_trainer_record_event(t, &(hy_event_line){.event = "batch",
                                                .batch_size = now->batch,
                                                .grad_accum = now->accum,
                                                .old_batch_size = old->batch,
                                                .old_grad_accum = old->accum,
                                                .reason = reason});
}

static hy_status resize(hy_trainer *t, int64_t batch, const hy_plan_choice *choice,
                        const char *reason) {
    hy_plan_choice old = t->engine.plan.choice;
    HY_TRY(change_plan(t, batch, choice));
    tell(t, &old, reason);
    return HY_OK;
}

hy_status hy_trainer_resize(hy_trainer *t, int64_t batch_size, const char *reason) {
    hy_plan_choice choice = t->engine.plan.choice;
    return resize(t, batch_size, &choice, reason);
}

bool hy_recomputes_all(const hy_plan_choice *c) {
    return c->recompute == HY_RECOMPUTE_ALL && c->recompute_layers == 0;
}

hy_status hy_trainer_recompute_all(hy_trainer *t, const char *reason) {
    hy_plan_choice choice = t->engine.plan.choice;
    choice.recompute = HY_RECOMPUTE_ALL;
    choice.recompute_layers = 0;
    hy_say(t, HY_NOTE, "layers recompute everything from now on: %s", reason);
    return resize(t, choice.batch, &choice, reason);
}

/* ---- all of it anew ------------------------------------------------------------------------------ */

static void bound(hy_engine *e, uint64_t device_cap, uint64_t host_cap, hy_subject *out) {
    const hy_plan_choice *c = &e->plan.choice;
    *out = e->subject;
    out->split = (hy_step_split){c->batch, c->accum, c->loss_chunks};
    out->device_cap = device_cap;
    out->host_cap = host_cap;
    out->host_held = hy_engine_reserved(e, HY_PINNED) + hy_engine_reserved(e, HY_HOST);
    if (!e->backend->facts.is_gpu) out->host_held += hy_engine_reserved(e, HY_DEVICE);
}

/* Who took the memory may give it back: a few tries. */
static hy_status follow(hy_trainer *t, const hy_plan *plan, hy_phase phase) {
    int64_t tries = t->settings.memory.recovery_tries;
    hy_status status;
    do {
        status = change_together(t, plan);
        if (status == HY_OK) status = hy_ranks_agree(t, adopt(t, phase));
    } while (status == HY_ERR_MEMORY && tries-- > 0);
    return status;
}

/* Or as it was, subject and plan. */
static hy_status follow_or_stay(hy_trainer *t, const hy_plan *plan, const hy_subject *before,
                                const char *what) {
    hy_plan old = t->engine.plan;
    hy_phase phase = t->engine.ledger.phase;
    hy_error kept;
    /* By all ranks, before one of them may have no room; one that fails here ends the run. */
    HY_TRY(hy_team_fail(t->team, hy_update_finish(&t->engine)));
    hy_status status = follow(t, plan, phase);
    if (status == HY_OK) return HY_OK;
    hy_error_save(&kept, status);
    t->engine.subject = *before;
    status = follow(t, &old, phase);
    return hy_fail(status == HY_OK ? HY_ERR_INPUT : status, "%s: %s", what, kept.text);
}

/* What prediction keeps is laid aside or taken, with so many bytes beside the plan. */
static hy_status plan_aside(const hy_trainer *t, bool is_aside, uint64_t beside,
                            hy_subject *bounded, hy_plan *plan) {
    const hy_engine *e = &t->engine;
    hy_plan_choice choice = e->plan.choice;
    choice.is_aside = bounded->is_aside = is_aside;
    HY_TRY(hy_subject_with(bounded, &t->settings, &e->subject.rung, bounded));
    HY_TRY(hy_plan_with(bounded, &choice, plan));
    if (!plan->fits && !is_aside && !t->team) { /* the rest may have to make room */
        hy_plan_facts unused;
        HY_TRY(hy_plan_make(bounded, plan, &unused));
        HY_TRY(hy_budget_check(bounded, plan));
    }
    HY_FAIL_IF(!plan->fits && !is_aside && t->team, HY_ERR_INPUT,
               "a paired fork needs more memory than the plan of these ranks leaves");
    uint64_t limit = hy_budget_host(bounded), needed = hy_plan_host_bytes(plan) + beside;
    if (!e->backend->facts.is_gpu) needed += plan->device;
    HY_FAIL_IF(limit && needed > limit && !is_aside, HY_ERR_INPUT,
               "a paired fork needs %s of host memory with what the run has, and %s may be used",
               hy_bytes_as_text(needed).text, hy_bytes_as_text(limit).text);
    return hy_offload_settle(&e->rows, &plan->choice, &bounded->offload);
}

hy_status hy_trainer_set_aside(hy_trainer *t, bool is_aside, uint64_t beside) {
    hy_engine *e = &t->engine;
    hy_subject before = e->subject, bounded;
    hy_plan plan;
    bound(e, before.device_cap, before.host_cap, &bounded);
    HY_TRY(hy_ranks_agree(t, plan_aside(t, is_aside, beside, &bounded, &plan)));
    plan.cost = e->plan.cost;
    e->subject = bounded;
    e->subject.host_held = 0;
    e->subject.split = before.split;
    return follow_or_stay(t, &plan, &before, "memory for a paired fork");
}

/* For the bounded subject, which becomes the run's. */
static hy_status plan_less(hy_trainer *t, const hy_subject *bounded, hy_plan *plan) {
    hy_engine *e = &t->engine;
    HY_TRY(hy_subject_with(bounded, &t->settings, &bounded->rung, &e->subject));
    HY_TRY(hy_plan_make(&e->subject, plan, &t->facts));
    HY_TRY(hy_trainer_settle_plan(t, plan));
    HY_TRY(hy_budget_check(&e->subject, plan));
    bool is_less = plan->fits || plan->device < e->plan.device;
    return is_less ? HY_OK : hy_fail(HY_ERR_INPUT, "no plan needs less device memory");
}

static hy_status share_less(hy_trainer *t, hy_plan *plan) {
    HY_TRY(hy_ranks_share_plan(t, plan));
    return hy_trainer_leads(t) ? HY_OK : hy_trainer_settle_plan(t, plan);
}

hy_status hy_trainer_replan(hy_trainer *t, uint64_t device_cap, uint64_t host_cap,
                            const char *reason) {
    hy_engine *e = &t->engine;
    hy_subject before = e->subject, bounded;
    hy_plan_facts facts = t->facts;
    hy_plan plan;
    char text[HY_ERROR_MESSAGE_MAX];
    bound(e, device_cap, host_cap, &bounded);
    hy_status status = hy_trainer_leads(t) ? plan_less(t, &bounded, &plan) : HY_OK;
    if (!hy_trainer_leads(t)) e->subject = bounded;
    status = hy_ranks_agree(t, status);
    if (status == HY_OK) status = hy_ranks_agree(t, share_less(t, &plan));
    e->subject.host_held = 0;
    snprintf(text, sizeof text, "%s: a plan that needs less was not found", reason);
    if (status == HY_OK) {
        status = follow_or_stay(t, &plan, &before, text);
    } else {
        status = hy_fail(HY_ERR_INPUT, "%s: %s", text, hy_error_message());
    }
    if (status != HY_OK) {
        e->subject = before;
        t->facts = facts;
        return status;
    }
    t->fate.plan_changes++;
    snprintf(text, sizeof text, "%s: a plan that needs less, from step %lld on", reason,
             (long long)t->progress.step + 1);
    hy_say(t, HY_WARNING, "%s", text);
    hy_trainer_record_event(t, &(hy_event_line){.event = "plan", .text = text});
    return HY_OK;
}
