/* state_plan.c: weights, master, gradients, optimizer state: types, places, rings. See memory_plan.h.
 *
 * A class lives on the device, or elsewhere and passes through a ring there. Which, is a choice; what a
 * choice needs is counted here by the same rules by which it is taken. */

#include "base/error.h"
#include "trainer/memory_plan.h"

/* A class of the run's state. */
typedef struct state_class {
    hy_store *store;
    hy_class cls;
    hy_place place;
    const hy_layout *layout;
    bool is_for_steps; /* Predict does without */
} state_class;

#define STATE_CLASSES (3 + HY_OPTIM_ARRAYS_MAX)

hy_place hy_place_setting(hy_place asked) { return asked == HY_PLACE_AUTO ? HY_DEVICE : asked; }

/* A paged optimizer's state lives on the host unless someone says where. */
void hy_state_resolve_paging(hy_settings *s) {
    bool is_paged = s->optimizer.optimizer & HY_OPTIMIZER_PAGED;
    bool is_open = s->memory.optim_place == HY_PLACE_AUTO;
    if (is_paged && is_open) s->memory.optim_place = HY_PINNED;
}

hy_state_choice hy_state_choice_of(const hy_settings *s) {
    int64_t depth = s->memory.ring_depth, resident = s->memory.resident_units;
    return (hy_state_choice){
        .weights = hy_place_setting(s->memory.weights_place),
        .master = hy_place_setting(s->memory.master_place),
        .grads = hy_place_setting(s->memory.grads_place),
        .optim = hy_place_setting(s->memory.optim_place),
        .ring_depth = depth == 0  ? HY_STATE_RING_DEPTH
                      : depth < 2 ? 2
                                  : (int32_t)depth,
        .resident = resident < 0 ? 0 : (int32_t)resident,
    };
}

/* ---- layouts ----------------------------------------------------------------------------------- */

hy_status hy_state_lay_out(hy_trainer *t) {
    const hy_params *params = &t->engine.model->params;
    const hy_precisions *p = &t->engine.types;
    hy_state_layouts *l = &t->engine.state.layouts;
    bool is_low = p->of[HY_PREDICT] != HY_F32 && p->of[HY_FULL] != HY_F32;
    HY_TRY(hy_params_layout(params, p->master, &l->master));
    HY_TRY(hy_params_layout(params, p->low, &l->low));
    HY_TRY(hy_params_layout(params, t->settings.train.grad_dtype, &l->grads));
    for (int i = 0; i < hy_optim_arrays(&t->engine); i++) {
        HY_TRY(hy_optimizer_lay_out(&t->engine.update.optimizer, i, params,
                                    hy_settings_optim_dtype(&t->settings), &l->optim[i]));
    }
    HY_TRY(hy_params_layout(params, is_low ? p->low : HY_F32, &l->candidate));
    HY_TRY(hy_tiles_init(&t->engine.state.tiles, params));
    HY_TRY(hy_tiles_layout(&t->engine.state.tiles, params, p->slots, &l->slot));
    HY_TRY(hy_tiles_layout(&t->engine.state.tiles, params, p->master, &l->snapshot));
    return hy_tiles_layout(&t->engine.state.tiles, params, HY_F32, &l->tail);
}

void hy_state_forget_layouts(hy_trainer *t) {
    hy_state_layouts *l = &t->engine.state.layouts;
    hy_layout *all[] = {&l->master, &l->low,      &l->grads, &l->candidate,
                        &l->slot,   &l->snapshot, &l->tail};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) hy_layout_fini(all[i]);
    for (int i = 0; i < HY_OPTIM_ARRAYS_MAX; i++) hy_layout_fini(&l->optim[i]);
    hy_tiles_fini(&t->engine.state.tiles);
}

/* ---- counting and taking ----------------------------------------------------------------------- */

static int list_classes(const hy_trainer *trainer, const hy_state_choice *choice,
                        state_class out[STATE_CLASSES]) {
    hy_trainer *t = (hy_trainer *)trainer; /* only take writes to the stores */
    const hy_state_layouts *l = &t->engine.state.layouts;
    bool has_low = t->engine.types.has_low;
    int count = 0;
    out[count++] =
        (state_class){hy_store_of(&t->engine, HY_ROW_MASTER), has_low ? HY_MASTER : HY_WEIGHTS,
                      has_low ? choice->master : choice->weights, &l->master, false};
    if (has_low) {
        out[count++] = (state_class){hy_store_of(&t->engine, HY_ROW_WORKING), HY_WEIGHTS,
                                     choice->weights, &l->low, false};
    }
    out[count++] = (state_class){hy_store_of(&t->engine, HY_ROW_GRADS), HY_GRADS, choice->grads,
                                 &l->grads, true};
    for (int i = 0; i < hy_optim_arrays(&t->engine); i++) {
        out[count++] = (state_class){hy_store_of(&t->engine, HY_ROW_OPTIM + i), HY_OPTIM,
                                     choice->optim, &l->optim[i], true};
    }
    return count;
}

void hy_state_count(const hy_trainer *t, const hy_state_choice *choice, hy_state_need *out) {
    state_class classes[STATE_CLASSES];
    int count = list_classes(t, choice, classes);
    *out = (hy_state_need){0};
    for (int i = 0; i < count; i++) {
        const state_class *c = &classes[i];
        if (c->place == HY_DEVICE) {
            out->device += c->layout->bytes;
            continue;
        }
        uint64_t ring = hy_store_plan_ring(c->layout, choice->ring_depth, choice->resident).bytes;
        out->rings += ring;
        out->step_rings += c->is_for_steps ? ring : 0;
        if (c->place == HY_DISK) {
            out->disk += hy_store_disk_bytes(c->layout);
            out->staging += hy_store_staging_bytes(c->layout, HY_DISK_BUFFERS);
        } else {
            out->pinned += c->layout->bytes;
        }
    }
}

hy_status hy_state_take_class(hy_trainer *t, hy_store *store, hy_class cls, hy_place place,
                              const hy_layout *layout, hy_arena *backing, hy_arena *device,
                              const hy_ring_options *ring) {
    if (place != HY_DISK) return hy_store_init_ring(store, backing, device, cls, layout, ring);
    hy_disk_backing disk = {.spill = t->engine.state.spill,
                            .offset = t->engine.state.spill_used,
                            .staging = &t->engine.state.staging,
                            .buffers = HY_DISK_BUFFERS};
    HY_TRY(hy_store_init_disk(store, &disk, device, cls, layout, ring));
    t->engine.state.spill_used += hy_store_disk_bytes(layout);
    hy_ledger_take(&t->engine.ledger, cls, HY_DISK, hy_store_disk_bytes(layout));
    return HY_OK;
}

/* Rings count as workspace: a class has one place. */
hy_status hy_state_take(hy_trainer *t, const hy_state_choice *choice, const hy_state_need *need) {
    state_class classes[STATE_CLASSES];
    int count = list_classes(t, choice, classes);
    hy_ring_options ring = {.depth = choice->ring_depth,
                            .resident = choice->resident,
                            .copies = {t->engine.copies, t->engine.returns}};
    HY_TRY(hy_arena_init(&t->engine.state.device, t->engine.backend, &t->engine.ledger, HY_DEVICE,
                         need->device, "weights, gradients and optimizer state"));
    HY_TRY(hy_arena_init(&t->engine.state.pinned, t->engine.backend, &t->engine.ledger, HY_PINNED,
                         need->pinned, "weights, gradients and optimizer state on the host"));
    HY_TRY(hy_arena_init(&t->engine.state.rings, t->engine.backend, &t->engine.ring_ledger,
                         HY_DEVICE, need->rings, "the rings that they pass through"));
    hy_ledger_take(&t->engine.ledger, HY_WORKSPACE, HY_DEVICE, need->rings);
    for (int i = 0; i < count; i++) {
        const state_class *c = &classes[i];
        HY_TRY(c->place == HY_DEVICE
                   ? hy_store_init(c->store, &t->engine.state.device, c->cls, c->layout)
                   : hy_state_take_class(t, c->store, c->cls, c->place, c->layout,
                                         &t->engine.state.pinned, &t->engine.state.rings, &ring));
    }
    return HY_OK;
}
