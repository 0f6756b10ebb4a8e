/* resize.c: another micro-batch in the middle of a run. See trainer.h.
 *
 * Between steps the work area holds nothing that is needed later: it is given back and taken anew for
 * micro-batches of another size, with as many more of them that a step has the same sequences in the same
 * order. The state stays where it is; only the predictor's rings, which lie in the work area, move with
 * it. What cannot be had is tried smaller. */
#include <string.h>

#include "base/error.h"
#include "trainer/memory_plan.h"
#include "trainer/monitor.h"

/* ---- which sizes there are --------------------------------------------------------------------- */

static int64_t step_sequences(const hy_trainer *t) {
    return t->settings.train.batch_size * t->settings.train.grad_accum_steps;
}

/* A sum of means over micro-batches is another sum when they are split. */
static bool may_split(const hy_trainer *t) { return t->settings.train.normalize; }

int64_t hy_next_batch(const hy_trainer *t, int64_t from, int direction, int64_t most) {
    int64_t least = t->settings.train.min_batch_size, step = step_sequences(t);
    if (!may_split(t)) return 0;
    for (int64_t b = from + direction; b >= least && b <= most && b <= step; b += direction) {
        if (step % b == 0) return b;
    }
    return 0;
}

int64_t hy_smaller_batch(const hy_trainer *t) {
    int64_t batch = t->settings.train.batch_size;
    return hy_next_batch(t, batch, -1, batch);
}

int64_t hy_larger_batch(const hy_trainer *t) {
    int64_t asked = t->settings.train.max_batch_size;
    return hy_next_batch(t, t->settings.train.batch_size, 1, asked ? asked : t->first_batch);
}

/* ---- what a size would need --------------------------------------------------------------------- */

hy_status hy_work_at(const hy_trainer *t, int64_t batch, hy_memory_needs *out) {
    hy_trainer dry = *t;
    memset(dry.engine.work.train, 0, sizeof dry.engine.work.train);
    memset(dry.engine.work.eval, 0, sizeof dry.engine.work.eval);
    memset(dry.engine.work.guard, 0, sizeof dry.engine.work.guard);
    dry.engine.work.train_bytes = dry.engine.work.eval_bytes = (hy_batch_bytes){0};
    dry.engine.work.is_sizing = true;
    dry.settings.train.grad_accum_steps = step_sequences(t) / batch;
    dry.settings.train.batch_size = batch;
    hy_status status = hy_make_batch_plans(&dry);
    if (status == HY_OK) hy_count_work(&dry);
    *out = dry.engine.needs;
    hy_drop_batch_plans(&dry);
    return status;
}

/* ---- giving back and taking anew --------------------------------------------------------------- */

static hy_status come_to_rest(hy_trainer *t) {
    hy_stream *streams[] = {t->engine.compute, t->engine.copies, t->engine.returns};
    HY_TRY(hy_trainer_finish_update(t)); /* its clip factor lies in the work area */
    HY_TRY(hy_trainer_return_rings(t));
    for (int i = 0; i < 3; i++) HY_TRY(t->engine.backend->stream_sync(streams[i]));
    return HY_OK;
}

/* The table keeps the larger plan of each cell: that is what the most that was live is held against. */
static void plan_anew(hy_trainer *t) {
    hy_ledger before = t->engine.ledger;
    hy_write_placement(t);
    for (int cls = 0; cls < HY_CLASS_COUNT; cls++) {
        for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
            hy_cell *cell = &t->engine.ledger.cell[cls][phase];
            const hy_cell *old = &before.cell[cls][phase];
            if (old->place == cell->place && old->planned > cell->planned) {
                cell->planned = old->planned;
            }
        }
    }
}

static void set_batch(hy_trainer *t, int64_t batch) {
    int64_t step = step_sequences(t);
    t->settings.train.batch_size = batch;
    t->settings.train.grad_accum_steps = step / batch;
}

static hy_status take(hy_trainer *t) {
    hy_ledger before = t->engine.ledger;
    hy_status status = hy_make_batch_plans(t);
    if (status == HY_OK) {
        hy_count_work(t);
        status = hy_take_work(t);
    }
    if (status == HY_OK) return HY_OK;
    hy_drop_batch_plans(t);
    hy_release_work(t);
    t->engine.ledger = before;
    return status;
}

static hy_status take_what_can_be_had(hy_trainer *t, int64_t batch) {
    hy_status status;
    set_batch(t, batch);
    while ((status = take(t)) == HY_ERR_MEMORY) {
        int64_t smaller = hy_smaller_batch(t);
        if (smaller == 0) return status;
        set_batch(t, smaller);
    }
    return status;
}

static void move_rings(hy_trainer *t, char *from) {
    hy_store *stores[] = {
        hy_store_of(&t->engine, HY_ROW_SLOW + 0), hy_store_of(&t->engine, HY_ROW_SLOW + 1),
        hy_store_of(&t->engine, HY_ROW_SNAPSHOT), hy_store_of(&t->engine, HY_ROW_AVERAGE),
        hy_store_of(&t->engine, HY_ROW_CANDIDATE)};
    char *to = hy_predictor_rings(t);
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        hy_store_move_ring(stores[i], from, to);
    }
    t->engine.work.ring_arena.data = to;
}

static hy_status change_work(hy_trainer *t, int64_t batch) {
    hy_phase phase = t->engine.ledger.phase;
    char *rings = hy_predictor_rings(t);
    if (phase == HY_PREDICT) hy_trainer_enter_phase(t, HY_FULL); /* whose column it is live in */
    hy_give_work(t);
    hy_drop_batch_plans(t);
    hy_release_work(t);
    hy_status status = take_what_can_be_had(t, batch);
    if (status != HY_OK) {
        t->engine.work.is_gone = true;
        return hy_fail_context(status, "micro-batches of %lld",
                               (long long)t->settings.train.batch_size);
    }
    move_rings(t, rings);
    plan_anew(t);
    hy_trainer_enter_phase(t, phase);
    return HY_OK;
}

/* ---- telling ----------------------------------------------------------------------------------- */

static void tell(hy_trainer *t, int64_t old_batch, int64_t old_accum, const char *reason) {
    int64_t batch = t->settings.train.batch_size, accum = t->settings.train.grad_accum_steps;
    if (batch == old_batch) return;
    t->life.batch_changes++;
    hy_say(t, HY_NOTE, "micro-batch %lld to %lld, %lld to %lld of them in a step: %s",
           (long long)old_batch, (long long)batch, (long long)old_accum, (long long)accum, reason);
    hy_trainer_record_event(t, &(hy_event_line){.event = "batch",
                                                .batch_size = batch,
                                                .grad_accum = accum,
                                                .old_batch_size = old_batch,
                                                .old_grad_accum = old_accum,
                                                .reason = reason});
}

bool hy_recomputes_all(const hy_settings *s) {
    return s->train.recompute == HY_RECOMPUTE_ALL && s->train.recompute_layers == 0;
}

hy_status hy_trainer_recompute_all(hy_trainer *t, const char *reason) {
    hy_settings *s = &t->settings;
    s->train.recompute = HY_RECOMPUTE_ALL;
    s->train.recompute_layers = 0;
    hy_say(t, HY_NOTE, "layers recompute everything from now on: %s", reason);
    return hy_trainer_resize(t, s->train.batch_size, reason);
}

hy_status hy_trainer_resize(hy_trainer *t, int64_t batch_size, const char *reason) {
    int64_t batch = t->settings.train.batch_size, accum = t->settings.train.grad_accum_steps;
    HY_TRY(come_to_rest(t));
    HY_TRY(change_work(t, batch_size));
    HY_TRY(hy_trainer_start_loader(t));
    hy_monitor_reset(t);
    hy_trainer_write_plan(t);
    tell(t, batch, accum, reason);
    return HY_OK;
}
