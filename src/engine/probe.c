/* probe.c: losses of sequences, forward only. See probe.h.
 *
 * A probe measures sequences of one split under some weights: the guard's tokens under proposed
 * weights, held-out data under the current weights or their average. The last batch is filled up
 * with sequences that have no counted targets. Losses come back to the host, which sums them in
 * order while the next batch is computed.
 *
 * Several ranks take batches in turn. Every rank has a batch in each round, even if it is only
 * filler, because ranks may have to gather weights together. Ranks share the sums of their
 * sequences, and each adds them up in the order of sequences. Rows for evaluation are summed
 * example by example in the same way, with one rank, too: several may share a sequence. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/pair_reference.h"
#include "engine/engine.h"
#include "kernels/half.h"

int64_t hy_probe_batches(const hy_engine *e, const hy_batch_plan *plan, uint64_t count) {
    uint64_t batch = (uint64_t)hy_batch_sequences(plan) * (uint64_t)hy_engine_ranks(e);
    return (int64_t)((count + batch - 1) / batch);
}

/* The sequence that is number i of those that are measured. */
static uint64_t sequence_of(const hy_probe *probe, uint64_t i) {
    return probe->list ? probe->list[i] : probe->first + i * (probe->stride ? probe->stride : 1);
}

static hy_status fill_batch(const hy_batch_plan *plan, const hy_probe *probe, uint64_t first,
                            const hy_staging *staging) {
    int32_t seq = plan->size.seq;
    for (int32_t row = 0; row < hy_batch_sequences(plan); row++) {
        int32_t *tokens = staging->tokens + (int64_t)row * seq;
        int32_t *targets = staging->targets + (int64_t)row * seq;
        int32_t *doc_starts = staging->doc_starts ? staging->doc_starts + (int64_t)row * seq : NULL;
        uint64_t number = first + (uint64_t)row;
        bool is_filler = number >= probe->count;
        bool is_all_filler = first >= probe->count;
        uint64_t at = sequence_of(probe, is_all_filler ? 0 : is_filler ? first : number);
        int64_t counted =
            hy_dataset_fill(probe->data, probe->split, at, tokens, targets, doc_starts);
        if (counted < 0) return HY_ERR_IO; /* the error message is set */
        float *reference = staging->reference ? staging->reference + (int64_t)row * seq : NULL;
        hy_pairs_of pairs = {probe->data, probe->split, at, targets, doc_starts};
        const double(*sums)[2] = hy_dataset_reference(probe->data);
        if (reference && sums) HY_TRY(hy_pairs_place(&pairs, sums, reference));
        for (int32_t i = 0; is_filler && i < seq; i++) targets[i] = -1;
    }
    return HY_OK;
}

static hy_status send_batch(hy_engine *e, const hy_batch_plan *plan, const hy_staging *staging) {
    hy_batch batch = {.tokens = staging->tokens,
                      .targets = staging->targets,
                      .doc_starts = staging->doc_starts,
                      .reference = staging->reference};
    return hy_work_send_batch(e, &batch, (int64_t)hy_batch_sequences(plan) * plan->size.seq);
}

hy_status hy_probe_send(hy_engine *e, const hy_batch_plan *plan, const hy_probe *probe) {
    const hy_staging *staging = &e->work->staging[0];
    HY_TRY(fill_batch(plan, probe, 0, staging));
    return send_batch(e, plan, staging);
}

/* ---- rows for evaluation --------------------------------------------------------------------- */

/* Marks a target on the host after its batch was sent: another token has a larger logit. */
#define MISSED (1 << 30)

/* Which targets have the largest logit of their row is found on the host. */
typedef struct hy_logit_reader {
    hy_engine *engine;
    hy_watch watch;
    const hy_staging *staging; /* of the current batch */
    void *row;                 /* (V) in the type of the logits */
} hy_logit_reader;

static float logit_at(const void *row, hy_dtype dtype, int64_t i) {
    if (dtype == HY_F32) return ((const float *)row)[i];
    uint16_t bits = ((const uint16_t *)row)[i];
    return dtype == HY_BF16 ? hy_bf16_to_f32(bits) : hy_f16_to_f32(bits);
}

/* Of equal logits the first is the largest, as for argmax in PyTorch. */
static bool is_missed(const void *row, hy_dtype dtype, int32_t vocab, int32_t target) {
    float own = logit_at(row, dtype, target);
    for (int32_t i = 0; i < vocab; i++) {
        float other = logit_at(row, dtype, i);
        if (other > own || (other == own && i < target)) return true;
    }
    return isnan(own);
}

static hy_status read_logits(void *context, hy_stream *stream, const hy_op_call *loss) {
    hy_logit_reader *r = context;
    hy_backend *b = r->engine->device.backend;
    const hy_tensor *logits = &loss->t[HY_CROSS_ENTROPY_LOGITS],
                    *targets = &loss->t[HY_CROSS_ENTROPY_TARGETS];
    const int32_t *first = targets->data;
    int32_t *own = r->staging->targets + (first - r->engine->work->buffers.targets);
    size_t bytes = (size_t)loss->attr.loss.vocab * hy_dtype_size(logits->dtype);
    for (int64_t i = 0; i < hy_tensor_count(targets); i++) {
        if (own[i] < 0) continue;
        HY_TRY(b->copy(stream, r->row, hy_tensor_rows(logits, i, 1).data, bytes));
        HY_TRY(b->stream_sync(stream));
        if (is_missed(r->row, logits->dtype, loss->attr.loss.vocab, own[i])) own[i] |= MISSED;
    }
    return HY_OK;
}

/* ---- losses ---------------------------------------------------------------------------------- */

static hy_status enqueue_batch(hy_engine *e, hy_batch_plan *plan, const hy_probe *probe,
                               hy_store *weights, const hy_staging *staging) {
    const hy_unit_hook makes_weights = {.context = e,
                                        .before = hy_candidate_make,
                                        .fetch = hy_frozen_fetch,
                                        .await = hy_frozen_await};
    const hy_unit_hook brings_weights = {
        .context = e, .fetch = hy_weights_fetch, .await = hy_weights_await};
    int64_t rows = (int64_t)hy_batch_sequences(plan) * plan->size.seq;
    HY_TRY(send_batch(e, plan, staging));
    hy_batch_input input = hy_work_input(e, weights);
    input.loss_scale = 1;
    if (probe->reader) {
        probe->reader->staging = staging;
        input.watch = &probe->reader->watch;
    }
    if (hy_engine_exchanges(e)) input.hook = &brings_weights;
    bool has_rewards = e->model->loss.kind == HY_LOSS_POLICY; /* not those of a probe */
    if (hy_engine_has_reference_pass(e) && !probe->examples && !has_rewards) {
        hy_batch_input current = input; /* adapters that are proposed do not exist yet */
        if (probe->of_candidate) HY_TRY(hy_engine_weights(e, probe->dtype, &current.weights));
        HY_TRY(hy_work_reference(plan, &current));
    }
    if (probe->of_candidate) input.hook = &makes_weights;
    HY_TRY(hy_batch_evaluate(plan, &input));
    /* Rows for evaluation in a run on answers need the losses of tokens. */
    bool is_of_tokens = (probe->examples || probe->pair_sums || has_rewards) && input.token_losses;
    const float *losses = is_of_tokens ? input.token_losses : input.losses;
    HY_TRY(e->device.backend->copy(e->device.compute, staging->losses, losses,
                                   (size_t)rows * sizeof(float)));
    return e->device.backend->event_record(staging->is_done, e->device.compute);
}

/* Adds the targets of one sequence to the sums of its examples. */
static void sum_examples(const hy_probe *probe, uint64_t number, const hy_staging *staging,
                         int64_t at, int32_t seq) {
    uint64_t k = 0; /* the example within the sequence */
    for (int32_t i = 0; i < seq; i++) {
        k += i > 0 && staging->doc_starts && staging->doc_starts[at + i] == i;
        if (staging->targets[at + i] < 0) continue;
        hy_example_sum *sum = &probe->examples[hy_dataset_example_in(probe->data, number, k)];
        sum->loss += (double)staging->losses[at + i];
        sum->counted++;
        sum->misses += (staging->targets[at + i] & MISSED) != 0;
    }
}

/* What the loss of the sequence at `at` is a mean over: targets, or pairs of answers. */
static int64_t count_losses(const hy_batch_plan *plan, const hy_staging *staging, int64_t at) {
    const int32_t *targets = staging->targets + at;
    int64_t counted = 0;
    if (hy_loss_is_of_pairs(plan->model->loss.kind))
        return hy_pairs_count(targets, staging->doc_starts + at, plan->size.seq);
    for (int32_t i = 0; i < plan->size.seq; i++) counted += targets[i] >= 0;
    return counted;
}

/* The sum of one slice, so that the order of sums does not depend on the number of slices. */
static double sum_slice(const hy_batch_plan *plan, hy_probe *probe, uint64_t first, int32_t slice,
                        const hy_staging *staging) {
    int32_t seq = plan->size.seq, begin = slice * plan->size.batch, end = begin + plan->size.batch;
    double sum = 0;
    for (int32_t row = begin; row < end && first + (uint64_t)row < probe->count; row++) {
        double of_sequence = 0;
        int64_t at = (int64_t)row * seq;
        if (probe->examples) {
            sum_examples(probe, first + (uint64_t)row, staging, at, seq);
            continue;
        }
        int64_t counted = count_losses(plan, staging, at);
        for (int32_t i = 0; i < seq; i++) of_sequence += (double)staging->losses[at + i];
        if (probe->sums) {
            probe->sums[first + (uint64_t)row] =
                (hy_example_sum){.loss = of_sequence, .counted = (double)counted};
            continue;
        }
        if (probe->each) probe->each[first + (uint64_t)row] = of_sequence / (double)counted;
        probe->counted += counted;
        sum += of_sequence;
    }
    return sum;
}

/* Adds up the losses of the answers of each pair. */
static hy_status sum_pairs(const hy_batch_plan *plan, const hy_probe *probe, uint64_t first,
                           const hy_staging *staging) {
    for (int32_t row = 0; row < hy_batch_sequences(plan); row++) {
        int64_t at = (int64_t)row * plan->size.seq;
        uint64_t number = first + (uint64_t)row;
        if (number >= probe->count) break; /* the rest is filler */
        hy_pairs_of pairs = {probe->data, probe->split, sequence_of(probe, number),
                             staging->targets + at, staging->doc_starts + at};
        HY_TRY(hy_pairs_sum(&pairs, staging->losses + at, probe->pair_sums));
    }
    return HY_OK;
}

/* Waits for a batch and adds its losses. */
static hy_status collect_batch(hy_engine *e, const hy_batch_plan *plan, hy_probe *probe,
                               uint64_t first, const hy_staging *staging, double *sum) {
    uint64_t batch = (uint64_t)hy_batch_sequences(plan);
    int32_t slices = hy_batch_sequences(plan) / plan->size.batch;
    HY_TRY(e->device.backend->event_sync(staging->is_done));
    if (probe->pair_sums) HY_TRY(sum_pairs(plan, probe, first, staging));
    for (int32_t i = 0; i < slices; i++) *sum += sum_slice(plan, probe, first, i, staging);
    const char *what = probe->what ? probe->what : probe->split == HY_VAL ? "validating" : NULL;
    if (e->observer->on_progress && what) {
        e->observer->on_progress(e->observer->user, what,
                                 fmin(1, (double)(first + batch) / (double)probe->count));
    }
    return HY_OK;
}

/* Ends a probe if this rank or another was asked to stop. Nothing of it runs any more then. */
static hy_status check_stop(hy_engine *e, const hy_probe *probe) {
    if (!probe->stop) return HY_OK;
    double stops = atomic_load(probe->stop), all[HY_RANKS_MOST];
    if (hy_engine_exchanges(e)) HY_TRY(hy_control_gather(e->team->control, &stops, 1, all));
    for (int32_t r = 0; hy_engine_exchanges(e) && r < hy_engine_ranks(e); r++)
        stops = fmax(stops, all[r]);
    if (stops == 0) return HY_OK;
    HY_TRY(e->device.backend->stream_sync(e->device.compute));
    return hy_fail(HY_STOPPED, "stopped on request during a validation");
}

/* The device works on one batch while the host fills the next. */
static hy_status run_batches(hy_engine *e, hy_batch_plan *plan, hy_probe *probe, hy_store *weights,
                             double *sum) {
    uint64_t batch = (uint64_t)hy_batch_sequences(plan);
    uint64_t own = (uint64_t)e->request.ranks.rank * batch;
    uint64_t round = (uint64_t)hy_engine_ranks(e) * batch; /* sequences of all ranks in one round */
    const hy_staging *before = NULL;
    for (uint64_t first = 0; first < probe->count; first += round) {
        const hy_staging *staging = &e->work->staging[first / round % 2];
        HY_TRY(check_stop(e, probe));
        HY_TRY(fill_batch(plan, probe, first + own, staging));
        HY_TRY(hy_offload_count_down(e->state));
        HY_TRY(enqueue_batch(e, plan, probe, weights, staging));
        if (before) HY_TRY(collect_batch(e, plan, probe, first - round + own, before, sum));
        before = staging;
    }
    if (!before) return HY_OK;
    uint64_t last = (probe->count - 1) / round * round;
    return collect_batch(e, plan, probe, last + own, before, sum);
}

/* Sums per message between ranks: the size of a message is limited (comm/control.h). */
#define SHARED_AT_ONCE 340

/* One rank has measured each entry of the sums: the others have zeros there. */
static void add_shared(hy_probe *probe, uint64_t first, uint64_t count, int32_t ranks,
                       const hy_example_sum *all, double *sum) {
    for (uint64_t i = 0; i < count; i++) {
        hy_example_sum one = {0};
        for (int32_t r = 0; r < ranks; r++) {
            const hy_example_sum *of_rank = &all[(uint64_t)r * count + i];
            one.loss += of_rank->loss;
            one.counted += of_rank->counted;
            one.misses += of_rank->misses;
        }
        if (probe->each) probe->each[first + i] = one.loss / one.counted;
        if (probe->examples) probe->examples[first + i] = one;
        probe->counted += (int64_t)one.counted;
        *sum += one.loss;
    }
}

/* Each rank measures its batches, then all share the sums of `entries` sequences or examples. */
static hy_status run_shared(hy_engine *e, hy_batch_plan *plan, hy_probe *probe, hy_store *weights,
                            uint64_t entries, double *sum) {
    int32_t ranks = hy_engine_ranks(e);
    hy_example_sum *all = malloc(SHARED_AT_ONCE * (size_t)ranks * sizeof *all);
    probe->sums = probe->examples ? NULL : calloc((size_t)entries, sizeof *probe->sums);
    hy_example_sum *own = probe->examples ? probe->examples : probe->sums;
    if (probe->examples) memset(own, 0, (size_t)entries * sizeof *own);
    hy_status status =
        own && all ? run_batches(e, plan, probe, weights, sum)
                   : hy_fail(HY_ERR_MEMORY, "not enough memory for the losses of %llu sequences",
                             (unsigned long long)entries);
    for (uint64_t first = 0; first < entries && status == HY_OK; first += SHARED_AT_ONCE) {
        uint64_t left = entries - first, count = left < SHARED_AT_ONCE ? left : SHARED_AT_ONCE;
        memcpy(all, own + first, count * sizeof *all);
        if (hy_engine_exchanges(e))
            status = hy_control_gather(e->team->control, &own[first].loss, (int32_t)(3 * count),
                                       &all->loss);
        if (status == HY_OK) add_shared(probe, first, count, ranks, all, sum);
    }
    free(all);
    free(probe->sums);
    probe->sums = NULL;
    return status;
}

/* Rows for evaluation, with a reader of logits if misses are counted. */
static hy_status run_examples(hy_engine *e, hy_batch_plan *plan, hy_probe *probe, hy_store *weights,
                              double *sum) {
    uint64_t entries = hy_dataset_describe(probe->data)->scored;
    if (!probe->wants_misses) return run_shared(e, plan, probe, weights, entries, sum);
    hy_logit_reader reader = {.engine = e,
                              .watch = {.context = &reader, .see_loss = read_logits},
                              .row = malloc((size_t)e->model->shape.vocab * sizeof(float))};
    HY_FAIL_IF(!reader.row, HY_ERR_MEMORY, "not enough memory for logits");
    probe->reader = &reader;
    hy_status status = run_shared(e, plan, probe, weights, entries, sum);
    probe->reader = NULL;
    free(reader.row);
    return status;
}

/* The statistics of all pairs that the probe has measured, on all ranks. */
static hy_status take_pair_stats(hy_engine *e, hy_probe *probe) {
    double all[HY_PAIRS_STATS * HY_RANKS_MOST], *own = probe->pair_stats;
    const double *from = e->work->buffers.loss_stats;
    if (!hy_loss_is_of_pairs(e->model->loss.kind)) return HY_OK;
    HY_TRY(e->device.backend->copy(e->device.compute, own, from, sizeof probe->pair_stats));
    HY_TRY(e->device.backend->stream_sync(e->device.compute));
    if (!hy_engine_exchanges(e) || hy_engine_ranks(e) == 1) return HY_OK;
    HY_TRY(hy_control_gather(e->team->control, own, HY_PAIRS_STATS, all));
    memset(own, 0, sizeof probe->pair_stats);
    for (int32_t i = 0; i < HY_PAIRS_STATS * hy_engine_ranks(e); i++)
        own[i % HY_PAIRS_STATS] += all[i];
    return HY_OK;
}

static hy_status probe_here(hy_engine *e, hy_batch_plan *plan, hy_probe *probe) {
    hy_store *weights = hy_store_of(e, HY_ROW_CANDIDATE);
    double sum = 0;
    probe->counted = 0;
    memset(probe->pair_stats, 0, sizeof probe->pair_stats);
    HY_TRY(hy_work_clear_stats(e));
    if (!probe->of_candidate) HY_TRY(hy_engine_weights(e, probe->dtype, &weights));
    HY_TRY(probe->examples          ? run_examples(e, plan, probe, weights, &sum)
           : hy_engine_exchanges(e) ? run_shared(e, plan, probe, weights, probe->count, &sum)
                                    : run_batches(e, plan, probe, weights, &sum));
    HY_TRY(e->device.backend->stream_sync(e->device.compute)); /* reports an op that failed */
    HY_TRY(hy_exchange_check(&e->collectives->net));
    HY_TRY(take_pair_stats(e, probe));
    if (probe->counted == 0)
        return hy_fail(HY_ERR_INPUT, "these sequences contain no target tokens");
    probe->mean = sum / (double)probe->counted;
    return HY_OK;
}

/* A batch in borrowed memory needs a phase that lends it: between steps that is Evaluate. */
hy_status hy_engine_probe(hy_engine *e, hy_batch_plan *plan, hy_probe *probe) {
    const hy_phase_row *before = hy_engine_phase(e);
    bool borrows = e->plan->work.loan[1] && plan != e->work->guard && hy_phase_trains(before);
    if (!borrows) return probe_here(e, plan, probe);
    HY_TRY(hy_engine_enter_phase(e, &hy_phase_table[HY_EVALUATE]));
    hy_status status = probe_here(e, plan, probe);
    if (status != HY_OK) return status; /* the retry or the next step enters its own phase */
    return hy_engine_enter_phase(e, before);
}
