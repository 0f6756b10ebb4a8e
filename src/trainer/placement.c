/* placement.c: the placement table: which class lies where in which phase, and what is live now. See
 * memory_plan.h.
 *
 * Written from what was counted, before anything is taken. When a phase begins, what only the other kind
 * of phase needs is given and what this one needs is taken: gradients and training's activations, or
 * evaluation's and the predictor's rings, which share their memory. */
#include "trainer/memory_plan.h"

static uint64_t backing_bytes(hy_place place, const hy_layout *layout) {
    return place == HY_DISK ? hy_store_disk_bytes(layout) : layout->bytes;
}

static void plan_true_phases(hy_trainer *t, hy_class cls, hy_place place, hy_dtype dtype,
                             uint64_t bytes) {
    static const hy_phase phases[] = {HY_WARMUP, HY_FULL, HY_CORRECT};
    for (int i = 0; i < 3; i++) {
        hy_ledger_plan(&t->engine.ledger, cls, phases[i], bytes ? place : HY_NOWHERE, dtype, bytes);
    }
}

static void plan_all(hy_trainer *t, hy_class cls, hy_place place, hy_dtype dtype, uint64_t bytes) {
    plan_true_phases(t, cls, place, dtype, bytes);
    hy_ledger_plan(&t->engine.ledger, cls, HY_PREDICT, bytes ? place : HY_NOWHERE, dtype, bytes);
}

static void plan_optimizer(hy_trainer *t, hy_place backing, uint64_t bytes) {
    hy_place place = HY_DEVICE;
    hy_dtype dtype = hy_settings_optim_dtype(&t->settings);
    if (backing != HY_DEVICE) {
        plan_all(t, HY_OPTIM, backing, dtype, bytes);
        return;
    }
    plan_true_phases(t, HY_OPTIM, HY_DEVICE, dtype, bytes);
    switch (t->engine.optim.strategy) {
    case HY_OFFLOAD_CPU: place = HY_HOST; break;
    case HY_OFFLOAD_PINNED: place = HY_PINNED; break;
    case HY_OFFLOAD_DROP:
        place = HY_NOWHERE;
        bytes = 0;
        break;
    case HY_OFFLOAD_COMPRESS:
        dtype = HY_U8;
        bytes = hy_offload_host_bytes(t, bytes);
        break;
    case HY_OFFLOAD_NONE: break;
    }
    hy_ledger_plan(&t->engine.ledger, HY_OPTIM, HY_PREDICT, place, dtype, bytes);
}

static void plan_state(hy_trainer *t) {
    const hy_memory_needs *need = &t->engine.needs;
    const hy_state_layouts *l = &t->engine.state.layouts;
    const hy_precisions *p = &t->engine.types;
    const hy_state_choice *c = &need->choice;
    uint64_t optim = 0;
    plan_all(t, HY_WEIGHTS, c->weights, p->has_low ? p->low : p->master,
             backing_bytes(c->weights, p->has_low ? &l->low : &l->master));
    plan_all(t, HY_MASTER, c->master, p->master,
             p->has_low ? backing_bytes(c->master, &l->master) : 0);
    plan_true_phases(t, HY_GRADS, c->grads, t->settings.train.grad_dtype,
                     backing_bytes(c->grads, &l->grads));
    for (int i = 0; i < hy_optim_arrays(&t->engine); i++) {
        optim += backing_bytes(c->optim, &l->optim[i]);
    }
    plan_optimizer(t, c->optim, optim);
    plan_all(t, HY_PREDICTOR, need->kept_place, p->slots,
             (uint64_t)hy_predictor_slots(t->engine.predictor.kind) *
                     backing_bytes(need->kept_place, &l->slot) +
                 (t->engine.has_average ? backing_bytes(need->kept_place, &l->tail) : 0));
    plan_all(t, HY_SNAPSHOT, need->kept_place, p->master,
             t->engine.has_snapshot ? backing_bytes(need->kept_place, &l->snapshot) : 0);
}

void hy_write_placement(hy_trainer *t) {
    const hy_memory_needs *need = &t->engine.needs;
    hy_dtype work = t->engine.types.of[HY_FULL], predict = t->engine.types.of[HY_PREDICT];
    const hy_state_need *state = &need->state;
    plan_state(t);
    plan_all(t, HY_DATA, HY_DEVICE, HY_I32, need->data);
    plan_true_phases(t, HY_ACTIVATIONS, t->engine.work.column.place, work,
                     t->engine.work.column.activations);
    plan_true_phases(t, HY_WORKSPACE, HY_DEVICE, work,
                     t->engine.work.column.workspace + state->rings - state->step_rings);
    hy_ledger_plan(&t->engine.ledger, HY_ACTIVATIONS, HY_PREDICT, HY_DEVICE, predict,
                   t->engine.work.eval_bytes.activations);
    hy_ledger_plan(&t->engine.ledger, HY_WORKSPACE, HY_PREDICT, HY_DEVICE, predict,
                   t->engine.work.eval_bytes.workspace + t->engine.work.ring_bytes + state->rings -
                       state->step_rings);
}

/* Predict: no gradients, none of the rings that only steps need; evaluation's activations instead of
 * training's, and the predictor's rings. */
static void change_columns(hy_trainer *t, hy_phase phase) {
    typedef void (*mark)(hy_ledger *, hy_class, hy_place, uint64_t);
    bool is_predict = phase == HY_PREDICT;
    mark of_steps = is_predict ? hy_ledger_give : hy_ledger_take;
    mark of_predict = is_predict ? hy_ledger_take : hy_ledger_give;
    hy_ledger *l = &t->engine.ledger;
    for (int turn = 0; turn < 2; turn++) { /* first give, then enter, then take */
        bool is_steps_turn = (turn == 0) == is_predict;
        if (turn == 1) hy_ledger_enter(l, phase);
        if (is_steps_turn) {
            of_steps(l, HY_GRADS, hy_store_of(&t->engine, HY_ROW_GRADS)->place,
                     backing_bytes(hy_store_of(&t->engine, HY_ROW_GRADS)->place,
                                   &hy_store_of(&t->engine, HY_ROW_GRADS)->layout));
            of_steps(l, HY_ACTIVATIONS, t->engine.work.column.place,
                     t->engine.work.column.activations);
            of_steps(l, HY_WORKSPACE, HY_DEVICE, t->engine.work.column.workspace);
        } else {
            of_predict(l, HY_ACTIVATIONS, HY_DEVICE, t->engine.work.eval_bytes.activations);
            of_predict(l, HY_WORKSPACE, HY_DEVICE,
                       t->engine.work.eval_bytes.workspace + t->engine.work.ring_bytes);
        }
    }
}

void hy_trainer_enter_phase(hy_trainer *t, hy_phase phase) {
    bool is_predict = phase == HY_PREDICT;
    if (is_predict != t->engine.is_in_predict) change_columns(t, phase);
    t->engine.is_in_predict = is_predict;
    hy_ledger_enter(&t->engine.ledger, phase);
}
