/* batch_plans.c: the sizes and types of micro-batch that the run will use. See memory_plan.h.
 *
 * Training in one or two types, evaluation in as large a batch as training's room allows, and the
 * guard's few sequences. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "trainer/memory_plan.h"

#define LARGEST_EVAL_FACTOR 8 /* evaluation batches grow at most to this many training batches */
#define BUSY_ROWS (1 << 16)   /* tokens that keep any GPU busy */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static hy_batch_options base_options(const hy_trainer *t, hy_dtype dtype) {
    const hy_settings *s = &t->settings;
    return (hy_batch_options){.batch = (int32_t)s->train.batch_size,
                              .seq = (int32_t)s->train.seq_len,
                              .chunks = (int32_t)s->train.loss_chunks,
                              .dtype = dtype,
                              .grad_dtype = t->settings.train.grad_dtype,
                              .recompute = hy_recompute_groups(s->train.recompute),
                              .recompute_layers = (int32_t)s->train.recompute_layers,
                              .ring_depth = (int32_t)s->memory.ring_depth,
                              .has_doc_starts = hy_trainer_has_doc_starts(t),
                              .is_sizing = t->engine.work.is_sizing,
                              .budget = t->engine.chunk_budget};
}

static hy_status make_train_plans(hy_trainer *t) {
    for (int phase = 0; phase < HY_PHASE_COUNT; phase++) {
        hy_dtype dtype = t->engine.types.of[phase];
        hy_batch_plan **plan = &t->engine.work.train[hy_plan_index(dtype)];
        if (phase == HY_PREDICT || *plan) continue;
        hy_batch_options options = base_options(t, dtype);
        options.is_training = true;
        options.offloads = hy_place_setting(t->settings.memory.activations_place) != HY_DEVICE;
        HY_TRY(hy_batch_plan_create(t->engine.model, t->engine.backend, &options, plan));
        hy_batch_bytes *most = &t->engine.work.train_bytes, *b = &(*plan)->bytes;
        most->activations = larger(most->activations, b->activations);
        most->ring = larger(most->ring, b->ring);
        most->host = larger(most->host, b->host);
        most->workspace = larger(most->workspace, b->workspace);
    }
    return HY_OK;
}

/* How many training batches an evaluation batch may hold. A GPU is busy with enough rows, and larger
 * plans would only make it time more matmuls. */
static int largest_eval_factor(const hy_trainer *t) {
    int64_t rows = t->settings.train.batch_size * t->settings.train.seq_len;
    int64_t most = t->engine.backend->facts.is_gpu ? BUSY_ROWS : INT32_MAX;
    int factor = LARGEST_EVAL_FACTOR;
    while (factor > 1 && factor * rows > most) factor /= 2;
    return factor;
}

/* The least room that training in these types can have: with everything recomputed. What is evaluated
 * together must not depend on what training recomputes or where it keeps it, or validation would give
 * other bits. */
static hy_status least_training_room(hy_trainer *t, uint64_t *room) {
    hy_batch_bytes most = {0};
    for (int i = 0; i < 2; i++) {
        hy_batch_plan *plan;
        if (!t->engine.work.train[i]) continue;
        hy_batch_options options = base_options(t, t->engine.work.train[i]->options.dtype);
        options.is_training = options.is_sizing = true;
        options.recompute = HY_KEEP_ALL;
        options.recompute_layers = 0;
        HY_TRY(hy_batch_plan_create(t->engine.model, t->engine.backend, &options, &plan));
        most.activations = larger(most.activations, plan->bytes.activations);
        most.workspace = larger(most.workspace, plan->bytes.workspace);
        hy_batch_plan_destroy(plan);
    }
    *room = most.activations + most.workspace;
    return HY_OK;
}

/* Forward-only passes have the room that training has: the largest batch that fits there. */
static hy_status make_eval_plan(hy_trainer *t, hy_dtype dtype) {
    hy_batch_plan **plan = &t->engine.work.eval[hy_plan_index(dtype)];
    uint64_t room;
    hy_batch_options options = base_options(t, dtype);
    if (*plan) return HY_OK;
    if (t->settings.eval.eval_batch_size) {
        options.batch = (int32_t)t->settings.eval.eval_batch_size;
        return hy_batch_plan_create(t->engine.model, t->engine.backend, &options, plan);
    }
    HY_TRY(least_training_room(t, &room));
    for (int factor = largest_eval_factor(t);; factor /= 2) {
        options.batch = (int32_t)t->settings.train.batch_size * factor;
        HY_TRY(hy_batch_plan_create(t->engine.model, t->engine.backend, &options, plan));
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
    hy_batch_plan **plan = &t->engine.work.guard[hy_plan_index(dtype)];
    int32_t most = t->engine.work.eval[hy_plan_index(dtype)]->size.batch;
    uint64_t wanted = hy_guard_sequences(t);
    hy_batch_options options = base_options(t, dtype);
    if (*plan) return HY_OK;
    options.batch = wanted < (uint64_t)most ? (int32_t)wanted : most;
    return hy_batch_plan_create(t->engine.model, t->engine.backend, &options, plan);
}

hy_status hy_make_batch_plans(hy_trainer *t) {
    HY_TRY(make_train_plans(t));
    HY_TRY(make_eval_plan(t, t->engine.types.of[HY_FULL]));
    HY_TRY(make_eval_plan(t, t->engine.types.of[HY_PREDICT]));
    return make_guard_plan(t, t->engine.types.of[HY_PREDICT]);
}

void hy_drop_batch_plans(hy_trainer *t) {
    hy_batch_plan **plans[] = {t->engine.work.train, t->engine.work.eval, t->engine.work.guard};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2; k++) {
            hy_batch_plan_destroy(plans[i][k]);
            plans[i][k] = NULL;
        }
    }
    t->engine.work.train_bytes = (hy_batch_bytes){0};
}

void hy_all_batch_plans(const hy_trainer *t, hy_batch_plan *plans[HY_BATCH_PLANS]) {
    hy_batch_plan *list[HY_BATCH_PLANS] = {t->engine.work.train[0], t->engine.work.train[1],
                                           t->engine.work.eval[0],  t->engine.work.eval[1],
                                           t->engine.work.guard[0], t->engine.work.guard[1]};
    memcpy(plans, list, sizeof list);
}

uint64_t hy_most_rows(const hy_trainer *t) {
    hy_batch_plan *plans[HY_BATCH_PLANS];
    uint64_t rows = 0;
    hy_all_batch_plans(t, plans);
    for (int i = 0; i < HY_BATCH_PLANS; i++) {
        if (!plans[i]) continue;
        rows = larger(rows, (uint64_t)plans[i]->size.batch * (uint64_t)plans[i]->size.seq);
    }
    return rows;
}
