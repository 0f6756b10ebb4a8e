/* step.c: one optimizer step of a run in Warmup, Full or Correct. See step.h.
 *
 * The provider computes the gradients, the engine updates the weights. Work before the update
 * may be repeated when memory runs out; after it, the step is completed. */
#include "trainer/step.h"

#include <math.h>

#include "base/rng.h"
#include "trainer/recovery.h"
#include "trainer/throughput.h"
#include "trainer/window.h"

/* Steps between samples of the average, because weights of consecutive steps hardly differ; a part
 * that would have fewer samples than LEAST_SAMPLES takes every step. */
#define SAMPLE_EVERY 4
#define LEAST_SAMPLES 4

/* Computes the complete gradients of the step; may be repeated. */
static hy_status make_gradients(hy_trainer *t, hy_step_request *request, hy_step_report *report) {
    if (!hy_offload_is_ahead(&t->engine->state->offload))
        HY_TRY(hy_offload_await(t->engine->state));
    HY_TRY(hy_trainer_measure_residual(t));
    HY_TRY(hy_trainer_begin_window(t));
    request->attempt++;
    return t->provider->ops->gradients(t->provider, t, request, report);
}

static hy_status compute_step(hy_trainer *t, hy_dtype dtype, double lr, hy_step_report *report) {
    hy_engine *e = t->engine;
    hy_step_request request = {.dtype = dtype, .lr = lr};
    hy_status status;
    int64_t passes = e->progress.backward_passes;
    while ((status = make_gradients(t, &request, report)) != HY_OK) {
        HY_TRY(hy_trainer_prepare_retry(t, status));
        e->progress.backward_passes = passes;
    }
    /* The program of a loop may have set the step while it answered. */
    uint64_t step = (uint64_t)t->progress->step, run = (uint64_t)t->settings->seed;
    uint64_t seed = hy_rng_u64(run, HY_RNG_ROUNDING, step);
    t->status.life = HY_LIFE_CHANGING;
    while ((status = hy_engine_end_step(e, lr, seed)) != HY_OK)
        HY_TRY(hy_engine_prepare_retry(e, status));
    return HY_OK;
}

static double uniform_loss(const hy_trainer *t) {
    int32_t vocab = t->engine->model->shape.vocab; /* 0: the outputs are not known to be tokens */
    if (t->engine->model->loss.kind != HY_LOSS_NEXT_TOKEN) return INFINITY;
    return vocab > 0 ? log((double)vocab) : INFINITY;
}

double hy_trainer_loss_limit(const hy_trainer *t) {
    return hy_loss_limit(&t->progress->bound, t->settings->phases.divergence_factor,
                         uniform_loss(t));
}

/* Averages the weights of the last part of a run. If a sample fails, the average starts over and
 * the run stops after this step. */
static hy_status sample_average(hy_trainer *t) {
    double share = t->settings->phases.tail_share, tail = share * (double)t->schedule->steps_total;
    int64_t every = tail < LEAST_SAMPLES * SAMPLE_EVERY ? 1 : SAMPLE_EVERY;
    bool is_due = hy_trainer_share_done(t) > 1 - share && t->progress->step % every == 0;
    if (!hy_has_row(t->engine, HY_ROW_AVERAGE) || !is_due || t->schedule->is_in_fork) return HY_OK;
    hy_status status = hy_engine_add_to_average(t->engine);
    if (status != HY_ERR_MEMORY || t->team) return status;
    t->engine->progress.average_samples = 0;
    hy_trainer_defer_error(t, status);
    return HY_OK;
}

/* Adds the step's fp8 statistics to its line. */
static void describe_fp8(const hy_trainer *t, hy_step_info *info) {
    double stats[2];
    for (int32_t i = 0; i < 2 * t->engine->model->shape.layers; i++) {
        if (!hy_engine_fp8_stats(t->engine, i / 2, i % 2, stats)) return;
        if (i == 0 || !(stats[0] <= info->fp8_largest)) { /* a NaN counts as the largest */
            info->fp8_largest = stats[0];
            info->fp8_largest_layer = i / 2;
        }
        if (i == 0 || stats[1] > info->fp8_zeros) {
            info->fp8_zeros = stats[1];
            info->fp8_zeros_layer = i / 2;
        }
    }
}

static void describe_pairs(const double stats[HY_PAIRS_STATS], hy_step_info *info) {
    double pairs = stats[HY_PAIRS_COUNT]; /* 0: all are NaN */
    info->train_pair_accuracy = stats[HY_PAIRS_RIGHT] / pairs;
    info->train_reward_chosen = stats[HY_PAIRS_CHOSEN] / pairs;
    info->train_reward_rejected = stats[HY_PAIRS_REJECTED] / pairs;
}

/* The compute type of an optimizer step in this phase, now (hy_types_step). */
static hy_dtype step_type(const hy_trainer *t, hy_phase phase) {
    const hy_types *types = &t->engine->plan->types;
    double until = t->settings->train.fp8_until;
    bool is_over = until < 1 && hy_trainer_share_done(t) >= until;
    return is_over ? types->of[phase] : hy_types_step(types, phase);
}

hy_status hy_trainer_run_step(hy_trainer *t, hy_step_info *info) {
    hy_account account;
    hy_step_outcome outcome;
    hy_progress *progress = t->progress;
    hy_phase_state was = progress->machine;
    double lr = hy_schedule_rate(&t->schedule->lr_schedule, hy_trainer_schedule_step(t));
    hy_provider *p = t->provider;
    hy_step_report report = {0};
    progress->jumps.residual_cosine = progress->jumps.residual_length = NAN;
    hy_account_open(t, &account);
    HY_TRY(hy_engine_enter_phase(t->engine, &hy_phase_table[was.phase]));
    HY_TRY(compute_step(t, step_type(t, was.phase), lr, &report));
    HY_TRY(hy_engine_count_step(t->engine, progress->step, &outcome));
    if (p->ops->end_step) p->ops->end_step(p, t, outcome.loss_sum, &report);
    hy_loss_bound_observe(&progress->bound, t->settings->phases.divergence_factor, uniform_loss(t),
                          report.loss);
    progress->loss_tail[progress->step % HY_LOSS_TAIL] = report.loss;
    progress->step++;
    progress->spent += 1;
    progress->sequences +=
        p->facts.counts_sequences ? report.sequences : hy_step_sequences(t->engine);
    progress->tokens += report.tokens;
    HY_TRY(sample_average(t));
    HY_TRY(hy_trainer_choose_phase(t, report.loss, outcome.grad_norm, HY_NO_MOVE));
    progress->phases.steps[was.phase]++;
    t->status.life = HY_LIFE_READY;
    hy_account_close(t, &account);
    t->throughput.step_seconds = hy_clock() - account.begin;
    hy_trainer_note_rate(t, (double)report.computed / t->throughput.step_seconds);
    hy_trainer_describe(t, &was, &account, info);
    info->loss = report.loss;
    info->lr = lr;
    info->grad_norm = outcome.grad_norm;
    info->was_skipped = outcome.was_skipped;
    describe_fp8(t, info);
    describe_pairs(outcome.pair_stats, info);
    if (p->ops->describe) p->ops->describe(p, &outcome, info);
    return hy_trainer_deferred_error(t);
}
