/* memory_plan.c: what the run keeps, where, in which phase, and taking it. See trainer.h.
 *
 * The plan is made before anything is taken: batch plans say what passes need, layouts what the state
 * needs. It is written into the ledger, held against the budget, and then taken: on the device the state
 * (weights, gradients, optimizer), the work of passes and the rings of the predictor; on the host what
 * the predictor keeps. Passes of all sizes and types share the work area in turn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "trainer/trainer.h"

#define RING_DEPTH 2
#define STATE_RING_DEPTH 3    /* one comes, one is used, one goes home; a tied head uses two */
#define CANDIDATE_DEPTH 3     /* a tied head holds two units while the next is made */
#define LARGEST_EVAL_FACTOR 8 /* evaluation batches grow at most to this many training batches */
#define BUSY_ROWS (1 << 16)   /* tokens that keep any GPU busy */

/* A class of the run's state: weights, master, gradients, m, v. */
typedef struct state_class {
    hy_store *store;
    hy_class cls;
    hy_place place;
    const hy_layout *layout;
} state_class;

#define STATE_CLASSES 5

typedef struct needs {
    uint64_t activations, workspace, logits, data; /* of the work area */
    uint64_t state, home, host; /* of the run on the device and pinned; of the predictor */
    hy_layout low, full;        /* weights: 16 bits, fp32 */
    hy_layout grads, optim;     /* gradients; m, and v is like it */
} needs;

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- batch plans ----------------------------------------------------------------------------- */

static int recompute_groups(const char *name) {
    if (strcmp(name, "norm") == 0) return HY_KEEP_CHEAP;
    if (strcmp(name, "attention") == 0) return HY_KEEP_CHEAP | HY_KEEP_ATTENTION;
    if (strcmp(name, "mlp") == 0) return HY_KEEP_CHEAP | HY_KEEP_MLP;
    if (strcmp(name, "all") == 0) return HY_KEEP_ALL;
    return 0;
}

static hy_dtype grad_dtype(const hy_trainer *t) {
    return strcmp(t->settings.train.grad_dtype, "bf16") == 0 ? HY_BF16 : HY_F32;
}

static hy_dtype optim_dtype(const hy_trainer *t) {
    const char *name = t->settings.optimizer.optim_dtype;
    bool is_8bit = strcmp(t->settings.optimizer.optimizer, "adamw8bit") == 0;
    if (strcmp(name, "bf16") == 0) return HY_BF16;
    if (strcmp(name, "8bit") == 0) return HY_U8;
    return strcmp(name, "auto") == 0 && is_8bit ? HY_U8 : HY_F32;
}

static hy_batch_options base_options(const hy_trainer *t, hy_dtype dtype) {
    const hy_settings *s = &t->settings;
    return (hy_batch_options){.batch = (int32_t)s->train.batch_size,
                              .seq = (int32_t)s->train.seq_len,
                              .chunks = (int32_t)s->train.loss_chunks,
                              .dtype = dtype,
                              .grad_dtype = grad_dtype(t),
                              .recompute = recompute_groups(s->train.recompute)};
}

static hy_status make_train_plans(hy_trainer *t) {
    for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
        hy_dtype dtype = t->precision.of[phase];
        hy_batch_plan **plan = &t->train_plan[hy_plan_index(dtype)];
        if (phase == HY_PREDICT || *plan) continue;
        hy_batch_options options = base_options(t, dtype);
        options.is_training = true;
        HY_TRY(hy_batch_plan_create(t->model, t->backend, &options, plan));
        t->train_bytes.activations = larger(t->train_bytes.activations, (*plan)->bytes.activations);
        t->train_bytes.workspace = larger(t->train_bytes.workspace, (*plan)->bytes.workspace);
        t->train_bytes.logits = larger(t->train_bytes.logits, (*plan)->bytes.logits);
    }
    return HY_OK;
}

/* How many training batches an evaluation batch may hold. A GPU is busy with enough rows, and larger
 * plans would only make it time more products. */
static int largest_eval_factor(const hy_trainer *t) {
    int64_t rows = t->settings.train.batch_size * t->settings.train.seq_len;
    int64_t most = t->backend->facts.is_gpu ? BUSY_ROWS : INT32_MAX;
    int factor = LARGEST_EVAL_FACTOR;
    while (factor > 1 && factor * rows > most) factor /= 2;
    return factor;
}

/* Forward-only passes have the room that training has: the largest batch that fits there. */
static hy_status make_eval_plan(hy_trainer *t, hy_dtype dtype) {
    hy_batch_plan **plan = &t->eval_plan[hy_plan_index(dtype)];
    uint64_t room = t->train_bytes.activations + t->train_bytes.workspace;
    hy_batch_options options = base_options(t, dtype);
    if (*plan) return HY_OK;
    if (t->settings.eval.eval_batch_size) {
        options.batch = (int32_t)t->settings.eval.eval_batch_size;
        return hy_batch_plan_create(t->model, t->backend, &options, plan);
    }
    for (int factor = largest_eval_factor(t);; factor /= 2) {
        options.batch = (int32_t)t->settings.train.batch_size * factor;
        HY_TRY(hy_batch_plan_create(t->model, t->backend, &options, plan));
        if (factor == 1 || (*plan)->bytes.activations + (*plan)->bytes.workspace <= room) break;
        hy_batch_plan_destroy(*plan);
        *plan = NULL;
    }
    return HY_OK;
}

uint64_t hy_guard_sequences(const hy_trainer *t) {
    const hy_settings *s = &t->settings;
    double step = (double)(s->train.batch_size * s->train.grad_accum_steps);
    double wanted = floor(s->phases.guard_share * step + 0.5);
    return wanted < 2 ? 2 : (uint64_t)wanted; /* two at least, or the noise cannot be seen */
}

static hy_status make_guard_plan(hy_trainer *t, hy_dtype dtype) {
    hy_batch_plan **plan = &t->guard_plan[hy_plan_index(dtype)];
    int32_t most = t->eval_plan[hy_plan_index(dtype)]->size.batch;
    uint64_t wanted = hy_guard_sequences(t);
    hy_batch_options options = base_options(t, dtype);
    if (*plan) return HY_OK;
    options.batch = wanted < (uint64_t)most ? (int32_t)wanted : most;
    return hy_batch_plan_create(t->model, t->backend, &options, plan);
}

static hy_status make_sample_plan(hy_trainer *t) {
    const hy_settings *s = &t->settings;
    int64_t wanted = s->eval.sample_tokens + (int64_t)strlen(s->eval.prompt) + 1;
    hy_batch_options options = base_options(t, t->precision.of[HY_FULL]);
    options.batch = 1;
    options.seq = (int32_t)(wanted < s->train.seq_len ? wanted : s->train.seq_len);
    options.chunks = options.seq; /* one row of logits at a time */
    return hy_batch_plan_create(t->model, t->backend, &options, &t->sample_plan);
}

static hy_status make_plans(hy_trainer *t) {
    HY_TRY(make_train_plans(t));
    HY_TRY(make_eval_plan(t, t->precision.of[HY_FULL]));
    HY_TRY(make_eval_plan(t, t->precision.of[HY_PREDICT]));
    HY_TRY(make_guard_plan(t, t->precision.of[HY_PREDICT]));
    return make_sample_plan(t);
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Every plan there is, up to eight; NULL where there is none. */
static void all_plans(const hy_trainer *t, hy_batch_plan *plans[8]) {
    hy_batch_plan *list[8] = {t->train_plan[0], t->train_plan[1], t->eval_plan[0], t->eval_plan[1],
                              t->guard_plan[0], t->guard_plan[1], t->sample_plan,  NULL};
    memcpy(plans, list, sizeof list);
}

static uint64_t most_rows(const hy_trainer *t) {
    hy_batch_plan *plans[8];
    uint64_t rows = 0;
    all_plans(t, plans);
    for (int i = 0; i < 7; i++) {
        if (!plans[i]) continue;
        rows = larger(rows, (uint64_t)plans[i]->size.batch * (uint64_t)plans[i]->size.seq);
    }
    return rows;
}

/* Sums over losses and tensors use the same workspace as passes do, in turn with them. */
static uint64_t reduce_workspace(const hy_trainer *t) {
    uint64_t most = hy_adamw_workspace(&t->model->params, t->backend, grad_dtype(t));
    hy_op_call sum = {.kind = HY_OP_SUM}, dot = {.kind = HY_OP_DIFF_DOT};
    sum.t[0] = hy_tensor_1d(NULL, HY_F32, (int64_t)most_rows(t));
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

/* The work area: training's shape, and evaluation may take training's activations and workspace as
 * one. */
static void count_work(hy_trainer *t, needs *need) {
    hy_batch_plan *plans[8];
    all_plans(t, plans);
    need->activations = t->train_bytes.activations;
    need->workspace = larger(t->train_bytes.workspace, reduce_workspace(t));
    need->logits = t->train_bytes.logits;
    for (int i = 2; i < 7; i++) {
        if (!plans[i]) continue;
        const hy_batch_bytes *b = &plans[i]->bytes;
        uint64_t room = need->activations + need->workspace;
        if (b->activations + b->workspace > room) {
            need->workspace += b->activations + b->workspace - room;
        }
        need->logits = larger(need->logits, b->logits);
        t->eval_bytes.activations = larger(t->eval_bytes.activations, b->activations);
        t->eval_bytes.workspace = larger(t->eval_bytes.workspace, b->workspace);
    }
    need->activations = hy_align(need->activations);
    need->workspace = hy_align(need->workspace);
    need->logits = hy_align(need->logits);
    t->train_bytes.activations = need->activations;
    t->train_bytes.workspace = need->workspace;
    t->eval_bytes.activations = hy_align(t->eval_bytes.activations);
    t->eval_bytes.workspace = hy_align(larger(t->eval_bytes.workspace, reduce_workspace(t)));
    need->data = 3 * hy_align(most_rows(t) * 4) + hy_align(rope_bytes(t)) + 4 * hy_align(24);
}

static int host_copies(const hy_trainer *t) {
    return hy_predictor_slots(t->predictor.kind) + t->has_snapshot + t->has_tail;
}

static hy_place place_of(const char *name) {
    return strcmp(name, "pinned") == 0 ? HY_PINNED : HY_DEVICE;
}

/* The weights that passes use come last among the two, so a plan reads master, weights, gradients. */
static int list_state(hy_trainer *t, const needs *need, state_class out[STATE_CLASSES]) {
    bool has_low = t->precision.has_low;
    const hy_settings *s = &t->settings;
    hy_place weights = place_of(s->memory.weights_place), master = place_of(s->memory.master_place);
    hy_place optim = place_of(s->memory.optim_place);
    int count = 0;
    out[count++] = (state_class){&t->weights, has_low ? HY_MASTER : HY_WEIGHTS,
                                 has_low ? master : weights, &need->full};
    if (has_low) out[count++] = (state_class){&t->low, HY_WEIGHTS, weights, &need->low};
    out[count++] =
        (state_class){&t->grads, HY_GRADS, place_of(s->memory.grads_place), &need->grads};
    out[count++] = (state_class){&t->m, HY_OPTIM, optim, &need->optim};
    out[count++] = (state_class){&t->v, HY_OPTIM, optim, &need->optim};
    return count;
}

static void count_state(hy_trainer *t, needs *need) {
    state_class classes[STATE_CLASSES];
    int count = list_state(t, need, classes);
    for (int i = 0; i < count; i++) {
        const state_class *c = &classes[i];
        bool is_here = c->place == HY_DEVICE;
        need->state += is_here ? c->layout->bytes : 0;
        need->home += is_here ? 0 : c->layout->bytes;
        t->state_ring_bytes += is_here ? 0 : hy_store_ring_bytes(c->layout, STATE_RING_DEPTH);
    }
    need->host = (uint64_t)host_copies(t) * need->full.bytes;
    t->ring_bytes = (uint64_t)host_copies(t) * hy_store_ring_bytes(&need->full, RING_DEPTH);
    bool needs_candidate = hy_predictor_slots(t->predictor.kind) > 0 || t->has_tail;
    if (needs_candidate) t->ring_bytes += hy_store_ring_bytes(&need->full, CANDIDATE_DEPTH);
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

static void plan_optimizer(hy_trainer *t, uint64_t bytes) {
    hy_place place = HY_DEVICE;
    hy_dtype dtype = optim_dtype(t);
    if (place_of(t->settings.memory.optim_place) != HY_DEVICE) {
        plan_all(t, HY_OPTIM, HY_PINNED, dtype, bytes);
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

static void write_plan(hy_trainer *t, const needs *need) {
    uint64_t full = need->full.bytes;
    bool has_low = t->precision.has_low;
    hy_dtype work = t->precision.of[HY_FULL];
    const hy_settings *s = &t->settings;
    plan_all(t, HY_WEIGHTS, place_of(s->memory.weights_place), has_low ? t->precision.low : HY_F32,
             has_low ? need->low.bytes : full);
    plan_all(t, HY_MASTER, place_of(s->memory.master_place), HY_F32, has_low ? full : 0);
    plan_all(t, HY_PREDICTOR, HY_PINNED, HY_F32,
             (uint64_t)(hy_predictor_slots(t->predictor.kind) + t->has_tail) * full);
    plan_all(t, HY_SNAPSHOT, HY_PINNED, HY_F32, t->has_snapshot ? full : 0);
    plan_all(t, HY_LOGITS, HY_DEVICE, work, need->logits);
    plan_all(t, HY_DATA, HY_DEVICE, HY_I32, need->data);
    plan_true_phases(t, HY_GRADS, place_of(s->memory.grads_place), grad_dtype(t),
                     need->grads.bytes);
    plan_true_phases(t, HY_ACTIVATIONS, HY_DEVICE, work, t->train_bytes.activations);
    plan_true_phases(t, HY_WORKSPACE, HY_DEVICE, work,
                     t->train_bytes.workspace + t->state_ring_bytes);
    plan_optimizer(t, 2 * need->optim.bytes);
    work = t->precision.of[HY_PREDICT];
    hy_ledger_plan(&t->ledger, HY_ACTIVATIONS, HY_PREDICT, HY_DEVICE, work,
                   t->eval_bytes.activations);
    hy_ledger_plan(&t->ledger, HY_WORKSPACE, HY_PREDICT, HY_DEVICE, work,
                   t->eval_bytes.workspace + t->ring_bytes + t->state_ring_bytes);
}

void hy_trainer_enter_phase(hy_trainer *t, hy_phase phase) {
    hy_ledger *l = &t->ledger;
    uint64_t grads = t->grads.layout.bytes;
    bool is_predict = phase == HY_PREDICT;
    if (is_predict && !t->is_in_predict) {
        hy_ledger_give(l, HY_GRADS, t->grads.place, grads);
        hy_ledger_give(l, HY_ACTIVATIONS, HY_DEVICE, t->train_bytes.activations);
        hy_ledger_give(l, HY_WORKSPACE, HY_DEVICE, t->train_bytes.workspace);
        hy_ledger_enter(l, phase);
        hy_ledger_take(l, HY_ACTIVATIONS, HY_DEVICE, t->eval_bytes.activations);
        hy_ledger_take(l, HY_WORKSPACE, HY_DEVICE, t->eval_bytes.workspace + t->ring_bytes);
    } else if (!is_predict && t->is_in_predict) {
        hy_ledger_give(l, HY_ACTIVATIONS, HY_DEVICE, t->eval_bytes.activations);
        hy_ledger_give(l, HY_WORKSPACE, HY_DEVICE, t->eval_bytes.workspace + t->ring_bytes);
        hy_ledger_enter(l, phase);
        hy_ledger_take(l, HY_GRADS, t->grads.place, grads);
        hy_ledger_take(l, HY_ACTIVATIONS, HY_DEVICE, t->train_bytes.activations);
        hy_ledger_take(l, HY_WORKSPACE, HY_DEVICE, t->train_bytes.workspace);
    }
    t->is_in_predict = is_predict;
    hy_ledger_enter(l, phase);
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Rings count as workspace: a class has one place. */
static hy_status take_state(hy_trainer *t, const needs *need) {
    state_class classes[STATE_CLASSES];
    int count = list_state(t, need, classes);
    hy_copies copies = {t->copies, t->returns};
    HY_TRY(hy_arena_init(&t->state_arena, t->backend, &t->ledger, HY_DEVICE, need->state,
                         "weights, gradients and optimizer state"));
    HY_TRY(hy_arena_init(&t->home_arena, t->backend, &t->ledger, HY_PINNED, need->home,
                         "weights, gradients and optimizer state on the host"));
    HY_TRY(hy_arena_init(&t->state_ring_arena, t->backend, &t->ring_ledger, HY_DEVICE,
                         t->state_ring_bytes, "the rings that they pass through"));
    hy_ledger_take(&t->ledger, HY_WORKSPACE, HY_DEVICE, t->state_ring_bytes);
    for (int i = 0; i < count; i++) {
        const state_class *c = &classes[i];
        HY_TRY(c->place == HY_DEVICE
                   ? hy_store_init(c->store, &t->state_arena, c->cls, c->layout)
                   : hy_store_init_streamed(c->store, &t->home_arena, &t->state_ring_arena, c->cls,
                                            c->layout, STATE_RING_DEPTH, &copies));
    }
    return HY_OK;
}

static hy_status take_host_store(hy_trainer *t, hy_store *store, hy_class cls, const needs *need) {
    return hy_store_init_streamed(store, &t->host_arena, &t->ring_arena, cls, &need->full,
                                  RING_DEPTH, &(hy_copies){t->copies, t->returns});
}

static hy_status take_predictor(hy_trainer *t, const needs *need) {
    int slots = hy_predictor_slots(t->predictor.kind);
    HY_TRY(hy_arena_init(&t->host_arena, t->backend, &t->ledger, HY_PINNED, need->host,
                         "what the predictor keeps"));
    HY_TRY(hy_arena_init(&t->ring_arena, t->backend, &t->ring_ledger, HY_DEVICE, t->ring_bytes,
                         "the predictor's rings"));
    for (int i = 0; i < slots; i++) {
        HY_TRY(take_host_store(t, &t->slots[i], HY_PREDICTOR, need));
    }
    if (t->has_snapshot) HY_TRY(take_host_store(t, &t->snapshot, HY_SNAPSHOT, need));
    if (t->has_tail) HY_TRY(take_host_store(t, &t->tail, HY_PREDICTOR, need));
    if (slots == 0 && !t->has_tail) return HY_OK;
    return hy_store_init_made(&t->candidate, &t->ring_arena, HY_WORKSPACE, &need->full,
                              CANDIDATE_DEPTH, hy_candidate_maker, t);
}

static hy_status take_staging(hy_trainer *t, size_t rows) {
    hy_backend *b = t->backend;
    t->staging_rows = rows;
    for (int i = 0; i < 2; i++) {
        hy_staging *s = &t->staging[i];
        HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->tokens, (void **)&s->tokens));
        HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->targets, (void **)&s->targets));
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
        void *parts[] = {s->tokens, s->targets, s->losses};
        for (int k = 0; k < 3; k++) {
            if (parts[k]) b->release(b, HY_PINNED, parts[k], bytes);
        }
        if (s->is_done) b->event_destroy(s->is_done);
    }
    if (t->result) b->release(b, HY_PINNED, t->result, sizeof *t->result);
}

static hy_status take_buffers(hy_trainer *t) {
    hy_pass_buffers *b = &t->buffers;
    hy_arena *arena = &t->work_arena;
    size_t rows = (size_t)most_rows(t);
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->tokens));
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->targets));
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->losses));
    HY_TRY(hy_arena_push(arena, HY_DATA, sizeof(double), (void **)&b->loss_sum));
    HY_TRY(hy_arena_push(arena, HY_DATA, sizeof(double), (void **)&b->square_sum));
    HY_TRY(hy_arena_push(arena, HY_DATA, 3 * sizeof(double), (void **)&b->dots));
    HY_TRY(hy_arena_push(arena, HY_DATA, 2 * sizeof(float), (void **)&b->clip));
    if (rope_bytes(t)) HY_TRY(hy_arena_push(arena, HY_DATA, rope_bytes(t), (void **)&b->rope));
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

static hy_status take_work(hy_trainer *t, const needs *need) {
    void *activations, *workspace, *logits;
    hy_arena *arena = &t->work_arena;
    hy_batch_plan *plans[8];
    uint64_t bytes = need->activations + need->workspace + need->logits + need->data;
    HY_TRY(hy_arena_init(arena, t->backend, &t->ledger, HY_DEVICE, bytes,
                         "activations and workspace"));
    HY_TRY(hy_arena_push(arena, HY_ACTIVATIONS, need->activations, &activations));
    HY_TRY(hy_arena_push(arena, HY_WORKSPACE, need->workspace, &workspace));
    HY_TRY(hy_arena_push(arena, HY_LOGITS, need->logits, &logits));
    all_plans(t, plans);
    for (int i = 0; i < 7; i++) {
        if (!plans[i]) continue;
        bool is_training = plans[i]->options.is_training;
        char *after = (char *)activations + hy_align(plans[i]->bytes.activations);
        hy_batch_plan_place(plans[i], activations, is_training ? workspace : after, logits);
    }
    t->buffers.reduce_workspace = hy_tensor_1d(workspace, HY_U8, (int64_t)need->workspace);
    HY_TRY(take_buffers(t));
    return fill_rope_table(t);
}

static hy_status take_offload(hy_trainer *t, const needs *need) {
    uint64_t bytes = 2 * need->optim.bytes;
    if (t->offload != HY_OFFLOAD_CPU && t->offload != HY_OFFLOAD_PINNED) return HY_OK;
    hy_place place = t->offload == HY_OFFLOAD_CPU ? HY_HOST : HY_PINNED;
    return t->backend->alloc(t->backend, place, bytes, (void **)&t->optim_host);
}

static uint64_t pinned_part(const hy_trainer *t, uint64_t moved) {
    return t->offload == HY_OFFLOAD_PINNED ? moved : 0;
}

static hy_status take_all(hy_trainer *t, needs *need) {
    count_work(t, need);
    count_state(t, need);
    write_plan(t, need);
    uint64_t work = need->activations + need->workspace + need->logits + need->data;
    uint64_t moved =
        t->offload == HY_OFFLOAD_CPU || t->offload == HY_OFFLOAD_PINNED ? 2 * need->optim.bytes : 0;
    uint64_t device = need->state + work + t->ring_bytes + t->state_ring_bytes;
    hy_status status = hy_trainer_check_budget(t, device, need->host + need->home, moved);
    t->optim_bytes = 2 * need->optim.bytes;
    t->plan = (hy_plan_facts){.fits = status == HY_OK,
                              .vram_bytes = device,
                              .host_pinned_bytes = need->host + need->home + pinned_part(t, moved)};
    if (t->is_plan) {
        if (status != HY_OK)
            snprintf(t->plan_problem, sizeof t->plan_problem, "%s", hy_error_message());
        t->checkpoint_bytes =
            need->full.bytes * (1 + (uint64_t)(host_copies(t) - t->has_snapshot)) + t->optim_bytes;
        return HY_OK;
    }
    HY_TRY(status);
    HY_TRY(take_state(t, need));
    HY_TRY(take_predictor(t, need));
    HY_TRY(take_offload(t, need));
    return take_work(t, need);
}

static hy_status lay_out(const hy_trainer *t, needs *need) {
    const hy_params *params = &t->model->params;
    HY_TRY(hy_params_layout(params, t->precision.low, &need->low));
    HY_TRY(hy_params_layout(params, HY_F32, &need->full));
    HY_TRY(hy_params_layout(params, grad_dtype(t), &need->grads));
    return hy_params_layout(params, optim_dtype(t), &need->optim);
}

hy_status hy_trainer_take_memory(hy_trainer *t) {
    needs need = {0};
    HY_TRY(make_plans(t));
    hy_status status = lay_out(t, &need);
    if (status == HY_OK) status = hy_offload_check(t, &need.grads, &need.optim);
    if (status == HY_OK) status = take_all(t, &need);
    hy_layout_fini(&need.low);
    hy_layout_fini(&need.full);
    hy_layout_fini(&need.grads);
    hy_layout_fini(&need.optim);
    return status;
}
