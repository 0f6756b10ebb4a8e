/* evaluate.c: losses of sequences, forward only. See trainer.h.
 *
 * A probe is a row of sequences of one split under some weights: the guard's tokens under proposed ones,
 * the held-out data under the current ones or their average. The last batch is filled up with sequences
 * whose targets do not count. Losses come back to the host and are summed there in order, while the next
 * batch is under way. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "trainer/trainer.h"

int64_t hy_probe_batches(const hy_batch_plan *plan, uint64_t count) {
    uint64_t batch = (uint64_t)plan->size.batch;
    return (int64_t)((count + batch - 1) / batch);
}

static void fill_batch(const hy_trainer *t, const hy_batch_plan *plan, const hy_probe *probe,
                       uint64_t first, const hy_staging *staging) {
    int32_t seq = plan->size.seq;
    for (int32_t row = 0; row < plan->size.batch; row++) {
        int32_t *tokens = staging->tokens + (int64_t)row * seq;
        int32_t *targets = staging->targets + (int64_t)row * seq;
        int32_t *doc_starts = staging->doc_starts ? staging->doc_starts + (int64_t)row * seq : NULL;
        uint64_t number = first + (uint64_t)row;
        bool is_filler = number >= probe->count;
        hy_dataset_fill(t->data.set, probe->split, probe->first + (is_filler ? first : number),
                        tokens, targets, doc_starts);
        for (int32_t i = 0; is_filler && i < seq; i++) targets[i] = -1;
    }
}

static hy_status enqueue_batch(hy_trainer *t, hy_batch_plan *plan, hy_store *weights,
                               const hy_staging *staging) {
    size_t rows = (size_t)plan->size.batch * (size_t)plan->size.seq;
    HY_TRY(t->engine.backend->copy(t->engine.compute, t->engine.work.buffers.tokens,
                                   staging->tokens, rows * 4));
    HY_TRY(t->engine.backend->copy(t->engine.compute, t->engine.work.buffers.targets,
                                   staging->targets, rows * 4));
    if (staging->doc_starts) {
        HY_TRY(t->engine.backend->copy(t->engine.compute, t->engine.work.buffers.doc_starts,
                                       staging->doc_starts, rows * 4));
    }
    hy_batch_input input = {.stream = t->engine.compute,
                            .weights = weights,
                            .tokens = t->engine.work.buffers.tokens,
                            .targets = t->engine.work.buffers.targets,
                            .doc_starts = t->engine.work.buffers.doc_starts,
                            .rope = t->engine.work.buffers.rope,
                            .losses = t->engine.work.buffers.losses,
                            .loss_scale = 1};
    HY_TRY(hy_batch_evaluate(plan, &input));
    HY_TRY(t->engine.backend->copy(t->engine.compute, staging->losses,
                                   t->engine.work.buffers.losses, rows * sizeof(float)));
    return t->engine.backend->event_record(staging->is_done, t->engine.compute);
}

static double sum_batch(const hy_batch_plan *plan, hy_probe *probe, uint64_t first,
                        const hy_staging *staging) {
    int32_t seq = plan->size.seq;
    double sum = 0;
    for (int32_t row = 0; row < plan->size.batch && first + (uint64_t)row < probe->count; row++) {
        double of_sequence = 0;
        int64_t counted = 0;
        for (int32_t i = 0; i < seq; i++) {
            int64_t at = (int64_t)row * seq + i;
            if (staging->targets[at] < 0) continue;
            of_sequence += (double)staging->losses[at];
            counted++;
        }
        if (probe->each) probe->each[first + (uint64_t)row] = of_sequence / (double)counted;
        probe->counted += counted;
        sum += of_sequence;
    }
    return sum;
}

/* One forward-only batch of Predict is done: the restore begins when few enough are left. */
static hy_status count_down(hy_trainer *t) {
    if (t->engine.optim.batches_left <= 0) return HY_OK;
    t->engine.optim.batches_left--;
    if (!t->settings.memory.async_restore) return HY_OK;
    if (t->engine.optim.batches_left > t->settings.memory.lookahead) return HY_OK;
    return t->settings.memory.lookahead > 0 ? hy_trainer_begin_restore(t) : HY_OK;
}

/* Waits for a batch and adds its losses. */
static hy_status collect_batch(hy_trainer *t, const hy_batch_plan *plan, hy_probe *probe,
                               uint64_t first, double *sum) {
    uint64_t batch = (uint64_t)plan->size.batch;
    const hy_staging *staging = &t->engine.work.staging[first / batch % 2];
    HY_TRY(t->engine.backend->event_sync(staging->is_done));
    *sum += sum_batch(plan, probe, first, staging);
    if (t->observer.on_progress && probe->split == HY_VAL) {
        t->observer.on_progress(t->observer.user, "validating",
                                fmin(1, (double)(first + batch) / (double)probe->count));
    }
    return HY_OK;
}

/* The device works on one batch while the host fills the next. */
static hy_status run_batches(hy_trainer *t, hy_batch_plan *plan, hy_probe *probe, hy_store *weights,
                             double *sum) {
    uint64_t batch = (uint64_t)plan->size.batch, first = 0;
    for (; first < probe->count; first += batch) {
        const hy_staging *staging = &t->engine.work.staging[first / batch % 2];
        fill_batch(t, plan, probe, first, staging);
        HY_TRY(count_down(t));
        HY_TRY(enqueue_batch(t, plan, weights, staging));
        if (first > 0) HY_TRY(collect_batch(t, plan, probe, first - batch, sum));
    }
    if (first > 0) HY_TRY(collect_batch(t, plan, probe, first - batch, sum));
    return HY_OK;
}

hy_status hy_trainer_probe(hy_trainer *t, hy_batch_plan *plan, hy_probe *probe) {
    hy_store *weights = probe->weights;
    double sum = 0;
    probe->counted = 0;
    if (!weights) HY_TRY(hy_trainer_weights(t, probe->dtype, &weights));
    HY_TRY(run_batches(t, plan, probe, weights, &sum));
    HY_TRY(t->engine.backend->stream_sync(t->engine.compute)); /* tells of an op that failed */
    if (probe->counted == 0) return hy_fail(HY_ERR_INPUT, "no target of these sequences counts");
    probe->mean = sum / (double)probe->counted;
    return HY_OK;
}

/* eval_batches is in micro-batches of training, so that it does not depend on the plan. */
static uint64_t sequences_to_use(const hy_trainer *t) {
    uint64_t all = hy_dataset_describe(t->data.set)->sequences[HY_VAL];
    uint64_t wanted = (uint64_t)(t->settings.eval.eval_batches * t->first_batch);
    return wanted && wanted < all ? wanted : all;
}

static hy_status probe_held_out(hy_trainer *t, bool uses_tail, hy_probe *probe) {
    hy_dtype dtype = t->engine.types.of[HY_FULL];
    *probe = (hy_probe){.split = HY_VAL, .count = sequences_to_use(t), .dtype = dtype};
    if (uses_tail) {
        hy_trainer_use_tail(t, true);
        probe->weights = hy_store_of(&t->engine, HY_ROW_CANDIDATE);
    }
    hy_status status = hy_trainer_probe(t, t->engine.work.eval[hy_plan_index(dtype)], probe);
    if (uses_tail) hy_trainer_use_tail(t, false);
    return status;
}

/* Nothing changes, so that a pass that meets a shortage can be made again. */
static hy_status validate(hy_trainer *t, bool uses_tail, hy_probe *probe) {
    hy_status status;
    while ((status = probe_held_out(t, uses_tail, probe)) != HY_OK) {
        HY_TRY(hy_trainer_survive(t, status, HY_WITH_LESS));
    }
    hy_trainer_recovered(t);
    return HY_OK;
}

hy_status hy_trainer_evaluate(hy_trainer *t, hy_eval_info *info) {
    HY_TRY(hy_trainer_must_run(t));
    double begin = hy_clock();
    bool is_final = t->progress.spent >= (double)t->course.steps_total - 0.5;
    hy_probe probe;
    HY_TRY(validate(t, false, &probe));
    if (is_final && t->engine.has_average && t->progress.tail_samples > 0) {
        t->raw_val_loss = probe.mean;
        HY_TRY(validate(t, true, &probe));
    }
    t->progress.val_loss = probe.mean;
    t->progress.val_step = t->progress.step;
    if (info) {
        *info = (hy_eval_info){.step = t->progress.step,
                               .loss = probe.mean,
                               .tokens = probe.counted,
                               .seconds = hy_clock() - begin,
                               .is_final = is_final};
    }
    return HY_OK;
}
