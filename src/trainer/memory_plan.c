/* memory_plan.c: what the run keeps, where, in which phase, and taking it. See memory_plan.h.
 *
 * The plan is made before anything is taken: batch plans say what passes need, layouts what the state
 * needs. It is written into the ledger, held against the budget, and then taken: on the device the state
 * or the rings it passes through, and the work area of passes; on the host what lives there. Passes of
 * all sizes and types share the work area in turn, and so do the predictor's rings, which lie where
 * training's activations are: who trains has to be done with them (hy_trainer_return_rings). */
#include "trainer/memory_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trainer/planner_run.h"

#define TILE_RING_DEPTH 3 /* one comes, one is used, one goes home */
#define CANDIDATE_DEPTH 3 /* a tied head holds two units while the next is made */

typedef struct needs {
    uint64_t activations, workspace, data; /* of the work area */
    uint64_t eval;                         /* of it, the most that evaluation uses */
    uint64_t kept;                         /* what the predictor keeps */
    hy_place kept_place;
    uint64_t host, disk, staging; /* all that is pinned, on disk, and pinned between the two */
    hy_state_choice choice;
    hy_state_need state;
} needs;

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- counting -------------------------------------------------------------------------------- */

/* Sums over losses and tensors use the same workspace as passes do, in turn with them. */
static uint64_t reduce_workspace(const hy_trainer *t) {
    uint64_t most = hy_adamw_workspace(&t->model->params, t->backend, hy_grad_dtype(t));
    hy_op_call sum = {.kind = HY_OP_SUM}, dot = {.kind = HY_OP_DIFF_DOT};
    sum.t[0] = hy_tensor_1d(NULL, HY_F32, (int64_t)hy_most_rows(t));
    most = larger(most, t->backend->workspace(t->backend, &sum));
    for (int32_t i = 0; i < t->model->params.count; i++) {
        dot.t[0] = hy_tensor_1d(NULL, HY_F32, t->model->params.list[i].count);
        most = larger(most, t->backend->workspace(t->backend, &dot));
    }
    return most;
}

static uint64_t rope_bytes(const hy_trainer *t) {
    if (!t->model->shape.has_rope) return 0;
    return (uint64_t)t->settings.train.seq_len * (uint64_t)t->model->shape.head_size *
           sizeof(float);
}

/* Evaluation takes training's activations and workspace as one, and the predictor's rings lie behind
 * it. */
static void count_work(hy_trainer *t, needs *need) {
    hy_batch_plan *plans[HY_BATCH_PLANS];
    hy_all_batch_plans(t, plans);
    need->activations = hy_align(t->train_bytes.activations);
    need->workspace = t->train_bytes.workspace;
    for (int i = 2; i < HY_BATCH_PLANS; i++) {
        if (!plans[i]) continue;
        const hy_batch_bytes *b = &plans[i]->bytes;
        need->eval = larger(need->eval, hy_align(b->activations) + hy_align(b->workspace));
        t->eval_bytes.activations = larger(t->eval_bytes.activations, hy_align(b->activations));
        t->eval_bytes.workspace = larger(t->eval_bytes.workspace, hy_align(b->workspace));
    }
    if (need->eval + t->ring_bytes > need->activations + need->workspace) {
        need->workspace = need->eval + t->ring_bytes - need->activations;
    }
    need->workspace = hy_align(need->workspace);
    t->train_bytes.activations = need->activations;
    t->train_bytes.workspace = need->workspace;
    int arrays = hy_trainer_has_docs(t) ? 4 : 3; /* of a value for each token */
    need->data = (uint64_t)arrays * hy_align(hy_most_rows(t) * 4) + hy_align(rope_bytes(t)) +
                 4 * hy_align(24) + hy_align(reduce_workspace(t));
}

/* What is live in true steps and not in Predict. A class has one place: where layers keep their
 * activations on the host, what is left of them on the device counts as workspace. */
static void set_step_column(hy_trainer *t, const needs *need) {
    bool is_offloaded = t->train_bytes.host > 0;
    t->step_column =
        (hy_step_column){.place = is_offloaded ? HY_PINNED : HY_DEVICE,
                         .activations = is_offloaded ? t->train_bytes.host : need->activations,
                         .workspace = need->workspace + need->state.step_rings +
                                      (is_offloaded ? need->activations : 0)};
}

static bool needs_candidate(const hy_trainer *t) {
    return hy_predictor_slots(t->predictor.kind) > 0 || t->has_tail;
}

/* One store of what the predictor keeps. */
static void count_tiled(hy_trainer *t, needs *need, const hy_layout *layout) {
    bool is_disk = need->kept_place == HY_DISK;
    need->kept += layout->bytes;
    need->disk += is_disk ? hy_store_disk_bytes(layout) : 0;
    need->staging += is_disk ? hy_store_staging_bytes(layout, HY_DISK_BUFFERS) : 0;
    need->host += is_disk ? 0 : layout->bytes;
    t->ring_bytes += hy_store_ring_bytes(layout, TILE_RING_DEPTH);
}

/* What the predictor keeps, and the rings it passes through. */
static void count_predictor(hy_trainer *t, needs *need) {
    const hy_state_layouts *l = &t->layouts;
    bool is_disk = strcmp(t->settings.memory.predictor_place, "disk") == 0;
    need->kept_place = is_disk ? HY_DISK : HY_PINNED;
    t->ring_bytes = 0;
    for (int i = 0; i < hy_predictor_slots(t->predictor.kind); i++) count_tiled(t, need, &l->slot);
    if (t->has_snapshot) count_tiled(t, need, &l->snapshot);
    if (t->has_tail) count_tiled(t, need, &l->tail);
    if (needs_candidate(t)) t->ring_bytes += hy_store_ring_bytes(&l->candidate, CANDIDATE_DEPTH);
}

/* What a class takes at home. */
static uint64_t at_home(hy_place place, const hy_layout *layout) {
    return place == HY_DISK ? hy_store_disk_bytes(layout) : layout->bytes;
}

/* ---- the placement table --------------------------------------------------------------------- */

static void plan_true_phases(hy_trainer *t, hy_class cls, hy_place place, hy_dtype dtype,
                             uint64_t bytes) {
    static const hy_phase phases[] = {HY_WARMUP, HY_FULL, HY_CORRECT};
    for (int i = 0; i < 3; i++) {
        hy_ledger_plan(&t->ledger, cls, phases[i], bytes ? place : HY_NOWHERE, dtype, bytes);
    }
}

static void plan_all(hy_trainer *t, hy_class cls, hy_place place, hy_dtype dtype, uint64_t bytes) {
    plan_true_phases(t, cls, place, dtype, bytes);
    hy_ledger_plan(&t->ledger, cls, HY_PREDICT, bytes ? place : HY_NOWHERE, dtype, bytes);
}

static void plan_optimizer(hy_trainer *t, hy_place home, uint64_t bytes) {
    hy_place place = HY_DEVICE;
    hy_dtype dtype = hy_optim_dtype(t);
    if (home != HY_DEVICE) {
        plan_all(t, HY_OPTIM, home, dtype, bytes);
        return;
    }
    plan_true_phases(t, HY_OPTIM, HY_DEVICE, dtype, bytes);
    switch (t->offload) {
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
    hy_ledger_plan(&t->ledger, HY_OPTIM, HY_PREDICT, place, dtype, bytes);
}

static void plan_state(hy_trainer *t, const needs *need) {
    const hy_state_layouts *l = &t->layouts;
    const hy_precisions *p = &t->precision;
    const hy_state_choice *c = &need->choice;
    plan_all(t, HY_WEIGHTS, c->weights, p->has_low ? p->low : p->master,
             at_home(c->weights, p->has_low ? &l->low : &l->master));
    plan_all(t, HY_MASTER, c->master, p->master, p->has_low ? at_home(c->master, &l->master) : 0);
    plan_true_phases(t, HY_GRADS, c->grads, hy_grad_dtype(t), at_home(c->grads, &l->grads));
    plan_optimizer(t, c->optim, 2 * at_home(c->optim, &l->optim));
    plan_all(t, HY_PREDICTOR, need->kept_place, p->slots,
             (uint64_t)hy_predictor_slots(t->predictor.kind) * at_home(need->kept_place, &l->slot) +
                 (t->has_tail ? at_home(need->kept_place, &l->tail) : 0));
    plan_all(t, HY_SNAPSHOT, need->kept_place, p->master,
             t->has_snapshot ? at_home(need->kept_place, &l->snapshot) : 0);
}

static void write_plan(hy_trainer *t, const needs *need) {
    hy_dtype work = t->precision.of[HY_FULL], predict = t->precision.of[HY_PREDICT];
    const hy_state_need *state = &need->state;
    plan_state(t, need);
    plan_all(t, HY_DATA, HY_DEVICE, HY_I32, need->data);
    plan_true_phases(t, HY_ACTIVATIONS, t->step_column.place, work, t->step_column.activations);
    plan_true_phases(t, HY_WORKSPACE, HY_DEVICE, work,
                     t->step_column.workspace + state->rings - state->step_rings);
    hy_ledger_plan(&t->ledger, HY_ACTIVATIONS, HY_PREDICT, HY_DEVICE, predict,
                   t->eval_bytes.activations);
    hy_ledger_plan(&t->ledger, HY_WORKSPACE, HY_PREDICT, HY_DEVICE, predict,
                   t->eval_bytes.workspace + t->ring_bytes + state->rings - state->step_rings);
}

/* Predict: no gradients, none of the rings that only steps need; evaluation's activations instead of
 * training's, and the predictor's rings. */
static void change_columns(hy_trainer *t, hy_phase phase) {
    typedef void (*mark)(hy_ledger *, hy_class, hy_place, uint64_t);
    bool is_predict = phase == HY_PREDICT;
    mark of_steps = is_predict ? hy_ledger_give : hy_ledger_take;
    mark of_predict = is_predict ? hy_ledger_take : hy_ledger_give;
    hy_ledger *l = &t->ledger;
    for (int turn = 0; turn < 2; turn++) { /* first give, then enter, then take */
        bool is_steps_turn = (turn == 0) == is_predict;
        if (turn == 1) hy_ledger_enter(l, phase);
        if (is_steps_turn) {
            of_steps(l, HY_GRADS, t->grads.place, at_home(t->grads.place, &t->grads.layout));
            of_steps(l, HY_ACTIVATIONS, t->step_column.place, t->step_column.activations);
            of_steps(l, HY_WORKSPACE, HY_DEVICE, t->step_column.workspace);
        } else {
            of_predict(l, HY_ACTIVATIONS, HY_DEVICE, t->eval_bytes.activations);
            of_predict(l, HY_WORKSPACE, HY_DEVICE, t->eval_bytes.workspace + t->ring_bytes);
        }
    }
}

void hy_trainer_enter_phase(hy_trainer *t, hy_phase phase) {
    bool is_predict = phase == HY_PREDICT;
    if (is_predict != t->is_in_predict) change_columns(t, phase);
    t->is_in_predict = is_predict;
    hy_ledger_enter(&t->ledger, phase);
}

/* ---- taking ---------------------------------------------------------------------------------- */

static hy_status take_tiled(hy_trainer *t, const needs *need, hy_store *store, hy_class cls,
                            const hy_layout *layout) {
    hy_ring_options ring = {.depth = TILE_RING_DEPTH, .copies = {t->copies, t->returns}};
    return hy_state_take_class(t, store, cls, need->kept_place, layout, &t->host_arena,
                               &t->ring_arena, &ring);
}

/* The rings lie behind what evaluation uses of the work area. */
static hy_status take_predictor(hy_trainer *t, const needs *need) {
    const hy_state_layouts *l = &t->layouts;
    int slots = hy_predictor_slots(t->predictor.kind);
    uint64_t host = need->kept_place == HY_DISK ? 0 : need->kept;
    HY_TRY(hy_arena_init(&t->host_arena, t->backend, &t->ledger, HY_PINNED, host,
                         "what the predictor keeps"));
    t->ring_arena = (hy_arena){.backend = t->backend,
                               .ledger = &t->ring_ledger,
                               .place = HY_DEVICE,
                               .data = t->work_arena.data + need->eval,
                               .size = t->ring_bytes};
    for (int i = 0; i < slots; i++) {
        HY_TRY(take_tiled(t, need, &t->slots[i], HY_PREDICTOR, &l->slot));
    }
    if (t->has_snapshot) HY_TRY(take_tiled(t, need, &t->snapshot, HY_SNAPSHOT, &l->snapshot));
    if (t->has_tail) HY_TRY(take_tiled(t, need, &t->tail, HY_PREDICTOR, &l->tail));
    if (!needs_candidate(t)) return HY_OK;
    return hy_store_init_made(&t->candidate, &t->ring_arena, HY_WORKSPACE, &l->candidate,
                              CANDIDATE_DEPTH, hy_candidate_maker, t);
}

/* One file for everything on disk, and the pinned buffers on the way there. */
static hy_status take_disk(hy_trainer *t, const needs *need) {
    const char *folder = t->settings.memory.offload_folder;
    if (need->disk == 0) return HY_OK;
    HY_TRY(hy_arena_init(&t->staging_arena, t->backend, &t->ledger, HY_PINNED, need->staging,
                         "what comes from disk"));
    HY_TRY(hy_spill_open(folder, need->disk, NULL, &t->spill));
    hy_say(t, HY_NOTE, "%s", hy_spill_describe(t->spill));
    return HY_OK;
}

hy_status hy_trainer_return_rings(hy_trainer *t) {
    hy_store *stores[] = {&t->slots[0], &t->slots[1], &t->snapshot, &t->tail, &t->candidate};
    if (!t->rings_are_used) return HY_OK;
    t->rings_are_used = false;
    HY_TRY(t->backend->stream_sync(t->compute));
    double begin = hy_clock();
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        HY_TRY(hy_store_settle(stores[i]));
        hy_store_forget(stores[i]);
    }
    t->host_waited += hy_clock() - begin;
    return HY_OK;
}

static hy_status take_staging(hy_trainer *t, size_t rows) {
    hy_backend *b = t->backend;
    t->staging_rows = rows;
    for (int i = 0; i < 2; i++) {
        hy_staging *s = &t->staging[i];
        HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->tokens, (void **)&s->tokens));
        HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->targets, (void **)&s->targets));
        if (t->buffers.docs) {
            HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->docs, (void **)&s->docs));
        }
        HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->losses, (void **)&s->losses));
        HY_TRY(b->event_create(b, &s->is_done));
    }
    t->guard_losses = malloc(2 * (size_t)hy_guard_sequences(t) * sizeof *t->guard_losses);
    if (!t->guard_losses) return hy_fail(HY_ERR_MEMORY, "no memory for the guard's losses");
    return b->alloc(b, HY_PINNED, sizeof *t->result, (void **)&t->result);
}

void hy_staging_release(hy_trainer *t) {
    hy_backend *b = t->backend;
    size_t bytes = t->staging_rows * sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        hy_staging *s = &t->staging[i];
        void *parts[] = {s->tokens, s->targets, s->docs, s->losses};
        for (int k = 0; k < 4; k++) {
            if (parts[k]) b->release(b, HY_PINNED, parts[k], bytes);
        }
        if (s->is_done) b->event_destroy(s->is_done);
    }
    if (t->result) b->release(b, HY_PINNED, t->result, sizeof *t->result);
}

static hy_status take_buffers(hy_trainer *t) {
    hy_pass_buffers *b = &t->buffers;
    hy_arena *arena = &t->work_arena;
    size_t rows = (size_t)hy_most_rows(t);
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->tokens));
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->targets));
    if (hy_trainer_has_docs(t)) {
        HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->docs));
    }
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->losses));
    HY_TRY(hy_arena_push(arena, HY_DATA, sizeof(double), (void **)&b->loss_sum));
    HY_TRY(hy_arena_push(arena, HY_DATA, sizeof(double), (void **)&b->square_sum));
    HY_TRY(hy_arena_push(arena, HY_DATA, 3 * sizeof(double), (void **)&b->dots));
    HY_TRY(hy_arena_push(arena, HY_DATA, 2 * sizeof(float), (void **)&b->clip));
    if (rope_bytes(t)) HY_TRY(hy_arena_push(arena, HY_DATA, rope_bytes(t), (void **)&b->rope));
    void *reduce;
    uint64_t bytes = reduce_workspace(t);
    HY_TRY(hy_arena_push(arena, HY_DATA, bytes, &reduce));
    b->reduce_workspace = hy_tensor_1d(reduce, HY_U8, (int64_t)bytes);
    return take_staging(t, rows);
}

static hy_status fill_rope_table(hy_trainer *t) {
    size_t bytes = (size_t)rope_bytes(t);
    if (!bytes) return HY_OK;
    float *table = malloc(bytes);
    if (!table) return hy_fail(HY_ERR_MEMORY, "no memory for the rope table");
    hy_shape_rope_table(&t->model->shape, (int32_t)t->settings.train.seq_len, table);
    hy_status status = t->backend->copy(t->compute, t->buffers.rope, table, bytes);
    if (status == HY_OK) status = t->backend->stream_sync(t->compute);
    free(table);
    return status;
}

static const hy_batch_plan *widest_train_plan(const hy_trainer *t) {
    const hy_batch_plan *a = t->train_plan[0], *b = t->train_plan[1];
    return !a ? b : !b ? a : a->bytes.host >= b->bytes.host ? a : b;
}

/* What layers keep on the host, and the ring it passes through: behind the other activations. Plans of
 * both types use it in turn. */
static hy_status take_activations(hy_trainer *t, char *ring) {
    const hy_batch_plan *widest = widest_train_plan(t);
    hy_layout layout = {0};
    if (!widest->options.offloads) return HY_OK;
    hy_arena place = {.backend = t->backend,
                      .ledger = &t->ring_ledger,
                      .place = HY_DEVICE,
                      .data = ring,
                      .size = t->train_bytes.ring};
    HY_TRY(hy_batch_offload_layout(widest, &layout));
    hy_status status = hy_arena_init(&t->activation_arena, t->backend, &t->ledger, HY_PINNED,
                                     layout.bytes, "activations");
    if (status == HY_OK) {
        int32_t depth = widest->options.ring_depth ? widest->options.ring_depth : HY_OFFLOAD_DEPTH;
        status =
            hy_store_init_streamed(&t->activations, &t->activation_arena, &place, HY_ACTIVATIONS,
                                   &layout, depth, &(hy_copies){t->copies, t->returns});
    }
    hy_layout_fini(&layout);
    for (int i = 0; i < 2 && status == HY_OK; i++) {
        if (t->train_plan[i]) hy_batch_plan_offload(t->train_plan[i], &t->activations);
    }
    return status;
}

static hy_status take_work(hy_trainer *t, const needs *need) {
    void *activations, *workspace;
    hy_arena *arena = &t->work_arena;
    hy_batch_plan *plans[HY_BATCH_PLANS];
    uint64_t bytes = need->activations + need->workspace + need->data;
    HY_TRY(hy_arena_init(arena, t->backend, &t->ledger, HY_DEVICE, bytes,
                         "activations and workspace"));
    bool is_offloaded = t->train_bytes.host > 0;
    HY_TRY(hy_arena_push(arena, is_offloaded ? HY_WORKSPACE : HY_ACTIVATIONS, need->activations,
                         &activations));
    HY_TRY(hy_arena_push(arena, HY_WORKSPACE, need->workspace, &workspace));
    hy_all_batch_plans(t, plans);
    for (int i = 0; i < HY_BATCH_PLANS; i++) {
        if (!plans[i]) continue;
        bool is_training = plans[i]->options.is_training;
        char *after = (char *)activations + hy_align(plans[i]->bytes.activations);
        hy_batch_plan_place(plans[i], activations, is_training ? workspace : after);
    }
    HY_TRY(take_activations(t, (char *)activations + need->activations - t->train_bytes.ring));
    HY_TRY(take_buffers(t));
    return fill_rope_table(t);
}

static hy_status take_offload(hy_trainer *t) {
    uint64_t bytes = 2 * t->layouts.optim.bytes;
    if (t->offload != HY_OFFLOAD_CPU && t->offload != HY_OFFLOAD_PINNED) return HY_OK;
    hy_place place = t->offload == HY_OFFLOAD_CPU ? HY_HOST : HY_PINNED;
    return t->backend->alloc(t->backend, place, bytes, (void **)&t->optim_host);
}

static hy_status take_all(hy_trainer *t, const needs *need) {
    HY_TRY(take_disk(t, need));
    HY_TRY(hy_state_take(t, &need->choice, &need->state));
    HY_TRY(take_work(t, need));
    HY_TRY(take_predictor(t, need));
    return take_offload(t);
}

/* ---- the whole --------------------------------------------------------------------------------- */

static uint64_t checkpoint_bytes(const hy_trainer *t) {
    const hy_state_layouts *l = &t->layouts;
    return l->master.bytes + 2 * l->optim.bytes + t->has_tail * l->tail.bytes +
           (uint64_t)hy_predictor_slots(t->predictor.kind) * l->slot.bytes;
}

static hy_status check_and_take(hy_trainer *t, const needs *need) {
    uint64_t work = need->activations + need->workspace + need->data;
    bool moves = t->offload == HY_OFFLOAD_CPU || t->offload == HY_OFFLOAD_PINNED;
    uint64_t moved = moves ? 2 * t->layouts.optim.bytes : 0;
    uint64_t device = need->state.device + need->state.rings + work;
    uint64_t host = need->host + need->staging;
    hy_status status = hy_trainer_check_budget(t, device, host, moved);
    if (status == HY_OK) status = hy_trainer_check_disk(t, need->disk);
    t->host_bytes = host + moved;
    t->plan.fits = status == HY_OK;
    t->plan.vram_bytes = device;
    t->plan.disk_bytes = need->disk;
    t->plan.host_fork_bytes = hy_fork_plan_bytes(t);
    hy_trainer_plan_data(t, &t->plan);
    t->plan.host_pinned_bytes = host + (t->offload == HY_OFFLOAD_PINNED ? moved : 0);
    if (!t->is_plan) {
        HY_TRY(status);
        return take_all(t, need);
    }
    if (status != HY_OK)
        snprintf(t->plan_problem, sizeof t->plan_problem, "%s", hy_error_message());
    t->checkpoint_bytes = checkpoint_bytes(t);
    return HY_OK;
}

/* Updates wait for the next step where something has to be brought for them. */
static bool chooses_gather(const hy_trainer *t, const hy_state_choice *c) {
    const char *asked = t->settings.memory.update;
    if (strcmp(asked, "auto") != 0) return strcmp(asked, "gather") == 0;
    bool has_low = t->precision.has_low;
    return c->weights != HY_DEVICE || c->grads != HY_DEVICE || c->optim != HY_DEVICE ||
           (has_low && c->master != HY_DEVICE);
}

hy_status hy_trainer_take_memory(hy_trainer *t) {
    needs need = {0};
    hy_state_resolve_paging(&t->settings);
    HY_TRY(hy_state_lay_out(t));
    HY_TRY(hy_trainer_choose_plan(t));
    HY_TRY(hy_make_batch_plans(t));
    HY_TRY(hy_offload_check(t, &t->layouts.grads, &t->layouts.optim));
    need.choice = hy_state_choice_of(&t->settings);
    t->updates_on_gather = chooses_gather(t, &need.choice);
    t->optim_bytes = 2 * t->layouts.optim.bytes;
    hy_state_count(t, &need.choice, &need.state);
    need.disk = need.state.disk;
    need.staging = need.state.staging;
    need.host = need.state.pinned + t->train_bytes.host;
    count_predictor(t, &need);
    count_work(t, &need);
    set_step_column(t, &need);
    write_plan(t, &need);
    return check_and_take(t, &need);
}

/* One line where something does not simply lie on the device; --plan has the reasons. */
void hy_trainer_tell_plan(const hy_trainer *t) {
    const hy_settings *s = &t->settings;
    hy_state_choice c = hy_state_choice_of(s);
    bool is_plain = c.weights == HY_DEVICE && c.grads == HY_DEVICE && c.optim == HY_DEVICE &&
                    (!t->precision.has_low || c.master == HY_DEVICE) && t->train_bytes.host == 0;
    if (is_plain) return;
    hy_say(
        t, HY_NOTE,
        "plan: weights on %s, gradients on %s, m and v on %s, activations on %s; micro-batches of "
        "%lld x %lld, %lld in a step; recompute %s; about %.0f tokens/s (--plan says why)",
        hy_place_name(c.weights), hy_place_name(c.grads), hy_place_name(c.optim),
        hy_place_name(t->step_column.place), (long long)s->train.batch_size,
        (long long)s->train.seq_len, (long long)s->train.grad_accum_steps, s->train.recompute,
        t->plan.tokens_per_second);
}
