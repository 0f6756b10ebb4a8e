/* resize.c: changes the plan during a run. See resize.h.
 *
 * Between steps the work area holds nothing that is needed later: the engine frees it and
 * allocates it for the other plan. With smaller micro-batches a step has more of them, with the
 * same sequences in the same order, and rows stay in place; if that does not fit, smaller ones
 * are tried. If that is not enough, everything is planned again within tighter bounds, and rows
 * move: places and recomputation change no bit (except with offload_strategy compress, which loses
 * bits and ends when state leaves the device). */
#include "trainer/resize.h"

#include <stdio.h>
#include <string.h>

#include "memory/pinned.h"
#include "plan/plan_value.h"
#include "trainer/monitor.h"
#include "trainer/monitor_look.h"
#include "trainer/ranks.h"
#include "trainer/recording.h"
#include "trainer/summary.h"

/* ---- which sizes there are ------------------------------------------------------------------- */

int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most) {
    int64_t least = t->settings->train.min_batch_size, step = hy_rank_sequences(t->engine);
    if (!t->settings->train.normalize) return 0; /* another split gives another sum of means */
    for (int64_t b = from + direction; b >= least && b <= most && b <= step; b += direction) {
        if (step % b == 0) return b;
    }
    return 0;
}

int64_t hy_smaller_batch(const hy_trainer *t) {
    int64_t batch = t->engine->plan->choice.batch;
    return hy_next_batch(t, batch, -1, batch);
}

#define CHECKS_BEFORE_GROWING                                                                      \
    5 /* checks after a change; doubles with each change that was undone */
#define MOST_PATIENCE 64

void hy_trainer_back_off(hy_trainer *t) {
    hy_steering *s = &t->steering;
    s->patience = s->patience == 0 ? CHECKS_BEFORE_GROWING : 2 * s->patience;
    if (s->patience > MOST_PATIENCE) s->patience = MOST_PATIENCE;
    s->grow_at = t->progress->step + s->patience * t->settings->train.batch_check_every;
}

/* ---- another plan ---------------------------------------------------------------------------- */

static hy_status plan_from(const hy_trainer *t, const hy_plan *basis, hy_plan_choice choice,
                           int64_t batch, hy_plan *out) {
    choice.accum = (int32_t)(hy_rank_sequences(t->engine) / batch);
    choice.batch = (int32_t)batch;
    return hy_plan_with(&t->engine->request, basis, &choice, out);
}

hy_status hy_trainer_work_at(const hy_trainer *t, int64_t batch, hy_plan *out) {
    hy_plan basis = *t->engine->plan;
    if (batch < basis.choice.batch) basis.area = 0; /* as hy_trainer_give_up_room will do */
    return plan_from(t, &basis, basis.choice, batch, out);
}

void hy_trainer_give_up_room(hy_trainer *t) { t->engine->plan->area = 0; }

/* The placement table keeps the larger plan of each cell, for comparison with the peak. */
static void plan_columns(hy_engine *e) {
    hy_ledger before = e->state->ledger;
    hy_plan_columns(e->state->rows, e->plan, &e->state->ledger);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
            hy_cell *cell = &e->state->ledger.cell[cls][phase];
            const hy_cell *old = &before.cell[cls][phase];
            if (old->place == cell->place && old->planned > cell->planned) {
                cell->planned = old->planned;
            }
            if (old->place != cell->place) cell->measured = 0; /* measured in another place */
        }
    }
}

/* After the engine changed its plan: loader, monitor and plan.json follow. */
static hy_status adopt(hy_trainer *t, hy_phase phase) {
    plan_columns(t->engine);
    HY_TRY(hy_engine_enter_phase(t->engine, &hy_phase_table[phase]));
    hy_plan_fill_facts(&t->engine->request, t->engine->plan, t->facts);
    HY_TRY(hy_trainer_start_loader(t));
    hy_monitor_reset(t);
    hy_trainer_write_plan(t);
    return HY_OK;
}

/* Rank 0 goes first: it times new matmuls, and the others take its choices. If one rank has no
 * room, none uses the plan. */
static hy_status change_together(hy_trainer *t, const hy_plan *plan) {
    hy_engine *e = t->engine;
    bool leads = hy_trainer_leads(t);
    HY_TRY(hy_ranks_agree(t, leads ? hy_engine_change(e, plan) : HY_OK));
    HY_TRY(hy_engine_share_algorithms(e));
    return hy_ranks_agree(t, leads ? HY_OK : hy_engine_change(e, plan));
}

/* Micro-batches of this size, or the largest smaller size that fits. */
static hy_status resize(hy_trainer *t, int64_t batch, const hy_plan_choice *choice,
                        const char *reason) {
    hy_engine *e = t->engine;
    const hy_plan_choice old = e->plan->choice, *now = &e->plan->choice;
    hy_status status = HY_OK;
    hy_phase phase = e->state->ledger.phase;
    hy_plan plan;
    HY_TRY(hy_update_finish(e)); /* by all ranks, before one of them may run out of memory */
    for (int64_t size = batch; size > 0; size = hy_next_batch(t, size, -1, size)) {
        status = plan_from(t, e->plan, *choice, size, &plan);
        plan.cost = e->plan->cost; /* keeps the measured times */
        status = hy_ranks_agree(t, status);
        if (status == HY_OK) status = change_together(t, &plan);
        if (status != HY_ERR_MEMORY) break;
    }
    if (status != HY_OK) {
        return hy_fail_context(status, "micro-batches of %lld", (long long)now->batch);
    }
    HY_TRY(adopt(t, phase));
    if (now->batch == old.batch) return HY_OK;
    t->status.batch_changes++;
    hy_say(
        t, HY_NOTE,
        "the micro-batch changes from %d to %d sequences, their number in a step from %d to %d: %s",
        old.batch, now->batch, old.accum, now->accum, reason);
    hy_trainer_record_event(t, &(hy_event_line){.event = "batch",
                                                .batch_size = now->batch,
                                                .grad_accum = now->accum,
                                                .old_batch_size = old.batch,
                                                .old_grad_accum = old.accum,
                                                .reason = reason});
    return HY_OK;
}

hy_status hy_trainer_resize(hy_trainer *t, int64_t batch_size, const char *reason) {
    hy_plan_choice choice = t->engine->plan->choice;
    return resize(t, batch_size, &choice, reason);
}

bool hy_recomputes_all(const hy_plan_choice *c) {
    return c->recompute == HY_RECOMPUTE_ALL && c->recompute_layers == 0;
}

hy_status hy_trainer_recompute_all(hy_trainer *t, const char *reason) {
    hy_plan_choice choice = t->engine->plan->choice;
    choice.recompute = HY_RECOMPUTE_ALL;
    choice.recompute_layers = 0;
    hy_say(t, HY_NOTE, "all layers now recompute everything: %s", reason);
    return resize(t, choice.batch, &choice, reason);
}

/* ---- all of it anew -------------------------------------------------------------------------- */

/* The request of the current plan, with other caps. */
static hy_plan_request bound(const hy_engine *e, uint64_t device_cap, uint64_t host_cap) {
    const hy_plan_choice *c = &e->plan->choice;
    hy_plan_request out = hy_plan_request_keeping(&e->request, e->plan);
    out.fixed.split = (hy_step_split){c->batch, c->accum, c->loss_chunks, c->mlp_chunks};
    out.area = 0; /* decided anew */
    out.device_cap = device_cap;
    out.host_cap = host_cap;
    out.host_held = hy_engine_reserved(e, HY_PINNED) + hy_engine_reserved(e, HY_HOST);
    if (!e->device.backend->facts.is_gpu) out.host_held += hy_engine_reserved(e, HY_DEVICE);
    return out;
}

/* Allocates the plan's memory, in a few attempts: another program may free memory meanwhile. */
static hy_status follow(hy_trainer *t, const hy_plan *plan, hy_phase phase) {
    int64_t tries = t->settings->memory.recovery_tries;
    hy_status status;
    do {
        status = change_together(t, plan);
        if (status == HY_OK) status = hy_ranks_agree(t, adopt(t, phase));
    } while (status == HY_ERR_MEMORY && tries-- > 0);
    return status;
}

/* Switches to the plan of another request; if its memory is refused, the run keeps its old plan. */
static hy_status follow_or_stay(hy_trainer *t, const hy_plan_request *request, const hy_plan *plan,
                                const char *what) {
    hy_engine *e = t->engine;
    hy_plan_request old_request = e->request;
    hy_plan old = *e->plan;
    hy_phase phase = e->state->ledger.phase;
    hy_error kept;
    /* By all ranks, before one of them may run out of memory; a rank that fails here ends the
     * run. */
    HY_TRY(hy_team_fail(t->team, hy_update_finish(e)));
    e->request = *request;
    e->request.host_held = 0;
    hy_status status = follow(t, plan, phase);
    if (status == HY_OK) return HY_OK;
    hy_error_save(&kept, status);
    e->request = old_request;
    status = follow(t, &old, phase);
    return hy_fail(status == HY_OK ? HY_ERR_INPUT : status, "%s: %s", what, kept.text);
}

/* Plans with or without the memory of prediction; `beside`: bytes in addition to the plan. */
static hy_status plan_prediction(const hy_trainer *t, const hy_plan_request *r, uint64_t beside,
                                 hy_plan *plan) {
    const hy_engine *e = t->engine;
    bool is_disabled = r->fixed.prediction_awaits_test;
    hy_plan_choice choice = e->plan->choice;
    choice.prediction_awaits_test = is_disabled;
    HY_TRY(hy_plan_at(r, &choice, plan));
    if (!plan->fits && !is_disabled && !t->team) { /* other state may have to move */
        hy_plan_facts unused;
        HY_TRY(hy_plan_make(r, plan, &unused));
        HY_TRY(hy_budget_check(r, plan));
    }
    HY_FAIL_IF(!plan->fits && !is_disabled && t->team, HY_ERR_INPUT,
               "a paired test needs more memory than the plan of these ranks leaves free");
    uint64_t limit = hy_budget_host(r), needed = hy_plan_host_bytes(plan) + beside;
    if (!e->device.backend->facts.is_gpu) needed += plan->device;
    HY_FAIL_IF(limit && needed > limit && !is_disabled, HY_ERR_INPUT,
               "the run and a paired test need %s of host memory, but only %s may be used",
               hy_bytes_as_text(needed).text, hy_bytes_as_text(limit).text);
    plan->cost = e->plan->cost; /* keeps the measured times */
    return HY_OK;
}

hy_status hy_trainer_disable_prediction(hy_trainer *t, bool is_disabled, uint64_t beside) {
    const hy_engine *e = t->engine;
    hy_plan_request request = bound(e, e->request.device_cap, e->request.host_cap);
    hy_plan plan;
    request.fixed.prediction_awaits_test = is_disabled;
    HY_TRY(hy_ranks_agree(t, plan_prediction(t, &request, beside, &plan)));
    return follow_or_stay(t, &request, &plan, "memory for a paired test");
}

static hy_status plan_less(const hy_trainer *t, const hy_plan_request *r, hy_plan *plan,
                           hy_plan_facts *facts) {
    HY_TRY(hy_plan_make(r, plan, facts));
    HY_TRY(hy_budget_check(r, plan));
    bool is_less = plan->fits || plan->device < t->engine->plan->device;
    return is_less ? HY_OK : hy_fail(HY_ERR_INPUT, "no plan needs less device memory");
}

hy_status hy_trainer_replan(hy_trainer *t, uint64_t device_cap, uint64_t host_cap,
                            const char *reason) {
    hy_plan_request request = bound(t->engine, device_cap, host_cap);
    hy_plan_facts facts = *t->facts, before = *t->facts;
    hy_plan plan;
    char text[HY_ERROR_MESSAGE_MAX];
    hy_status status = hy_trainer_leads(t) ? plan_less(t, &request, &plan, &facts) : HY_OK;
    status = hy_ranks_agree(t, status);
    if (status == HY_OK && t->team)
        status = hy_ranks_agree(t, hy_plan_share(t->team, &request, &plan));
    snprintf(text, sizeof text, "%s: no plan with less memory was found", reason);
    if (status != HY_OK) return hy_fail(HY_ERR_INPUT, "%s: %s", text, hy_error_message());
    snprintf(text, sizeof text, "%s: no memory for a plan that needs less", reason);
    *t->facts = facts; /* adopt() updates its figures */
    hy_trainer_complete_facts(t);
    status = follow_or_stay(t, &request, &plan, text);
    if (status != HY_OK) {
        *t->facts = before;
        return status;
    }
    snprintf(text, sizeof text, "%s: the run uses a plan with less memory from step %lld on",
             reason, (long long)t->progress->step + 1);
    hy_say(t, HY_WARNING, "%s", text);
    hy_trainer_record_event(t, &(hy_event_line){.event = "plan", .text = text});
    return HY_OK;
}

/* ---- a caller's part of the device ----------------------------------------------------------- */

/* The caller's bytes are live as activations, a class that a custom model does not have itself. */
static void book_caller(hy_ledger *l, int64_t bytes) {
    hy_ledger_give(l, HY_ACTIVATIONS, HY_DEVICE, l->live[HY_ACTIVATIONS][HY_DEVICE]);
    hy_ledger_take(l, HY_ACTIVATIONS, HY_DEVICE, bytes > 0 ? (uint64_t)bytes : 0);
}

static hy_status plan_beside(const hy_plan_request *r, hy_plan *plan, hy_plan_facts *facts) {
    HY_TRY(hy_plan_make(r, plan, facts));
    HY_TRY(hy_budget_check(r, plan));
    HY_FAIL_IF(!plan->fits, HY_ERR_INPUT, "the smallest plan is %s short",
               hy_bytes_as_text(hy_plan_lacks(plan).bytes).text);
    return r->custom->caller_bytes < 0 ? hy_plan_make_lean(r, plan, facts) : HY_OK;
}

/* A row that moves is in its old and its new place for a while. */
static hy_status check_move(const hy_engine *e, const hy_plan_request *r, const hy_plan *plan) {
    hy_move_peak peak = hy_state_move_peak(e->state, &plan->choice);
    uint64_t limit = hy_budget_host(r), needed = r->host_held + peak.host;
    HY_FAIL_IF(limit && needed > limit, HY_ERR_INPUT,
               "moving %s needs %s of host memory for a while, but only %s may be used", peak.holds,
               hy_bytes_as_text(needed).text, hy_bytes_as_text(limit).text);
    return e->device.backend->facts.is_gpu ? hy_pin_check(peak.host) : HY_OK;
}

/* A card may have less memory than at the start: drivers load code with the caller's first passes. */
static uint64_t cap_now(const hy_trainer *t) {
    bool is_gpu = t->engine->device.backend->facts.is_gpu;
    return is_gpu ? hy_monitor_look(t, true).device.budget : t->engine->request.device_cap;
}

/* Peaks under the plan before, and during the move, say nothing about a new plan. */
static void restart_peaks(hy_ledger *l, int64_t caller_bytes) {
    memset(l->phase_peak, 0, sizeof l->phase_peak);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        for (int phase = 0; phase < HY_PHASE_COUNT; phase++) l->cell[cls][phase].measured = 0;
    }
    book_caller(l, caller_bytes); /* notes what is live */
}

hy_status hy_trainer_replan_caller(hy_trainer *t, hy_callers_part caller) {
    hy_engine *e = t->engine;
    hy_ledger *ledger = &e->state->ledger, kept = *ledger;
    uint64_t cap = e->request.device_cap;
    int64_t bytes = caller.bytes, noted = (int64_t)ledger->live[HY_ACTIVATIONS][HY_DEVICE];
    hy_custom_types types = e->custom->types;
    hy_plan_facts facts, before = *t->facts;
    hy_plan plan;
    char text[HY_PLAN_TEXT];
    uint64_t room = e->plan->work.caller;
    bool has_room = bytes > 0 && (uint64_t)bytes <= room && (uint64_t)bytes >= room - room / 8;
    book_caller(ledger, has_room ? bytes : (int64_t)caller.held);
    if (has_room) return HY_OK;
    types.caller_bytes = bytes;
    types.is_caller_stored = false;
    hy_plan_request request = bound(e, bytes < 0 ? cap : cap_now(t), e->request.host_cap);
    request.custom = &types;
    snprintf(text, sizeof text, "the caller's passes need %s of device memory",
             bytes < 0 ? "an unknown amount" : hy_bytes_as_text((uint64_t)bytes).text);
    hy_status status = plan_beside(&request, &plan, &facts);
    if (status == HY_OK) status = check_move(e, &request, &plan);
    if (status != HY_OK) { /* nothing has moved */
        book_caller(ledger, noted);
        return hy_fail_context(HY_ERR_INPUT, "%s, and no plan fits beside them", text);
    }
    *t->facts = facts; /* adopt() updates its figures */
    hy_trainer_complete_facts(t);
    memset(ledger->cell, 0, sizeof ledger->cell); /* the plan before is not in the new table */
    status = follow_or_stay(t, &request, &plan, text);
    if (status != HY_OK) {
        memcpy(ledger->cell, kept.cell, sizeof ledger->cell);
        book_caller(ledger, noted);
        *t->facts = before;
        return status;
    }
    restart_peaks(ledger, bytes);
    e->custom->types = types;
    e->request.custom = &e->custom->types;
    e->request.device_cap = cap;
    hy_say(t, HY_NOTE, "%s: the library uses %s from step %lld on", text,
           hy_bytes_as_text(e->plan->device - e->plan->work.caller).text,
           (long long)t->progress->step + 1);
    hy_trainer_record_event(t, &(hy_event_line){.event = "plan", .text = text});
    return HY_OK;
}
