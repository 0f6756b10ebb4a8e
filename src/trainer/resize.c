/* resize.c: another plan in the middle of a run: micro-batches of another size. See trainer.h.
 *
 * Between steps the work area holds nothing that is needed later: the engine gives it back and takes it
 * anew for the other plan, with as many more micro-batches that a step has the same sequences in the same
 * order. Rows stay where they are. Where there is no memory for it, smaller ones are tried. */
#include "trainer/monitor.h"

/* ---- which sizes there are --------------------------------------------------------------------- */

int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most) {
    int64_t least = t->settings.train.min_batch_size, step = hy_step_sequences(&t->engine);
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
    choice.accum = (int32_t)(hy_step_sequences(&t->engine) / batch);
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
        }
    }
}

/* Micro-batches of this size, or of the largest smaller one that there is memory for. */
static hy_status change_plan(hy_trainer *t, int64_t batch, const hy_plan_choice *choice) {
    hy_engine *e = &t->engine;
    hy_status status = HY_OK;
    hy_phase phase = e->ledger.phase;
    hy_plan plan;
    for (int64_t size = batch; size > 0; size = hy_next_batch(t, size, -1, size)) {
        status = plan_at(t, *choice, size, &plan);
        if (status == HY_OK) status = hy_work_change(e, &plan);
        if (status != HY_ERR_MEMORY) break;
    }
    if (status != HY_OK) {
        return hy_fail_context(status, "micro-batches of %lld", (long long)e->plan.choice.batch);
    }
    plan_columns(e);
    HY_TRY(hy_engine_enter_phase(e, phase));
    hy_plan_tell(&e->subject, &e->plan, &t->facts);
    return HY_OK;
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
    HY_TRY(hy_trainer_start_loader(t));
    hy_monitor_reset(t);
    hy_trainer_write_plan(t);
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
