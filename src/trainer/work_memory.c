/* work_memory.c: where passes work: activations, workspace and buffers in one area. See memory_plan.h.
 *
 * Passes of all sizes and types use the area in turn, and so do the predictor's rings, which lie behind
 * what evaluation uses. It holds nothing that outlives a step, so that it can be given back and taken
 * anew between steps for micro-batches of another size. */
#include <stdlib.h>

#include "base/error.h"
#include "trainer/memory_plan.h"

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- counting ---------------------------------------------------------------------------------- */

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

uint64_t hy_rope_bytes(const hy_trainer *t) {
    if (!t->model->shape.has_rope) return 0;
    return (uint64_t)t->settings.train.seq_len * (uint64_t)t->model->shape.head_size *
           sizeof(float);
}

/* What is live in true steps and not in Predict. A class has one place: where layers keep their
 * activations on the host, what is left of them on the device counts as workspace. */
static void set_step_column(hy_trainer *t) {
    const hy_memory_needs *need = &t->needs;
    bool is_offloaded = t->train_bytes.host > 0;
    t->step_column =
        (hy_step_column){.place = is_offloaded ? HY_PINNED : HY_DEVICE,
                         .activations = is_offloaded ? t->train_bytes.host : need->activations,
                         .workspace = need->workspace + need->state.step_rings +
                                      (is_offloaded ? need->activations : 0)};
}

/* Evaluation takes training's activations and workspace as one, and the predictor's rings lie behind
 * it. */
void hy_count_work(hy_trainer *t) {
    hy_memory_needs *need = &t->needs;
    hy_batch_plan *plans[HY_BATCH_PLANS];
    hy_all_batch_plans(t, plans);
    need->eval = 0;
    t->eval_bytes = (hy_batch_bytes){0};
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
    need->data = (uint64_t)arrays * hy_align(hy_most_rows(t) * 4) + hy_align(hy_rope_bytes(t)) +
                 4 * hy_align(24) + hy_align(reduce_workspace(t));
    set_step_column(t);
}

/* ---- taking ------------------------------------------------------------------------------------ */

hy_status hy_take_staging(hy_trainer *t, size_t rows) {
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
    return HY_OK;
}

/* What a training pass brings back to the host. */
static hy_status take_results(hy_trainer *t) {
    hy_backend *b = t->backend;
    t->guard_losses = malloc(2 * (size_t)hy_guard_sequences(t) * sizeof *t->guard_losses);
    if (!t->guard_losses) return hy_fail(HY_ERR_MEMORY, "no memory for the guard's losses");
    return b->alloc(b, HY_PINNED, sizeof *t->result, (void **)&t->result);
}

static void release_staging_and_results(hy_trainer *t) {
    hy_backend *b = t->backend;
    size_t bytes = t->staging_rows * sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        hy_staging *s = &t->staging[i];
        void *parts[] = {s->tokens, s->targets, s->docs, s->losses};
        for (int k = 0; k < 4; k++) {
            if (parts[k]) b->release(b, HY_PINNED, parts[k], bytes);
        }
        if (s->is_done) b->event_destroy(s->is_done);
        *s = (hy_staging){0};
    }
    if (t->result) b->release(b, HY_PINNED, t->result, sizeof *t->result);
    t->result = NULL;
    free(t->guard_losses);
    t->guard_losses = NULL;
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
    if (hy_rope_bytes(t))
        HY_TRY(hy_arena_push(arena, HY_DATA, hy_rope_bytes(t), (void **)&b->rope));
    void *reduce;
    uint64_t bytes = reduce_workspace(t);
    HY_TRY(hy_arena_push(arena, HY_DATA, bytes, &reduce));
    b->reduce_workspace = hy_tensor_1d(reduce, HY_U8, (int64_t)bytes);
    HY_TRY(hy_take_staging(t, rows));
    return take_results(t);
}

hy_status hy_fill_rope_table(hy_trainer *t) {
    size_t bytes = (size_t)hy_rope_bytes(t);
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

hy_status hy_take_work(hy_trainer *t) {
    const hy_memory_needs *need = &t->needs;
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
    return hy_fill_rope_table(t);
}

char *hy_predictor_rings(const hy_trainer *t) { return t->work_arena.data + t->needs.eval; }

void hy_give_work(hy_trainer *t) {
    const hy_memory_needs *need = &t->needs;
    bool is_offloaded = t->train_bytes.host > 0;
    uint64_t data = t->work_arena.used - need->activations - need->workspace;
    hy_ledger_give(&t->ledger, is_offloaded ? HY_WORKSPACE : HY_ACTIVATIONS, HY_DEVICE,
                   need->activations);
    hy_ledger_give(&t->ledger, HY_WORKSPACE, HY_DEVICE, need->workspace);
    hy_ledger_give(&t->ledger, HY_DATA, HY_DEVICE, data);
    if (is_offloaded) {
        hy_ledger_give(&t->ledger, HY_ACTIVATIONS, HY_PINNED, t->activation_arena.used);
    }
}

void hy_release_work(hy_trainer *t) {
    hy_store_fini(&t->activations);
    release_staging_and_results(t);
    hy_arena_fini(&t->activation_arena);
    hy_arena_fini(&t->work_arena);
    t->buffers = (hy_pass_buffers){0};
}
