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
    uint64_t most = hy_optimizer_workspace(&t->engine.update.optimizer, &t->engine.model->params,
                                           t->engine.backend, t->settings.train.grad_dtype);
    hy_op_call sum = {.kind = HY_OP_SUM}, dot = {.kind = HY_OP_DIFF_DOT};
    sum.t[HY_REDUCE_X] = hy_tensor_1d(NULL, HY_F32, (int64_t)hy_most_rows(t));
    most = larger(most, t->engine.backend->workspace(t->engine.backend, &sum));
    for (int32_t i = 0; i < t->engine.model->params.count; i++) {
        dot.t[HY_DIFF_DOT_A] = hy_tensor_1d(NULL, HY_F32, t->engine.model->params.list[i].count);
        most = larger(most, t->engine.backend->workspace(t->engine.backend, &dot));
    }
    return most;
}

uint64_t hy_rope_bytes(const hy_trainer *t) {
    if (!t->engine.model->shape.has_rope) return 0;
    return (uint64_t)t->settings.train.seq_len * (uint64_t)t->engine.model->shape.head_size *
           sizeof(float);
}

/* What is live in true steps and not in Predict. A class has one place: where layers keep their
 * activations on the host, what is left of them on the device counts as workspace. */
static void set_step_column(hy_trainer *t) {
    const hy_memory_needs *need = &t->engine.needs;
    bool is_offloaded = t->engine.work.train_bytes.host > 0;
    t->engine.work.column = (hy_step_column){
        .place = is_offloaded ? HY_PINNED : HY_DEVICE,
        .activations = is_offloaded ? t->engine.work.train_bytes.host : need->activations,
        .workspace =
            need->workspace + need->state.step_rings + (is_offloaded ? need->activations : 0)};
}

/* Evaluation takes training's activations and workspace as one, and the predictor's rings lie behind
 * it. */
void hy_count_work(hy_trainer *t) {
    hy_memory_needs *need = &t->engine.needs;
    hy_batch_plan *plans[HY_BATCH_PLANS];
    hy_all_batch_plans(t, plans);
    need->eval = 0;
    t->engine.work.eval_bytes = (hy_batch_bytes){0};
    need->activations = hy_align(t->engine.work.train_bytes.activations);
    need->workspace = t->engine.work.train_bytes.workspace;
    for (int i = 2; i < HY_BATCH_PLANS; i++) {
        if (!plans[i]) continue;
        const hy_batch_bytes *b = &plans[i]->bytes;
        need->eval = larger(need->eval, hy_align(b->activations) + hy_align(b->workspace));
        t->engine.work.eval_bytes.activations =
            larger(t->engine.work.eval_bytes.activations, hy_align(b->activations));
        t->engine.work.eval_bytes.workspace =
            larger(t->engine.work.eval_bytes.workspace, hy_align(b->workspace));
    }
    if (need->eval + t->engine.work.ring_bytes > need->activations + need->workspace) {
        need->workspace = need->eval + t->engine.work.ring_bytes - need->activations;
    }
    need->workspace = hy_align(need->workspace);
    t->engine.work.train_bytes.activations = need->activations;
    t->engine.work.train_bytes.workspace = need->workspace;
    int arrays = hy_trainer_has_doc_starts(t) ? 4 : 3; /* of a value for each token */
    need->data = (uint64_t)arrays * hy_align(hy_most_rows(t) * 4) + hy_align(hy_rope_bytes(t)) +
                 4 * hy_align(24) + hy_align(reduce_workspace(t));
    set_step_column(t);
}

/* ---- taking ------------------------------------------------------------------------------------ */

hy_status hy_take_staging(hy_trainer *t, size_t rows) {
    hy_backend *b = t->engine.backend;
    t->engine.work.staging_rows = rows;
    for (int i = 0; i < 2; i++) {
        hy_staging *s = &t->engine.work.staging[i];
        HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->tokens, (void **)&s->tokens));
        HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->targets, (void **)&s->targets));
        if (t->engine.work.buffers.doc_starts) {
            HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->doc_starts, (void **)&s->doc_starts));
        }
        HY_TRY(b->alloc(b, HY_PINNED, rows * sizeof *s->losses, (void **)&s->losses));
        HY_TRY(b->event_create(b, &s->is_done));
    }
    return HY_OK;
}

/* What a training pass brings back to the host. */
static hy_status take_results(hy_trainer *t) {
    hy_backend *b = t->engine.backend;
    t->engine.work.guard_losses =
        malloc(2 * (size_t)hy_guard_sequences(t) * sizeof *t->engine.work.guard_losses);
    if (!t->engine.work.guard_losses)
        return hy_fail(HY_ERR_MEMORY, "no memory for the guard's losses");
    return b->alloc(b, HY_PINNED, sizeof *t->engine.work.result, (void **)&t->engine.work.result);
}

static void release_staging_and_results(hy_trainer *t) {
    hy_backend *b = t->engine.backend;
    size_t bytes = t->engine.work.staging_rows * sizeof(int32_t);
    for (int i = 0; i < 2; i++) {
        hy_staging *s = &t->engine.work.staging[i];
        void *parts[] = {s->tokens, s->targets, s->doc_starts, s->losses};
        for (int k = 0; k < 4; k++) {
            if (parts[k]) b->release(b, HY_PINNED, parts[k], bytes);
        }
        if (s->is_done) b->event_destroy(s->is_done);
        *s = (hy_staging){0};
    }
    if (t->engine.work.result)
        b->release(b, HY_PINNED, t->engine.work.result, sizeof *t->engine.work.result);
    t->engine.work.result = NULL;
    free(t->engine.work.guard_losses);
    t->engine.work.guard_losses = NULL;
}

static hy_status take_buffers(hy_trainer *t) {
    hy_pass_buffers *b = &t->engine.work.buffers;
    hy_arena *arena = &t->engine.work.arena;
    size_t rows = (size_t)hy_most_rows(t);
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->tokens));
    HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->targets));
    if (hy_trainer_has_doc_starts(t)) {
        HY_TRY(hy_arena_push(arena, HY_DATA, rows * 4, (void **)&b->doc_starts));
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
    hy_shape_rope_table(&t->engine.model->shape, (int32_t)t->settings.train.seq_len, table);
    hy_status status =
        t->engine.backend->copy(t->engine.compute, t->engine.work.buffers.rope, table, bytes);
    if (status == HY_OK) status = t->engine.backend->stream_sync(t->engine.compute);
    free(table);
    return status;
}

static const hy_batch_plan *widest_train_plan(const hy_trainer *t) {
    const hy_batch_plan *a = t->engine.work.train[0], *b = t->engine.work.train[1];
    return !a ? b : !b ? a : a->bytes.host >= b->bytes.host ? a : b;
}

/* What layers keep on the host, and the ring it passes through: behind the other activations. Plans of
 * both types use it in turn. */
static hy_status take_activations(hy_trainer *t, char *ring) {
    const hy_batch_plan *widest = widest_train_plan(t);
    hy_layout layout = {0};
    if (!widest->options.offloads) return HY_OK;
    hy_arena place = {.backend = t->engine.backend,
                      .ledger = &t->engine.ring_ledger,
                      .place = HY_DEVICE,
                      .data = ring,
                      .size = t->engine.work.train_bytes.ring};
    HY_TRY(hy_batch_offload_layout(widest, &layout));
    hy_status status = hy_arena_init(&t->engine.work.activation_arena, t->engine.backend,
                                     &t->engine.ledger, HY_PINNED, layout.bytes, "activations");
    if (status == HY_OK) {
        int32_t depth = widest->options.ring_depth ? widest->options.ring_depth : HY_OFFLOAD_DEPTH;
        status = hy_store_init_streamed(
            &t->engine.work.activations, &t->engine.work.activation_arena, &place, HY_ACTIVATIONS,
            &layout, depth, &(hy_copies){t->engine.copies, t->engine.returns});
    }
    hy_layout_fini(&layout);
    for (int i = 0; i < 2 && status == HY_OK; i++) {
        if (t->engine.work.train[i])
            hy_batch_plan_offload(t->engine.work.train[i], &t->engine.work.activations);
    }
    return status;
}

hy_status hy_take_work(hy_trainer *t) {
    const hy_memory_needs *need = &t->engine.needs;
    void *activations, *workspace;
    hy_arena *arena = &t->engine.work.arena;
    hy_batch_plan *plans[HY_BATCH_PLANS];
    uint64_t bytes = need->activations + need->workspace + need->data;
    HY_TRY(hy_arena_init(arena, t->engine.backend, &t->engine.ledger, HY_DEVICE, bytes,
                         "activations and workspace"));
    bool is_offloaded = t->engine.work.train_bytes.host > 0;
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
    HY_TRY(take_activations(t, (char *)activations + need->activations -
                                   t->engine.work.train_bytes.ring));
    HY_TRY(take_buffers(t));
    return hy_fill_rope_table(t);
}

char *hy_predictor_rings(const hy_trainer *t) {
    return t->engine.work.arena.data + t->engine.needs.eval;
}

void hy_give_work(hy_trainer *t) {
    const hy_memory_needs *need = &t->engine.needs;
    bool is_offloaded = t->engine.work.train_bytes.host > 0;
    uint64_t data = t->engine.work.arena.used - need->activations - need->workspace;
    hy_ledger_give(&t->engine.ledger, is_offloaded ? HY_WORKSPACE : HY_ACTIVATIONS, HY_DEVICE,
                   need->activations);
    hy_ledger_give(&t->engine.ledger, HY_WORKSPACE, HY_DEVICE, need->workspace);
    hy_ledger_give(&t->engine.ledger, HY_DATA, HY_DEVICE, data);
    if (is_offloaded) {
        hy_ledger_give(&t->engine.ledger, HY_ACTIVATIONS, HY_PINNED,
                       t->engine.work.activation_arena.used);
    }
}

void hy_release_work(hy_trainer *t) {
    hy_store_fini(&t->engine.work.activations);
    release_staging_and_results(t);
    hy_arena_fini(&t->engine.work.activation_arena);
    hy_arena_fini(&t->engine.work.arena);
    t->engine.work.buffers = (hy_pass_buffers){0};
}
