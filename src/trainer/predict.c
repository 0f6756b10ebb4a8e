/* predict.c: a Predict step: a jump is proposed, tested, and accepted or rejected. See predict.h.
 *
 * The guard tests proposed weights before they are written: its pass computes them unit by unit in
 * a ring. Only an accepted jump is written, after the old weights are copied to the snapshot (if
 * there is one), so that a later divergence can undo it bit for bit. Gradients and training
 * activations are not live here; the optimizer's state is where its strategy puts it. With
 * memory.lookahead above 0 that state leaves during the guard's passes and returns during
 * validation or the next step. */
#include "trainer/predict.h"

#include <math.h>

#include "trainer/eval_schedule.h"
#include "trainer/evaluate.h"
#include "trainer/provider_weights.h"
#include "trainer/recovery.h"
#include "trainer/throughput.h"
#include "trainer/window.h"

#define LINE_STREAK                                                                                \
    3 /* this many accepted line jumps in a row mean that the learning rate is too low */

typedef struct proposal {
    double scale, predicted_steps;
    double before, after, noise;
    hy_verdict verdict;
} proposal;

/* ---- proposing ------------------------------------------------------------------------------- */

/* The number of optimizer steps that the jump replaces, and its scale. */
static hy_status measure_jump(hy_trainer *t, proposal *p) {
    const hy_predictor *o = &t->engine->plan->predictor;
    double d[3];
    p->scale = 1;
    p->predicted_steps = (double)o->max_steps;
    if (o->kind == HY_PREDICTOR_LINE) return HY_OK;
    /* D = theta - phi and b: the jump is x D + y b */
    hy_formula whole = hy_predictor_candidate(o, t->progress->machine.window);
    double x = whole.theta - 1, y = whole.buffer[1];
    HY_TRY(hy_engine_measure(t->engine, HY_ROW_MASTER, HY_ROW_SLOW, HY_ROW_SLOW + 1, -1, d));
    p->predicted_steps = hy_predicted_steps(x * d[0] + y * d[2], d[0], t->progress->machine.window);
    p->scale = hy_predictor_cap(o, p->predicted_steps);
    p->predicted_steps *= p->scale;
    return HY_OK;
}

/* ---- the guard ------------------------------------------------------------------------------- */

static uint64_t guard_sequences(const hy_trainer *t) {
    return hy_guard_sequences(t->settings->phases.guard_share, &t->engine->plan->choice,
                              hy_engine_ranks(t->engine));
}

/* One forward pass over the guard's tokens: sequences that training has not reached. */
static hy_status guard_pass(hy_trainer *t, bool of_candidate, double *each, double *mean) {
    hy_dtype dtype = t->engine->plan->types.of[HY_PREDICT];
    uint64_t count = guard_sequences(t);
    hy_probe probe = {.data = t->data.set,
                      .split = HY_TRAIN,
                      .first = (uint64_t)t->progress->sequences,
                      .count = count,
                      .dtype = dtype,
                      .of_candidate = of_candidate,
                      .each = each};
    HY_TRY(hy_trainer_probe(t, t->engine->work->guard, &probe));
    double step = (double)hy_step_sequences(t->engine);
    t->progress->spent += (double)count / step / 3;
    *mean = probe.mean;
    return HY_OK;
}

/* The guard's loss of the proposed weights, and the standard error of the mean change, from
 * sequences that were measured twice. */
static hy_status try_candidate(hy_trainer *t, proposal *p, const double *before, double *after) {
    hy_formula whole =
        hy_predictor_candidate(&t->engine->plan->predictor, t->progress->machine.window);
    hy_formula scaled = hy_formula_scaled(whole, p->scale);
    uint64_t count = guard_sequences(t);
    double mean = 0, square = 0;
    hy_engine_propose(t->engine, &scaled, t->engine->plan->types.of[HY_PREDICT]);
    HY_TRY(guard_pass(t, true, after, &p->after));
    for (uint64_t i = 0; i < count; i++) mean += (after[i] - before[i]) / (double)count;
    for (uint64_t i = 0; i < count; i++) {
        double off = after[i] - before[i] - mean;
        square += off * off;
    }
    p->noise = count < 2 ? 0 : sqrt(square / (double)(count - 1) / (double)count);
    return HY_OK;
}

/* Predictor line: the guard chooses the length of the jump, the best of three that improves by
 * more than its noise; without such an improvement there is no jump. */
static hy_status judge_line(hy_trainer *t, proposal *p, const double *before, double *after) {
    static const double scales[] = {0.25, 0.5, 1}; /* 1: max_steps */
    proposal best = *p;
    double gain = 0;
    best.verdict = HY_REJECTED;
    best.after = INFINITY;
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        proposal trial = *p;
        trial.scale = scales[i];
        trial.predicted_steps = scales[i] * p->predicted_steps;
        HY_TRY(try_candidate(t, &trial, before, after));
        double won = trial.before - trial.after;
        bool is_better = isfinite(won) && won > trial.noise && won > gain;
        bool is_nearest = gain == 0 && !(trial.after >= best.after); /* for the report */
        if (is_better) gain = won;
        if (is_better || is_nearest) best = trial;
        best.verdict = gain > 0 ? HY_ACCEPTED : HY_REJECTED;
    }
    *p = best;
    t->progress->jumps.streak = p->verdict == HY_ACCEPTED ? t->progress->jumps.streak + 1 : 0;
    if (t->progress->jumps.streak == LINE_STREAK) {
        hy_say(t, HY_WARNING,
               "jumps along a line are accepted again and again: the learning rate is probably too "
               "low");
    }
    return HY_OK;
}

/* ---- keeping or dropping --------------------------------------------------------------------- */

static hy_status take_snapshot(hy_trainer *t) {
    return hy_engine_copy_weights(t->engine, HY_ROW_SNAPSHOT, true);
}

/* A jump that fails half-way is undone if the old weights are kept; otherwise the run cannot
 * continue. */
static hy_status accept(hy_trainer *t, proposal *p) {
    hy_formulas jump =
        hy_predictor_accept(&t->engine->plan->predictor, t->progress->machine.window, p->scale);
    t->status.life = HY_LIFE_CHANGING;
    hy_status status = hy_engine_apply(t->engine, &jump);
    if (status == HY_ERR_MEMORY && hy_has_row(t->engine, HY_ROW_SNAPSHOT) && !t->team) {
        hy_trainer_defer_error(t, status);
        HY_TRY(hy_trainer_roll_back(t));
        p->verdict = HY_REJECTED;
        status = HY_OK;
    }
    if (status == HY_OK) t->status.life = HY_LIFE_READY;
    return status;
}

/* Accepted: keeps the old weights in the snapshot and writes the new ones. Rejected: a new window
 * begins at the current weights. */
static hy_status commit(hy_trainer *t, proposal *p) {
    if (p->verdict != HY_ACCEPTED) return hy_trainer_retry(t, hy_trainer_set_slow_weights);
    if (hy_has_row(t->engine, HY_ROW_SNAPSHOT)) {
        HY_TRY(hy_trainer_retry(t, take_snapshot));
        t->engine->progress.has_snapshot = true;
    }
    HY_TRY(accept(t, p));
    if (p->verdict != HY_ACCEPTED) return HY_OK;
    hy_guard_remember(&t->progress->guard, p->after - p->before);
    t->progress->jumps.steps += p->predicted_steps;
    return HY_OK;
}

/* Proposes a jump and lets the guard test it. Writes no weights of the run; decide() restores the
 * counters. So it can be repeated, and a provider may stop the run in it. */
static hy_status test_proposal(hy_trainer *t, proposal *p) {
    /* First, so that its memory is free when passes begin. */
    HY_TRY(hy_engine_begin_offload(t->engine));
    HY_TRY(hy_engine_enter_phase(t->engine, &hy_phase_table[HY_PREDICT]));
    HY_TRY(hy_trainer_measure_residual(t));
    /* The state starts to return memory.lookahead batches before the last forward-only batch of
     * this step. If validation borrows the state's memory, the state returns at the end of
     * Predict. */
    hy_provider *provider = t->provider;
    bool is_line = t->engine->plan->predictor.kind == HY_PREDICTOR_LINE;
    int64_t batches =
        (is_line ? 4 : 2) * provider->ops->batches(provider, t, HY_TRAIN, guard_sequences(t));
    if (t->schedule->is_validation_due) {
        batches += provider->ops->batches(provider, t, HY_VAL, hy_trainer_held_out(t, false).count);
        batches += provider->ops->batches(provider, t, HY_VAL, hy_trainer_row_sequences(t));
    }
    bool is_lent = hy_plan_offload_in(t->engine->plan, &hy_phase_table[HY_EVALUATE]);
    t->engine->state->offload.batches_left = is_lent ? 0 : batches;
    HY_TRY(measure_jump(t, p));
    double *before = t->engine->work->guard_losses, *after = before + guard_sequences(t);
    HY_TRY(guard_pass(t, false, before, &p->before));
    if (is_line) return judge_line(t, p, before, after);
    HY_TRY(try_candidate(t, p, before, after));
    p->verdict = hy_guard_judge(&t->progress->guard, p->before, p->after, p->noise);
    return HY_OK;
}

/* Tests the proposal, again with less memory if it ran out, and applies the result. */
static hy_status decide(hy_trainer *t, proposal *p) {
    hy_progress before = *t->progress;
    hy_engine_progress engine = t->engine->progress;
    hy_status status;
    while ((status = test_proposal(t, p)) != HY_OK) {
        bool is_measured = before.jumps.is_residual_due && !t->progress->jumps.is_residual_due;
        *t->progress = before;
        t->engine->progress = engine;
        if (is_measured) { /* only once: showing the proposal may have overwritten the snapshot */
            t->progress->jumps.is_residual_due = false;
            t->engine->progress.has_snapshot = false;
        }
        *p = (proposal){0};
        HY_TRY(hy_trainer_prepare_retry(t, status));
    }
    HY_TRY(hy_offload_wait_away(t->engine->state)); /* the passes have overlapped this copy */
    return commit(t, p);
}

/* A due validation, in the memory of Predict. If it is interrupted, the run ends after this step,
 * because the jump is already decided; other errors are returned at once. */
static hy_status validate_here(hy_trainer *t) {
    double loss;
    bool is_due = t->schedule->is_validation_due && hy_trainer_can_validate(t);
    if (!is_due || t->schedule->is_in_fork) return HY_OK;
    hy_status status = hy_trainer_validate(t, &loss);
    hy_trainer_note_validation(t, status);
    if (!t->schedule->is_validation_cut) return status;
    hy_trainer_defer_error(t, status);
    return HY_OK;
}

static hy_status end_predict(hy_trainer *t) {
    t->engine->state->offload.batches_left = 0;
    HY_TRY(t->engine->device.backend->stream_sync(t->engine->device.compute));
    HY_TRY(hy_engine_return_rings(t->engine)); /* this waiting counts for Predict */
    return hy_offload_return(t->engine->state);
}

hy_status hy_trainer_run_predict(hy_trainer *t, hy_step_info *info) {
    hy_account account;
    hy_phase_state was = t->progress->machine;
    proposal p = {0};
    t->progress->jumps.residual_cosine = t->progress->jumps.residual_length = NAN;
    hy_account_open(t, &account);
    HY_TRY(decide(t, &p));
    HY_TRY(validate_here(t));
    HY_TRY(hy_trainer_retry(t, end_predict));
    bool is_accepted = p.verdict == HY_ACCEPTED;
    if (!is_accepted && !t->schedule->is_in_fork) {
        hy_say(t, HY_NOTE,
               "step %lld: a jump of %.1f predicted steps was rejected: the loss would go "
               "from %.4f to %.4f",
               (long long)t->progress->step, p.predicted_steps, p.before, p.after);
    }
    HY_TRY(hy_trainer_choose_phase(t, NAN, NAN, p.verdict));
    t->progress->phases.steps[HY_PREDICT]++;
    hy_account_close(t, &account);
    hy_trainer_describe(t, &was, &account, info);
    info->loss = is_accepted ? p.after : p.before;
    info->predicted_steps = is_accepted ? p.predicted_steps : 0;
    info->was_rejected = !is_accepted;
    t->progress->jumps.is_residual_due = is_accepted;
    return hy_trainer_deferred_error(t);
}
