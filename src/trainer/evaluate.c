/* evaluate.c: the held-out loss. See trainer.h.
 *
 * Sequences are taken in order, in batches of the evaluation plan; the last batch is filled up with
 * sequences whose targets do not count. */
#include "base/error.h"
#include "trainer/trainer.h"

static int64_t fill_batch(hy_trainer *t, uint64_t first, uint64_t end) {
    int32_t seq = t->eval_plan->size.seq;
    int64_t counted = 0;
    for (int32_t row = 0; row < t->eval_plan->size.batch; row++) {
        int32_t *tokens = t->host_tokens + (int64_t)row * seq;
        int32_t *targets = t->host_targets + (int64_t)row * seq;
        uint64_t number = first + (uint64_t)row;
        bool is_filler = number >= end;
        int64_t count = hy_dataset_fill(t->data, HY_VAL, is_filler ? first : number, tokens, targets);
        if (!is_filler) counted += count;
        for (int32_t i = 0; is_filler && i < seq; i++) targets[i] = -1;
    }
    return counted;
}

static hy_status run_batch(hy_trainer *t, bool accumulate) {
    hy_batch_plan *plan = t->eval_plan;
    size_t bytes = (size_t)plan->size.batch * (size_t)plan->size.seq * sizeof(int32_t);
    HY_TRY(t->backend->copy(t->compute, t->buffers.tokens, t->host_tokens, bytes));
    HY_TRY(t->backend->copy(t->compute, t->buffers.targets, t->host_targets, bytes));
    hy_batch_input input = {.stream = t->compute,
                            .weights = &t->weights,
                            .tokens = t->buffers.tokens,
                            .targets = t->buffers.targets,
                            .rope = t->buffers.rope,
                            .losses = t->buffers.losses,
                            .loss_scale = 1};
    HY_TRY(hy_batch_evaluate(plan, &input));
    HY_TRY(hy_trainer_sum_losses(t, plan, accumulate));
    return t->backend->stream_sync(t->compute); /* the staging memory is filled again next */
}

static uint64_t sequences_to_use(const hy_trainer *t) {
    uint64_t all = hy_dataset_describe(t->data)->sequences[HY_VAL];
    uint64_t wanted = (uint64_t)(t->settings.eval.eval_batches * t->eval_plan->size.batch);
    return wanted && wanted < all ? wanted : all;
}

hy_status hy_trainer_evaluate(hy_trainer *t, hy_eval_info *info) {
    double begin = hy_clock();
    uint64_t end = sequences_to_use(t);
    int64_t counted = 0;
    for (uint64_t first = 0; first < end; first += (uint64_t)t->eval_plan->size.batch) {
        counted += fill_batch(t, first, end);
        HY_TRY(run_batch(t, first > 0));
    }
    HY_TRY(t->backend->copy(t->compute, &t->result->loss_sum, t->buffers.loss_sum, sizeof(double)));
    HY_TRY(t->backend->stream_sync(t->compute));
    if (counted == 0) return hy_fail(HY_ERR_INPUT, "no target of the held-out data counts");
    t->progress.val_loss = t->result->loss_sum / (double)counted;
    t->progress.val_step = t->progress.step;
    hy_eval_info result = {.step = t->progress.step,
                           .loss = t->progress.val_loss,
                           .tokens = counted,
                           .seconds = hy_clock() - begin,
                           .is_final = t->progress.step >= t->steps_total};
    if (info) *info = result;
    return HY_OK;
}
